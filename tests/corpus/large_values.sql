-- Values of many megabytes, in and out of line.
-- step
CREATE TABLE t(id int PRIMARY KEY, x text, b bytea, n int DEFAULT 0);
INSERT INTO t VALUES (1, repeat('é', 4000000), decode(repeat('00ff', 2000000), 'hex'));
-- step
INSERT INTO t VALUES (2, repeat(md5('x'), 300000), NULL);
-- then
UPDATE t SET n = 1;
-- rows t: id, length(x), length(b), n
1|4000000|4000000|1
2|9600000|\N|1
