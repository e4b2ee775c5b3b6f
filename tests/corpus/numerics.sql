-- Bare numerics lose digits or stop a program (datafusion-table-providers#720, smart-data-lake#923;
-- 1e40 made one panic); NaN where the lake has a decimal.
-- step
CREATE TABLE t(id int PRIMARY KEY, n numeric, m numeric(38,38), w numeric(50,2), s numeric(5,2), z numeric(10,0));
INSERT INTO t VALUES (1, 20, 0.1, 20, 1.1, 5), (2, 17.685, -0.00000000000000000000000000000000000001, 123456789012345678901234567890123456789012345678.99, 'NaN', 'NaN'), (3, 'NaN', 'NaN', 'NaN', NULL, -1), (4, 1e40, 0, -1, 999.99, 9999999999);
-- step
INSERT INTO t SELECT id + 10, n, m, w, s, z FROM t;
-- then
UPDATE t SET n = 1e131071 WHERE id = 1;
-- then
UPDATE t SET n = 0.000, s = 0 WHERE id = 2;
-- then
UPDATE t SET n = 1e-16383, w = NULL WHERE id = 3;
-- rows t: id, length(n::text), s, z
11|2|1.10|5
12|6|NaN|NaN
13|3|\N|-1
14|41|999.99|9999999999
1|131072|1.10|5
2|5|0.00|NaN
3|16385|\N|-1
4|41|999.99|9999999999
