-- Rows that come and go within a transaction, and keys that come back: nothing may stay of the
-- first, nothing may be lost of the last.
-- step
CREATE TABLE t(id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
-- step
BEGIN; INSERT INTO t VALUES (3, 'gone'); DELETE FROM t WHERE id = 3; COMMIT;
-- then
BEGIN; DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1, 'again'); COMMIT;
-- step
DELETE FROM t WHERE id = 1;
-- then
INSERT INTO t VALUES (1, 'third');
-- then
BEGIN; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (2, 'x'); DELETE FROM t WHERE id = 2; COMMIT;
-- rows t: id, v
1|third
