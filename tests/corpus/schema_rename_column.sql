-- A renamed column keeps its values, also in rows that don't change; two that swap names, too.
-- step
CREATE TABLE t(id int PRIMARY KEY, a text);
CREATE TABLE swap(id int PRIMARY KEY, a text, b text);
INSERT INTO t VALUES (1, 'x'), (2, 'y');
INSERT INTO swap VALUES (1, 'a1', 'b1'), (2, 'a2', 'b2');
-- step
ALTER TABLE t RENAME a TO b;
-- then
INSERT INTO t VALUES (3, 'z');
-- then
ALTER TABLE swap RENAME a TO c; ALTER TABLE swap RENAME b TO a; ALTER TABLE swap RENAME c TO b;
-- then
UPDATE swap SET a = 'new' WHERE id = 1;
-- rows t: id, b
1|x
2|y
3|z
-- rows swap: id, a, b
1|new|a1
2|b2|a2
