-- A value that is stored out of line and not changed is not sent again: it must be taken from where
-- the row was, under every replica identity (olake#987, etl#404, ingestr#805).
-- step
CREATE TABLE d(id int PRIMARY KEY, k int NOT NULL, n int, blob text, other text);
ALTER TABLE d ALTER blob SET STORAGE EXTERNAL;
ALTER TABLE d ALTER other SET STORAGE EXTERNAL;
INSERT INTO d SELECT i, i, 0, repeat(i::text, 16000), repeat('o', 5000) FROM generate_series(1, 4) i;
-- step
UPDATE d SET n = n + 1;
-- then
BEGIN;
INSERT INTO d VALUES (5, 5, 0, repeat('5', 16000), NULL);
UPDATE d SET n = 1 WHERE id = 5;
UPDATE d SET n = 2, other = 'short' WHERE id = 5;
COMMIT;
-- step
UPDATE d SET n = 7, other = repeat('p', 6000) WHERE id = 1;
-- then
UPDATE d SET n = 8 WHERE id = 1;
-- then
UPDATE d SET id = id + 100, k = k + 100 WHERE id = 2;
-- step
BEGIN;
UPDATE d SET k = 40, id = 40 WHERE id = 4;
UPDATE d SET n = 9 WHERE id = 40;
DELETE FROM d WHERE id = 3;
INSERT INTO d VALUES (3, 3, 3, NULL, repeat('q', 7000));
UPDATE d SET n = 4 WHERE id = 3;
COMMIT;
-- rows d: id, k, n, left(blob, 3), length(blob), left(other, 1), length(other)
1|1|8|111|16000|p|6000
102|102|1|222|16000|o|5000
3|3|4|\N|\N|q|7000
40|40|9|444|16000|o|5000
5|5|2|555|16000|s|5
