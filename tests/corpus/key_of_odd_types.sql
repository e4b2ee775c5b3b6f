-- Keys of types that the lake holds as text, or can't hold: they still name their rows.
-- step
CREATE TABLE n(k numeric PRIMARY KEY, v int);
INSERT INTO n VALUES (1.50, 1), ('NaN', 2), (1e40, 3);
CREATE TABLE d(k timestamptz PRIMARY KEY, v int);
INSERT INTO d VALUES ('infinity', 1), ('-infinity', 2), ('4713-01-01 00:00:00+00 BC', 3), ('2024-01-01 00:00:00+00', 4);
CREATE TABLE f(k float8 PRIMARY KEY, v int);
INSERT INTO f VALUES ('NaN', 1), ('-Infinity', 2), (0.1, 3);
CREATE TABLE u(k uuid, b bytea, v int, PRIMARY KEY (k, b));
INSERT INTO u VALUES ('00000000-0000-0000-0000-000000000001', '\x00', 1), ('00000000-0000-0000-0000-000000000001', '\x0000', 2);
-- step
UPDATE n SET v = v + 10;
UPDATE d SET v = v + 10;
UPDATE f SET v = v + 10;
UPDATE u SET v = v + 10;
-- step
DELETE FROM n WHERE k = 'NaN';
DELETE FROM d WHERE k = 'infinity';
DELETE FROM f WHERE k = 'NaN';
DELETE FROM u WHERE b = '\x00';
-- then
UPDATE n SET k = 1.5 WHERE k = 1.50;
UPDATE d SET k = 'infinity' WHERE k = '-infinity';
-- rows n: k, v
1.5|11
10000000000000000000000000000000000000000|13
-- rows d: k AT TIME ZONE 'UTC', v
2024-01-01 00:00:00|14
4713-01-01 00:00:00 BC|13
infinity|12
-- rows f: k, v
-Infinity|12
0.1|13
-- rows u: k, b, v
00000000-0000-0000-0000-000000000001|\x0000|12
