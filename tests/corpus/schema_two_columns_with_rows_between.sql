-- When the first new column comes by, the catalog has the second one already.
-- step
CREATE TABLE t(id int PRIMARY KEY);
INSERT INTO t VALUES (1);
-- step
ALTER TABLE t ADD a int;
-- then
INSERT INTO t VALUES (2, 20);
-- then
ALTER TABLE t ADD b text;
-- then
INSERT INTO t VALUES (3, 30, 'c');
-- then
ALTER TABLE t DROP a;
-- then
INSERT INTO t VALUES (4, 'd');
-- rows t: id, b
1|\N
2|\N
3|c
4|d
