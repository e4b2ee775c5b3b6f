-- A table is dropped and made again under the same name, with other columns; one is renamed and
-- another takes its name.
-- step
CREATE TABLE t(id int PRIMARY KEY, a text);
CREATE TABLE old(id int PRIMARY KEY, a text);
CREATE TABLE fresh(id int PRIMARY KEY, a text);
INSERT INTO t VALUES (1, 'x'), (2, 'y');
INSERT INTO old VALUES (1, 'old');
INSERT INTO fresh VALUES (1, 'fresh');
-- step
UPDATE t SET a = 'X' WHERE id = 1;
-- then
DROP TABLE t;
-- then
CREATE TABLE t(id bigint PRIMARY KEY, b date);
-- then
INSERT INTO t VALUES (5000000000, '2024-02-29');
-- step
ALTER TABLE old RENAME TO older; ALTER TABLE fresh RENAME TO old;
-- then
INSERT INTO old VALUES (2, 'into the new one');
-- then
INSERT INTO older VALUES (2, 'into the old one');
-- rows t: id, b
5000000000|2024-02-29
-- rows old: id, a
1|fresh
2|into the new one
-- rows older: id, a
1|old
2|into the old one
