-- Changes made under session_replication_role = replica, as other replication tools do, are changes
-- like any other.
-- step
CREATE TABLE t(id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
-- step
SET session_replication_role = replica;
INSERT INTO t VALUES (2, 'b');
UPDATE t SET v = 'c' WHERE id = 1;
-- rows t: id, v
1|c
2|b
