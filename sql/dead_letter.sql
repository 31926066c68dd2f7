-- Dead letters: what their message groups do, how they end, how long they are kept.
CREATE EXTENSION taskoutbox;

CREATE VIEW tasks AS SELECT task_type, group_id, receive_count, last_error FROM taskoutbox.task_outbox ORDER BY id;
CREATE VIEW letters AS SELECT task_type, group_id, receive_count, stage, reason, last_error, blocks FROM taskoutbox.dead_letter ORDER BY id;

-- Receive up to so many messages, and fail.
CREATE FUNCTION fail(queue text, messages integer DEFAULT 1, error text DEFAULT 'no') RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	m taskoutbox.message;
BEGIN
	FOR m IN SELECT * FROM taskoutbox.receive(queue, messages, wait => '10 s') LOOP
		PERFORM taskoutbox.change_visibility(m.receipt_handle, '0', error);
		RETURN NEXT m.task_type || ', receive ' || m.receive_count;
	END LOOP;
END
$$;
-- Receive and delete what there is, one after the other, and return it.
CREATE TABLE taken (n serial, task_type text);
CREATE PROCEDURE take(queue text) LANGUAGE plpgsql AS $$
BEGIN
	TRUNCATE taken RESTART IDENTITY;
	LOOP
		INSERT INTO taken (task_type)
			SELECT m.task_type FROM taskoutbox.receive(queue) m WHERE taskoutbox.delete(m.receipt_handle);
		EXIT WHEN NOT FOUND;
		COMMIT;
	END LOOP;
END
$$;


--
-- skip: the group goes on. It is the default.
--

SELECT taskoutbox.create_queue('skip', max_receive_count => 1);
SELECT count(taskoutbox.enqueue('skip ' || n, group_id => 'g', queue => 'skip')) FROM generate_series(1, 5) n;
CALL take('nowhere');
\echo :SQLSTATE
SELECT fail('skip');
SELECT fail('skip');
CALL take('skip');
SELECT task_type FROM taken;
SELECT * FROM letters;
SELECT dead, blocked_groups, waiting FROM taskoutbox.queue_metrics WHERE queue = 'skip';
SELECT * FROM taskoutbox.blocked_groups;
-- Redriven they are new tasks of their group, with a receive count that starts at
-- zero, so that one receive does not bury them at once (case C83).
SELECT count(*) FROM taskoutbox.enqueue('skip 6', group_id => 'g', queue => 'skip');
SELECT taskoutbox.redrive('skip');
CALL take('skip');
SELECT task_type FROM taken;


--
-- block: the group waits (case C82).
--

SELECT taskoutbox.create_queue('block', max_receive_count => 2, on_dead_letter => 'block');
SELECT count(taskoutbox.enqueue('block ' || n, group_id => 'g', queue => 'block')) FROM generate_series(1, 5) n;
SELECT fail('block', error => 'first try');
SELECT fail('block', error => 'second try');
-- Other groups, and those without one, go on.
SELECT count(taskoutbox.enqueue('other ' || n, group_id => CASE n WHEN 1 THEN 'h' END, queue => 'block')) FROM generate_series(1, 2) n;
CALL take('block');
SELECT task_type FROM taken ORDER BY task_type;
SELECT * FROM letters;
SELECT * FROM tasks;
SELECT dead, blocked_groups, waiting, in_flight, dead_lettered, problem FROM taskoutbox.queue_metrics WHERE queue = 'block';
SELECT b.queue, b.group_id, b.attempts, b.last_error, b.next_try, b.dead, d.task_type, b.since = d.died_at AS since_death
FROM taskoutbox.blocked_groups b JOIN taskoutbox.dead_letter d USING (id);
-- New ones of the group wait, too.
SELECT count(*) FROM taskoutbox.enqueue('block 6', group_id => 'g', queue => 'block');
SELECT count(*) FROM taskoutbox.receive('block');
-- One without a group has none to block.
SELECT count(*) FROM taskoutbox.enqueue('no group', queue => 'block');
SELECT fail('block');
SELECT fail('block');
SELECT count(*) FROM taskoutbox.receive('block');
SELECT * FROM letters;
-- Redriven, and rolled back: it waits on.
SELECT id FROM taskoutbox.dead_letter WHERE blocks \gset
BEGIN;
SELECT taskoutbox.redrive('block', :id);
ROLLBACK;
SELECT count(*) FROM taskoutbox.receive('block');
-- Redriven it comes first, and if it fails again, the group waits again.
SELECT taskoutbox.redrive('block', :id);
SELECT fail('block');
SELECT fail('block');
SELECT count(*) FROM taskoutbox.receive('block');
SELECT * FROM letters;
SELECT redriven_from = :id AS from_first FROM taskoutbox.dead_letter WHERE blocks;
SELECT count(*) FROM taskoutbox.redrive('block');
CALL take('block');
SELECT task_type FROM taken WHERE task_type <> 'no group' ORDER BY n;

-- Those that were received with the dead one get another chance: they have not
-- failed, it was in their way. Redriven, each has its old place.
SELECT count(taskoutbox.enqueue('batch ' || n, group_id => 'g', queue => 'block')) FROM generate_series(1, 5) n;
SELECT fail('block', 3);
SELECT fail('block', 3);
SELECT count(*) FROM taskoutbox.receive('block');
SELECT * FROM letters;
SELECT * FROM tasks;
SELECT count(*) FROM taskoutbox.redrive('block');
SELECT fail('block', 2);
SELECT count(*) FROM taskoutbox.receive('block');
SELECT * FROM letters;
SELECT count(*) FROM taskoutbox.redrive('block');
CALL take('block');
SELECT task_type FROM taken ORDER BY n;

-- Cancelled it is gone, and the group goes on.
SELECT count(taskoutbox.enqueue('cancel ' || n, group_id => 'g', queue => 'block')) FROM generate_series(1, 2) n;
SELECT fail('block');
SELECT fail('block');
SELECT count(*) FROM taskoutbox.receive('block');
SELECT id FROM taskoutbox.dead_letter \gset
BEGIN;
SELECT taskoutbox.cancel(:id);
ROLLBACK;
SELECT count(*) FROM taskoutbox.receive('block');
SELECT taskoutbox.cancel(:id);
SELECT taskoutbox.cancel(:id);
CALL take('block');
SELECT task_type FROM taken;
-- A dead letter that blocks nothing can be cancelled, too.
SELECT count(*) FROM taskoutbox.enqueue('x', queue => 'skip');
SELECT fail('skip');
SELECT count(*) FROM taskoutbox.receive('skip');
SELECT taskoutbox.cancel(id) FROM taskoutbox.dead_letter;

-- Purged
SELECT count(taskoutbox.enqueue('purge ' || n, group_id => 'g', queue => 'block')) FROM generate_series(1, 2) n;
SELECT fail('block');
SELECT fail('block');
SELECT count(*) FROM taskoutbox.receive('block');
SELECT taskoutbox.purge('block', dead_letters => true);
CALL take('block');
SELECT task_type FROM taken;

-- By COMMIT PREPARED, which knows nothing of what it commits
SELECT count(taskoutbox.enqueue('prepared ' || n, group_id => 'g', queue => 'block')) FROM generate_series(1, 2) n;
SELECT fail('block');
SELECT fail('block');
SELECT count(*) FROM taskoutbox.receive('block');
BEGIN;
SELECT taskoutbox.purge('block', dead_letters => true);
PREPARE TRANSACTION 'dead_letter';
SELECT count(*) FROM taskoutbox.receive('block');
COMMIT PREPARED 'dead_letter';
CALL take('block');
SELECT task_type FROM taken;

-- By their owner's hand, and by TRUNCATE
SELECT count(taskoutbox.enqueue('hand ' || n, group_id => 'g', queue => 'block')) FROM generate_series(1, 3) n;
SELECT fail('block');
SELECT fail('block');
SELECT count(*) FROM taskoutbox.receive('block');
DELETE FROM taskoutbox.dead_letter;
SELECT fail('block');
SELECT fail('block');
SELECT count(*) FROM taskoutbox.receive('block');
TRUNCATE taskoutbox.dead_letter;
CALL take('block');
SELECT task_type FROM taken;
-- A letter that comes in blocks as well, as after a restore.
INSERT INTO taskoutbox.dead_letter (id, enqueued_at, receive_count, queue, group_id, task_type, payload, stage, reason, blocks)
VALUES (1, now(), 1, 'block', 'g', 'restored', '{}', 'consumer', 'restored', true);
SELECT count(*) FROM taskoutbox.enqueue('after', group_id => 'g', queue => 'block');
SELECT count(*) FROM taskoutbox.receive('block');
SELECT taskoutbox.cancel(1);
CALL take('block');
SELECT task_type FROM taken;

-- alter_queue: from now on, and when it ends, for those that wait, too.
SELECT taskoutbox.alter_queue('skip', on_dead_letter => 'block');
SELECT count(taskoutbox.enqueue('alter ' || n, group_id => 'g', queue => 'skip')) FROM generate_series(1, 2) n;
SELECT fail('skip');
SELECT count(*) FROM taskoutbox.receive('skip');
SELECT taskoutbox.alter_queue('skip', max_receive_count => 3);
SELECT count(*) FROM taskoutbox.receive('skip');
SELECT taskoutbox.alter_queue('skip', on_dead_letter => 'skip');
CALL take('skip');
SELECT task_type FROM taken;
SELECT blocks FROM letters;
SELECT taskoutbox.alter_queue('skip', on_dead_letter => 'wait');
\echo :SQLSTATE
SELECT taskoutbox.create_queue('x', on_dead_letter => NULL);
\echo :SQLSTATE
-- A blocked group does not keep its queue from being dropped with force.
SELECT count(taskoutbox.enqueue('drop ' || n, group_id => 'g', queue => 'block')) FROM generate_series(1, 2) n;
SELECT fail('block');
SELECT fail('block');
SELECT taskoutbox.drop_queue('block');
\echo :SQLSTATE
SELECT taskoutbox.drop_queue('block', force => true);
SELECT taskoutbox.create_queue('block');
SELECT count(*) FROM taskoutbox.enqueue('drop 3', group_id => 'g', queue => 'block');
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive('block', wait => '10 s');


--
-- Retention (case C94)
--

-- A batch is 1,000; what blocks its group stays.
TRUNCATE taskoutbox.dead_letter;
SELECT taskoutbox.create_queue('short', on_dead_letter => 'block', dead_letter_retention => '1 hour');
INSERT INTO taskoutbox.dead_letter (id, enqueued_at, died_at, receive_count, queue, group_id, task_type, payload, stage, reason, blocks)
SELECT n, now(), now() - interval '2 hours', 1, 'short', 'g', 'old', '{}', 'consumer', 'x', n = 1 FROM generate_series(1, 2500) n;
INSERT INTO taskoutbox.dead_letter (id, enqueued_at, died_at, receive_count, queue, group_id, task_type, payload, stage, reason)
VALUES (3001, now(), now() - interval '30 minutes', 1, 'short', 'g', 'young', '{}', 'consumer', 'x'),
	(3002, now(), now() - interval '89 days', 1, 'default', 'g', 'of the queue default', '{}', 'consumer', 'x'),
	(3003, now(), now() - interval '91 days', 1, 'default', 'g', 'old', '{}', 'consumer', 'x');
-- Once a minute; for the test, by a new relay.
SELECT count(pg_terminate_backend(pid)) FROM taskoutbox.relay_status WHERE database = current_database();
DO $$
BEGIN
	FOR i IN 1 .. 1000 LOOP
		EXIT WHEN (SELECT count(*) FROM taskoutbox.dead_letter) <= 3;
		PERFORM pg_sleep(0.01);
		COMMIT;
	END LOOP;
END
$$;
SELECT id, queue, task_type, blocks FROM taskoutbox.dead_letter ORDER BY id;
SELECT taskoutbox.alter_queue('short', dead_letter_retention => '0');
\echo :SQLSTATE
SELECT taskoutbox.alter_queue('short', dead_letter_retention => '101 years');

DROP VIEW tasks, letters;
DROP TABLE taken;
DROP PROCEDURE take;
DROP FUNCTION fail;
DROP EXTENSION taskoutbox;
