-- Replica identity NOTHING and no key: rows only come, equal ones too.
-- step
CREATE TABLE t(at timestamptz, what text);
ALTER TABLE t REPLICA IDENTITY NOTHING;
INSERT INTO t VALUES ('2024-01-01 00:00:00+00', 'start');
-- step
INSERT INTO t SELECT '2024-01-01 00:00:01+00', 'tick' FROM generate_series(1, 3);
-- step
BEGIN; INSERT INTO t VALUES (NULL, NULL); INSERT INTO t VALUES (NULL, NULL); COMMIT;
-- rows t: at AT TIME ZONE 'UTC', what
2024-01-01 00:00:00|start
2024-01-01 00:00:01|tick
2024-01-01 00:00:01|tick
2024-01-01 00:00:01|tick
\N|\N
\N|\N
