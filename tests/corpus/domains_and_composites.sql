-- Domains over domains, over composites, over arrays; composites that nest.
-- step
CREATE DOMAIN price AS numeric(10,2);
CREATE DOMAIN net AS price CHECK (VALUE <> 0);
CREATE TYPE inner_t AS (n net, t text);
CREATE TYPE outer_t AS (i inner_t, a int[], d date);
CREATE DOMAIN boxed AS outer_t;
CREATE DOMAIN list AS int[];
CREATE TABLE t(id int PRIMARY KEY, n net, o outer_t, b boxed, l list, os outer_t[]);
INSERT INTO t VALUES (1, 1.5, ROW(ROW(1.5, 'a "b"'), '{1,2}', 'infinity'), ROW(ROW(NULL, NULL), NULL, NULL), '{1}', ARRAY[ROW(NULL, '{}', NULL)]::outer_t[]), (2, NULL, NULL, NULL, NULL, NULL);
-- step
INSERT INTO t SELECT id + 10, n, o, b, l, os FROM t;
-- then
UPDATE t SET n = 99999999.99, l = '{}' WHERE id = 1;
-- rows t: id, n, l
1|99999999.99|{}
11|1.50|{1}
12|\N|\N
2|\N|\N
