-- Dates that Delta can't hold (pg_lake#27): the typed column is NULL, the text stands beside it.
-- step
CREATE TABLE t(id int PRIMARY KEY, d date, ts timestamp, tz timestamptz);
INSERT INTO t VALUES (1, 'infinity', '-infinity', 'infinity'), (2, '4713-01-01 BC', '4713-01-01 00:00:00 BC', '0044-03-15 12:00:00+00 BC'),
  (3, '10000-01-01', '10000-01-01 00:00:00', '294276-12-31 23:59:59.999999+00'), (4, '9999-12-31', '9999-12-31 23:59:59.999999', '0001-01-01 00:00:00+00'), (5, NULL, NULL, NULL);
-- step
INSERT INTO t SELECT id + 10, d, ts, tz FROM t;
-- then
UPDATE t SET d = '2024-02-29', ts = '2024-02-29 00:00:00', tz = '2024-02-29 00:00:00+00' WHERE id = 1;
-- then
UPDATE t SET d = 'infinity', tz = NULL WHERE id = 4;
-- rows t: id, d, ts
1|2024-02-29|2024-02-29 00:00:00
11|infinity|-infinity
12|4713-01-01 BC|4713-01-01 00:00:00 BC
13|10000-01-01|10000-01-01 00:00:00
14|9999-12-31|9999-12-31 23:59:59.999999
15|\N|\N
2|4713-01-01 BC|4713-01-01 00:00:00 BC
3|10000-01-01|10000-01-01 00:00:00
4|infinity|9999-12-31 23:59:59.999999
5|\N|\N
