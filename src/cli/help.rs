//! What `--help` says below the options: examples, and what is not to be guessed.

pub(super) const MAIN_HELP: &str = "\
Examples:
  tidegate demo
      See it work: a private PostgreSQL, writers, a handoff, a live stream, an exact comparison.

  tidegate check --source postgres://me@db/shop --lake /data/lake --tables 'public.*'
      What stands in the way, and the SQL that mends it.

  tidegate run --source postgres://me@db/shop --lake /data/lake --tables 'public.*'
      Snapshot, handoff, then every committed change, until stopped. Run it again to go on.

Configuration:
  Flags win over environment variables, and those over tidegate.toml in the working folder (or the
  file named by --config or TIDEGATE_CONFIG). TIDEGATE_SOURCE, TIDEGATE_LAKE, TIDEGATE_TABLES,
  TIDEGATE_NAME and TIDEGATE_STATE_DIR stand for the flags of that name. A password need not be in
  the URL: .pgpass, PGPASSWORD, and `password_file` under [source] work.

Exit codes:
  0 done   1 failed   2 usage or configuration   3 source or lake is not ready
  4 another writer took over   5 history lost, a new generation is needed   6 verify: not equal";

pub(super) const RUN_HELP: &str = "\
Examples:
  tidegate run --source postgres://me@db/shop --lake s3://b/lake --tables 'public.*,shop.orders'
      Follow the database until stopped. The first run takes the snapshot; SIGINT or SIGTERM stops
      after the current step; the next run goes on where this one stopped.

  tidegate run --until-caught-up
      End once everything that had committed when the command started is in the lake.

  tidegate run --until-lsn 16/B374D848
      End once everything that committed before that position is in the lake.

The publication and the slot have the pipeline's name. They are made if they are missing; a
publication that exists is used as it is.";

pub(super) const CHECK_HELP: &str = "\
Examples:
  tidegate check --source postgres://me@db/shop --lake /data/lake --tables 'public.*'
  tidegate check --json | jq '.findings'

Changes nothing. Exits 0 when `run` can start, 3 when something stands in its way.";

pub(super) const STATUS_HELP: &str = "\
Examples:
  tidegate status
  tidegate status --json | jq .slot.retained_bytes

Works with and without a running pipeline: it reads the lake, and asks the source about the slot.";

pub(super) const VERSIONS_HELP: &str = "\
Examples:
  tidegate versions public.orders
  tidegate versions public.orders --kind handoff --json
  tidegate versions public.orders --since 2025-03-07T00:00:00Z --last 20
  tidegate versions --at 2025-03-07T18:00:00Z
      The version of every table at one fence: what the lake showed on Friday at six.

A version shows everything that had committed before its position `applied`.";

pub(super) const VERIFY_HELP: &str = "\
Examples:
  tidegate verify
      Every table of the pipeline.
  tidegate verify public.orders --json

Compares every column of every row with the database, at one position, without trusting any digest
the pipeline made. Stop the pipeline first. Exits 0 when equal, 6 when not.";

pub(super) const VIEWS_HELP: &str = "\
Examples:
  tidegate views duckdb | duckdb shop.duckdb
  tidegate views spark --at 2025-03-07T18:00:00Z > friday.sql
  tidegate views polars > tables.py

Prints SQL that makes one view per table, or Python code that opens each, all at the same fence: a
consistent cut.";

pub(super) const DIFF_HELP: &str = "\
Examples:
  tidegate diff public.orders --from 12 --to 40
  tidegate diff public.orders --from 2025-03-07T18:00:00Z --format csv > since-friday.csv
  tidegate diff public.orders --from end-of-quarter --to 16/B374D848 --format parquet --output rows.parquet
  tidegate diff public.orders --from 12 --summary

Each row says in _change_type what became of it: insert, delete, or update_preimage followed by
update_postimage. Only files and vectors that differ are read; memory is bounded. Needs no source.";

pub(super) const MAINTAIN_HELP: &str = "\
Examples:
  tidegate maintain --dry-run
  tidegate maintain public.orders --source postgres://me@db/shop --lake /data/lake

Removes versions that are older than the retention, with the files and log entries that only they
need, also while the pipeline runs. Merges small files, and writes files with many masked rows
again; for that it holds the pipeline's slot, so a running pipeline does it itself instead, and
without a source it is not done.";

pub(super) const PIN_HELP: &str = "\
Examples:
  tidegate pin friday
      What all tables show now.
  tidegate pin before-import --at 16/B374D848
  tidegate pin friday-18h --at 2025-03-07T18:00:00Z
  tidegate pin first --at public.orders@0

A pin names one version of every table, all at the same fence. No clean-up removes it before
`tidegate unpin`.";

pub(super) const TEARDOWN_HELP: &str = "\
Drops the replication slot and the publication that `run` made on the source, so that the source no
longer keeps WAL for this pipeline. Asks first. The lake is never touched: its tables stay readable,
but can't be continued; a later `run` needs a new snapshot.

Examples:
  tidegate teardown --source postgres://me@db/shop --lake /data/lake
  tidegate teardown --yes";

pub(super) const DEMO_HELP: &str = "\
Needs PostgreSQL's server programs on this machine (in PATH or where the distribution puts them). The
server is private, on loopback, and gone at the end; the lake stays for you to look at.

Example:
  tidegate demo --dir /tmp/tidegate-demo";
