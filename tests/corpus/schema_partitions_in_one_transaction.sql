-- Partition managers make a table, fill it and attach it in one transaction: its rows come in no stream,
-- and by their transactions table and partition are equally old. A partition may be taken off, changed and
-- attached again, too; and what is made as a partition brings its rows in the stream, however soon.
-- step
CREATE TABLE p(id int, k int NOT NULL, v text DEFAULT 'd', PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2);
CREATE TABLE n(id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE n1 PARTITION OF n FOR VALUES FROM (0) TO (10);
INSERT INTO p VALUES (1, 1), (2, 2);
INSERT INTO n VALUES (1);
-- step
BEGIN; CREATE TABLE p3 (LIKE p INCLUDING ALL); INSERT INTO p3 VALUES (3, 3, 'before'); ALTER TABLE p ATTACH PARTITION p3 FOR VALUES IN (3); COMMIT;
-- then
INSERT INTO p VALUES (33, 3, 'after');
-- step
BEGIN; CREATE TABLE p4 PARTITION OF p FOR VALUES IN (4); INSERT INTO p VALUES (4, 4, 'streamed'); COMMIT;
-- then
BEGIN; CREATE TABLE n2 AS SELECT 12 AS id; ALTER TABLE n2 ADD PRIMARY KEY (id); ALTER TABLE n ATTACH PARTITION n2 FOR VALUES FROM (10) TO (20); COMMIT;
-- step
BEGIN; SAVEPOINT a; CREATE TABLE p5 (LIKE p INCLUDING ALL); SAVEPOINT b; INSERT INTO p5 VALUES (5, 5, 'in a savepoint'); RELEASE b; ALTER TABLE p ATTACH PARTITION p5 FOR VALUES IN (5); RELEASE a; COMMIT;
-- step
BEGIN; ALTER TABLE p DETACH PARTITION p2; INSERT INTO p2 VALUES (22, 2, 'while it was apart'); DELETE FROM p2 WHERE id = 2; ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2); COMMIT;
-- step
BEGIN; CREATE TABLE s (LIKE p INCLUDING ALL) PARTITION BY LIST (k); CREATE TABLE s6 PARTITION OF s FOR VALUES IN (6); INSERT INTO s VALUES (6, 6, 'two levels'); ALTER TABLE p ATTACH PARTITION s FOR VALUES IN (6, 7); COMMIT;
-- then
CREATE TABLE s7 PARTITION OF s FOR VALUES IN (7);
-- then
INSERT INTO p VALUES (7, 7, 'below it');
-- step
ALTER TABLE p ADD COLUMN w int; BEGIN; CREATE TABLE p8 (LIKE p INCLUDING ALL); INSERT INTO p8 VALUES (8, 8, 'with a column', 8); ALTER TABLE p ATTACH PARTITION p8 FOR VALUES IN (8); COMMIT;
-- then
INSERT INTO p VALUES (9, 1, 'later', 9);
-- rows n: id
1
12
-- rows p: id, k, v, w
1|1|d|\N
22|2|while it was apart|\N
3|3|before|\N
33|3|after|\N
4|4|streamed|\N
5|5|in a savepoint|\N
6|6|two levels|\N
7|7|below it|\N
8|8|with a column|8
9|1|later|9
