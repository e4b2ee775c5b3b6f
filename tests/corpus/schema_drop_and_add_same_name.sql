-- A dropped column whose name comes back is another column: nothing of the old one may show.
-- step
CREATE TABLE t(id int PRIMARY KEY, a text);
CREATE TABLE later(id int PRIMARY KEY, a int);
INSERT INTO t VALUES (1, 'old'), (2, 'old');
INSERT INTO later VALUES (1, 7), (2, 8);
-- step
ALTER TABLE t DROP a; ALTER TABLE t ADD a int;
-- then
INSERT INTO t VALUES (3, 30);
-- then
ALTER TABLE later DROP a;
-- then
INSERT INTO later VALUES (3);
-- step
ALTER TABLE later ADD a int;
-- then
INSERT INTO later VALUES (4, 40);
-- rows t: id, a
1|\N
2|\N
3|30
-- rows later: id, a
1|\N
2|\N
3|\N
4|40
