-- What a rolled-back savepoint wrote never happened, wherever it stands in the transaction.
-- step
CREATE TABLE t(id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- step
BEGIN;
INSERT INTO t VALUES (2, 'kept');
SAVEPOINT one;
INSERT INTO t VALUES (3, 'gone');
UPDATE t SET v = 'gone' WHERE id IN (1, 2);
SAVEPOINT two;
DELETE FROM t;
ROLLBACK TO one;
UPDATE t SET v = 'b' WHERE id = 1;
SAVEPOINT three;
INSERT INTO t VALUES (4, 'kept too');
RELEASE three;
COMMIT;
-- step
BEGIN; DELETE FROM t; TRUNCATE t; ROLLBACK;
-- then
DO $$ BEGIN
  BEGIN INSERT INTO t VALUES (5, 'x'); RAISE EXCEPTION 'no'; EXCEPTION WHEN OTHERS THEN NULL; END;
  INSERT INTO t VALUES (6, 'y');
END $$;
-- rows t: id, v
1|b
2|kept
4|kept too
6|y
