# make demo    see it work: a private PostgreSQL, real data, writers, and the lake they end in
# make test    everything CI runs
# make bench   measure it against PostgreSQL's own tools (bench-quick: in a few minutes)
# make setup   what the tests need, into the cache folder
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

.PHONY: help demo test bench bench-quick setup lint build clean-cache

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
	@echo "== set-up: PostgreSQL 13 to 18, readers"
	@$(PYTHON) scripts/bring-postgres --all >/dev/null
	@$(PYTHON) scripts/setup-python >/dev/null

# The test build itself goes through clippy's driver, so that the dependencies are compiled once;
# `cargo clippy` would compile them a second time. Cargo.toml's [lints] make every finding an error.
CLIPPY = RUSTC_WORKSPACE_WRAPPER="$$(rustc --print sysroot)/bin/clippy-driver"

lint:
	@echo "== format"
	@$(CARGO) fmt --check
	@echo "== build, with clippy's lints"
	@$(CLIPPY) $(CARGO) test --no-run --locked --features failpoints

test: setup lint
	@echo "== tests"
	@$(CLIPPY) $(CARGO) test --locked --features failpoints $(TESTS) -- $(TESTARGS)

bench:
	@$(CARGO) build --release --locked
	@bench/run --full

bench-quick:
	@$(CARGO) build --release --locked
	@bench/run --quick

clean-cache:
	@$(PYTHON) scripts/clean-cache
