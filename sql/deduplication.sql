-- Deduplication: of tasks with the same id the first one counts, and whoever
-- enqueues another one is told which that was.
CREATE EXTENSION taskoutbox;

-- The first, and a duplicate: nothing is written, nothing fails, and it is said.
SELECT * FROM taskoutbox.enqueue('report.build', '{"day": 1}', deduplication_id => 'report/2026-01-31');
SELECT * FROM taskoutbox.enqueue('report.build', '{"day": 1}', deduplication_id => 'report/2026-01-31');
SELECT id, deduplication_id FROM taskoutbox.task_outbox;
-- Consumers see the id.
SELECT id, deduplication_id FROM taskoutbox.receive(visibility_timeout => '1 us', wait => '10 s');

-- Other payloads make no difference: the first task is named.
SELECT * FROM taskoutbox.enqueue('mail.send', '{"text": "one"}', deduplication_id => 'mail') \gset first_
SELECT e.id = :first_id AS first_task, e.duplicate FROM taskoutbox.enqueue('mail.send', '{"text": "two"}', deduplication_id => 'mail') e;
SELECT e.id = :first_id AS first_task, e.duplicate FROM taskoutbox.enqueue('mail.send', '{"text": "three"}', deduplication_id => 'mail') e;
-- So it can be compared.
SELECT e.duplicate, t.payload AS of_the_first, t.payload <> '{"text": "four"}' AS differs
FROM taskoutbox.enqueue('mail.send', '{"text": "four"}', deduplication_id => 'mail') e LEFT JOIN taskoutbox.task_outbox t USING (id);

-- No id: every task is a new one, whatever is in it.
SELECT a.id <> b.id AS two_tasks, a.duplicate, b.duplicate
FROM taskoutbox.enqueue('mail.send', '{"text": "same"}') a, taskoutbox.enqueue('mail.send', '{"text": "same"}', deduplication_id => NULL) b;

-- Ids are the queue's own, but not the group's nor the task type's.
SELECT taskoutbox.create_queue('other');
SELECT (e).duplicate FROM (SELECT taskoutbox.enqueue('mail.send', deduplication_id => 'mail', queue => 'other') e OFFSET 0) s;
SELECT e.duplicate FROM taskoutbox.enqueue('mail.sort', group_id => 'g', deduplication_id => 'mail', queue => 'other') e;
-- Case and blanks count.
SELECT e.duplicate FROM taskoutbox.enqueue('mail.send', deduplication_id => 'Mail', queue => 'other') e;
DELETE FROM taskoutbox.task_outbox;


--
-- One NOTICE per statement, with how many and the first
--

CREATE TABLE orders (id integer, customer text);
INSERT INTO orders VALUES (1, 'ann'), (2, 'bob'), (3, 'ann'), (4, 'ann'), (5, 'bob'), (6, 'eve');

-- One result per row, in the order of the rows
SELECT o.id AS order, e.id - min(e.id) OVER () AS task, e.duplicate
FROM (SELECT * FROM orders ORDER BY id) o, LATERAL taskoutbox.enqueue('greet', deduplication_id => 'greet/' || customer) e ORDER BY o.id;

CREATE TABLE log (order_id integer, duplicate boolean);
INSERT INTO log SELECT o.id, e.duplicate FROM orders o, LATERAL taskoutbox.enqueue('greet', deduplication_id => 'greet/' || o.customer) e;
WITH e AS (SELECT taskoutbox.enqueue('greet', deduplication_id => 'greet/ann') FROM orders WHERE id < 3) INSERT INTO log SELECT 1 FROM e;
UPDATE orders SET customer = customer WHERE (taskoutbox.enqueue('greet', deduplication_id => 'greet/bob')).duplicate;
-- No duplicates, no NOTICE
SELECT e.duplicate FROM taskoutbox.enqueue('greet', deduplication_id => 'greet/joe') e;

-- Triggers: of rows, of statements, under COPY, deferred up to SET CONSTRAINTS
CREATE FUNCTION greet() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM taskoutbox.enqueue('greet', deduplication_id => 'greet/ann');
	RETURN new;
END
$$;
CREATE TRIGGER before BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION greet();
CREATE TRIGGER after AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION greet();
CREATE TRIGGER statement AFTER INSERT ON orders FOR EACH STATEMENT EXECUTE FUNCTION greet();
INSERT INTO orders VALUES (7, 'joe'), (8, 'joe');
COPY orders FROM stdin;
9	joe
10	joe
11	joe
\.
DROP TRIGGER before ON orders;
DROP TRIGGER after ON orders;
DROP TRIGGER statement ON orders;
CREATE CONSTRAINT TRIGGER deferred AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION greet();
BEGIN;
INSERT INTO orders VALUES (12, 'joe'), (13, 'joe');
SET CONSTRAINTS ALL IMMEDIATE;
COMMIT;
-- COMMIT is the statement that runs deferred triggers.
BEGIN;
INSERT INTO orders VALUES (12, 'joe');
INSERT INTO orders VALUES (13, 'joe');
COMMIT;
INSERT INTO orders VALUES (14, 'joe'), (15, 'joe');
-- An assignment runs no statement of its own.
CREATE OR REPLACE FUNCTION greet() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	task taskoutbox.enqueued;
BEGIN
	task := taskoutbox.enqueue('greet', deduplication_id => 'greet/ann');
	RETURN new;
END
$$;
INSERT INTO orders VALUES (16, 'joe'), (17, 'joe');
DROP TRIGGER deferred ON orders;

-- DO block, functions in functions
DO $$
BEGIN
	PERFORM taskoutbox.enqueue('greet', deduplication_id => 'greet/' || customer) FROM orders WHERE id < 3;
	PERFORM taskoutbox.enqueue('greet', deduplication_id => 'greet/joe');
	-- What an error undoes was a duplicate nevertheless.
	BEGIN
		PERFORM taskoutbox.enqueue('greet', deduplication_id => 'greet/joe');
		PERFORM 1 / 0;
	EXCEPTION WHEN division_by_zero THEN
		PERFORM taskoutbox.enqueue('greet', deduplication_id => 'greet/joe');
	END;
END
$$;
CREATE FUNCTION greet(customer text) RETURNS taskoutbox.enqueued LANGUAGE plpgsql AS $$
DECLARE
	task taskoutbox.enqueued;
BEGIN
	task := taskoutbox.enqueue('greet', deduplication_id => 'greet/' || customer);
	RETURN task;
END
$$;
CREATE FUNCTION greet_all() RETURNS TABLE (customer text, duplicate boolean) LANGUAGE sql AS $$
	SELECT customer, (greet(customer)).duplicate FROM (SELECT DISTINCT customer FROM orders WHERE id < 7) o ORDER BY customer
$$;
SELECT * FROM greet_all();
-- A procedure that commits (and says it then), a cursor, a prepared statement
CREATE PROCEDURE greet_each() LANGUAGE plpgsql AS $$
BEGIN
	PERFORM greet('ann');
	COMMIT;
	PERFORM greet('bob');
END
$$;
CALL greet_each();
BEGIN;
DECLARE c CURSOR FOR SELECT (greet(customer)).duplicate FROM orders WHERE id < 5;
FETCH 2 FROM c;
FETCH 2 FROM c;
COMMIT;
PREPARE greet AS SELECT (greet($1)).duplicate;
EXECUTE greet('ann');
EXPLAIN (ANALYZE) EXECUTE greet('ann') \g /dev/null
-- A statement that fails says its error; nothing is left for the next one.
SELECT (greet('ann')).duplicate, 1 / (id - 1) FROM orders WHERE id = 1;
SELECT e.duplicate FROM taskoutbox.enqueue('greet', deduplication_id => 'greet/zoe') e;
DELETE FROM taskoutbox.task_outbox;

-- 1,000 rows by one SELECT, one of them a duplicate: 999 are new, and the
-- results are in the order of the rows.
CREATE TEMP TABLE result AS
SELECT n, e.id, e.duplicate FROM generate_series(1, 1000) n,
	LATERAL taskoutbox.enqueue('bulk', jsonb_build_object('n', n), deduplication_id => 'bulk/' || CASE n WHEN 700 THEN 300 ELSE n END) e;
SELECT count(*) FILTER (WHERE NOT duplicate) AS new, count(*) FILTER (WHERE duplicate) AS duplicates FROM result;
SELECT d.n, d.duplicate, f.n AS first FROM result d JOIN result f USING (id) WHERE d.duplicate AND NOT f.duplicate;
SELECT count(*) AS out_of_order FROM (SELECT n, id, lag(id) OVER (ORDER BY n) AS before FROM result WHERE NOT duplicate) r WHERE id < before;
SELECT count(*), count(*) FILTER (WHERE r.id = t.id) AS own_id FROM result r JOIN taskoutbox.task_outbox t ON t.payload = jsonb_build_object('n', n);
DELETE FROM taskoutbox.task_outbox;


--
-- Transactions
--

-- When the first is rolled back, it was never there.
BEGIN;
SELECT e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'undone') e;
SELECT e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'undone') e;
ROLLBACK;
SELECT count(*) FROM taskoutbox.deduplication WHERE deduplication_id = 'undone';
BEGIN;
SAVEPOINT s;
SELECT e.duplicate FROM taskoutbox.enqueue('x', '"undone"', deduplication_id => 'undone') e;
ROLLBACK TO s;
SELECT count(*) FROM taskoutbox.deduplication WHERE deduplication_id = 'undone';
SELECT e.duplicate FROM taskoutbox.enqueue('x', '"done"', deduplication_id => 'undone') e;
COMMIT;
SELECT payload FROM taskoutbox.task_outbox;
SELECT e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'undone') e;
DELETE FROM taskoutbox.task_outbox;

-- Two-phase commit
BEGIN;
SELECT e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'prepared') e;
PREPARE TRANSACTION 'p';
SET lock_timeout = '50 ms';
\set VERBOSITY terse
SELECT e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'prepared') e;
\set VERBOSITY default
RESET lock_timeout;
COMMIT PREPARED 'p';
SELECT e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'prepared') e;
DELETE FROM taskoutbox.task_outbox;


--
-- The window
--

-- Done within the window: still a duplicate, of a task that is no longer there.
SELECT e.id FROM taskoutbox.enqueue('x', deduplication_id => 'done') e \gset
SELECT taskoutbox.delete(receipt_handle) FROM taskoutbox.receive(wait => '10 s');
SELECT e.id = :id AS same, e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'done') e;
-- Cancelled, too
SELECT e.id FROM taskoutbox.enqueue('x', deduplication_id => 'cancelled') e \gset
SELECT taskoutbox.cancel(:id);
SELECT e.id = :id AS same, e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'cancelled') e;
SELECT count(*) FROM taskoutbox.task_outbox;
-- The owner can forget an id.
DELETE FROM taskoutbox.deduplication WHERE deduplication_id = 'cancelled';
SELECT e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'cancelled') e;
DELETE FROM taskoutbox.task_outbox;

-- A window that has ended: the id is free again, but not before its task is done.
SELECT taskoutbox.create_queue('short', deduplication_window => '1 us');
SELECT e.id FROM taskoutbox.enqueue('x', '"first"', deduplication_id => 'a', queue => 'short') e \gset
SELECT expires_at <= clock_timestamp() AS ended FROM taskoutbox.deduplication WHERE queue = 'short';
SELECT e.id = :id AS same, e.duplicate FROM taskoutbox.enqueue('x', '"second"', deduplication_id => 'a', queue => 'short') e;
-- In flight is not done,
SELECT receipt_handle FROM taskoutbox.receive('short', wait => '10 s') \gset
SELECT e.id = :id AS same, e.duplicate FROM taskoutbox.enqueue('x', '"second"', deduplication_id => 'a', queue => 'short') e;
-- nor deleted by somebody who may still roll back; in his own transaction it is.
BEGIN;
SELECT taskoutbox.delete(:'receipt_handle');
SELECT e.id > :id AS another, e.duplicate FROM taskoutbox.enqueue('x', '"second"', deduplication_id => 'a', queue => 'short') e;
ROLLBACK;
SELECT e.id = :id AS same, e.duplicate FROM taskoutbox.enqueue('x', '"second"', deduplication_id => 'a', queue => 'short') e;
SELECT taskoutbox.delete(:'receipt_handle');
SELECT e.id > :id AS another, e.duplicate, e.id FROM taskoutbox.enqueue('x', '"third"', deduplication_id => 'a', queue => 'short') e \gset third_
\echo :third_another :third_duplicate
-- The entry is the new task's now.
SELECT task_id = :third_id AS of_the_third FROM taskoutbox.deduplication WHERE queue = 'short';
SELECT e.id = :third_id AS same, e.duplicate FROM taskoutbox.enqueue('x', '"fourth"', deduplication_id => 'a', queue => 'short') e;
-- The takeover is undone with its transaction.
SELECT taskoutbox.cancel(:third_id);
BEGIN;
SELECT e.duplicate FROM taskoutbox.enqueue('x', '"undone"', deduplication_id => 'a', queue => 'short') e;
ROLLBACK;
SELECT e.duplicate FROM taskoutbox.enqueue('x', '"fifth"', deduplication_id => 'a', queue => 'short') e;
SELECT payload FROM taskoutbox.task_outbox WHERE queue = 'short';
SELECT taskoutbox.purge('short');

-- A call may ask for a longer window than the queue's.
SELECT e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'long', queue => 'short', deduplication_window => '400 days') e;
SELECT expires_at BETWEEN now() + interval '399 days' AND now() + interval '401 days' AS in_400_days
FROM taskoutbox.deduplication WHERE deduplication_id = 'long';
SELECT taskoutbox.purge('short');
SELECT e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'long', queue => 'short') e;
-- A duplicate changes nothing in the first one's window.
SELECT e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'long', queue => 'short', deduplication_window => '1000 days') e;
SELECT expires_at < now() + interval '401 days' AS as_before FROM taskoutbox.deduplication WHERE deduplication_id = 'long';
-- Not for a shorter one, not for more than 1000 days, not without an id
SELECT taskoutbox.enqueue('x', deduplication_id => 'x', deduplication_window => '4 min 59 s');
\echo :SQLSTATE
SELECT taskoutbox.enqueue('x', deduplication_id => 'x', deduplication_window => '-1 day');
\echo :SQLSTATE
SELECT taskoutbox.enqueue('x', deduplication_id => 'x', deduplication_window => '1000 days 1 us');
\echo :SQLSTATE
SELECT taskoutbox.enqueue('x', deduplication_window => '1 day');
\echo :SQLSTATE
SELECT e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'x', deduplication_window => '5 min') e;
SELECT taskoutbox.purge('default');


--
-- The scope: for tests that call one producer again and again
--

CREATE FUNCTION schedule_monthly(month date) RETURNS SETOF taskoutbox.enqueued LANGUAGE sql AS $$
	SELECT taskoutbox.enqueue('invoice.send', jsonb_build_object('month', month), deduplication_id => 'invoice/' || to_char(month, 'YYYY-MM'))
$$;
-- The trap: the second scenario tests the first one's task, and is told so.
SELECT e.duplicate FROM schedule_monthly('2026-01-01') e;
SELECT e.duplicate FROM schedule_monthly('2026-01-01') e;
-- With a scope each has its own task.
SET taskoutbox.deduplication_scope = 'scenario-1/';
SELECT e.duplicate FROM schedule_monthly('2026-01-01') e;
SET taskoutbox.deduplication_scope = 'scenario-2/';
SELECT e.duplicate FROM schedule_monthly('2026-01-01') e;
SELECT e.duplicate FROM schedule_monthly('2026-01-01') e;
BEGIN;
SET LOCAL taskoutbox.deduplication_scope = 'scenario-3/';
SELECT e.duplicate FROM schedule_monthly('2026-01-01') e;
COMMIT;
SELECT e.duplicate FROM schedule_monthly('2026-01-01') e;
RESET taskoutbox.deduplication_scope;
SELECT deduplication_id FROM taskoutbox.task_outbox ORDER BY id;
-- It needs an id to go before.
SET taskoutbox.deduplication_scope = 's/';
SELECT id = lag(id) OVER () AS same, duplicate FROM (SELECT * FROM taskoutbox.enqueue('x') UNION ALL SELECT * FROM taskoutbox.enqueue('x')) e;
-- Both together fit into 128 characters.
SELECT e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => repeat('d', 126)) e;
SELECT taskoutbox.enqueue('x', deduplication_id => repeat('d', 127));
\echo :SQLSTATE
SET taskoutbox.deduplication_scope = '0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456';
SELECT e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'd') e;
SET taskoutbox.deduplication_scope = '01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567';
SET taskoutbox.deduplication_scope = 'a b';
SET taskoutbox.deduplication_scope = 'é';
SHOW taskoutbox.deduplication_scope;
-- What the relay makes itself is refused, with a scope or without.
RESET taskoutbox.deduplication_scope;
SELECT taskoutbox.enqueue('x', deduplication_id => 'taskoutbox:1');
\echo :SQLSTATE
SET taskoutbox.deduplication_scope = 'taskoutbox:';
SELECT taskoutbox.enqueue('x', deduplication_id => '1');
SET taskoutbox.deduplication_scope = 'task';
SELECT taskoutbox.enqueue('x', deduplication_id => 'outbox:1');
RESET taskoutbox.deduplication_scope;
SELECT deduplication_id FROM taskoutbox.task_outbox WHERE deduplication_id LIKE 'taskoutbox:%';


--
-- Rows that the owner writes himself are not compared with any.
--

SELECT taskoutbox.purge('default');
INSERT INTO taskoutbox.task_outbox (task_type, deduplication_id) VALUES ('direct', 'd'), ('direct', 'd');
SELECT e.duplicate FROM taskoutbox.enqueue('x', deduplication_id => 'd') e;
SELECT task_type, deduplication_id FROM taskoutbox.task_outbox ORDER BY id;

-- Expired entries go away by themselves: a relay that starts looks at once.
SELECT taskoutbox.purge('default'), taskoutbox.purge('short');
SELECT count(taskoutbox.enqueue('x', deduplication_id => n::text, queue => 'short')) FROM generate_series(1, 2500) n;
DELETE FROM taskoutbox.task_outbox WHERE queue = 'short' AND deduplication_id <> '7';
SELECT pg_terminate_backend(pid, 10000) FROM taskoutbox.relay_status;
DO $$
BEGIN
	FOR i IN 1 .. 2000 LOOP
		EXIT WHEN (SELECT count(*) FROM taskoutbox.deduplication WHERE queue = 'short' AND deduplication_id <> 'long') = 1;
		PERFORM pg_sleep(0.005);
	END LOOP;
END
$$;
-- The entries of tasks that are there stay, and those whose window has not ended.
SELECT deduplication_id FROM taskoutbox.deduplication WHERE queue = 'short' ORDER BY deduplication_id;

DROP TABLE orders, log;
DROP FUNCTION greet(), greet(text), greet_all, schedule_monthly;
DROP PROCEDURE greet_each;
DROP EXTENSION taskoutbox;
