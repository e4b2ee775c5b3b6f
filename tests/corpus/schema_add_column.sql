-- A new column without a default is NULL in all old rows; rows before it and after it come in one
-- batch. The first rows after the change come by way of different statements.
-- step
CREATE TABLE t(id int PRIMARY KEY, a text);
INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, 'z');
-- step
INSERT INTO t VALUES (4, 'before');
-- then
ALTER TABLE t ADD b int;
-- then
INSERT INTO t VALUES (5, 'after', 50);
-- then
UPDATE t SET b = 10 WHERE id = 1;
-- step
ALTER TABLE t ADD "C d" timestamptz;
-- then
DELETE FROM t WHERE id = 2;
-- rows t: id, a, b, "C d"
1|x|10|\N
3|z|\N|\N
4|before|\N|\N
5|after|50|\N
