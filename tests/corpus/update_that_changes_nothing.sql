-- An UPDATE that sets what is there is a change like any other to the stream, also to a value that
-- is stored out of line.
-- step
CREATE TABLE t(id int PRIMARY KEY, v text, big text);
ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
INSERT INTO t VALUES (1, NULL, repeat('x', 9000)), (2, '', NULL);
-- step
UPDATE t SET v = v;
-- then
UPDATE t SET id = id;
-- step
UPDATE t SET big = big, v = v;
-- rows t: id, v, length(big)
1|\N|9000
2||\N
