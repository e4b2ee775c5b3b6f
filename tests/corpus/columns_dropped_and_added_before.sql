-- Columns dropped before the snapshot leave holes in the row; a column added with a constant default
-- has its old rows' value in the catalog only (risingwave#23320).
-- step
CREATE TABLE t(id int PRIMARY KEY, gone text, a int);
INSERT INTO t VALUES (1, 'x', 1), (2, 'y', 2);
ALTER TABLE t DROP COLUMN gone;
ALTER TABLE t ADD c int DEFAULT 1;
ALTER TABLE t ALTER c SET DEFAULT 2;
INSERT INTO t(id, a) VALUES (3, 3);
-- step
UPDATE t SET a = 10 WHERE id = 1;
-- then
INSERT INTO t(id) VALUES (4);
-- rows t: id, a, c
1|10|1
2|2|1
3|3|2
4|\N|2
