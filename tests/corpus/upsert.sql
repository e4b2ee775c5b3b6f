-- INSERT … ON CONFLICT decodes as what it did, and speculative insertions that lost are not there.
-- step
CREATE TABLE t(id int PRIMARY KEY, n int);
INSERT INTO t VALUES (1, 1);
-- step
INSERT INTO t VALUES (1, 10), (2, 20) ON CONFLICT (id) DO UPDATE SET n = t.n + EXCLUDED.n;
-- then
INSERT INTO t VALUES (1, 0), (3, 30) ON CONFLICT DO NOTHING;
-- rows t: id, n
1|11
2|20
3|30
