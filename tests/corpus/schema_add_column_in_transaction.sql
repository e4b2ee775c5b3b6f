-- One transaction writes a row, adds a column, and writes another: the row before it lacks the column
-- in the stream, the row after it has it.
-- step
CREATE TABLE t(id int PRIMARY KEY, a text);
CREATE TABLE other(id int PRIMARY KEY);
INSERT INTO t VALUES (1, 'x');
-- step
BEGIN; INSERT INTO t VALUES (2, 'y'); INSERT INTO other VALUES (1); ALTER TABLE t ADD b int; INSERT INTO t VALUES (3, 'z', 30); UPDATE t SET b = 10 WHERE id = 1; COMMIT;
-- then
BEGIN; INSERT INTO other VALUES (2); INSERT INTO t VALUES (4, 'w', 40); COMMIT;
-- rows t: id, a, b
1|x|10
2|y|\N
3|z|30
4|w|40
-- rows other: id
1
2
