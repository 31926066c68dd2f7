-- Nothing is open to PUBLIC, single grants are enough, and nobody's objects
-- come between ours.
CREATE EXTENSION taskoutbox;

CREATE ROLE regress_taskoutbox_app;
CREATE ROLE regress_taskoutbox_worker;
CREATE ROLE regress_taskoutbox_mallory;


--
-- Nothing is granted to PUBLIC.
--

-- Every object of the extension and everything in its schema, with its
-- privileges, the default ones included
CREATE VIEW privileges AS
WITH schema AS (SELECT oid FROM pg_namespace WHERE nspname = 'taskoutbox'),
member AS (
	SELECT classid, objid FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
	WHERE d.deptype = 'e' AND e.extname = 'taskoutbox'
), object AS (
	SELECT 'schema' AS kind, nspname::text AS name, nspacl AS acl, acldefault('n', nspowner) AS default_acl
	FROM pg_namespace WHERE oid IN (TABLE schema)
	UNION ALL
	SELECT CASE relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' ELSE relkind::text END, relname, relacl,
		acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner)
	FROM pg_class WHERE (relnamespace IN (TABLE schema) OR ('pg_class'::regclass, oid) IN (TABLE member)) AND relkind NOT IN ('i', 'c')
	UNION ALL
	SELECT 'column', attrelid::regclass || '.' || attname, attacl, NULL
	FROM pg_attribute WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace IN (TABLE schema)) AND attnum > 0
	UNION ALL
	SELECT 'function', oid::regprocedure::text, proacl, acldefault('f', proowner)
	FROM pg_proc WHERE pronamespace IN (TABLE schema) OR ('pg_proc'::regclass, oid) IN (TABLE member)
	UNION ALL
	-- An array type has the privileges of its element type.
	SELECT 'type', typname, typacl, acldefault('T', typowner)
	FROM pg_type WHERE (typnamespace IN (TABLE schema) OR ('pg_type'::regclass, oid) IN (TABLE member)) AND typelem = 0
)
SELECT kind, name, a.grantee, a.privilege_type FROM object LEFT JOIN LATERAL aclexplode(coalesce(acl, default_acl)) a ON true;

SELECT kind, count(DISTINCT name) > 0 AS some, count(*) FILTER (WHERE grantee = 0) AS open_to_public FROM privileges GROUP BY kind ORDER BY kind;
SELECT kind, name, privilege_type FROM privileges WHERE grantee = 0 ORDER BY 1, 2, 3;
-- No kind of object was left out above.
SELECT classid::regclass FROM pg_depend
WHERE refclassid = 'pg_extension'::regclass AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'taskoutbox') AND deptype = 'e'
GROUP BY 1 ORDER BY 1::text;
-- No function runs with the rights of another than its caller; what needs more
-- switches inside, around its own statements.
SELECT proname FROM pg_proc WHERE pronamespace = 'taskoutbox'::regnamespace AND (prosecdef OR proconfig IS NOT NULL);

SET ROLE regress_taskoutbox_mallory;
SELECT taskoutbox.enqueue('x');
SELECT * FROM taskoutbox.receive();
SELECT taskoutbox.create_queue('x');
SELECT * FROM taskoutbox.queue_metrics;
SELECT * FROM taskoutbox.task_outbox;
RESET ROLE;
-- Nor with the schema open, as it is for any role that was granted something
GRANT USAGE ON SCHEMA taskoutbox TO regress_taskoutbox_mallory;
SET ROLE regress_taskoutbox_mallory;
SELECT taskoutbox.enqueue('x');
SELECT taskoutbox.enqueue_period('x', 'day');
SELECT taskoutbox.period_id('x', 'day');
SELECT taskoutbox.period_start('day');
SELECT * FROM taskoutbox.missed_periods('x', 'day');
SELECT * FROM taskoutbox.schedule_status;
SELECT * FROM taskoutbox.get_schedule_status();
SELECT * FROM taskoutbox.receive();
SELECT taskoutbox.delete('x');
SELECT taskoutbox.delete('{x}'::text[]);
SELECT taskoutbox.change_visibility('x', '0');
SELECT taskoutbox.create_queue('x');
SELECT taskoutbox.alter_queue('default');
SELECT taskoutbox.pause_queue('default');
SELECT taskoutbox.resume_queue('default');
SELECT taskoutbox.drop_queue('default', force => true);
SELECT taskoutbox.cancel(1);
SELECT taskoutbox.redrive('default');
SELECT taskoutbox.purge('default');
SELECT taskoutbox.retry_now('default');
SELECT taskoutbox.claim('x', 'y');
SELECT taskoutbox.register_controller('x', 'lower(text)');
SELECT taskoutbox.unregister_controller('x');
SELECT * FROM taskoutbox.controller_status;
SELECT * FROM taskoutbox.get_controller_status();
SELECT taskoutbox.task(1);
SELECT taskoutbox.get_task(1);
SELECT * FROM taskoutbox.queue_metrics;
SELECT * FROM taskoutbox.get_queue_metrics();
SELECT * FROM taskoutbox.relay_status;
SELECT * FROM taskoutbox.get_relay_status();
SELECT * FROM taskoutbox.in_flight;
SELECT * FROM taskoutbox.get_in_flight();
SELECT * FROM taskoutbox.blocked_groups;
SELECT * FROM taskoutbox.task_outbox;
SELECT * FROM taskoutbox.dead_letter;
SELECT taskoutbox.dead_letter_changed();
SELECT * FROM taskoutbox.queue;
SELECT * FROM taskoutbox.deduplication;
SELECT nextval('taskoutbox.task_outbox_id_seq');
INSERT INTO taskoutbox.task_outbox (task_type) VALUES ('x');
CREATE TABLE taskoutbox.mine ();
CREATE TEMP TABLE mine (task taskoutbox.enqueued);
-- Nor can he put anything onto our tables that would run as somebody else (case C105).
CREATE TRIGGER t BEFORE INSERT ON taskoutbox.task_outbox FOR EACH ROW EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger();
CREATE RULE r AS ON INSERT TO taskoutbox.task_outbox DO ALSO NOTHING;
CREATE POLICY p ON taskoutbox.task_outbox USING (true);
CREATE INDEX ON taskoutbox.task_outbox (task_type);
ALTER TABLE taskoutbox.dead_letter ALTER reason SET DEFAULT 'x';
CREATE OR REPLACE VIEW taskoutbox.queue_metrics AS SELECT 1;
-- The trigger functions are ours alone.
CREATE TEMP TABLE mine ();
CREATE TRIGGER t BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION taskoutbox.task_outbox_check();
RESET ROLE;


--
-- The grants of the README are all that an application needs.
--

GRANT USAGE ON SCHEMA taskoutbox TO regress_taskoutbox_app, regress_taskoutbox_worker;
GRANT EXECUTE ON FUNCTION taskoutbox.enqueue TO regress_taskoutbox_app;
GRANT EXECUTE ON FUNCTION taskoutbox.receive, taskoutbox.change_visibility,
	taskoutbox.delete(text, boolean), taskoutbox.delete(text[], boolean) TO regress_taskoutbox_worker;

SET ROLE regress_taskoutbox_app;
SELECT * FROM taskoutbox.enqueue('order.archive', '{"order": 1}', group_id => 'g', headers => '{"k": "v"}');
SELECT * FROM taskoutbox.enqueue('order.archive', '{"order": 2}', group_id => 'g');
SELECT * FROM taskoutbox.enqueue('order.archive', '{"order": 3}', deduplication_id => 'd', deliver_at => now() + interval '1 day');
SELECT * FROM taskoutbox.enqueue('order.archive', '{"order": 3}', deduplication_id => 'd');
SELECT current_user;
-- A producer is no consumer, and has no rights on the table behind.
SELECT * FROM taskoutbox.receive();
SELECT * FROM taskoutbox.task_outbox;
DELETE FROM taskoutbox.task_outbox;
RESET ROLE;

SET ROLE regress_taskoutbox_worker;
SELECT payload, receipt_handle FROM taskoutbox.receive(wait => '10 s') \gset
\echo :payload
-- It updates the row, as its owner inside; outside he is who he was.
SELECT taskoutbox.change_visibility(:'receipt_handle', '0', error => 'not yet');
SELECT current_user;
SELECT payload, receive_count, last_error, receipt_handle FROM taskoutbox.receive(wait => '10 s') \gset
\echo :payload :receive_count :last_error
SELECT taskoutbox.delete(:'receipt_handle');
SELECT taskoutbox.delete(array_agg(receipt_handle)) FROM taskoutbox.receive(wait => '10 s');
SELECT current_user;
-- An error inside leaves him who he was, too.
SELECT taskoutbox.change_visibility(:'receipt_handle', '0', error => 'too late');
SELECT current_user;
DELETE FROM taskoutbox.task_outbox;
SELECT taskoutbox.enqueue('x');
RESET ROLE;

-- create_queue and the views, for who runs them
GRANT EXECUTE ON FUNCTION taskoutbox.create_queue, taskoutbox.get_queue_metrics, taskoutbox.get_relay_status TO regress_taskoutbox_worker;
GRANT SELECT ON taskoutbox.queue_metrics, taskoutbox.relay_status TO regress_taskoutbox_worker;
SET ROLE regress_taskoutbox_worker;
SELECT taskoutbox.create_queue('mail');
SELECT queue, waiting, in_flight FROM taskoutbox.queue_metrics ORDER BY queue;
SELECT state FROM taskoutbox.relay_status;
SELECT * FROM taskoutbox.queue;
RESET ROLE;

-- And what operators do
GRANT EXECUTE ON FUNCTION taskoutbox.alter_queue, taskoutbox.pause_queue, taskoutbox.resume_queue, taskoutbox.drop_queue,
	taskoutbox.cancel, taskoutbox.redrive, taskoutbox.purge TO regress_taskoutbox_worker;
SET ROLE regress_taskoutbox_worker;
SELECT taskoutbox.alter_queue('mail', max_receive_count => 1);
SELECT taskoutbox.pause_queue('mail');
SELECT taskoutbox.resume_queue('mail');
SELECT taskoutbox.drop_queue('mail');
SELECT taskoutbox.cancel(3);
SELECT taskoutbox.redrive('default');
SELECT taskoutbox.purge('default'), taskoutbox.purge('default', dead_letters => true);
SELECT current_user;
RESET ROLE;


--
-- Objects of other people with our names, or PostgreSQL's, change nothing.
--

-- (A new session, which has planned nothing yet.)
\c
CREATE SCHEMA trap AUTHORIZATION regress_taskoutbox_mallory;
GRANT CREATE, TEMPORARY ON DATABASE :"DBNAME" TO regress_taskoutbox_mallory;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA taskoutbox TO regress_taskoutbox_mallory;
SET ROLE regress_taskoutbox_mallory;
SET search_path = trap, pg_catalog;
CREATE FUNCTION trap.sprung() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'trap! as %', current_user;
END $$;
-- Tables that look like ours
CREATE TABLE trap.task_outbox (id bigint, enqueued_at timestamptz, receive_count integer, queue text, group_id text,
	task_type text, payload jsonb, deduplication_id text, headers jsonb, last_error text);
CREATE TABLE trap.dead_letter (id bigint, reason text);
CREATE TABLE trap.queue (name text, backend text, visibility_timeout interval, max_receive_count integer);
CREATE TABLE trap.deduplication (queue text, deduplication_id text, task_id bigint, expires_at timestamptz);
CREATE TABLE trap.letter (id bigint);
CREATE TABLE trap.dead (id bigint);
CREATE SEQUENCE trap.task_outbox_id_seq;
CREATE FUNCTION trap.on_table() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.sprung(); END $$;
CREATE TRIGGER trap BEFORE INSERT OR UPDATE OR DELETE ON trap.task_outbox EXECUTE FUNCTION trap.on_table();
CREATE TRIGGER trap BEFORE INSERT OR UPDATE OR DELETE ON trap.dead_letter EXECUTE FUNCTION trap.on_table();
CREATE TRIGGER trap BEFORE INSERT OR UPDATE OR DELETE ON trap.queue EXECUTE FUNCTION trap.on_table();
CREATE TRIGGER trap BEFORE INSERT OR UPDATE OR DELETE ON trap.deduplication EXECUTE FUNCTION trap.on_table();
-- Types
CREATE TYPE trap.message AS (trapped integer);
CREATE TYPE trap.enqueued AS (trapped integer);
CREATE DOMAIN trap.text AS pg_catalog.int4;
CREATE DOMAIN trap.jsonb AS pg_catalog.int4;
CREATE DOMAIN trap.int8 AS pg_catalog.bool;
CREATE DOMAIN trap.int4 AS pg_catalog.bool;
CREATE DOMAIN trap."interval" AS pg_catalog.bool;
-- Functions
CREATE FUNCTION trap.nextval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT trap.sprung(); SELECT 1::bigint';
CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT trap.sprung(); SELECT NULL::timestamptz';
CREATE FUNCTION trap.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT trap.sprung(); SELECT NULL::timestamptz';
-- Operators for the types that our statements compare and subtract
CREATE FUNCTION trap.int8_op(pg_catalog.int8, pg_catalog.int8) RETURNS bool LANGUAGE sql AS 'SELECT trap.sprung(); SELECT true';
CREATE FUNCTION trap.int84_op(pg_catalog.int8, pg_catalog.int4) RETURNS bool LANGUAGE sql AS 'SELECT trap.sprung(); SELECT true';
CREATE FUNCTION trap.text_op(pg_catalog.text, pg_catalog.text) RETURNS bool LANGUAGE sql AS 'SELECT trap.sprung(); SELECT true';
CREATE FUNCTION trap.oid_op(oid, oid) RETURNS bool LANGUAGE sql AS 'SELECT trap.sprung(); SELECT true';
CREATE FUNCTION trap.concat_op(pg_catalog.text, pg_catalog.text) RETURNS pg_catalog.text LANGUAGE sql AS $$ SELECT trap.sprung(); SELECT 'x'::pg_catalog.text $$;
CREATE FUNCTION trap.minus_op(timestamptz, timestamptz) RETURNS pg_catalog.interval LANGUAGE sql AS $$ SELECT trap.sprung(); SELECT '0'::pg_catalog.interval $$;
CREATE FUNCTION trap.time_op(timestamptz, timestamptz) RETURNS bool LANGUAGE sql AS 'SELECT trap.sprung(); SELECT true';
CREATE OPERATOR trap.<= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = trap.time_op);
CREATE OPERATOR trap.= (LEFTARG = pg_catalog.int8, RIGHTARG = pg_catalog.int8, FUNCTION = trap.int8_op);
CREATE OPERATOR trap.< (LEFTARG = pg_catalog.int8, RIGHTARG = pg_catalog.int8, FUNCTION = trap.int8_op);
CREATE OPERATOR trap.= (LEFTARG = pg_catalog.int8, RIGHTARG = pg_catalog.int4, FUNCTION = trap.int84_op);
CREATE OPERATOR trap.= (LEFTARG = pg_catalog.text, RIGHTARG = pg_catalog.text, FUNCTION = trap.text_op);
CREATE OPERATOR trap.<> (LEFTARG = pg_catalog.text, RIGHTARG = pg_catalog.text, FUNCTION = trap.text_op);
CREATE OPERATOR trap.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = trap.oid_op);
CREATE OPERATOR trap.|| (LEFTARG = pg_catalog.text, RIGHTARG = pg_catalog.text, FUNCTION = trap.concat_op);
CREATE OPERATOR trap.- (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = trap.minus_op);
-- A cast that would make "text = trap" ambiguous is his right for his own types.
CREATE FUNCTION trap.cast_text(pg_catalog.text) RETURNS trap.message LANGUAGE sql AS 'SELECT trap.sprung(); SELECT NULL::trap.message';
CREATE CAST (pg_catalog.text AS trap.message) WITH FUNCTION trap.cast_text(pg_catalog.text) AS IMPLICIT;
-- And temporary ones, which come even before pg_catalog
CREATE TEMP TABLE task_outbox (LIKE trap.task_outbox);
CREATE TEMP TABLE queue (LIKE trap.queue);
CREATE TEMP TABLE dead (LIKE trap.dead);
CREATE TEMP TABLE deduplication (LIKE trap.deduplication);
CREATE TEMP TABLE letter (LIKE trap.letter);
CREATE TYPE pg_temp.message AS (trapped integer);
CREATE DOMAIN pg_temp.text AS pg_catalog.int4;
CREATE DOMAIN pg_temp.jsonb AS pg_catalog.int4;

-- The traps work.
SELECT 1::pg_catalog.int8 = 1::pg_catalog.int8;
SELECT 'a'::pg_catalog.text || 'b'::pg_catalog.text;
SELECT now();
SELECT 1::text + 1 AS text_is_a_number;

-- The life of a task that succeeds and of one that fails steps into none of them.
SELECT e.id IS NOT NULL AS enqueued FROM taskoutbox.enqueue('good', '{"a": 1}', group_id => 'h', headers => '{"k": "v"}') e;
SELECT e.id IS NOT NULL AS enqueued FROM taskoutbox.enqueue('bad', '{"a": 2}', group_id => 'h') e;
SELECT task_type, payload, receipt_handle FROM taskoutbox.receive(wait => '10 s') \gset
\echo :task_type :payload
SELECT taskoutbox.change_visibility(:'receipt_handle', '1 min', error => 'later');
SELECT taskoutbox.delete(:'receipt_handle');
SELECT taskoutbox.create_queue('hostile', max_receive_count => 1);
SELECT e.id IS NOT NULL AS enqueued FROM taskoutbox.enqueue('bad', '{"a": 2}', queue => 'hostile') e;
SELECT task_type, receipt_handle FROM taskoutbox.receive('hostile', wait => '10 s') \gset
SELECT taskoutbox.change_visibility(:'receipt_handle', '0', error => 'never');
SELECT task_type FROM taskoutbox.receive('hostile');
SELECT task_type, receipt_handle FROM taskoutbox.receive(wait => '10 s') \gset
SELECT taskoutbox.delete(ARRAY[:'receipt_handle']);
-- Nor does what operators do, and deduplication
SELECT e.duplicate FROM taskoutbox.enqueue('first', deduplication_id => 'h', deduplication_window => '1 day') e;
SELECT e.duplicate, e.id FROM taskoutbox.enqueue('second', deduplication_id => 'h') e \gset
\echo :duplicate
SELECT taskoutbox.cancel(:id);
SELECT taskoutbox.redrive('hostile');
SELECT task_type, receipt_handle FROM taskoutbox.receive('hostile', wait => '10 s') \gset
SELECT taskoutbox.change_visibility(:'receipt_handle', '0', error => 'never again');
SELECT task_type FROM taskoutbox.receive('hostile');
SELECT taskoutbox.purge('hostile'), taskoutbox.purge('default');
SELECT taskoutbox.alter_queue('default', max_receive_count => 6), taskoutbox.pause_queue('default'), taskoutbox.resume_queue('default'),
	taskoutbox.drop_queue('default');
SELECT taskoutbox.create_queue('doomed'), taskoutbox.drop_queue('doomed');
SELECT taskoutbox.period_id('x', 'day', 'Europe/Berlin', '2026-11-29 23:30Z'), taskoutbox.period_start('quarter', 'UTC') IS NOT NULL AS start;
SELECT e.duplicate FROM taskoutbox.enqueue_period('x', 'day') e;
SELECT pg_catalog.count(*) FROM taskoutbox.missed_periods('x', 'day');
SELECT taskoutbox.purge('default');
RESET search_path;
RESET ROLE;
GRANT SELECT ON taskoutbox.queue_metrics, taskoutbox.relay_status TO regress_taskoutbox_mallory;
SET ROLE regress_taskoutbox_mallory;
SET search_path = trap, pg_catalog;
SELECT queue, waiting, in_flight, delivered, dead_lettered FROM taskoutbox.queue_metrics WHERE queue OPERATOR(pg_catalog.=) 'hostile';
SELECT state FROM taskoutbox.relay_status;
RESET ROLE;
-- Nor does the owner.
SELECT (SELECT e.id IS NOT NULL FROM taskoutbox.enqueue('by the owner', group_id => 'h') e) AS enqueued;
INSERT INTO taskoutbox.task_outbox (task_type, group_id) VALUES ('direct', 'h');
RESET search_path;
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive(wait => '10 s');
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive(wait => '10 s');
SELECT task_type, queue, last_error FROM taskoutbox.dead_letter;
-- Nothing went into tables that are not ours.
SELECT count(*) FROM trap.task_outbox;
SELECT count(*) FROM trap.dead_letter;
SELECT count(*) FROM trap.queue;
SELECT count(*) FROM trap.deduplication;
SELECT count(*) FROM pg_temp.task_outbox;

-- A relay starts, and works, in a database whose search_path is hostile.
ALTER DATABASE :"DBNAME" SET search_path = trap, pg_catalog;
SELECT pid AS old_pid FROM taskoutbox.relay_status \gset
SELECT pg_terminate_backend(pid, 10000) FROM taskoutbox.relay_status;
SELECT (SELECT e.id IS NOT NULL FROM taskoutbox.enqueue('after', group_id => 'i') e) AS enqueued;
SELECT task_type, receipt_handle FROM taskoutbox.receive(visibility_timeout => '1 us', wait => '20 s') \gset
SELECT task_type, receive_count FROM taskoutbox.receive(wait => '10 s');
SELECT state, pid <> :old_pid AS another FROM taskoutbox.relay_status;
ALTER DATABASE :"DBNAME" RESET search_path;


--
-- A schema that belongs to somebody else is refused: he could replace what
-- CREATE EXTENSION puts into it.
--

DROP EXTENSION taskoutbox;
-- PostgreSQL leaves the schema that it created for the extension.
DROP SCHEMA taskoutbox;
CREATE SCHEMA taskoutbox AUTHORIZATION regress_taskoutbox_mallory;
-- PostgreSQL 18 names the line of the script, too.
\set SHOW_CONTEXT never
CREATE EXTENSION taskoutbox;
\echo :SQLSTATE
\set SHOW_CONTEXT errors
DROP SCHEMA taskoutbox;
-- The installation itself among the traps
SET search_path = trap, pg_catalog;
CREATE EXTENSION taskoutbox;
SELECT id, duplicate FROM taskoutbox.enqueue('x');
SELECT task_type FROM taskoutbox.receive(wait => '10 s');
RESET search_path;
SELECT kind, name FROM privileges WHERE grantee = 0;

-- Not for others to install: it starts workers.
DROP EXTENSION taskoutbox;
SET ROLE regress_taskoutbox_mallory;
CREATE EXTENSION taskoutbox;
\echo :SQLSTATE
RESET ROLE;

DROP VIEW privileges;
SET client_min_messages = warning;
DROP OWNED BY regress_taskoutbox_mallory, regress_taskoutbox_app, regress_taskoutbox_worker CASCADE;
DROP ROLE regress_taskoutbox_mallory, regress_taskoutbox_app, regress_taskoutbox_worker;
