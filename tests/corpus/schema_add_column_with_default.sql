-- A constant default gives old rows the value of that time, which no row of the stream has; a later
-- default changes nothing for them (risingwave#23320).
-- step
CREATE TABLE t(id int PRIMARY KEY, a text);
INSERT INTO t VALUES (1, 'x'), (2, 'y');
-- step
ALTER TABLE t ADD c int DEFAULT 1;
-- then
ALTER TABLE t ALTER c SET DEFAULT 2;
-- then
INSERT INTO t(id, a) VALUES (3, 'z');
-- step
UPDATE t SET a = 'changed' WHERE id = 1;
-- rows t: id, a, c
1|changed|1
2|y|1
3|z|2
