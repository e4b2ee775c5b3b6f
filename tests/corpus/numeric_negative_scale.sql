-- A negative scale rounds to tens, hundreds, …; a scale above the precision leaves only small
-- fractions. Neither is a Delta decimal.
-- servers: 15-
-- step
CREATE TABLE t(id int PRIMARY KEY, a numeric(3,-2), b numeric(2,5));
INSERT INTO t VALUES (1, 12345, 0.00012);
-- step
INSERT INTO t VALUES (2, -99900, -0.00099), (3, NULL, 'NaN');
-- rows t: id, a, b
1|12300|0.00012
2|-99900|-0.00099
3|\N|NaN
