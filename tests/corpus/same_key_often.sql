-- One key changed fifty times in a transaction and again over several: the last one counts, and it
-- is told by its place in the stream, not by a time (airbyte#19801).
-- step
CREATE TABLE t(id int PRIMARY KEY, n int);
INSERT INTO t VALUES (1, 0), (2, 0);
-- step
DO $$ BEGIN FOR i IN 1..50 LOOP UPDATE t SET n = i WHERE id = 1; END LOOP; END $$;
-- then
BEGIN; UPDATE t SET n = 100 WHERE id = 2; UPDATE t SET n = 99 WHERE id = 2; COMMIT;
-- then
UPDATE t SET n = n + 1 WHERE id = 2;
-- step
UPDATE t SET n = n + 1;
-- rows t: id, n
1|51
2|101
