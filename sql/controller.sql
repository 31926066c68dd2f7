-- Controllers: registration and what it refuses, the ledger, and the settings of
-- queues that are about them. How workers run is shown by TAP tests.
CREATE EXTENSION taskoutbox;
CREATE ROLE regress_taskoutbox_owner LOGIN;
CREATE ROLE regress_taskoutbox_nologin;
CREATE FUNCTION wait_for(query text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	result boolean;
BEGIN
	FOR i IN 1 .. 2000 LOOP
		EXECUTE query INTO result;
		EXIT WHEN result;
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN result;
END
$$;
-- What becomes of commands, and undo them.
CREATE FUNCTION outcome(commands text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE commands;
	RAISE 'accepted';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLERRM;
END
$$;

CREATE TABLE done (n int, who name, count int);
CREATE FUNCTION handle(payload jsonb) RETURNS void LANGUAGE sql
	AS 'INSERT INTO done VALUES ((payload ->> ''n'')::int, current_user)';
CREATE FUNCTION handle(message taskoutbox.message) RETURNS void LANGUAGE sql
	AS 'INSERT INTO done VALUES ((message.payload ->> ''n'')::int, session_user, message.receive_count)';

-- Both kinds
SELECT taskoutbox.register_controller('payload', 'handle(jsonb)');
SELECT taskoutbox.register_controller('message', 'handle(taskoutbox.message)', idempotency => 'natural');
SELECT queue, task_type, controller, idempotency, owner = current_user AS own FROM taskoutbox.controller ORDER BY task_type;
SELECT (taskoutbox.enqueue('payload', '{"n": 1}')).id;
SELECT (taskoutbox.enqueue('message', '{"n": 2}')).id;
SELECT wait_for('SELECT count(*) = 0 FROM taskoutbox.task_outbox');
SELECT n, who = current_user AS own, count FROM done ORDER BY n;
SELECT consumer, id ~ '^[-0-9a-f]{36}:1:\d{16}$' AS uid FROM taskoutbox.ledger;
SELECT wait_for('SELECT every(problem IS NULL) FROM taskoutbox.controller_status');
SELECT queue, task_type, controller, idempotency, role = current_user AS own, workers, problem FROM taskoutbox.controller_status;
-- Registering again replaces.
SELECT taskoutbox.register_controller('message', 'handle(jsonb)');
SELECT task_type, controller, idempotency FROM taskoutbox.controller ORDER BY task_type;
SELECT taskoutbox.unregister_controller('message');
SELECT taskoutbox.unregister_controller('message');
SELECT taskoutbox.unregister_controller('payload');
SELECT wait_for('SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = ''taskoutbox consumer''');

--
-- Refused
--
CREATE PROCEDURE proc(p jsonb) LANGUAGE sql AS '';
CREATE FUNCTION several(p jsonb) RETURNS SETOF int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION two(p jsonb, q int) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION wrong(p text) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION pg_temp.temporary(p jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION of_nologin(p jsonb) RETURNS void LANGUAGE sql AS '';
ALTER FUNCTION of_nologin OWNER TO regress_taskoutbox_nologin;
SELECT taskoutbox.register_controller(NULL, 'handle(jsonb)');
\echo :SQLSTATE
SELECT taskoutbox.register_controller('', 'handle(jsonb)');
SELECT taskoutbox.register_controller('x', NULL);
\echo :SQLSTATE
SELECT taskoutbox.register_controller('x', 'handle(jsonb)', idempotency => 'exactly-once');
\echo :SQLSTATE
SELECT taskoutbox.register_controller('x', 'handle(jsonb)', queue => 'none');
\echo :SQLSTATE
SELECT taskoutbox.register_controller('x', 'proc(jsonb)');
\echo :SQLSTATE
SELECT taskoutbox.register_controller('x', 'several(jsonb)');
SELECT taskoutbox.register_controller('x', 'two(jsonb, int)');
SELECT taskoutbox.register_controller('x', 'wrong(text)');
SELECT taskoutbox.register_controller('x', 'jsonb_agg(anyelement)');
SELECT regexp_replace('pg_temp.temporary(jsonb)'::regprocedure::text, '^pg_temp_\d+', 'pg_temp') AS temporary;
DO $$
BEGIN
	PERFORM taskoutbox.register_controller('x', 'pg_temp.temporary(jsonb)');
EXCEPTION WHEN invalid_function_definition THEN
	RAISE NOTICE 'refused, because it is temporary';
END
$$;
SELECT taskoutbox.register_controller('x', 1::oid::regprocedure);
\echo :SQLSTATE
-- From PostgreSQL 17 on this one works.
SELECT current_setting('server_version_num') AS version \gset
SELECT outcome($$SELECT taskoutbox.register_controller('x', 'of_nologin(jsonb)')$$) =
	CASE WHEN :version >= 170000 THEN 'accepted' ELSE 'role "regress_taskoutbox_nologin" is not permitted to log in' END AS as_expected;
GRANT USAGE ON SCHEMA taskoutbox TO regress_taskoutbox_owner;
GRANT EXECUTE ON FUNCTION taskoutbox.register_controller TO regress_taskoutbox_owner;
SET ROLE regress_taskoutbox_owner;
SELECT taskoutbox.register_controller('x', 'handle(jsonb)');
\echo :SQLSTATE
SELECT taskoutbox.unregister_controller('x');
\echo :SQLSTATE
RESET ROLE;
BEGIN READ ONLY;
SELECT taskoutbox.register_controller('x', 'handle(jsonb)');
\echo :SQLSTATE
ROLLBACK;
-- The table's owner can write what nobody can look up. What is malformed is refused
-- if looking it up is an error, which it is before PostgreSQL 16.
SELECT outcome($$
	INSERT INTO taskoutbox.controller (task_type, controller, function_oid, owner) VALUES ('x', 'not a ( function', 0, 'nobody');
	SELECT problem FROM taskoutbox.controller_status;
$$) = CASE WHEN :version >= 160000 THEN 'accepted' ELSE 'invalid name syntax' END AS as_expected;
INSERT INTO taskoutbox.controller (task_type, controller, function_oid, owner) VALUES ('x', 'public.no_such(jsonb)', 0, 'nobody');
SELECT task_type, problem FROM taskoutbox.controller_status;
SELECT taskoutbox.unregister_controller('x');

--
-- The ledger
--
SELECT taskoutbox.claim('me', 'id 1');
SELECT taskoutbox.claim('me', 'id 1');
SELECT taskoutbox.claim('you', 'id 1');
BEGIN;
SELECT taskoutbox.claim('me', 'id 2');
ROLLBACK;
SELECT taskoutbox.claim('me', 'id 2');
SELECT taskoutbox.claim('taskoutbox:controllers', 'id');
\echo :SQLSTATE
SELECT taskoutbox.claim(NULL, 'id');
\echo :SQLSTATE
SELECT taskoutbox.claim('me', '');
SELECT taskoutbox.claim('me', repeat('x', 129));
\echo :SQLSTATE
-- A message brings the id to claim, the same after it came back.
SELECT (taskoutbox.enqueue('x')).id;
SELECT uid, receipt_handle FROM taskoutbox.receive(wait => '10 s') \gset
SELECT taskoutbox.change_visibility(:'receipt_handle', '0', error => 'no');
SELECT uid = :'uid' AS same, receive_count, receipt_handle FROM taskoutbox.receive(wait => '10 s') \gset
\echo :same :receive_count
SELECT taskoutbox.delete(:'receipt_handle');
-- The same after it was redriven.
SELECT taskoutbox.alter_queue('default', max_receive_count => 1);
SELECT (taskoutbox.enqueue('x')).id;
SELECT uid, receipt_handle FROM taskoutbox.receive(wait => '10 s') \gset
SELECT taskoutbox.change_visibility(:'receipt_handle', '0', error => 'no');
SELECT wait_for('SELECT count(*) = 1 FROM taskoutbox.dead_letter');
SELECT taskoutbox.redrive('default');
SELECT uid = :'uid' AS same, receive_count, receipt_handle FROM taskoutbox.receive(wait => '10 s') \gset
\echo :same :receive_count
SELECT taskoutbox.delete(:'receipt_handle');

-- Old rows are forgotten, by the relay.
UPDATE taskoutbox.ledger SET claimed_at = now() - interval '92 days' WHERE consumer = 'you';
SELECT pg_terminate_backend(pid) FROM taskoutbox.relay_status WHERE database = current_database();
SELECT wait_for('SELECT count(*) = 0 FROM taskoutbox.ledger WHERE consumer = ''you''');
SELECT count(*) FROM taskoutbox.ledger WHERE consumer = 'me';

--
-- Settings
--
SELECT taskoutbox.create_queue('c', consumers => 101);
\echo :SQLSTATE
SELECT taskoutbox.create_queue('c', max_run_time => '0');
SELECT taskoutbox.create_queue('c', max_run_time => '8 days');
SELECT taskoutbox.create_queue('c', retry_base => '0');
SELECT taskoutbox.create_queue('c', retry_cap => '2 days');
SELECT taskoutbox.create_queue('c', retry_base => '10 min');
\echo :SQLSTATE
-- A ledger that forgets too early is warned of by each statement that makes it so (case C31).
SELECT taskoutbox.create_queue('c', ledger_retention => '1 hour');
SELECT taskoutbox.alter_queue('c', ledger_retention => '3 days', dead_letter_retention => '1 day');
SELECT taskoutbox.alter_queue('c', dead_letter_retention => '1 year');
SELECT taskoutbox.alter_queue('c', max_pending => 7);
SELECT consumers, max_run_time, retry_base, retry_cap, ledger_retention FROM taskoutbox.queue WHERE name = 'c';
-- A queue takes its registrations along.
SELECT taskoutbox.register_controller('x', 'handle(jsonb)', queue => 'c');
SELECT taskoutbox.drop_queue('c');
SELECT count(*) FROM taskoutbox.controller;

-- A queue in SQS is for the controllers of one role.
BEGIN;
SELECT taskoutbox.create_queue('sqs', backend => 'sqs', url => 'https://sqs.eu-central-1.amazonaws.com/123456789012/x.fifo');
SELECT taskoutbox.register_controller('x', 'handle(jsonb)', queue => 'sqs');
SELECT taskoutbox.register_controller('x', 'handle(taskoutbox.message)', queue => 'sqs');
ALTER FUNCTION handle(taskoutbox.message) OWNER TO regress_taskoutbox_owner;
SELECT taskoutbox.register_controller('y', 'handle(jsonb)', queue => 'sqs');
\echo :SQLSTATE
ROLLBACK;

REVOKE ALL ON SCHEMA taskoutbox FROM regress_taskoutbox_owner;
DROP FUNCTION handle(taskoutbox.message);
DROP EXTENSION taskoutbox;
DROP TABLE done;
DROP FUNCTION handle(jsonb), of_nologin, several, two, wrong, wait_for, outcome;
DROP PROCEDURE proc;
DROP ROLE regress_taskoutbox_owner, regress_taskoutbox_nologin;
