-- Multiranges and xid8, as text.
-- servers: 14-
-- step
CREATE TABLE t(id int PRIMARY KEY, m int4multirange, x xid8);
INSERT INTO t VALUES (1, '{[1,2),[4,9)}', '18446744073709551615');
-- step
INSERT INTO t VALUES (2, '{}', '0'), (3, NULL, NULL);
-- rows t: id, m, x
1|{[1,2),[4,9)}|18446744073709551615
2|{}|0
3|\N|\N
