-- A partitioned table is one table: rows that an UPDATE moves from one partition to another stay one
-- row (airbyte#13442).
-- step
CREATE TABLE p(id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE p_eu PARTITION OF p FOR VALUES IN ('eu');
CREATE TABLE p_us PARTITION OF p FOR VALUES IN ('us') PARTITION BY RANGE (id);
CREATE TABLE p_us_low PARTITION OF p_us FOR VALUES FROM (0) TO (100);
CREATE TABLE p_us_high PARTITION OF p_us FOR VALUES FROM (100) TO (1000);
CREATE TABLE p_rest PARTITION OF p DEFAULT;
INSERT INTO p VALUES (1, 'eu', 'a'), (2, 'us', 'b'), (150, 'us', 'c'), (4, 'mars', 'd');
-- step
UPDATE p SET region = 'us' WHERE id = 1;
-- then
UPDATE p SET id = 250 WHERE id = 2;
-- step
BEGIN; UPDATE p SET region = 'eu', v = 'moved' WHERE id = 4; DELETE FROM p WHERE id = 150; INSERT INTO p VALUES (150, 'moon', 'new'); COMMIT;
-- rows p: id, region, v
1|us|a
150|moon|new
250|us|b
4|eu|moved
