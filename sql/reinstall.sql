-- DROP EXTENSION and CREATE EXTENSION: ids start at 1 again, and nothing of the
-- old installation is taken for something of the new one.
CREATE EXTENSION taskoutbox;
SELECT taskoutbox.enqueue('old');
SELECT task_type, receipt_handle AS old_handle FROM taskoutbox.receive(visibility_timeout => '1 h', wait => '10 s') \gset
\echo :task_type

-- The relay of the old one has no time to leave.
BEGIN;
DROP EXTENSION taskoutbox;
CREATE EXTENSION taskoutbox;
COMMIT;
SELECT taskoutbox.enqueue('new');
SELECT task_type, receive_count, receipt_handle FROM taskoutbox.receive(visibility_timeout => '1 h', wait => '10 s') \gset
\echo :task_type :receive_count
-- An old receipt handle deletes no new message, in flight or not.
SELECT taskoutbox.delete(:'old_handle', missing_ok => true);
SELECT taskoutbox.delete(:'receipt_handle');

-- The relay of the new one finds a task when it starts.
SELECT taskoutbox.enqueue('old');
SELECT taskoutbox.enqueue('old');
SELECT task_type, receipt_handle AS old_handle FROM taskoutbox.receive(visibility_timeout => '1 h', wait => '10 s') \gset
DROP EXTENSION taskoutbox;
BEGIN;
CREATE EXTENSION taskoutbox;
SELECT taskoutbox.enqueue('new');
SELECT taskoutbox.enqueue('new');
COMMIT;
SELECT taskoutbox.delete(:'old_handle', missing_ok => true);
SELECT task_type, receive_count FROM taskoutbox.receive(wait => '10 s');
SELECT task_type, receive_count FROM taskoutbox.receive(wait => '10 s');
SELECT waiting, in_flight FROM taskoutbox.queue_metrics;

-- An installation that is rolled back leaves nothing, not even a relay.
DROP EXTENSION taskoutbox;
BEGIN;
CREATE EXTENSION taskoutbox;
SELECT taskoutbox.enqueue('never');
ROLLBACK;
SELECT count(*) FROM pg_extension WHERE extname = 'taskoutbox';
-- A removal that is rolled back changes nothing.
CREATE EXTENSION taskoutbox;
SELECT taskoutbox.enqueue('kept');
BEGIN;
DROP EXTENSION taskoutbox;
ROLLBACK;
SELECT id, task_type FROM taskoutbox.receive(wait => '10 s');

DROP EXTENSION taskoutbox;
-- Without the extension there is no relay: it ends by itself.
DO $$
BEGIN
	FOR i IN 1 .. 1000 LOOP
		PERFORM pg_stat_clear_snapshot();
		EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'taskoutbox relay');
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;
SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'taskoutbox relay';
