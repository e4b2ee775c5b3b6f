-- A table that only grows can still be truncated.
-- step
CREATE TABLE t(n int);
ALTER TABLE t REPLICA IDENTITY NOTHING;
INSERT INTO t VALUES (1), (2);
-- step
BEGIN; INSERT INTO t VALUES (3); TRUNCATE t; INSERT INTO t VALUES (4); COMMIT;
-- then
INSERT INTO t VALUES (4);
-- rows t: n
4
4
