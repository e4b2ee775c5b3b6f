-- A table without a key is a multiset: of three equal rows one is deleted, two stay; NULLs are
-- equal to each other, NaN to NaN, and -0 is told from 0 by its bytes.
-- step
CREATE TABLE t(a int, b text, f float8, j jsonb);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t SELECT 1, 'same', 'NaN', '{"a": 1.0}' FROM generate_series(1, 3);
INSERT INTO t VALUES (NULL, NULL, NULL, NULL), (NULL, NULL, NULL, NULL), (2, '', '-0', '[]'), (2, '', 0.0, '[]');
-- step
DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE a = 1);
-- then
DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE a IS NULL);
-- step
UPDATE t SET b = 'one of the zeros' WHERE ctid = (SELECT max(ctid) FROM t WHERE a = 2 AND f::text = '-0');
-- then
BEGIN; INSERT INTO t VALUES (5, 'x', 1, NULL), (5, 'x', 1, NULL); DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE a = 5); COMMIT;
-- then
UPDATE t SET a = a WHERE a = 1;
-- rows t: a, b, f, j
1|same|NaN|{"a": 1.0}
1|same|NaN|{"a": 1.0}
2||0|[]
2|one of the zeros|-0|[]
5|x|1|\N
\N|\N|\N|\N
