# make demo     see it work: a private PostgreSQL, real data, writers, and the lake they end in
# make test     everything CI runs
# make chaos    kill it again and again under load and compare (SEED, KILLS, MINUTES, LAKE)
# make crossing fail at every named point in every phase; `make test` takes a sample
# make bench    measure it against PostgreSQL's own tools (bench-quick: in a few minutes)
# make dist     pack a release: archive, Debian package, SBOM, checksums
# make setup    what the tests need, into the cache folder
#
# Downloads go to one cache folder (scripts/fetching.py says where; TIDEGATE_CACHE moves it).

.DEFAULT_GOAL := help

CARGO ?= cargo
PYTHON ?= python3
# TESTS='--test server' runs some of them; TESTARGS are the test binaries' own.
TESTS ?=
TESTARGS ?=
# Further arguments of the demo.
DEMO ?=

# A program that judges terraform/ without a registry of providers, where one is given; without it
# Terraform fetches the providers.
TIDEGATE_TERRAFORM_CHECK ?= $(firstword $(wildcard ../*/tools/terraform-*/check))
export TIDEGATE_TERRAFORM_CHECK

.PHONY: help demo test chaos crossing bench bench-quick setup lint build dist check-deploy clean-cache

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

# The server is found before the build: what is missing shows at once. The demo's build is the quick
# one; `cargo install --path .` makes the one for work, with all optimisations.
demo:
	@flights=$$($(PYTHON) scripts/bring-flights) && \
	bin=$$($(PYTHON) scripts/bring-postgres) && \
	echo "== build" && \
	$(CARGO) build --locked && \
	TIDEGATE_PG_BIN="$$bin" "$${CARGO_TARGET_DIR:-target}/debug/tidegate" demo \
		--data "$$flights" $(DEMO)

setup:
	@echo "== set-up: PostgreSQL 13 to 18, readers, linters, an S3 server"
	@$(PYTHON) scripts/bring-postgres --all >/dev/null
	@$(PYTHON) scripts/setup-python >/dev/null
	@$(PYTHON) scripts/setup-deploy >/dev/null
	@$(PYTHON) scripts/bring-seaweedfs >/dev/null

# The test build itself goes through clippy's driver, so that the dependencies are compiled once;
# `cargo clippy` would compile them a second time. Cargo.toml's [lints] make every finding an error.
# What is released has no failpoints: so the program is built without them too. As a test it shares
# the dependencies (`cargo build` has some with other features), and nothing is run.
CLIPPY = RUSTC_WORKSPACE_WRAPPER="$$(rustc --print sysroot)/bin/clippy-driver"

lint:
	@echo "== format"
	@$(CARGO) fmt --check
	@echo "== build, with clippy's lints"
	@$(CLIPPY) $(CARGO) test --no-run --locked --bin tidegate
	@$(CLIPPY) $(CARGO) test --no-run --locked --features failpoints

# What needs no build comes first: it shows at once. The crates of every platform are fetched, as the
# judge of licences resolves them all.
check-deploy:
	@echo "== terraform, units, packaging"
	@$(CARGO) fetch --quiet --locked
	@$(PYTHON) scripts/check-deploy
	@$(PYTHON) -m unittest discover -s tests/deploy

test: setup check-deploy lint
	@echo "== tests"
	@$(CLIPPY) $(CARGO) test --locked --features failpoints $(TESTS) -- $(TESTARGS)

# One seed. `make chaos SEED=3 KILLS=200 MINUTES=30 LAKE=local`; a seed that failed is printed with
# the line that runs it again.
chaos: setup
	@CHAOS_SEED="$(SEED)" CHAOS_KILLS="$(KILLS)" CHAOS_MINUTES="$(MINUTES)" CHAOS_LAKE="$(LAKE)" \
		$(CLIPPY) $(CARGO) test --locked --features failpoints --test chaos -- \
		--ignored --nocapture a_full_chaos

crossing: setup
	@TIDEGATE_CROSSING=full $(CLIPPY) $(CARGO) test --locked --features failpoints \
		--test failpoints -- --nocapture

bench:
	@$(CARGO) build --release --locked
	@bench/run --full

bench-quick:
	@$(CARGO) build --release --locked
	@bench/run --quick

dist:
	@$(CARGO) build --release --locked
	@$(PYTHON) scripts/dist

clean-cache:
	@$(PYTHON) scripts/clean-cache
