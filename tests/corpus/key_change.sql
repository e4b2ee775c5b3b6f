-- A changed key is one row that moves: the old key must go with it. A tool kept both rows
-- (estuary/connectors#2185).
-- step
CREATE TABLE t(id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- step
UPDATE t SET id = id + 1000 WHERE id = 1;
-- step
BEGIN; INSERT INTO t VALUES (3, 'c'); UPDATE t SET id = 3000, v = 'cc' WHERE id = 3; COMMIT;
-- step
UPDATE t SET id = 1 WHERE id = 1001;
-- rows t: id, v
1|a
2|b
3000|cc
