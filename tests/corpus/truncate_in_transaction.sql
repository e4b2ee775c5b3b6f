-- A TRUNCATE in the middle of a transaction: what came before it goes, what came after it stays
-- (streambed#2, etl#99, clickhouse-sink-connector#1382).
-- step
CREATE TABLE t(id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'old');
-- step
BEGIN; INSERT INTO t VALUES (2, 'a'); TRUNCATE t; INSERT INTO t VALUES (3, 'b'); COMMIT;
-- then
INSERT INTO t VALUES (1, 'new');
-- step
TRUNCATE t;
-- then
INSERT INTO t VALUES (4, 'c'), (1, 'c');
-- then
BEGIN; UPDATE t SET v = 'd' WHERE id = 1; TRUNCATE t; INSERT INTO t VALUES (1, 'e'); UPDATE t SET v = 'f' WHERE id = 1; COMMIT;
-- rows t: id, v
1|f
