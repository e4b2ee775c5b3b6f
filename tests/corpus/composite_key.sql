-- A key of several columns whose texts put together are equal: ('a', 'bc') is not ('ab', 'c').
-- step
CREATE TABLE t(a text, b text, c int, v int, PRIMARY KEY (a, b, c));
INSERT INTO t VALUES ('a', 'bc', 1, 1), ('ab', 'c', 1, 2), ('', 'abc', 1, 3), ('abc', '', 1, 4);
-- step
DELETE FROM t WHERE a = 'ab';
-- then
UPDATE t SET v = 30 WHERE a = '';
-- then
UPDATE t SET b = 'x', c = 2 WHERE a = 'abc';
-- rows t: a, b, c, v
a|bc|1|1
abc|x|2|4
|abc|1|30
