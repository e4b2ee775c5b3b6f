-- Unchanged TOAST values of rows older than a column (olake#987, with a column added in between).
-- step
CREATE TABLE d(id int PRIMARY KEY, n int, blob text);
ALTER TABLE d ALTER blob SET STORAGE EXTERNAL;
INSERT INTO d VALUES (1, 0, repeat('a', 16000)), (2, 0, repeat('b', 16000));
-- step
ALTER TABLE d ADD extra int;
-- then
UPDATE d SET n = 1, extra = 5 WHERE id = 1;
-- then
ALTER TABLE d DROP n;
-- then
UPDATE d SET extra = 6 WHERE id = 2;
-- rows d: id, extra, md5(blob)
1|5|afefeabfe6313152bcb112c70fe3380a
2|6|2f09756278556d7efb8be2db68f5afb4
