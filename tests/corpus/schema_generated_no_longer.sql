-- A stored generated column is not in the lake; once it is a plain one, rows that were there have the
-- values it was given, and no row of the stream brings them.
-- step
CREATE TABLE t(id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED);
INSERT INTO t(id, a) VALUES (1, 10), (2, 20);
-- step
ALTER TABLE t ALTER g DROP EXPRESSION;
-- then
INSERT INTO t VALUES (3, 30, 5);
-- then
UPDATE t SET a = 11 WHERE id = 1;
-- rows t: id, a, g
1|11|20
2|20|40
3|30|5
