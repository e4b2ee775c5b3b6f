-- A volatile default writes every row anew, and sends nothing.
-- step
CREATE TABLE t(id int PRIMARY KEY, a text);
INSERT INTO t SELECT i, 'x' || i FROM generate_series(1, 4) i;
CREATE SEQUENCE numbers START 100;
-- step
ALTER TABLE t ADD c bigint DEFAULT nextval('numbers') NOT NULL;
-- then
DELETE FROM t WHERE id = 4;
-- rows t: id, a, c
1|x1|100
2|x2|101
3|x3|102
