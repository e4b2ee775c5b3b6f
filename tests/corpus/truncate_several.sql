-- TRUNCATE of several tables is one message; CASCADE names those it reached, too.
-- step
CREATE TABLE parent(id int PRIMARY KEY);
CREATE TABLE child(id int PRIMARY KEY, parent int REFERENCES parent);
CREATE TABLE other(id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text);
INSERT INTO parent VALUES (1), (2);
INSERT INTO child VALUES (10, 1), (20, 2);
INSERT INTO other(v) VALUES ('a'), ('b');
-- step
BEGIN; INSERT INTO parent VALUES (3); TRUNCATE parent CASCADE; INSERT INTO parent VALUES (4); INSERT INTO child VALUES (40, 4); COMMIT;
-- step
TRUNCATE other RESTART IDENTITY;
-- then
INSERT INTO other(v) VALUES ('first again');
-- rows parent: id
4
-- rows child: id, parent
40|4
-- rows other: id, v
1|first again
