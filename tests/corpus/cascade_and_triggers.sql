-- Changes made by foreign keys and triggers are in the stream like any other.
-- step
CREATE TABLE parent(id int PRIMARY KEY);
CREATE TABLE child(id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE audit(n serial PRIMARY KEY, what text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO audit(what) VALUES (TG_OP || ' ' || TG_TABLE_NAME); RETURN NULL; END $$;
CREATE TRIGGER a AFTER INSERT OR UPDATE OR DELETE ON child FOR EACH ROW EXECUTE FUNCTION note();
INSERT INTO parent VALUES (1), (2), (3);
-- step
INSERT INTO child VALUES (10, 1), (20, 2);
-- then
UPDATE parent SET id = 100 WHERE id = 1;
-- then
DELETE FROM parent WHERE id = 2;
-- rows child: id, parent
10|100
-- rows audit: n, what
1|INSERT child
2|INSERT child
3|UPDATE child
4|DELETE child
