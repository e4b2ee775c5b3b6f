-- Columns are added to and dropped from a partitioned table whose partitions number theirs otherwise.
-- step
CREATE TABLE p(id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1(x int, id int NOT NULL, v text);
ALTER TABLE p1 DROP x;
ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
INSERT INTO p VALUES (1, 'a'), (11, 'b');
-- step
ALTER TABLE p ADD w int;
-- then
INSERT INTO p VALUES (2, 'c', 2), (12, 'd', 12);
-- step
ALTER TABLE p DROP v;
-- then
UPDATE p SET w = 1 WHERE id = 1;
-- step
ALTER TABLE p ADD z text DEFAULT 'zz';
-- then
INSERT INTO p VALUES (3, 3);
-- rows p: id, w, z
1|1|zz
11|\N|zz
12|12|zz
2|2|zz
3|3|zz
