-- No row comes after the change: nothing in the stream ever names the new columns.
-- step
CREATE TABLE t(id int PRIMARY KEY, gone int);
CREATE TABLE d(id int PRIMARY KEY);
INSERT INTO t VALUES (1, 2);
INSERT INTO d VALUES (1);
-- step
ALTER TABLE t ADD b text;
-- then
ALTER TABLE t DROP gone;
-- then
ALTER TABLE d ADD c date DEFAULT '2020-02-29';
-- rows t: id, b
1|\N
-- rows d: id, c
1|2020-02-29
