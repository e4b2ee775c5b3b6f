-- A partitioned root without a key, under FULL: a multiset over all partitions.
-- step
CREATE TABLE p(region text, n int) PARTITION BY LIST (region);
CREATE TABLE p_a PARTITION OF p FOR VALUES IN ('a');
CREATE TABLE p_b PARTITION OF p FOR VALUES IN ('b');
ALTER TABLE p REPLICA IDENTITY FULL;
ALTER TABLE p_a REPLICA IDENTITY FULL;
ALTER TABLE p_b REPLICA IDENTITY FULL;
INSERT INTO p VALUES ('a', 1), ('a', 1), ('b', 1);
-- step
UPDATE p SET region = 'b' WHERE ctid = (SELECT min(ctid) FROM p_a) AND tableoid = 'p_a'::regclass;
-- then
DELETE FROM p WHERE ctid = (SELECT min(ctid) FROM p_b) AND tableoid = 'p_b'::regclass;
-- rows p: region, n
a|1
b|1
