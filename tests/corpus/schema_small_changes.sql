-- Changes that no row shows: NOT NULL set and dropped, a default, a check, statistics, storage, an
-- enum's value, a domain's check; VACUUM FULL and CLUSTER move every row and change none.
-- step
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TABLE t(id int PRIMARY KEY, m mood, p positive, a text);
INSERT INTO t VALUES (1, 'sad', 1, 'x'), (2, 'ok', 2, 'y');
-- step
ALTER TABLE t ALTER a SET NOT NULL, ALTER a SET DEFAULT 'd', ALTER a SET STATISTICS 50, ALTER a SET STORAGE EXTERNAL;
-- then
ALTER TYPE mood ADD VALUE 'happy';
-- then
INSERT INTO t(id, m, p) VALUES (3, 'happy', 3);
-- step
ALTER TABLE t ALTER a DROP NOT NULL;
-- then
ALTER DOMAIN positive DROP CONSTRAINT positive_check;
-- then
UPDATE t SET a = NULL, p = -1 WHERE id = 1;
-- then
VACUUM FULL t
-- then
CLUSTER t USING t_pkey
-- then
UPDATE t SET a = 'Y' WHERE id = 2;
-- rows t: id, m, p, a
1|sad|-1|\N
2|ok|2|Y
3|happy|3|d
