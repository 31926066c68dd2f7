-- What operators do: cancel, redrive, purge; alter, pause, resume and drop queues.
CREATE EXTENSION taskoutbox;

-- What is in the outbox and in the dead letters
CREATE VIEW tasks AS SELECT id, queue, task_type, group_id, receive_count, last_error, redriven_from FROM taskoutbox.task_outbox ORDER BY id;
CREATE VIEW letters AS SELECT id, queue, task_type, group_id, receive_count, last_error, redriven_from FROM taskoutbox.dead_letter ORDER BY id;

-- Receive and delete so many messages, one after the other.
CREATE TABLE taken (n serial, task_type text, group_id text, receive_count integer);
CREATE PROCEDURE take(queue text, messages integer) LANGUAGE plpgsql AS $$
BEGIN
	TRUNCATE taken RESTART IDENTITY;
	FOR i IN 1 .. messages LOOP
		INSERT INTO taken (task_type, group_id, receive_count)
			SELECT m.task_type, m.group_id, m.receive_count FROM taskoutbox.receive(queue, wait => '10 s') m WHERE taskoutbox.delete(m.receipt_handle);
		COMMIT;
	END LOOP;
END
$$;


--
-- cancel
--

-- A task that waits
SELECT id FROM taskoutbox.enqueue('cancelled') \gset
SELECT taskoutbox.cancel(:id);
SELECT * FROM tasks;
SELECT id FROM taskoutbox.receive();
-- It is gone now, as one that never was.
SELECT taskoutbox.cancel(:id);
SELECT taskoutbox.cancel(4711);
SELECT taskoutbox.cancel(-1);
SELECT taskoutbox.cancel(NULL);
\echo :SQLSTATE

-- One in flight is its consumer's.
SELECT id FROM taskoutbox.enqueue('in flight') \gset
SELECT receipt_handle FROM taskoutbox.receive(wait => '10 s') \gset
SELECT taskoutbox.cancel(:id);
BEGIN;
SELECT taskoutbox.delete(:'receipt_handle');
SELECT taskoutbox.cancel(:id);
ROLLBACK;
SELECT taskoutbox.cancel(:id);
SELECT taskoutbox.delete(:'receipt_handle');
SELECT taskoutbox.cancel(:id);
-- One that has come back is not.
SELECT id FROM taskoutbox.enqueue('came back') \gset
SELECT receipt_handle FROM taskoutbox.receive(wait => '10 s') \gset
SELECT taskoutbox.change_visibility(:'receipt_handle', '0');
SELECT waiting, in_flight FROM taskoutbox.queue_metrics;
SELECT taskoutbox.cancel(:id);

-- Rolled back, it is there still.
SELECT id FROM taskoutbox.enqueue('kept') \gset
BEGIN;
SELECT taskoutbox.cancel(:id);
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT taskoutbox.cancel(:id);
ROLLBACK TO s;
SELECT task_type FROM tasks;
COMMIT;
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive(wait => '10 s');
-- A transaction can cancel what it enqueued.
BEGIN;
SELECT id FROM taskoutbox.enqueue('undone') \gset
SELECT taskoutbox.cancel(:id);
SELECT taskoutbox.cancel(:id);
COMMIT;
SELECT id FROM taskoutbox.receive();

-- The head of a group: the next one is the head.
SELECT a.id AS first_id, b.id FROM taskoutbox.enqueue('first', group_id => 'g') a, taskoutbox.enqueue('second', group_id => 'g') b \gset
SELECT taskoutbox.cancel(:first_id);
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive(wait => '10 s');

-- Many at once. (In a WHERE clause PostgreSQL may call it before it looks at the
-- other conditions.)
SELECT count(taskoutbox.enqueue('many', jsonb_build_object('n', n))) FROM generate_series(1, 10) n;
SELECT count(*) FILTER (WHERE cancelled) FROM (SELECT taskoutbox.cancel(id) AS cancelled FROM taskoutbox.task_outbox WHERE payload -> 'n' > '4') c;
CALL take('default', 4);
SELECT * FROM taken;
SELECT * FROM tasks;
-- In one statement with its enqueue
SELECT e.duplicate, taskoutbox.cancel(e.id) FROM taskoutbox.enqueue('x') e;

BEGIN READ ONLY;
SELECT taskoutbox.cancel(1);
\echo :SQLSTATE
ROLLBACK;


--
-- Dead letters and redrive
--

SELECT taskoutbox.create_queue('fragile', max_receive_count => 1);
-- Receive one task and fail.
CREATE FUNCTION fail(queue text, error text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	m taskoutbox.message;
BEGIN
	SELECT * INTO m FROM taskoutbox.receive(queue, wait => '10 s');
	PERFORM taskoutbox.change_visibility(m.receipt_handle, '0', error);
	RETURN m.task_type || ', receive ' || m.receive_count;
END
$$;
SELECT count(*) FROM taskoutbox.enqueue('mail.send', '{"to": "ann"}', group_id => 'ann', queue => 'fragile',
	deduplication_id => 'mail/ann', headers => '{"k": "v"}');
SELECT fail('fragile', 'no such mailbox');
SELECT count(*) FROM taskoutbox.receive('fragile');
SELECT * FROM letters;
SELECT id FROM letters \gset first_

-- Redriven it is a task again, as it was, with a receive count that begins anew
-- (the queue allows one receive) and a link to the first one.
SELECT taskoutbox.redrive('fragile', :first_id);
SELECT * FROM letters;
SELECT id > :first_id AS new_id, queue, task_type, payload, group_id, deduplication_id, headers, receive_count, last_error, redriven_from = :first_id AS from_first
FROM taskoutbox.task_outbox;
-- Its deduplication id still tells duplicates, within the window, and has not made one of it.
SELECT id = :first_id AS first, duplicate FROM taskoutbox.enqueue('mail.send', group_id => 'ann', queue => 'fragile', deduplication_id => 'mail/ann');
SELECT task_type, payload, receive_count, last_error, receipt_handle FROM taskoutbox.receive('fragile', wait => '10 s') \gset
\echo :task_type :payload :receive_count :last_error
-- It fails again, and is a dead letter again.
SELECT taskoutbox.change_visibility(:'receipt_handle', '0', error => 'still no such mailbox');
SELECT count(*) FROM taskoutbox.receive('fragile');
SELECT id > :first_id AS new_id, receive_count, last_error, redriven_from = :first_id AS from_first FROM letters;
-- The link is to the first one, however often.
SELECT taskoutbox.redrive('fragile');
SELECT redriven_from = :first_id AS from_first FROM tasks;
SELECT taskoutbox.delete(receipt_handle) FROM taskoutbox.receive('fragile', wait => '10 s');
SELECT * FROM tasks;
SELECT * FROM letters;

-- Outside the window, it is no duplicate either.
SELECT taskoutbox.create_queue('forgetful', max_receive_count => 1, deduplication_window => '1 us');
SELECT count(*) FROM taskoutbox.enqueue('x', queue => 'forgetful', deduplication_id => 'd');
SELECT fail('forgetful', 'no');
SELECT count(*) FROM taskoutbox.receive('forgetful');
SELECT duplicate FROM taskoutbox.enqueue('y', queue => 'forgetful', deduplication_id => 'd');
SELECT taskoutbox.redrive('forgetful');
SELECT task_type, deduplication_id FROM taskoutbox.task_outbox ORDER BY id;
CALL take('forgetful', 2);
SELECT task_type FROM taken ORDER BY task_type;

-- With more receives, all of them are to be had again.
SELECT taskoutbox.create_queue('patient', max_receive_count => 2);
SELECT count(*) FROM taskoutbox.enqueue('x', queue => 'patient');
SELECT fail('patient', 'one');
SELECT fail('patient', 'two');
SELECT count(*) FROM taskoutbox.receive('patient');
SELECT taskoutbox.redrive('patient');
SELECT fail('patient', 'three');
SELECT waiting FROM taskoutbox.queue_metrics WHERE queue = 'patient';
SELECT receive_count, last_error FROM tasks;
SELECT fail('patient', 'four');
SELECT count(*) FROM taskoutbox.receive('patient');
SELECT receive_count, last_error FROM letters;
SELECT taskoutbox.purge('patient', dead_letters => true);

-- All of a queue: in their order, after what their groups have waiting, and only
-- that queue's
SELECT count(taskoutbox.enqueue('letter ' || n, group_id => 'g' || n % 2, queue => 'fragile')) FROM generate_series(1, 6) n;
DO $$
BEGIN
	FOR i IN 1 .. 6 LOOP
		PERFORM fail('fragile', 'no');
		COMMIT;
	END LOOP;
END
$$;
SELECT count(*) FROM taskoutbox.receive('fragile');
SELECT count(*) FROM taskoutbox.enqueue('waiting', group_id => 'g0', queue => 'fragile');
SELECT taskoutbox.redrive('patient');
SELECT taskoutbox.redrive('default');
-- Unless it is rolled back
BEGIN;
SELECT taskoutbox.redrive('fragile');
ROLLBACK;
SELECT count(*) FROM letters;
SELECT taskoutbox.redrive('fragile');
SELECT count(*) FROM letters;
SELECT task_type, group_id FROM tasks;
CALL take('fragile', 7);
SELECT group_id, task_type, receive_count FROM taken ORDER BY group_id, n;
SELECT count(*) FROM taskoutbox.receive('fragile');

-- The rows are inserted as by their owner: not in a transaction to be prepared
SELECT count(*) FROM taskoutbox.enqueue('x', queue => 'fragile');
SELECT fail('fragile', 'no');
SELECT count(*) FROM taskoutbox.receive('fragile');
BEGIN;
SELECT taskoutbox.redrive('fragile');
PREPARE TRANSACTION 'p';
\echo :SQLSTATE
SELECT taskoutbox.purge('fragile', dead_letters => true);
-- One that is not there, or in another queue
SELECT taskoutbox.redrive('fragile', 4711);
SELECT count(*) FROM taskoutbox.enqueue('x', queue => 'fragile');
SELECT fail('fragile', 'no');
SELECT count(*) FROM taskoutbox.receive('fragile');
SELECT id FROM letters \gset
SELECT taskoutbox.redrive('default', :id);
SELECT taskoutbox.redrive('nowhere', :id);
\echo :SQLSTATE
SELECT taskoutbox.redrive(NULL, :id);
\echo :SQLSTATE
BEGIN READ ONLY;
SELECT taskoutbox.redrive('fragile');
\echo :SQLSTATE
ROLLBACK;


--
-- purge
--

-- The tasks of a queue: waiting, delayed, in flight
SELECT count(taskoutbox.enqueue('x', queue => 'fragile', group_id => 'g', deliver_at => CASE n WHEN 5 THEN now() + interval '1 day' END)) FROM generate_series(1, 5) n;
SELECT count(*) FROM taskoutbox.enqueue('of another queue');
SELECT receipt_handle FROM taskoutbox.receive('fragile', wait => '10 s') \gset
SELECT waiting, in_flight FROM taskoutbox.queue_metrics WHERE queue = 'fragile';
BEGIN;
SELECT taskoutbox.purge('fragile');
ROLLBACK;
SELECT count(*) FROM tasks;
SELECT taskoutbox.purge('fragile');
SELECT task_type FROM tasks;
-- The consumer that holds one finds out when it deletes.
SELECT taskoutbox.delete(:'receipt_handle');
\echo :SQLSTATE
SELECT taskoutbox.delete(:'receipt_handle', missing_ok => true);
SELECT waiting, in_flight FROM taskoutbox.queue_metrics WHERE queue = 'fragile';
SELECT count(*) FROM taskoutbox.receive('fragile');
-- The dead letter is not a task of the queue.
SELECT count(*) FROM letters;
SELECT taskoutbox.purge('default', dead_letters => true);
SELECT taskoutbox.purge('fragile', dead_letters => true);
SELECT count(*) FROM letters;
SELECT task_type FROM tasks;
SELECT taskoutbox.purge('fragile'), taskoutbox.purge('fragile', dead_letters => true);
SELECT taskoutbox.purge('nowhere');
\echo :SQLSTATE
SELECT taskoutbox.purge(NULL);
\echo :SQLSTATE
SELECT taskoutbox.purge('default');
-- What comes later is not touched.
SELECT count(*) FROM taskoutbox.enqueue('later', queue => 'fragile', group_id => 'g');
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive('fragile', wait => '10 s');


--
-- alter_queue
--

SELECT taskoutbox.create_queue('q', visibility_timeout => '1 hour', max_receive_count => 3, deduplication_window => '1 day');
SELECT taskoutbox.alter_queue('q', visibility_timeout => '2 hours');
SELECT * FROM taskoutbox.queue WHERE name = 'q';
SELECT taskoutbox.alter_queue('q', max_receive_count => 2);
SELECT taskoutbox.alter_queue('q', deduplication_window => '2 days');
SELECT * FROM taskoutbox.queue WHERE name = 'q';
SELECT taskoutbox.alter_queue('q', visibility_timeout => NULL, max_receive_count => NULL, deduplication_window => NULL);
SELECT taskoutbox.alter_queue('q');
SELECT * FROM taskoutbox.queue WHERE name = 'q';
SELECT taskoutbox.alter_queue('q', '3 hours', 1, '3 days');
SELECT * FROM taskoutbox.queue WHERE name = 'q';
-- Refused, and then nothing is changed
SELECT taskoutbox.alter_queue('q', visibility_timeout => '0');
\echo :SQLSTATE
SELECT taskoutbox.alter_queue('q', visibility_timeout => '12 hours 1 us');
SELECT taskoutbox.alter_queue('q', max_receive_count => 0);
\echo :SQLSTATE
SELECT taskoutbox.alter_queue('q', max_receive_count => 1001);
SELECT taskoutbox.alter_queue('q', deduplication_window => '0');
\echo :SQLSTATE
SELECT taskoutbox.alter_queue('q', '1 hour', 2, '1000 days 1 us');
SELECT taskoutbox.alter_queue('nowhere', '1 hour');
\echo :SQLSTATE
SELECT taskoutbox.alter_queue(NULL, '1 hour');
\echo :SQLSTATE
BEGIN;
SELECT taskoutbox.alter_queue('q', '4 hours');
ROLLBACK;
SELECT * FROM taskoutbox.queue WHERE name = 'q';
-- The queue "default" gets a row, with the defaults for the rest.
SELECT taskoutbox.alter_queue('default', max_receive_count => 1);
SELECT * FROM taskoutbox.queue WHERE name = 'default';
-- It takes effect with what is received and enqueued next.
SELECT count(*) FROM taskoutbox.enqueue('x');
SELECT fail('default', 'once was enough');
SELECT count(*) FROM taskoutbox.receive();
SELECT last_error FROM letters;
SELECT taskoutbox.purge('default', dead_letters => true);
SELECT taskoutbox.alter_queue('default', visibility_timeout => '100 ms', max_receive_count => 100, deduplication_window => '1 us');
SELECT e.duplicate, taskoutbox.cancel(e.id) FROM taskoutbox.enqueue('x', deduplication_id => 'd') e;
SELECT e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'd') e;
SELECT receive_count FROM taskoutbox.receive(wait => '10 s');
SELECT receive_count FROM taskoutbox.receive(wait => '10 s');
SELECT taskoutbox.alter_queue('default', visibility_timeout => '1 hour');
SELECT receive_count FROM taskoutbox.receive(wait => '10 s');
SELECT taskoutbox.purge('default');


--
-- pause_queue, resume_queue
--

SELECT count(*) FROM taskoutbox.enqueue('one', queue => 'q');
SELECT count(*) FROM taskoutbox.enqueue('two', queue => 'q');
SELECT count(*) FROM taskoutbox.enqueue('three', queue => 'q');
SELECT receipt_handle AS one FROM taskoutbox.receive('q', wait => '10 s') \gset
SELECT receipt_handle AS two FROM taskoutbox.receive('q', wait => '10 s') \gset
SELECT taskoutbox.alter_queue('q', max_receive_count => 3);
SELECT taskoutbox.pause_queue('q');
-- From the commit on nothing is given out,
SELECT task_type FROM taskoutbox.receive('q', 10);
SELECT task_type FROM taskoutbox.receive('q', wait => '50 ms');
-- but tasks are accepted, and those in flight can be done, or given back.
SELECT count(*) FROM taskoutbox.enqueue('four', queue => 'q');
SELECT taskoutbox.delete(:'one');
SELECT taskoutbox.change_visibility(:'two', '0');
SELECT task_type FROM taskoutbox.receive('q', 10);
SELECT waiting, in_flight FROM taskoutbox.queue_metrics WHERE queue = 'q';
-- Other queues go on.
SELECT count(*) FROM taskoutbox.enqueue('of another queue', queue => 'patient');
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive('patient', wait => '10 s');
-- Its settings can be changed, and its tasks cancelled.
SELECT taskoutbox.alter_queue('q', visibility_timeout => '5 hours');
SELECT taskoutbox.cancel(id) FROM tasks WHERE task_type = 'four';
SELECT * FROM taskoutbox.queue WHERE name = 'q';
-- Paused is paused; a resume that is rolled back is none.
SELECT taskoutbox.pause_queue('q');
BEGIN;
SELECT taskoutbox.resume_queue('q');
ROLLBACK;
SELECT task_type FROM taskoutbox.receive('q', 10);
SELECT taskoutbox.resume_queue('q');
CALL take('q', 2);
SELECT receive_count FROM taken ORDER BY receive_count;
SELECT taskoutbox.resume_queue('q');
-- A pause that is rolled back is none.
BEGIN;
SELECT taskoutbox.pause_queue('q');
ROLLBACK;
SELECT count(*) FROM taskoutbox.enqueue('not paused', queue => 'q');
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive('q', wait => '10 s');
-- The queue "default", without a row: it gets one.
DELETE FROM taskoutbox.queue WHERE name = 'default';
SELECT taskoutbox.resume_queue('default');
SELECT taskoutbox.pause_queue('default');
SELECT * FROM taskoutbox.queue WHERE name = 'default';
SELECT count(*) FROM taskoutbox.enqueue('x');
SELECT task_type FROM taskoutbox.receive();
SELECT taskoutbox.resume_queue('default');
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive(wait => '10 s');
-- Refused
SELECT taskoutbox.pause_queue('nowhere');
\echo :SQLSTATE
SELECT taskoutbox.resume_queue('nowhere');
\echo :SQLSTATE
SELECT taskoutbox.pause_queue(NULL);
\echo :SQLSTATE
SELECT taskoutbox.resume_queue('');
\echo :SQLSTATE


--
-- drop_queue
--

-- Not while something is in it: tasks, delayed ones, in flight or not; dead letters
SELECT taskoutbox.create_queue('doomed', max_receive_count => 1);
SELECT count(*) FROM taskoutbox.enqueue('x', queue => 'doomed', deliver_at => now() + interval '1 day');
SELECT taskoutbox.drop_queue('doomed');
\echo :SQLSTATE
SELECT taskoutbox.purge('doomed');
SELECT count(*) FROM taskoutbox.enqueue('x', queue => 'doomed');
SELECT fail('doomed', 'no');
SELECT count(*) FROM taskoutbox.receive('doomed');
SELECT taskoutbox.drop_queue('doomed', force => false);
SELECT taskoutbox.drop_queue('doomed', force => NULL);
SELECT taskoutbox.purge('doomed', dead_letters => true);
SELECT taskoutbox.drop_queue('doomed');
SELECT taskoutbox.enqueue('x', queue => 'doomed');
\echo :SQLSTATE
SELECT * FROM taskoutbox.receive('doomed');
\echo :SQLSTATE
SELECT taskoutbox.drop_queue('doomed');
\echo :SQLSTATE

-- With force, all that was in it goes, too, and nothing of other queues.
SELECT taskoutbox.create_queue('doomed', max_receive_count => 1);
SELECT count(*) FROM taskoutbox.enqueue('dies', queue => 'doomed');
SELECT fail('doomed', 'no');
SELECT count(*) FROM taskoutbox.receive('doomed');
SELECT count(*) FROM taskoutbox.enqueue('in flight', queue => 'doomed');
SELECT receipt_handle FROM taskoutbox.receive('doomed', wait => '10 s') \gset
SELECT count(taskoutbox.enqueue('waiting', queue => 'doomed', deduplication_id => 'd' || n)) FROM generate_series(1, 3) n;
SELECT count(*) FROM taskoutbox.enqueue('of another queue', queue => 'q');
BEGIN;
SELECT taskoutbox.drop_queue('doomed', force => true);
SELECT task_type FROM tasks;
ROLLBACK;
SELECT count(*) FROM tasks;
SELECT taskoutbox.drop_queue('doomed', force => true);
SELECT task_type FROM tasks;
SELECT * FROM letters;
SELECT count(*) FROM taskoutbox.deduplication WHERE queue = 'doomed';
SELECT queue FROM taskoutbox.queue_metrics ORDER BY queue;
SELECT taskoutbox.delete(:'receipt_handle');
\echo :SQLSTATE
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive('q', wait => '20 s');

-- The name is free for a new queue, which knows nothing of the old one.
SELECT taskoutbox.create_queue('doomed');
SELECT * FROM taskoutbox.queue WHERE name = 'doomed';
SELECT duplicate FROM taskoutbox.enqueue('new', queue => 'doomed', deduplication_id => 'd1');
SELECT task_type, receive_count, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive('doomed', 10, wait => '20 s');
-- All in one transaction
BEGIN;
SELECT taskoutbox.drop_queue('doomed');
SELECT taskoutbox.create_queue('doomed', max_receive_count => 7);
SELECT duplicate FROM taskoutbox.enqueue('new', queue => 'doomed', deduplication_id => 'd1');
COMMIT;
SELECT task_type, receive_count, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive('doomed', 10, wait => '20 s');

-- The queue "default" has its row dropped, if it has one, and goes on with the
-- default settings.
SELECT taskoutbox.alter_queue('default', max_receive_count => 7);
SELECT taskoutbox.drop_queue('default');
SELECT * FROM taskoutbox.queue WHERE name = 'default';
SELECT count(*) FROM taskoutbox.enqueue('x');
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive(wait => '20 s');
SELECT taskoutbox.drop_queue('default');
\echo :SQLSTATE
SELECT taskoutbox.drop_queue('default', force => true);
SELECT taskoutbox.drop_queue(NULL);
\echo :SQLSTATE

DROP VIEW tasks, letters;
DROP TABLE taken;
DROP PROCEDURE take;
DROP FUNCTION fail;
DROP EXTENSION taskoutbox;
