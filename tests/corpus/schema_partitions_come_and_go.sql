-- A partition made new brings its rows in the stream; one attached with rows brings none of them;
-- one that is detached, dropped or truncated takes its rows along and says nothing.
-- step
CREATE TABLE p(id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30);
CREATE TABLE p4 PARTITION OF p FOR VALUES FROM (30) TO (40);
CREATE TABLE q(id int NOT NULL, v text);
INSERT INTO p VALUES (1, 'a'), (11, 'b'), (21, 'c'), (31, 'd');
INSERT INTO q VALUES (41, 'attached'), (42, 'attached');
ALTER TABLE q REPLICA IDENTITY FULL;
-- step
CREATE TABLE p6 PARTITION OF p FOR VALUES FROM (50) TO (60);
-- then
INSERT INTO p VALUES (51, 'new'), (2, 'new');
-- step
ALTER TABLE q ADD PRIMARY KEY (id); ALTER TABLE q REPLICA IDENTITY DEFAULT;
-- then
ALTER TABLE p ATTACH PARTITION q FOR VALUES FROM (40) TO (50);
-- then
UPDATE p SET v = 'changed' WHERE id = 42;
-- step
ALTER TABLE p DETACH PARTITION p2;
-- then
DROP TABLE p3;
-- step
TRUNCATE p4;
-- then
INSERT INTO p VALUES (32, 'after');
-- rows p: id, v
1|a
2|new
32|after
41|attached
42|changed
51|new
