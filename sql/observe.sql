-- What one can see: task, queue_metrics, blocked_groups, in_flight; retry_now; max_pending.
CREATE EXTENSION taskoutbox;

-- Wait until it is true.
CREATE PROCEDURE until(condition text) LANGUAGE plpgsql AS $$
DECLARE
	holds boolean;
BEGIN
	FOR i IN 1 .. 1000 LOOP
		EXECUTE 'SELECT ' || condition INTO holds;
		EXIT WHEN holds;
		PERFORM pg_sleep(0.01);
		COMMIT;
	END LOOP;
	IF NOT holds THEN
		RAISE NOTICE 'never: %', condition;
	END IF;
END
$$;


--
-- task
--

SELECT id FROM taskoutbox.enqueue('account.interest', group_id => 'ann') \gset
SELECT id = :id AS same, state, since = enqueued_at AS since_enqueued, next_at, next, queue, task_type, group_id, receive_count, last_error, redriven_from FROM taskoutbox.task(:id);
SELECT id AS second_id FROM taskoutbox.enqueue('account.close', group_id => 'ann') \gset
SELECT receipt_handle FROM taskoutbox.receive(wait => '10 s', visibility_timeout => '1 hour') \gset
SELECT state, since > enqueued_at AS since_receive, next_at - since BETWEEN '59 min' AND '61 min' AS next_at, next, receive_count FROM taskoutbox.task(:id);
SELECT state, next_at = (SELECT until FROM taskoutbox.in_flight) AS next_at, replace(next, :id::text, 'N') AS next FROM taskoutbox.task(:second_id);
BEGIN;
SELECT taskoutbox.delete(:'receipt_handle');
SELECT state, next FROM taskoutbox.task(:id);
ROLLBACK;
SELECT taskoutbox.change_visibility(:'receipt_handle', '2 hours', 'no such account');
SELECT state, next, next_at > clock_timestamp() + interval '1 hour' AS next_at, last_error FROM taskoutbox.task(:id);
SELECT waits_for_retry FROM taskoutbox.in_flight;
SELECT taskoutbox.change_visibility(:'receipt_handle', '0');
CALL until('receive_count = 1 FROM taskoutbox.task_outbox ORDER BY id LIMIT 1');
SELECT state, next, receive_count FROM taskoutbox.task(:id);
SELECT taskoutbox.pause_queue('default');
SELECT state, next FROM taskoutbox.task(:id);
SELECT taskoutbox.resume_queue('default');
SELECT e.id AS delayed_id FROM taskoutbox.enqueue('x', deliver_at => 'tomorrow') e \gset
SELECT state, next_at = 'tomorrow' AS next_at, next FROM taskoutbox.task(:delayed_id);
-- Dead, and blocked by it
SELECT taskoutbox.alter_queue('default', on_dead_letter => 'block', max_receive_count => 2);
SELECT receipt_handle FROM taskoutbox.receive(wait => '10 s') \gset
SELECT taskoutbox.change_visibility(:'receipt_handle', '0', 'no such account');
CALL until('count(*) = 1 FROM taskoutbox.dead_letter');
SELECT state, next, next_at, receive_count, last_error FROM taskoutbox.task(:id);
SELECT state, next_at, replace(next, :id::text, 'N') AS next FROM taskoutbox.task(:second_id);
SELECT taskoutbox.alter_queue('default', on_dead_letter => 'skip', dead_letter_retention => '1 day');
SELECT state, next, next_at - since AS kept FROM taskoutbox.task(:id);
SELECT taskoutbox.redrive('default', :id);
SELECT state, next FROM taskoutbox.task(:id);
SELECT t.state, t.redriven_from = :id AS from_first, t.enqueued_at < t.since AS first_enqueued FROM taskoutbox.task_outbox o, taskoutbox.task(o.id) t WHERE o.redriven_from = :id;
SELECT t.state, t.next FROM taskoutbox.task(4711) t;
SELECT taskoutbox.task(NULL);
\echo :SQLSTATE
-- Of a queue that does not exist
INSERT INTO taskoutbox.task_outbox (task_type, queue) VALUES ('x', 'nowhere') RETURNING id AS orphan_id \gset
SELECT state, next FROM taskoutbox.task(:orphan_id);
DELETE FROM taskoutbox.task_outbox WHERE id = :orphan_id;
SELECT taskoutbox.purge('default');


--
-- Figures
--

SELECT taskoutbox.create_queue('q', max_receive_count => 1);
SELECT waiting, delayed, in_flight, dead, blocked_groups, oldest_age, enqueued_per_second, delivered_per_second, delivered, retried, dead_lettered, duplicates, relay_running, problem, problem_since
FROM taskoutbox.queue_metrics WHERE queue = 'q';
SELECT count(taskoutbox.enqueue('x', queue => 'q', deduplication_id => n / 2 || '', deliver_at => CASE WHEN n > 6 THEN now() + interval '1 hour' END)) FROM generate_series(0, 13) n;
SELECT waiting, delayed, oldest_age BETWEEN '0' AND '1 min' AS oldest_age, enqueued_per_second BETWEEN 0.1 AND 0.12 AS rate, duplicates FROM taskoutbox.queue_metrics WHERE queue = 'q';
SELECT count(taskoutbox.delete(receipt_handle)) FROM taskoutbox.receive('q', 2, wait => '10 s');
SELECT receipt_handle FROM taskoutbox.receive('q', wait => '10 s') \gset
SELECT waiting, delayed, in_flight, delivered, delivered_per_second BETWEEN 0.03 AND 0.04 AS rate FROM taskoutbox.queue_metrics WHERE queue = 'q';
SELECT taskoutbox.change_visibility(:'receipt_handle', '0', 'no');
SELECT waiting, in_flight, dead, dead_lettered FROM taskoutbox.queue_metrics WHERE queue = 'q';
-- Delayed ones are counted when they are cancelled, come due, or are purged.
SELECT count(*) FILTER (WHERE c) FROM (SELECT taskoutbox.cancel(id) AS c FROM (SELECT id FROM taskoutbox.task_outbox WHERE deliver_at IS NOT NULL ORDER BY id LIMIT 1) t) c;
SELECT waiting, delayed FROM taskoutbox.queue_metrics WHERE queue = 'q';
BEGIN;
SELECT count(taskoutbox.cancel(id)) FROM taskoutbox.task_outbox WHERE deliver_at IS NOT NULL;
ROLLBACK;
SELECT waiting, delayed FROM taskoutbox.queue_metrics WHERE queue = 'q';
SELECT count(*) FROM taskoutbox.enqueue('x', queue => 'q', deliver_at => now() + interval '100 ms');
CALL until($$waiting = 2 FROM taskoutbox.queue_metrics WHERE queue = 'q'$$);
SELECT waiting, delayed FROM taskoutbox.queue_metrics WHERE queue = 'q';
SELECT taskoutbox.purge('q');
SELECT waiting, delayed FROM taskoutbox.queue_metrics WHERE queue = 'q';
SELECT count(*) FROM taskoutbox.enqueue('x', queue => 'q', deliver_at => now() + interval '1 hour');
SELECT waiting, delayed FROM taskoutbox.queue_metrics WHERE queue = 'q';
-- One that was enqueued and cancelled before the relay has counted it, and one that
-- is cancelled by COMMIT PREPARED
BEGIN;
SELECT e.duplicate, taskoutbox.cancel(e.id) FROM taskoutbox.enqueue('x', queue => 'q', deliver_at => now() + interval '1 hour') e;
COMMIT;
SELECT delayed FROM taskoutbox.queue_metrics WHERE queue = 'q';
SELECT e.id FROM taskoutbox.enqueue('x', queue => 'q', deliver_at => now() + interval '1 hour') e \gset
SELECT delayed FROM taskoutbox.queue_metrics WHERE queue = 'q';
BEGIN;
SELECT taskoutbox.cancel(:id);
PREPARE TRANSACTION 'observe';
COMMIT PREPARED 'observe';
SELECT delayed FROM taskoutbox.queue_metrics WHERE queue = 'q';
-- A new relay counts anew.
SELECT count(pg_terminate_backend(pid)) FROM taskoutbox.relay_status WHERE database = current_database();
CALL until($$relay_running FROM taskoutbox.queue_metrics WHERE queue = 'q'$$);
SELECT waiting, delayed FROM taskoutbox.queue_metrics WHERE queue = 'q';
SELECT taskoutbox.purge('q'), taskoutbox.purge('q', dead_letters => true);


--
-- retry_now
--

SELECT taskoutbox.create_queue('retry', visibility_timeout => '1 hour');
SELECT count(taskoutbox.enqueue('retry ' || n, group_id => 'g' || n, queue => 'retry')) FROM generate_series(1, 4) n;
-- Three have failed, and wait; one is being worked on.
SELECT count(taskoutbox.change_visibility(m.receipt_handle, '1 hour', 'not now')) FROM taskoutbox.receive('retry', 4, wait => '10 s') m WHERE group_id <> 'g4';
SELECT group_id, waits_for_retry FROM taskoutbox.in_flight ORDER BY group_id;
SELECT group_id, attempts, last_error FROM taskoutbox.blocked_groups ORDER BY group_id;
SELECT taskoutbox.retry_now('retry', 'g2');
SELECT task_type, receive_count, last_error FROM taskoutbox.receive('retry', 4, wait => '10 s');
SELECT taskoutbox.retry_now('retry');
SELECT string_agg(task_type, ', ' ORDER BY task_type) FROM (SELECT m.task_type FROM generate_series(1, 2) i, LATERAL taskoutbox.receive('retry', 1 + 0 * i, wait => '10 s') m) m;
SELECT taskoutbox.retry_now('retry');
SELECT taskoutbox.retry_now('retry', 'no such group');
SELECT taskoutbox.retry_now('nowhere');
\echo :SQLSTATE
SELECT taskoutbox.retry_now(NULL);
\echo :SQLSTATE
-- The handle of one that waited is stale; one that says it needs more time has not failed.
SELECT count(*) FROM taskoutbox.enqueue('stale', queue => 'retry');
SELECT receipt_handle FROM taskoutbox.receive('retry', wait => '10 s') \gset
SELECT taskoutbox.change_visibility(:'receipt_handle', '1 hour', 'not now');
SELECT taskoutbox.change_visibility(:'receipt_handle', '2 hours');
SELECT taskoutbox.retry_now('retry');
SELECT taskoutbox.change_visibility(:'receipt_handle', '1 hour', 'not now');
SELECT taskoutbox.retry_now('retry');
SELECT taskoutbox.delete(:'receipt_handle');
\echo :SQLSTATE
SELECT taskoutbox.drop_queue('retry', force => true);


--
-- max_pending
--

SELECT taskoutbox.create_queue('small', on_full => 'refuse');
\echo :SQLSTATE
SELECT taskoutbox.create_queue('small', max_pending => -1);
\echo :SQLSTATE
SELECT taskoutbox.create_queue('small', max_pending => 2, on_full => 'drop');
\echo :SQLSTATE
SELECT taskoutbox.create_queue('small', max_pending => 2);
CALL until($$relay_running FROM taskoutbox.queue_metrics WHERE queue = 'small'$$);
-- Not known to be full until the relay has counted
SELECT count(taskoutbox.enqueue('x', queue => 'small')) FROM generate_series(1, 3) n;
SELECT waiting FROM taskoutbox.queue_metrics WHERE queue = 'small';
-- One WARNING in a transaction
SELECT count(taskoutbox.enqueue('x', queue => 'small')) FROM generate_series(1, 2) n;
SELECT taskoutbox.alter_queue('small', on_full => 'refuse');
SELECT waiting FROM taskoutbox.queue_metrics WHERE queue = 'small';
SELECT taskoutbox.enqueue('x', queue => 'small');
\echo :SQLSTATE
SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = 'small';
-- Delayed ones do not count, but are refused as well; other queues are not full.
SELECT taskoutbox.enqueue('x', queue => 'small', deliver_at => 'tomorrow');
\echo :SQLSTATE
SELECT count(*) FROM taskoutbox.enqueue('x', queue => 'q');
-- A duplicate adds nothing, so it is told of as always.
SELECT taskoutbox.alter_queue('small', on_full => 'warn');
SELECT id FROM taskoutbox.enqueue('x', queue => 'small', deduplication_id => 'd') \gset
SELECT taskoutbox.alter_queue('small', on_full => 'refuse');
SELECT id = :id AS same, duplicate FROM taskoutbox.enqueue('x', queue => 'small', deduplication_id => 'd');
-- What is in flight is pending, what is deleted is not.
SELECT count(taskoutbox.delete(receipt_handle)) FROM taskoutbox.receive('small', 4, wait => '10 s');
SELECT waiting FROM taskoutbox.queue_metrics WHERE queue = 'small';
SELECT count(*) FROM taskoutbox.enqueue('x', queue => 'small');
-- The count follows each commit, though nobody looks or receives.
SELECT taskoutbox.purge('small');
CALL until($$waiting = 0 FROM taskoutbox.queue_metrics WHERE queue = 'small'$$);
\set VERBOSITY sqlstate
DO $$
BEGIN
	FOR i IN 1 .. 1000 LOOP
		PERFORM taskoutbox.enqueue('x', queue => 'small');
		COMMIT;
		PERFORM pg_sleep(0.005);
	END LOOP;
END
$$;
\set VERBOSITY default
SELECT count(*) < 50 AS soon FROM taskoutbox.task_outbox WHERE queue = 'small';
DO $$
BEGIN
	PERFORM taskoutbox.cancel(id) FROM taskoutbox.task_outbox WHERE queue = 'small';
	COMMIT;
	FOR i IN 1 .. 1000 LOOP
		BEGIN
			PERFORM taskoutbox.enqueue('x', queue => 'small');
			EXIT;
		EXCEPTION WHEN SQLSTATE 'TO017' THEN
			PERFORM pg_sleep(0.005);
		END;
	END LOOP;
END
$$;
SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = 'small';
SELECT taskoutbox.alter_queue('small', max_pending => 0);
\echo :SQLSTATE
SELECT taskoutbox.alter_queue('small', max_pending => 0, on_full => 'warn');
SELECT count(taskoutbox.enqueue('x', queue => 'small')) FROM generate_series(1, 10) n;

DROP EXTENSION taskoutbox;
DROP PROCEDURE until;
