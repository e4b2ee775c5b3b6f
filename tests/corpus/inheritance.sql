-- Old-style inheritance: a child is a table of its own, and a parent's rows are those of ONLY the
-- parent.
-- step
CREATE TABLE parent(id int PRIMARY KEY, v text);
CREATE TABLE child(extra int, PRIMARY KEY (id)) INHERITS (parent);
INSERT INTO parent VALUES (1, 'p');
INSERT INTO child VALUES (2, 'c', 7);
-- step
UPDATE parent SET v = v || '!';
-- then
INSERT INTO child VALUES (3, 'c3', 8);
-- then
DELETE FROM parent WHERE id = 2;
-- rows parent: id, v
1|p!
3|c3
-- rows child: id, v, extra
3|c3|8
