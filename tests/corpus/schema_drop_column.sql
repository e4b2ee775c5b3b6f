-- A dropped column goes from the schema; the rows stay, and old rows go on to change.
-- step
CREATE TABLE t(id int PRIMARY KEY, a text, b text);
INSERT INTO t VALUES (1, 'x', 'p'), (2, 'y', 'q');
-- step
UPDATE t SET a = 'X' WHERE id = 1;
-- then
ALTER TABLE t DROP COLUMN a;
-- then
UPDATE t SET b = 'Q' WHERE id = 2;
-- then
INSERT INTO t VALUES (3, 'r');
-- rows t: id, b
1|p
2|Q
3|r
