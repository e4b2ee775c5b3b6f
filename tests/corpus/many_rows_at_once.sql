-- Rows of one statement are written to the log several at a time.
-- step
CREATE TABLE t(id int PRIMARY KEY, v text);
INSERT INTO t SELECT i, 'start' FROM generate_series(1, 500) i;
-- step
INSERT INTO t SELECT i, 'many' FROM generate_series(501, 3000) i;
-- then
UPDATE t SET v = 'changed' WHERE id % 3 = 0;
-- then
DELETE FROM t WHERE id % 2 = 0;
-- rows t: count(*), sum(id), count(*) FILTER (WHERE v = 'changed')
1500|2250000|500
