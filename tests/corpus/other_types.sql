-- Types the lake holds as text, bit strings, money, network, ranges, geometry, and positions.
-- step
CREATE TABLE t(id int PRIMARY KEY, b bit(3), vb varbit, m money, i inet, c cidr, mac macaddr, r int4range, tr tstzrange, p point, po polygon, l pg_lsn, o oid, xi xid, tv tsvector, tq tsquery, iv int2vector, rc regclass);
INSERT INTO t VALUES (1, '101', '', '-0.01', '10.0.0.1/8', '10.0.0.0/8', '08:00:2b:01:02:03', '[1,5)', '[2020-01-01 00:00:00+00,infinity)', '(1,-0)', '((0,0),(1,1),(1,0))', '16/B374D848', 4294967295, '4294967295', $$'a b':1A c$$, 'a & b', '1 2', 'pg_catalog.pg_class'), (2, NULL, '00000000', '92233720368547758.07', '::1', NULL, NULL, 'empty', NULL, NULL, NULL, '0/0', 0, NULL, '', '', '', NULL);
-- step
INSERT INTO t SELECT id + 10, b, vb, m, i, c, mac, r, tr, p, po, l, o, xi, tv, tq, iv, rc FROM t;
-- then
UPDATE t SET m = '-92233720368547758.08', r = '(,)' WHERE id = 1;
-- rows t: id, b, vb, i, r, l, o
1|101||10.0.0.1/8|(,)|16/B374D848|4294967295
11|101||10.0.0.1/8|[1,5)|16/B374D848|4294967295
12|\N|00000000|::1|empty|0/0|0
2|\N|00000000|::1|empty|0/0|0
