-- An empty table is a version of its own.
-- step
CREATE TABLE t(id int PRIMARY KEY);
INSERT INTO t SELECT generate_series(1, 100);
-- step
TRUNCATE t;
-- rows t: id
