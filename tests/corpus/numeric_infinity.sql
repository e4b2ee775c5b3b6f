-- Infinity came to numeric with PostgreSQL 14.
-- servers: 14-
-- step
CREATE TABLE t(id int PRIMARY KEY, n numeric);
INSERT INTO t VALUES (1, 'Infinity'), (2, '-Infinity');
-- step
INSERT INTO t VALUES (3, 'Infinity'), (4, 1);
-- then
UPDATE t SET n = '-Infinity' WHERE id = 4;
-- rows t: id, n
1|Infinity
2|-Infinity
3|Infinity
4|-Infinity
