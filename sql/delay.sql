-- Delayed delivery: deliver_at
CREATE EXTENSION taskoutbox;

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

-- What waits for its time is not given out.
SELECT id FROM taskoutbox.enqueue('tomorrow', deliver_at => now() + interval '1 day');
SELECT id FROM taskoutbox.enqueue('at once');
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive(max_messages => 10, wait => '10 s');
SELECT task_type FROM taskoutbox.receive();
SELECT id, deliver_at > now() + interval '23 hours' AS tomorrow FROM taskoutbox.task_outbox;
-- It does not count as waiting yet.
SELECT waiting, in_flight FROM taskoutbox.queue_metrics;

-- It is cancelled like any other.
SELECT taskoutbox.cancel(1);
SELECT count(*) FROM taskoutbox.task_outbox;

-- A receive that waits gets it when it is due, and not before.
SELECT id FROM taskoutbox.enqueue('soon', deliver_at => clock_timestamp() + interval '500 ms');
SELECT m.task_type, m.received_at >= t.deliver_at AS due, m.deleted
FROM (SELECT id, task_type, clock_timestamp() AS received_at, taskoutbox.delete(receipt_handle) AS deleted FROM taskoutbox.receive(wait => '10 s')) m
	LEFT JOIN taskoutbox.task_outbox t USING (id);

-- The past is at once, in order.
SELECT id FROM taskoutbox.enqueue('one', group_id => 'past', deliver_at => '2001-01-01');
SELECT id FROM taskoutbox.enqueue('two', group_id => 'past');
SELECT id FROM taskoutbox.enqueue('three', group_id => 'past', deliver_at => now());
CALL take('default', 3);
SELECT task_type FROM taken ORDER BY n;

-- Infinity is nothing to wait for.
SELECT taskoutbox.enqueue('never', deliver_at => 'infinity');
\echo :SQLSTATE
SELECT taskoutbox.enqueue('always', deliver_at => '-infinity');
\echo :SQLSTATE

-- Its transaction counts: rolled back, or committed after the time has come
BEGIN;
SELECT id FROM taskoutbox.enqueue('undone', deliver_at => clock_timestamp() + interval '10 ms');
ROLLBACK;
BEGIN;
SELECT e.id IS NOT NULL AS enqueued FROM taskoutbox.enqueue('overdue', deliver_at => clock_timestamp() + interval '10 ms') e;
SELECT pg_sleep_until(deliver_at) FROM taskoutbox.task_outbox;
SELECT task_type FROM taskoutbox.receive();
COMMIT;
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive(wait => '10 s');


--
-- Groups
--

-- Some time from now, for several tasks alike; and a wait until all that was due
-- before is known to the relay: tasks become due in the order of deliver_at.
SELECT taskoutbox.create_queue('clock');
CREATE FUNCTION soon() RETURNS timestamptz LANGUAGE sql AS $$ SELECT clock_timestamp() + interval '400 ms' $$;
CREATE FUNCTION until_due(at timestamptz) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM 1 FROM taskoutbox.receive('clock', wait => '10 s') m, taskoutbox.delete(m.receipt_handle);
	RETURN CASE WHEN clock_timestamp() >= at THEN 'due' ELSE 'not due' END;
END
$$;

-- A delayed one does not hold up its group, though it has the smallest id.
SELECT soon() AS soon \gset
SELECT task_type FROM (VALUES ('delayed', timestamptz :'soon'), ('first', NULL), ('second', NULL)) v (task_type, at),
	LATERAL taskoutbox.enqueue(task_type, group_id => 'g', deliver_at => at) e ORDER BY e.id;
SELECT count(*) FROM taskoutbox.enqueue('tick', queue => 'clock', deliver_at => :'soon');
SELECT task_type, receipt_handle FROM taskoutbox.receive(wait => '10 s') \gset
\echo :task_type
-- It takes its place when it is due, after those that were there by then,
SELECT until_due(:'soon');
SELECT count(*) FROM taskoutbox.enqueue('third', group_id => 'g');
-- and waits while another one of the group is in flight.
SELECT task_type FROM taskoutbox.receive();
SELECT taskoutbox.delete(:'receipt_handle');
CALL take('default', 3);
SELECT task_type FROM taken ORDER BY n;

-- Several delayed ones: in the order in which they are due
SELECT soon() AS soon \gset
SELECT task_type FROM (VALUES ('due last', 0), ('due first', 2), ('due between', 1)) v (task_type, ms_before),
	LATERAL taskoutbox.enqueue(task_type, group_id => 'g', deliver_at => timestamptz :'soon' - ms_before * interval '1 ms') e ORDER BY e.id;
SELECT count(*) FROM taskoutbox.enqueue('tick', queue => 'clock', deliver_at => :'soon');
CALL take('default', 3);
SELECT task_type FROM taken ORDER BY n;
SELECT until_due(:'soon');

-- Many at one time
SELECT soon() AS soon \gset
SELECT count(taskoutbox.enqueue('many', group_id => 'many', deliver_at => :'soon')) FROM generate_series(1, 500);
SELECT count(*) FROM taskoutbox.enqueue('tick', queue => 'clock', deliver_at => :'soon');
SELECT until_due(:'soon');
CREATE TEMP TABLE got (LIKE taskoutbox.message);
INSERT INTO got SELECT * FROM taskoutbox.receive(max_messages => 250, wait => '10 s');
SELECT taskoutbox.delete(array_agg(receipt_handle)) = (SELECT count(*) FROM got) AS all_deleted FROM got;
DO $$
BEGIN
	FOR i IN 1 .. 500 LOOP
		EXIT WHEN (SELECT count(*) FROM taskoutbox.task_outbox) = 0;
		INSERT INTO got SELECT * FROM taskoutbox.receive(max_messages => 250, wait => '10 s');
		PERFORM taskoutbox.delete(array_agg(receipt_handle), missing_ok => true) FROM got;
		COMMIT;
	END LOOP;
END
$$;
SELECT count(*), count(DISTINCT id), max(receive_count) FROM got;


--
-- Everything else is as without a delay.
--

-- Once due, it comes back when it is given back.
SELECT e.id IS NOT NULL AS enqueued FROM taskoutbox.enqueue('again', deliver_at => clock_timestamp() + interval '10 ms') e;
SELECT receipt_handle FROM taskoutbox.receive(wait => '10 s') \gset
SELECT taskoutbox.change_visibility(:'receipt_handle', '0');
SELECT task_type, receive_count, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive(wait => '10 s');

-- While it waits, its deduplication id is taken, whatever the window.
SELECT taskoutbox.create_queue('short', deduplication_window => '1 us');
SELECT id FROM taskoutbox.enqueue('x', deduplication_id => 'd', queue => 'short', deliver_at => now() + interval '1 day') \gset
SELECT id = :id AS same, duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'd', queue => 'short');
SELECT task_type FROM taskoutbox.receive('short');
SELECT taskoutbox.cancel(:id);

-- Its owner may insert rows, too.
SELECT soon() AS soon \gset
INSERT INTO taskoutbox.task_outbox (task_type, deliver_at) VALUES
	('inserted for later', :'soon'), ('inserted for tomorrow', now() + interval '1 day'), ('inserted for now', now());
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive(max_messages => 10, wait => '10 s');
SELECT task_type, clock_timestamp() >= :'soon' AS due, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive(max_messages => 10, wait => '10 s');
SELECT task_type FROM taskoutbox.receive();
\set VERBOSITY terse
INSERT INTO taskoutbox.task_outbox (task_type, deliver_at) VALUES ('never', 'infinity');
\set VERBOSITY default

-- A new relay finds what is due then, and what became due without a relay.
SELECT count(*) FROM taskoutbox.enqueue('due without a relay', deliver_at => clock_timestamp() + interval '10 ms');
SELECT count(*) FROM taskoutbox.enqueue('due later', deliver_at => clock_timestamp() + interval '1500 ms');
BEGIN;
-- (It locks the table for each round.)
LOCK TABLE taskoutbox.task_outbox;
SELECT pg_terminate_backend(pid, 10000) FROM taskoutbox.relay_status;
SELECT pg_sleep_until(min(deliver_at)) FROM taskoutbox.task_outbox;
COMMIT;
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive(wait => '20 s');
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive(wait => '20 s');
SELECT task_type FROM taskoutbox.task_outbox;

DROP TABLE taken;
DROP FUNCTION soon, until_due;
DROP PROCEDURE take;
DROP EXTENSION taskoutbox;
