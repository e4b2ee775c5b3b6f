-- With a deferred constraint both rows have the same key for a moment: the second row arrives at a
-- key that the first still has.
-- step
CREATE TABLE t(id int NOT NULL, v text, PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, 'three');
-- step
UPDATE t SET id = 3 - id WHERE id < 3;
-- then
BEGIN; UPDATE t SET id = id % 3 + 1; UPDATE t SET v = v || '!' WHERE id = 1; COMMIT;
-- rows t: id, v
1|three!
2|two
3|one
