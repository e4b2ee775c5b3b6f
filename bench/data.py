"""The tables that are measured, and the updates that are drained."""

# pgbench's accounts as `pgbench -i` makes them: narrow columns and 84 blanks.
ACCOUNTS = """
CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
INSERT INTO accounts SELECT i, 1 + i / 100000, 0, '' FROM generate_series(1, {rows}) i;
"""

# One of each kind of column that applications have.
WIDE = """
CREATE TABLE wide (
    id bigint PRIMARY KEY, ref uuid NOT NULL, title text NOT NULL, payload jsonb NOT NULL,
    amount numeric(18,4) NOT NULL, created_at timestamptz NOT NULL, day date NOT NULL,
    score double precision NOT NULL, active bool NOT NULL, tags int[] NOT NULL, note text);
INSERT INTO wide SELECT
    i, md5(i::text)::uuid, 'title of row ' || i || ' ' || md5((i * 7)::text),
    jsonb_build_object('kind', i % 17, 'name', md5((i * 3)::text), 'flags',
                       jsonb_build_array(i % 2 = 0, i % 3 = 0), 'at', i * 1000),
    (i * 7919 % 100000000)::numeric / 10000, '2020-01-01+00'::timestamptz + i * interval '13 s',
    '2020-01-01'::date + (i % 3000)::int, sqrt(i), i % 3 = 0, ARRAY[i % 10, i % 100, i % 1000]::int[],
    CASE WHEN i % 4 > 0 THEN md5((i * 11)::text) END
FROM generate_series(1, {rows}::bigint) i;
"""

# Single-row updates by key, 20 in a transaction, spread over the whole table.
UPDATES = """
DO $$ DECLARE k int; BEGIN
    FOR t IN 1..{transactions} LOOP
        FOR u IN 1..20 LOOP
            -- In a variable: an index is not searched for a volatile expression.
            k := 1 + (random() * ({rows} - 1))::int;
            UPDATE accounts SET abalance = abalance + u WHERE aid = k;
        END LOOP;
        COMMIT;
    END LOOP;
END $$
"""

# A transaction that no memory holds.
LARGE = "CREATE TABLE large (id bigint PRIMARY KEY, v int, note text)"
LARGE_INSERT = "INSERT INTO large SELECT i, i % 1000, 'row ' || i FROM generate_series(1, {rows}) i"


def make(server, sizes):
    for name, script in (("accounts", ACCOUNTS), ("wide", WIDE)):
        if sizes[name]:
            server.sql(script.format(rows=sizes[name]))
            server.sql(f"VACUUM (FREEZE, ANALYZE) {name}")
    server.sql("CHECKPOINT")


def update(server, sizes):
    server.sql(UPDATES.format(transactions=sizes["updates"] // 20, rows=sizes["accounts"]))


def insert_large(server, sizes):
    """One transaction of so many rows, after one as large that was rolled back."""
    insert = LARGE_INSERT.format(rows=sizes["large"])
    server.sql(f"BEGIN; {insert}; ROLLBACK")
    server.sql("VACUUM large")
    server.sql(insert)


def halves(server, table):
    """Two COPY statements that together copy the table: ranges of pages, as Tidegate's chunks."""
    pages = int(server.sql(f"SELECT pg_relation_size('{table}') / 8192"))
    middle = f"'({pages // 2},0)'::tid"
    return [f"COPY (SELECT * FROM {table} WHERE ctid {side} {middle}) TO STDOUT (FORMAT binary)"
            for side in ("<", ">=")]
