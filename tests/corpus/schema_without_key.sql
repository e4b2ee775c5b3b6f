-- Columns of a table without a key: its rows are told apart by all of them.
-- step
CREATE TABLE t(a int, b text);
ALTER TABLE t REPLICA IDENTITY FULL;
CREATE TABLE g(a int, b text);
ALTER TABLE g REPLICA IDENTITY NOTHING;
INSERT INTO t VALUES (1, 'x'), (1, 'x'), (2, 'y');
INSERT INTO g VALUES (1, 'x');
-- step
ALTER TABLE t ADD c int;
-- then
DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE a = 1);
-- then
UPDATE t SET c = 2 WHERE a = 2;
-- then
ALTER TABLE g ADD c int;
-- then
INSERT INTO g VALUES (2, 'y', 3);
-- step
ALTER TABLE t DROP b;
-- then
INSERT INTO t VALUES (1, NULL);
-- rows t: a, c
1|\N
1|\N
2|2
-- rows g: a, b, c
1|x|\N
2|y|3
