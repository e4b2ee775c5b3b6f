-- Columns of a partition may stand in another order than the root's: values must not change places.
-- step
CREATE TABLE p(id int, a text, b text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE p1(b text, id int NOT NULL, gone int, a text);
ALTER TABLE p1 DROP COLUMN gone;
ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
INSERT INTO p VALUES (1, 'a1', 'b1'), (11, 'a11', 'b11');
-- step
UPDATE p SET a = 'A1' WHERE id = 1;
-- then
UPDATE p SET id = 12 WHERE id = 1;
-- then
INSERT INTO p VALUES (2, 'a2', 'b2');
-- rows p: id, a, b
11|a11|b11
12|A1|b1
2|a2|b2
