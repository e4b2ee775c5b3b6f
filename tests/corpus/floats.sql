-- Signed zeros, the smallest, the largest, and what two programs round differently.
-- step
CREATE TABLE t(id int PRIMARY KEY, f float8, g float4);
INSERT INTO t VALUES (1, '-0', '-0'), (2, 'NaN', 'NaN'), (3, 'Infinity', '-Infinity'), (4, 5e-324, 1e-45), (5, 1.7976931348623157e308, 3.4028235e38), (6, 1e23, 16777216), (7, 0.1, 0.1);
-- step
INSERT INTO t SELECT id + 10, f, g FROM t;
-- then
UPDATE t SET f = 9007199254740993, g = 1e10 WHERE id = 1;
-- rows t: id, f, g
11|-0|-0
12|NaN|NaN
13|Infinity|-Infinity
14|5e-324|1e-45
15|1.7976931348623157e+308|3.4028235e+38
16|9.999999999999999e+22|1.6777216e+07
17|0.1|0.1
1|9.007199254740992e+15|1e+10
2|NaN|NaN
3|Infinity|-Infinity
4|5e-324|1e-45
5|1.7976931348623157e+308|3.4028235e+38
6|9.999999999999999e+22|1.6777216e+07
7|0.1|0.1
