-- Two keys swapped through a third value, in one transaction: each change looks like a key that is
-- taken, if they are not followed one by one (estuary/connectors#2185).
-- step
CREATE TABLE t(id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, 'three');
-- step
BEGIN;
UPDATE t SET id = -1 WHERE id = 1;
UPDATE t SET id = 1 WHERE id = 2;
UPDATE t SET id = 2 WHERE id = -1;
COMMIT;
-- step
BEGIN;
UPDATE t SET id = 30 WHERE id = 3;
INSERT INTO t VALUES (3, 'new three');
UPDATE t SET id = 31 WHERE id = 30;
COMMIT;
-- rows t: id, v
1|two
2|one
3|new three
31|three
