-- The replica identity changes to FULL, back, to an index, and to nothing.
-- step
CREATE TABLE t(id int PRIMARY KEY, a text NOT NULL UNIQUE, b text);
CREATE TABLE n(id int PRIMARY KEY, a text);
INSERT INTO t VALUES (1, 'x', 'p'), (2, 'y', 'q'), (3, 'z', 'r');
INSERT INTO n VALUES (1, 'x');
-- step
ALTER TABLE t REPLICA IDENTITY FULL;
-- then
UPDATE t SET b = 'P' WHERE id = 1;
-- then
ALTER TABLE t REPLICA IDENTITY USING INDEX t_a_key;
-- then
UPDATE t SET a = 'Y' WHERE id = 2;
-- step
ALTER TABLE t REPLICA IDENTITY DEFAULT;
-- then
DELETE FROM t WHERE id = 3;
-- then
ALTER TABLE n REPLICA IDENTITY NOTHING;
-- then
INSERT INTO n VALUES (2, 'y');
-- rows t: id, a, b
1|x|P
2|Y|q
-- rows n: id, a
1|x
2|y
