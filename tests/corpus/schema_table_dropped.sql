-- A dropped table stops no other one.
-- step
CREATE TABLE t(id int PRIMARY KEY);
CREATE TABLE gone(id int PRIMARY KEY);
INSERT INTO t VALUES (1);
INSERT INTO gone VALUES (1);
-- step
INSERT INTO gone VALUES (2);
-- then
DROP TABLE gone;
-- then
INSERT INTO t VALUES (2);
-- step
INSERT INTO t VALUES (3);
-- rows t: id
1
2
3
