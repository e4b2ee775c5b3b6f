-- Several dimensions and lower bounds other than 1 do not fit into a Delta array: the whole value
-- overflows, none of it is flattened.
-- step
CREATE TYPE mood AS ENUM ('happy', 'so "so"');
CREATE DOMAIN small AS int CHECK (VALUE < 100);
CREATE TABLE t(id int PRIMARY KEY, i int[], x text[], m mood[], s small[], d date[], b bytea[], n numeric(5,2)[], u uuid[]);
INSERT INTO t VALUES (1, '{1,2,NULL}', '{a,"b,c","d\"e","f\\g"}', '{happy,"so \"so\""}', '{1,2}', '{2024-01-01,NULL}', '{"\\x00ff"}', '{1.10,NULL}', '{00000000-0000-0000-0000-000000000001}'),
  (2, '{{1,2},{3,4}}', '[0:1]={a,b}', '{}', '[5:5]={7}', '{infinity}', '{}', '{NaN}', NULL);
-- step
INSERT INTO t SELECT id + 10, i, x, m, s, d, b, n, u FROM t;
-- then
UPDATE t SET i = '{{{9}}}' WHERE id = 1;
-- then
UPDATE t SET i = '{5}' WHERE id = 2;
-- rows t: id, i, x, d, n
1|{{{9}}}|{a,"b,c","d\"e","f\\g"}|{2024-01-01,NULL}|{1.10,NULL}
11|{1,2,NULL}|{a,"b,c","d\"e","f\\g"}|{2024-01-01,NULL}|{1.10,NULL}
12|{{1,2},{3,4}}|[0:1]={a,b}|{infinity}|{NaN}
2|{5}|[0:1]={a,b}|{infinity}|{NaN}
