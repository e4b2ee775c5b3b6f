-- hstore is a map; its NULLs and odd keys stay.
-- step
CREATE EXTENSION IF NOT EXISTS hstore SCHEMA public;
CREATE TABLE t(id int PRIMARY KEY, h public.hstore);
INSERT INTO t VALUES (1, 'a=>1,b=>NULL'), (2, ''), (3, NULL);
-- step
INSERT INTO t VALUES (4, '"x \"y\\\\z"=>"", ""=>"NULL"');
-- then
UPDATE t SET h = h || 'c=>3' WHERE id = 1;
-- rows t: id, h IS NULL
1|f
2|f
3|t
4|f
