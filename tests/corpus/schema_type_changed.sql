-- A wider, a narrower and another type; and a type that stays while every value is written anew.
-- step
CREATE TABLE t(id int PRIMARY KEY, wide int, narrow bigint, other text, same text, v varchar(5));
INSERT INTO t VALUES (1, 1, 10, '100', 'a', 'abc'), (2, 2, 20, '200', 'b', 'def');
-- step
ALTER TABLE t ALTER wide TYPE bigint;
-- then
INSERT INTO t VALUES (3, 3000000000, 30, '300', 'c', 'ghi');
-- step
ALTER TABLE t ALTER narrow TYPE int;
-- then
ALTER TABLE t ALTER other TYPE int USING other::int;
-- then
UPDATE t SET other = 101 WHERE id = 1;
-- step
ALTER TABLE t ALTER same TYPE text USING upper(same);
-- step
ALTER TABLE t ALTER v TYPE varchar(20);
-- then
UPDATE t SET v = 'longer than five' WHERE id = 2;
-- rows t: id, wide, narrow, other, same, v
1|1|10|101|A|abc
2|2|20|200|B|longer than five
3|3000000000|30|300|C|ghi
