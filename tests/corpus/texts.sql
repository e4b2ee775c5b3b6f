-- Padding, control characters, quotes, four-byte characters, json as written and jsonb as kept.
-- step
CREATE TABLE t(id int PRIMARY KEY, c char(5), v varchar(3), x text, q "char", n name, j json, b jsonb);
INSERT INTO t VALUES (1, 'a', 'abc', E'\n\t\\ "q" ''s'' \x01', 'x', 'nm', '{"a":  1, "a": 2}', '{"b": 1e400, "a": [1.50, 12345678901234567890.123]}'),
  (2, '', '', U&'\+01F980 \00e9 e\0301 \200f', '', '', '"s"', 'null');
-- step
INSERT INTO t SELECT id + 10, c, v, x, q, n, j, b FROM t;
-- then
UPDATE t SET c = 'abcde', b = '{}' WHERE id = 1;
-- rows t: id, c, v, j
11|a    |abc|{"a":  1, "a": 2}
12|     ||"s"
1|abcde|abc|{"a":  1, "a": 2}
2|     ||"s"
