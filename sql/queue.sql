-- Queues: creating them, their settings, and what the views say about them.
CREATE EXTENSION taskoutbox;

-- The queue "default" is there without a row, so that a dump restores cleanly.
SELECT * FROM taskoutbox.queue;
SELECT (taskoutbox.enqueue('x')).id;
SELECT id, receipt_handle FROM taskoutbox.receive(wait => '10 s') \gset
SELECT taskoutbox.delete(:'receipt_handle');

-- Others are created.
SELECT taskoutbox.create_queue('mail');
SELECT taskoutbox.create_queue('slow', visibility_timeout => '2 hours', max_receive_count => 1, deduplication_window => '30 days');
SELECT * FROM taskoutbox.queue ORDER BY name;

-- Also "default", which then has these settings.
SELECT taskoutbox.create_queue('default', max_receive_count => 7);
SELECT * FROM taskoutbox.queue WHERE name = 'default';
SELECT queue FROM taskoutbox.queue_metrics ORDER BY queue;
DELETE FROM taskoutbox.queue WHERE name = 'default';

-- Names are what was written: no folding, no trimming.
SELECT taskoutbox.create_queue('Mail');
SELECT taskoutbox.create_queue(' mail');
SELECT taskoutbox.create_queue('post/über 🛒.fifo');
SELECT queue FROM taskoutbox.queue_metrics ORDER BY queue COLLATE "C";


--
-- Refused
--

SELECT taskoutbox.create_queue('mail');
\echo :SQLSTATE
SELECT taskoutbox.create_queue(NULL);
\echo :SQLSTATE
SELECT taskoutbox.create_queue('');
\echo :SQLSTATE
SELECT taskoutbox.create_queue(repeat('é', 129));
\echo :SQLSTATE
SELECT taskoutbox.create_queue(E'a\x01');
\echo :SQLSTATE
SELECT taskoutbox.create_queue('x', backend => 'kafka');
\echo :SQLSTATE
SELECT taskoutbox.create_queue('x', backend => NULL);
\echo :SQLSTATE
SELECT taskoutbox.create_queue('x', visibility_timeout => NULL);
\echo :SQLSTATE
SELECT taskoutbox.create_queue('x', visibility_timeout => '0');
\echo :SQLSTATE
SELECT taskoutbox.create_queue('x', visibility_timeout => '-1 s');
SELECT taskoutbox.create_queue('x', visibility_timeout => '12 hours 1 us');
SELECT taskoutbox.create_queue('x', max_receive_count => NULL);
\echo :SQLSTATE
SELECT taskoutbox.create_queue('x', max_receive_count => 0);
\echo :SQLSTATE
SELECT taskoutbox.create_queue('x', max_receive_count => 1001);
SELECT taskoutbox.create_queue('x', deduplication_window => NULL);
\echo :SQLSTATE
SELECT taskoutbox.create_queue('x', deduplication_window => '0');
\echo :SQLSTATE
SELECT taskoutbox.create_queue('x', deduplication_window => '1000 days 1 us');
BEGIN READ ONLY;
SELECT taskoutbox.create_queue('x');
\echo :SQLSTATE
ROLLBACK;
-- The limits themselves are fine.
SELECT taskoutbox.create_queue(repeat('é', 128), visibility_timeout => '12 hours', max_receive_count => 1000, deduplication_window => '1000 days');
SELECT taskoutbox.create_queue('shortest', visibility_timeout => '1 us', max_receive_count => 1, deduplication_window => '1 us');

-- A database can have so many, "default" included.
BEGIN;
SHOW taskoutbox.max_queues;
SELECT count(taskoutbox.create_queue('q' || n)) FROM generate_series(1, 64 - (SELECT count(*)::integer FROM taskoutbox.queue_metrics)) n;
SAVEPOINT all_used;
SELECT taskoutbox.create_queue('one too many');
\echo :SQLSTATE
ROLLBACK TO all_used;
-- This one is counted already.
SELECT taskoutbox.create_queue('default');
ROLLBACK;


--
-- Transactions
--

-- A queue can be used in the transaction that creates it.
BEGIN;
SELECT taskoutbox.create_queue('new');
SELECT taskoutbox.enqueue('x', queue => 'new');
COMMIT;
SELECT task_type FROM taskoutbox.receive('new', wait => '10 s');

-- When that is rolled back, there is no such queue.
BEGIN;
SELECT taskoutbox.create_queue('undone');
SELECT taskoutbox.enqueue('x', queue => 'undone');
ROLLBACK;
SELECT taskoutbox.enqueue('x', queue => 'undone');
\echo :SQLSTATE
BEGIN;
SAVEPOINT s;
SELECT taskoutbox.create_queue('undone');
ROLLBACK TO s;
SELECT taskoutbox.enqueue('x', queue => 'undone');
\echo :SQLSTATE
ROLLBACK;
SELECT taskoutbox.create_queue('undone');
SELECT (taskoutbox.enqueue('x', queue => 'undone')).duplicate;


--
-- The settings of a queue are the defaults of its consumers.
--

-- visibility_timeout: here the message comes back soon,
SELECT taskoutbox.create_queue('hasty', visibility_timeout => '200 ms', max_receive_count => 2);
SELECT taskoutbox.enqueue('hasty', queue => 'hasty');
SELECT task_type, receive_count FROM taskoutbox.receive('hasty', wait => '10 s');
-- unless receive says otherwise.
SELECT receipt_handle, receive_count FROM taskoutbox.receive('hasty', visibility_timeout => '1 h', wait => '10 s') \gset
\echo :receive_count
SELECT task_type FROM taskoutbox.receive('hasty');
-- max_receive_count: the second receive was the last.
SELECT taskoutbox.change_visibility(:'receipt_handle', '0');
SELECT task_type FROM taskoutbox.receive('hasty');
SELECT task_type, receive_count FROM taskoutbox.dead_letter;

-- With 1, the first failure is the last one.
SELECT taskoutbox.enqueue('once', queue => 'slow');
SELECT receipt_handle FROM taskoutbox.receive('slow', wait => '10 s') \gset
SELECT taskoutbox.change_visibility(:'receipt_handle', '0', error => 'no');
SELECT task_type FROM taskoutbox.receive('slow');
SELECT task_type, receive_count, last_error FROM taskoutbox.dead_letter WHERE queue = 'slow';

-- A change of the settings takes effect with the next statement.
UPDATE taskoutbox.queue SET visibility_timeout = '1 h' WHERE name = 'hasty';
SELECT taskoutbox.enqueue('hasty', queue => 'hasty');
SELECT receipt_handle FROM taskoutbox.receive('hasty', wait => '10 s') \gset
SELECT task_type FROM taskoutbox.receive('hasty');
SELECT taskoutbox.delete(:'receipt_handle');


--
-- What is happening: figures from the relay's memory, not from counting rows
--

-- delivered: deleted by a consumer. retried: came back. Both since the server
-- started, for this database's queue.
SELECT taskoutbox.create_queue('figures', max_receive_count => 2);
CREATE VIEW figures AS
	SELECT waiting, in_flight, oldest_age >= '0' AS has_age, delivered, retried, dead_lettered, relay_running
	FROM taskoutbox.queue_metrics WHERE queue = 'figures';
SELECT * FROM figures;
-- What is not committed is not there.
BEGIN;
SELECT count(taskoutbox.enqueue('x', queue => 'figures', group_id => n::text)) FROM generate_series(1, 3) n;
SELECT * FROM figures;
COMMIT;
SELECT * FROM figures;
SELECT receipt_handle AS one FROM taskoutbox.receive('figures', wait => '10 s') \gset
SELECT receipt_handle AS two FROM taskoutbox.receive('figures', wait => '10 s') \gset
SELECT * FROM figures;
SELECT taskoutbox.delete(:'one');
SELECT taskoutbox.change_visibility(:'two', '0');
SELECT * FROM figures;
-- The two that are left, until both are dead letters
SELECT count(taskoutbox.change_visibility(receipt_handle, '0')) FROM taskoutbox.receive('figures', 1, wait => '10 s');
SELECT count(taskoutbox.change_visibility(receipt_handle, '0')) FROM taskoutbox.receive('figures', 1, wait => '10 s');
SELECT count(taskoutbox.change_visibility(receipt_handle, '0')) FROM taskoutbox.receive('figures', 1, wait => '10 s');
SELECT * FROM figures;
-- A row that its owner deletes is gone, and nobody delivered it.
SELECT taskoutbox.enqueue('x', queue => 'figures');
SELECT waiting FROM figures;
DELETE FROM taskoutbox.task_outbox WHERE queue = 'figures';
SELECT count(*) FROM taskoutbox.receive('figures');
SELECT waiting, in_flight, delivered FROM figures;

-- The relay of this database
SELECT s.state, a.backend_type, a.datname = s.database AS of_this_database, s.since <= now() AS since, s.memory_bytes > 0 AS memory, s.hint
FROM taskoutbox.relay_status s JOIN pg_stat_activity a USING (pid);
-- It holds one message per task that is not done.
SELECT count(taskoutbox.enqueue('x', queue => 'figures', group_id => 'g' || n % 2)) FROM generate_series(1, 5) n;
SELECT waiting FROM figures;
SELECT s.messages = (SELECT count(*) FROM taskoutbox.task_outbox) AS all_messages FROM taskoutbox.relay_status s;

-- A row for a queue that does not exist can only come from its owner, or from a
-- dump. It waits, the status says so, and it is delivered when there is a queue.
INSERT INTO taskoutbox.task_outbox (queue, task_type) VALUES ('later', 'orphan');
SELECT count(*) FROM figures;
SELECT hint FROM taskoutbox.relay_status;
SELECT taskoutbox.create_queue('later');
SELECT task_type FROM taskoutbox.receive('later', wait => '10 s');
SELECT hint FROM taskoutbox.relay_status;

DROP VIEW figures;
DROP EXTENSION taskoutbox;
