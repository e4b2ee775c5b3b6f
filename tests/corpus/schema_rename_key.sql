-- The key's column is renamed, and another column becomes the key.
-- step
CREATE TABLE t(id int PRIMARY KEY, a text);
CREATE TABLE k(id int PRIMARY KEY, code text NOT NULL);
INSERT INTO t VALUES (1, 'x'), (2, 'y');
INSERT INTO k VALUES (1, 'one'), (2, 'two');
-- step
ALTER TABLE t RENAME id TO no;
-- then
UPDATE t SET a = 'X' WHERE no = 1;
-- then
ALTER TABLE k DROP CONSTRAINT k_pkey; ALTER TABLE k ADD PRIMARY KEY (code);
-- then
INSERT INTO k VALUES (1, 'uno');
-- then
UPDATE k SET id = 22 WHERE code = 'two';
-- rows t: no, a
1|X
2|y
-- rows k: id, code
1|one
1|uno
22|two
