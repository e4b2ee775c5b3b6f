-- Row-level security must not filter the copy in silence.
-- step
CREATE TABLE t(id int PRIMARY KEY, owner text);
INSERT INTO t VALUES (1, 'me'), (2, 'you');
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
CREATE POLICY mine ON t USING (owner = 'me');
-- step
INSERT INTO t VALUES (3, 'they');
-- rows t: id, owner
1|me
2|you
3|they
