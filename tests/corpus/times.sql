-- 24:00:00 is a time of day; zones may have seconds; intervals keep months, days and microseconds
-- apart.
-- step
CREATE TABLE t(id int PRIMARY KEY, a time, b timetz, i interval);
INSERT INTO t VALUES (1, '24:00:00', '24:00:00-15:59', '1 mon -1 day 00:00:00.000001'), (2, '00:00:00', '00:00:00+00:00:01', '-178956970 years -8 mons'), (3, NULL, NULL, NULL);
-- step
INSERT INTO t SELECT id + 10, a, b, i FROM t;
-- rows t: id, a, b, i
1|24:00:00|24:00:00-15:59|1 mon -1 days +00:00:00.000001
11|24:00:00|24:00:00-15:59|1 mon -1 days +00:00:00.000001
12|00:00:00|00:00:00+00:00:01|-178956970 years -8 mons
13|\N|\N|\N
2|00:00:00|00:00:00+00:00:01|-178956970 years -8 mons
3|\N|\N|\N
