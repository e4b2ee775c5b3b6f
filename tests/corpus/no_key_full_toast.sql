-- Without a key the whole old row names the row, out-of-line values included.
-- step
CREATE TABLE t(a int, big text);
ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t SELECT i, repeat(i::text, 9000) FROM generate_series(1, 3) i;
-- step
UPDATE t SET a = a + 10 WHERE a < 3;
-- then
UPDATE t SET a = a + 10 WHERE a = 11;
-- then
DELETE FROM t WHERE a = 3;
-- rows t: a, left(big, 2), length(big)
12|22|9000
21|11|9000
