-- NULL is not the empty string, the empty array, the word NULL, nor a composite of NULLs
-- (risingwave#25818, connect#3088).
-- step
CREATE TYPE pair AS (a int, b text);
CREATE TABLE t(id int PRIMARY KEY, s text, n int[], w text[], p pair, ps pair[]);
INSERT INTO t VALUES (1, NULL, NULL, NULL, NULL, NULL), (2, '', '{}', '{}', '(,)', '{}'), (3, 'NULL', '{NULL}', '{"NULL",NULL,""}', ROW(NULL, ''), ARRAY[NULL, ROW(NULL, NULL), ROW(1, 'x')]::pair[]);
-- step
INSERT INTO t SELECT id + 10, s, n, w, p, ps FROM t;
-- then
UPDATE t SET s = '', p = '(,)' WHERE id = 1;
-- then
UPDATE t SET s = NULL, p = NULL, n = NULL WHERE id = 2;
-- rows t: id, s, n, w, p, ps
1||\N|\N|(,)|\N
11|\N|\N|\N|\N|\N
12||{}|{}|(,)|{}
13|NULL|{NULL}|{"NULL",NULL,""}|(,"")|{NULL,"(,)","(1,x)"}
2|\N|\N|{}|\N|{}
3|NULL|{NULL}|{"NULL",NULL,""}|(,"")|{NULL,"(,)","(1,x)"}
