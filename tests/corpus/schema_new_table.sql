-- A table that comes while the pipeline runs, one made from a query, and rows written to them before
-- and after they are seen.
-- step
CREATE TABLE t(id int PRIMARY KEY);
INSERT INTO t VALUES (1);
-- step
CREATE TABLE fresh(id int PRIMARY KEY, v text);
INSERT INTO fresh VALUES (1, 'a'), (2, 'b');
CREATE TABLE made AS SELECT i AS id, 'v' || i AS v FROM generate_series(1, 3) i;
ALTER TABLE made ADD PRIMARY KEY (id);
-- step
UPDATE fresh SET v = 'A' WHERE id = 1;
-- then
DELETE FROM made WHERE id = 2;
-- then
INSERT INTO t VALUES (2);
-- rows t: id
1
2
-- rows fresh: id, v
1|A
2|b
-- rows made: id, v
1|v1
3|v3
