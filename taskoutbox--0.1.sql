/* taskoutbox--0.1.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION taskoutbox" to load this file. \quit

-- A schema that existed before may belong to somebody else, who could then
-- replace what we put into it.
DO $$
BEGIN
	IF (SELECT n.nspowner <> (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) current_user)
		FROM pg_catalog.pg_namespace n WHERE n.nspname OPERATOR(pg_catalog.=) 'taskoutbox')
	THEN
		RAISE EXCEPTION 'schema "taskoutbox" exists and belongs to another role'
			USING ERRCODE = 'duplicate_schema',
				  HINT = 'Drop or rename that schema, then run CREATE EXTENSION taskoutbox again.';
	END IF;
END
$$;

-- Everything that this script creates is closed to PUBLIC from the start.
REVOKE ALL ON SCHEMA taskoutbox FROM PUBLIC;


/*
 * Tables
 */

-- The first one: DROP EXTENSION locks in this order, and all others lock this table first.
CREATE TABLE taskoutbox.task_outbox (
	id bigint NOT NULL PRIMARY KEY,
	enqueued_at timestamp with time zone NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	payload jsonb NOT NULL DEFAULT '{}',
	queue text NOT NULL DEFAULT 'default',
	group_id text,
	task_type text NOT NULL,
	deduplication_id text,
	headers jsonb,
	deliver_at timestamp with time zone,
	redriven_from bigint,
	receive_count integer,
	last_error text
) USING heap;
CREATE INDEX task_outbox_deliver_at_idx ON taskoutbox.task_outbox (deliver_at) WHERE deliver_at IS NOT NULL;
COMMENT ON TABLE taskoutbox.task_outbox IS
'Tasks that are not done yet: one row each, written by enqueue in the caller''s transaction, gone when the task is done.';
COMMENT ON COLUMN taskoutbox.task_outbox.receive_count IS
'How often the message was given out and came back; null: never. Written when it comes back, not when it is given out.';

CREATE SEQUENCE taskoutbox.task_outbox_id_seq AS bigint MAXVALUE 4611686018427387903 CACHE 1
	OWNED BY taskoutbox.task_outbox.id;
COMMENT ON SEQUENCE taskoutbox.task_outbox_id_seq IS
'Ids of tasks. CACHE must stay 1: the order of a message group is the order in which ids are drawn.';
ALTER TABLE taskoutbox.task_outbox ALTER COLUMN id SET DEFAULT pg_catalog.nextval('taskoutbox.task_outbox_id_seq');

CREATE TABLE taskoutbox.queue (
	name text NOT NULL PRIMARY KEY CHECK (pg_catalog.length(name) BETWEEN 1 AND 128),
	backend text NOT NULL DEFAULT 'embedded' CHECK (backend IN ('embedded', 'sqs')),
	visibility_timeout interval NOT NULL DEFAULT '30 s' CHECK (visibility_timeout OPERATOR(pg_catalog.>) '0' AND visibility_timeout OPERATOR(pg_catalog.<=) '12 hours'),
	max_receive_count integer NOT NULL DEFAULT 5 CHECK (max_receive_count BETWEEN 1 AND 1000),
	deduplication_window interval NOT NULL DEFAULT '5 min' CHECK (deduplication_window OPERATOR(pg_catalog.>) '0' AND deduplication_window OPERATOR(pg_catalog.<=) '1000 days'),
	on_dead_letter text NOT NULL DEFAULT 'skip' CHECK (on_dead_letter IN ('skip', 'block')),
	dead_letter_retention interval NOT NULL DEFAULT '90 days' CHECK (dead_letter_retention OPERATOR(pg_catalog.>) '0' AND dead_letter_retention OPERATOR(pg_catalog.<=) '100 years'),
	max_pending bigint NOT NULL DEFAULT 0 CHECK (max_pending OPERATOR(pg_catalog.>=) 0),
	on_full text NOT NULL DEFAULT 'warn' CHECK (on_full IN ('warn', 'refuse')),
	url text,
	region text,
	endpoint text,
	retry_base interval NOT NULL DEFAULT '1 s' CHECK (retry_base OPERATOR(pg_catalog.>=) '1 ms' AND retry_base OPERATOR(pg_catalog.<=) '1 hour'),
	retry_cap interval NOT NULL DEFAULT '5 min' CHECK (retry_cap OPERATOR(pg_catalog.>=) '1 ms' AND retry_cap OPERATOR(pg_catalog.<=) '1 day'),
	max_connections integer NOT NULL DEFAULT 16 CHECK (max_connections BETWEEN 1 AND 100),
	group_batching boolean NOT NULL DEFAULT false,
	require_dlq boolean NOT NULL DEFAULT true,
	allow_http boolean NOT NULL DEFAULT false,
	consumers integer NOT NULL DEFAULT 1 CHECK (consumers BETWEEN 0 AND 100),
	max_run_time interval NOT NULL DEFAULT '1 hour' CHECK (max_run_time OPERATOR(pg_catalog.>=) '1 ms' AND max_run_time OPERATOR(pg_catalog.<=) '7 days'),
	ledger_retention interval NOT NULL DEFAULT '91 days' CHECK (ledger_retention OPERATOR(pg_catalog.>) '0' AND ledger_retention OPERATOR(pg_catalog.<=) '100 years'),
	producer_role text,
	consumer_role text,
	paused boolean NOT NULL DEFAULT false,
	CHECK ((backend OPERATOR(pg_catalog.=) 'sqs') OPERATOR(pg_catalog.=) (url IS NOT NULL))
);
COMMENT ON TABLE taskoutbox.queue IS
'Queues and their settings. The queue named default exists without a row, with the defaults of create_queue.';

CREATE TABLE taskoutbox.dead_letter (
	id bigint NOT NULL,
	enqueued_at timestamp with time zone NOT NULL,
	died_at timestamp with time zone NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	receive_count integer NOT NULL,
	queue text NOT NULL,
	group_id text,
	task_type text NOT NULL,
	payload jsonb NOT NULL,
	deduplication_id text,
	headers jsonb,
	stage text NOT NULL CHECK (stage IN ('relay', 'consumer')),
	reason text NOT NULL,
	last_error text,
	redriven_from bigint,
	blocks boolean NOT NULL DEFAULT false CHECK (NOT blocks OR group_id IS NOT NULL),
	-- An id can come again, after TRUNCATE ... RESTART IDENTITY.
	PRIMARY KEY (id, died_at)
);
CREATE INDEX dead_letter_queue_idx ON taskoutbox.dead_letter (queue, died_at);
CREATE INDEX dead_letter_blocks_idx ON taskoutbox.dead_letter (queue, group_id) WHERE blocks;
COMMENT ON TABLE taskoutbox.dead_letter IS
'Messages that were given up: by the relay, because their queue refuses them, or after max_receive_count receives of consumers.';
COMMENT ON COLUMN taskoutbox.dead_letter.blocks IS
'Its message group waits until it is redriven, cancelled or purged.';

CREATE TABLE taskoutbox.deduplication (
	queue text COLLATE "C" NOT NULL,
	deduplication_id text COLLATE "C" NOT NULL,
	task_id bigint NOT NULL,
	expires_at timestamp with time zone NOT NULL,
	PRIMARY KEY (deduplication_id, queue)
) USING heap;
CREATE INDEX deduplication_expires_at_idx ON taskoutbox.deduplication (expires_at);
COMMENT ON TABLE taskoutbox.deduplication IS
'Deduplication ids (with their scope) and the first task of each. An entry lives until it expires, or until the task has left the outbox if that is later.';

CREATE TABLE taskoutbox.controller (
	queue text NOT NULL DEFAULT 'default',
	task_type text NOT NULL,
	-- Before PostgreSQL 16, looking it up is an error if it is malformed: not in the relay.
	controller text NOT NULL CHECK ((pg_catalog.to_regprocedure(controller) IS NULL) IS NOT NULL),
	function_oid oid NOT NULL,
	owner text NOT NULL,
	idempotency text NOT NULL DEFAULT 'atomic' CHECK (idempotency IN ('atomic', 'natural')),
	PRIMARY KEY (queue, task_type)
);
COMMENT ON TABLE taskoutbox.controller IS
'Which function is called for which task type. function_oid and owner tell it from another one that gets the same name later.';

CREATE TABLE taskoutbox.ledger (
	consumer text COLLATE "C" NOT NULL,
	id text COLLATE "C" NOT NULL,
	claimed_at timestamp with time zone NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	PRIMARY KEY (id, consumer)
) USING heap;
CREATE INDEX ledger_claimed_at_idx ON taskoutbox.ledger (claimed_at);
COMMENT ON TABLE taskoutbox.ledger IS
'Which ids were handled, and by whom: what claim says, and the uids of tasks that controllers with idempotency = atomic handled.';

CREATE TABLE taskoutbox.installation (
	id uuid NOT NULL PRIMARY KEY DEFAULT pg_catalog.gen_random_uuid(),
	created_at timestamp with time zone NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
INSERT INTO taskoutbox.installation DEFAULT VALUES;
COMMENT ON TABLE taskoutbox.installation IS
'The id that tells tasks of this installation from those of others: the oldest one. A restored dump brings its own.';

CREATE TABLE taskoutbox.installation_pin (
	system_identifier text NOT NULL,
	database_oid oid NOT NULL
);
COMMENT ON TABLE taskoutbox.installation_pin IS
'The cluster and database whose tasks these are, written by the first enqueue. A copy of this database finds another one here, and delivers nothing by itself until confirm().';

CREATE TABLE taskoutbox.low_water_mark (
	id bigint NOT NULL
) USING heap;
INSERT INTO taskoutbox.low_water_mark (id) VALUES (1);
COMMENT ON TABLE taskoutbox.low_water_mark IS
'No task with a smaller id than the smallest of these is left in the outbox: from there on a starting relay reads it.';

-- Their rows are deleted, and have no key: a publication FOR ALL TABLES must not forbid that.
ALTER TABLE taskoutbox.installation_pin REPLICA IDENTITY FULL;
ALTER TABLE taskoutbox.low_water_mark REPLICA IDENTITY FULL;

-- Users' rows belong into dumps, the extension's definition does not.
SELECT pg_catalog.pg_extension_config_dump('taskoutbox.installation',
	'WHERE created_at OPERATOR(pg_catalog.=) (SELECT pg_catalog.min(i.created_at) FROM taskoutbox.installation i)');
SELECT pg_catalog.pg_extension_config_dump('taskoutbox.installation_pin', '');
SELECT pg_catalog.pg_extension_config_dump('taskoutbox.queue', '');
SELECT pg_catalog.pg_extension_config_dump('taskoutbox.controller', '');
SELECT pg_catalog.pg_extension_config_dump('taskoutbox.ledger', '');
SELECT pg_catalog.pg_extension_config_dump('taskoutbox.task_outbox_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('taskoutbox.task_outbox', '');
SELECT pg_catalog.pg_extension_config_dump('taskoutbox.dead_letter', '');
SELECT pg_catalog.pg_extension_config_dump('taskoutbox.deduplication', '');


/*
 * Types: composite types, because they can gain columns later
 */

CREATE TYPE taskoutbox.enqueued AS (
	id bigint,
	duplicate boolean
);
COMMENT ON TYPE taskoutbox.enqueued IS
'Result of enqueue: the id of the task, and whether it is a duplicate of a task that was there before.';

CREATE TYPE taskoutbox.message AS (
	id bigint,
	receipt_handle text,
	queue text,
	task_type text,
	payload jsonb,
	group_id text,
	deduplication_id text,
	headers jsonb,
	enqueued_at timestamp with time zone,
	receive_count integer,
	last_error text,
	uid text
);
COMMENT ON TYPE taskoutbox.message IS
'A message as receive gives it out. receive_count is 1 the first time. uid stays the same over retries and redrives: what to pass to claim.';


/*
 * Rows that come in by other means than enqueue (COPY, INSERT by the owner,
 * restore, logical replication, which only fires ALWAYS triggers).
 */

CREATE FUNCTION taskoutbox.task_outbox_check() RETURNS trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'taskoutbox_task_outbox_check';
COMMENT ON FUNCTION taskoutbox.task_outbox_check() IS
'Trigger: checks a row that was not written by enqueue, or moved, and tells the relay of it.';

CREATE TRIGGER task_outbox_check
BEFORE INSERT OR UPDATE OF id, queue, group_id, deliver_at ON taskoutbox.task_outbox
FOR EACH ROW EXECUTE FUNCTION taskoutbox.task_outbox_check();
ALTER TABLE taskoutbox.task_outbox ENABLE ALWAYS TRIGGER task_outbox_check;

CREATE FUNCTION taskoutbox.task_outbox_truncated() RETURNS trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'taskoutbox_task_outbox_truncated';
COMMENT ON FUNCTION taskoutbox.task_outbox_truncated() IS
'Trigger: ends all that is in flight, and makes the relay start anew, when the table is truncated.';

CREATE TRIGGER task_outbox_truncated AFTER TRUNCATE ON taskoutbox.task_outbox
FOR EACH STATEMENT EXECUTE FUNCTION taskoutbox.task_outbox_truncated();
ALTER TABLE taskoutbox.task_outbox ENABLE ALWAYS TRIGGER task_outbox_truncated;

CREATE FUNCTION taskoutbox.settings_changed() RETURNS trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'taskoutbox_settings_changed';
COMMENT ON FUNCTION taskoutbox.settings_changed() IS
'Trigger: makes every session and the relay read the queues'' settings again, and refuses more queues than taskoutbox.max_queues.';

CREATE TRIGGER settings_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON taskoutbox.queue
FOR EACH STATEMENT EXECUTE FUNCTION taskoutbox.settings_changed();
ALTER TABLE taskoutbox.queue ENABLE ALWAYS TRIGGER settings_changed;
CREATE TRIGGER settings_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON taskoutbox.controller
FOR EACH STATEMENT EXECUTE FUNCTION taskoutbox.settings_changed();
ALTER TABLE taskoutbox.controller ENABLE ALWAYS TRIGGER settings_changed;
CREATE TRIGGER settings_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON taskoutbox.installation_pin
FOR EACH STATEMENT EXECUTE FUNCTION taskoutbox.settings_changed();
ALTER TABLE taskoutbox.installation_pin ENABLE ALWAYS TRIGGER settings_changed;


-- Whatever changes which groups are blocked, the relay reads them again.
CREATE FUNCTION taskoutbox.dead_letter_changed() RETURNS trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'taskoutbox_dead_letter_changed';
COMMENT ON FUNCTION taskoutbox.dead_letter_changed() IS
'Trigger: tells the relay when a dead letter begins or ceases to block its message group.';

CREATE TRIGGER dead_letter_blocks AFTER INSERT ON taskoutbox.dead_letter
FOR EACH ROW WHEN (NEW.blocks) EXECUTE FUNCTION taskoutbox.dead_letter_changed();
ALTER TABLE taskoutbox.dead_letter ENABLE ALWAYS TRIGGER dead_letter_blocks;
CREATE TRIGGER dead_letter_unblocks AFTER DELETE ON taskoutbox.dead_letter
FOR EACH ROW WHEN (OLD.blocks) EXECUTE FUNCTION taskoutbox.dead_letter_changed();
ALTER TABLE taskoutbox.dead_letter ENABLE ALWAYS TRIGGER dead_letter_unblocks;
CREATE TRIGGER dead_letter_changed AFTER UPDATE ON taskoutbox.dead_letter
FOR EACH ROW WHEN (OLD.blocks OR NEW.blocks) EXECUTE FUNCTION taskoutbox.dead_letter_changed();
ALTER TABLE taskoutbox.dead_letter ENABLE ALWAYS TRIGGER dead_letter_changed;
CREATE TRIGGER dead_letter_truncated AFTER TRUNCATE ON taskoutbox.dead_letter
FOR EACH STATEMENT EXECUTE FUNCTION taskoutbox.dead_letter_changed();
ALTER TABLE taskoutbox.dead_letter ENABLE ALWAYS TRIGGER dead_letter_truncated;


/*
 * Producers
 */

CREATE FUNCTION taskoutbox.enqueue(
	task_type text,
	payload jsonb DEFAULT '{}',
	group_id text DEFAULT NULL,
	deduplication_id text DEFAULT NULL,
	queue text DEFAULT 'default',
	deliver_at timestamp with time zone DEFAULT NULL,
	headers jsonb DEFAULT NULL,
	deduplication_window interval DEFAULT NULL
) RETURNS taskoutbox.enqueued
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_enqueue';
COMMENT ON FUNCTION taskoutbox.enqueue(text, jsonb, text, text, text, timestamp with time zone, jsonb, interval) IS
'Writes one task into the outbox, in the caller''s transaction: it is delivered if and only if that transaction commits. Tasks with the same group_id are delivered one after the other, in order. Limits: task_type and queue 128 characters, group_id and deduplication_id 128 ASCII letters, digits and punctuation marks, payload and attributes taskoutbox.max_message_bytes, headers 7 string attributes. With a deduplication_id it is a duplicate if a task with that id was enqueued less than the queue''s deduplication_window ago (or deduplication_window, if that is given and longer), or is still in the outbox: then nothing is written, and the first task''s id returned; above READ COMMITTED a concurrent one can give error 40001. deliver_at: not before that time. Errors: TO001 to TO008, TO010, TO017 queue full.';

CREATE FUNCTION taskoutbox.period_id(
	prefix text,
	period text,
	timezone text DEFAULT 'UTC',
	at timestamp with time zone DEFAULT pg_catalog.now()
) RETURNS text
LANGUAGE C STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'taskoutbox_period_id';
COMMENT ON FUNCTION taskoutbox.period_id(text, text, text, timestamp with time zone) IS
'A deduplication id for the period that a time is in, on the clocks of a time zone, whatever TimeZone the session has: prefix-2026-11-29. period: quarter-hour, hour, day, week (ISO), month, quarter or year. One id per local period, also when clocks are changed. Errors: TO001 to TO003, TO008, TO010 unknown period or timezone.';

CREATE FUNCTION taskoutbox.period_start(
	period text,
	timezone text DEFAULT 'UTC',
	at timestamp with time zone DEFAULT pg_catalog.now()
) RETURNS timestamp with time zone
LANGUAGE C STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'taskoutbox_period_start';
COMMENT ON FUNCTION taskoutbox.period_start(text, text, timestamp with time zone) IS
'When the period began that a time is in; arguments and errors as for period_id.';

CREATE FUNCTION taskoutbox.enqueue_period(
	task_type text,
	period text,
	payload jsonb DEFAULT '{}',
	group_id text DEFAULT NULL,
	timezone text DEFAULT 'UTC',
	at timestamp with time zone DEFAULT pg_catalog.now(),
	queue text DEFAULT 'default'
) RETURNS taskoutbox.enqueued
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_enqueue_period';
COMMENT ON FUNCTION taskoutbox.enqueue_period(text, text, jsonb, text, text, timestamp with time zone, text) IS
'enqueue for the period that a time is in: deduplication_id is period_id(task_type, period, timezone, at), taken for 400 days, and the headers period, period_start and timezone say which period it is. Errors: those of enqueue and of period_id, and TO010 for an at in a period that began more than 400 days ago, or begins more than 400 days from now.';


/*
 * Consumers
 */

CREATE FUNCTION taskoutbox.receive(
	queue text DEFAULT 'default',
	max_messages integer DEFAULT 1,
	visibility_timeout interval DEFAULT NULL,
	wait interval DEFAULT '0'
) RETURNS SETOF taskoutbox.message
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'taskoutbox_receive';
COMMENT ON FUNCTION taskoutbox.receive(text, integer, interval, interval) IS
'Takes up to max_messages (1 to 1000) messages that are ready, and hides them from others for visibility_timeout (NULL: the queue''s; up to 12 hours). With wait (up to 20 s) it waits that long for a first message. Not undone by a rollback: the message comes back when its timeout ends. Errors: TO001, TO005, TO010, 55000.';

CREATE FUNCTION taskoutbox.delete(receipt_handle text, missing_ok boolean DEFAULT false) RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_delete';
COMMENT ON FUNCTION taskoutbox.delete(text, boolean) IS
'Deletes a received message, in the caller''s transaction: the task is done exactly if that transaction commits. A receipt handle whose visibility timeout has ended is an error (TO012), or false with missing_ok. Errors: TO011 malformed handle, TO012 stale handle, TO013 being deleted by another transaction.';

CREATE FUNCTION taskoutbox.delete(receipt_handles text[], missing_ok boolean DEFAULT false) RETURNS integer
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_delete_array';
COMMENT ON FUNCTION taskoutbox.delete(text[], boolean) IS
'Deletes received messages, in the caller''s transaction, and returns how many (0 for NULL, which array_agg gives for no messages). One stale receipt handle fails the whole call, unless missing_ok.';

CREATE FUNCTION taskoutbox.change_visibility(receipt_handle text, visibility_timeout interval, error text DEFAULT NULL) RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_change_visibility';
COMMENT ON FUNCTION taskoutbox.change_visibility(text, interval, text) IS
'Sets when a received message becomes visible again, counted from now (0 to 12 hours; 0 gives it back at once). Not undone by a rollback. error is kept as the message''s last_error. Errors: TO010 to TO013.';


CREATE FUNCTION taskoutbox.claim(consumer text, id text) RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_claim';
COMMENT ON FUNCTION taskoutbox.claim(text, text) IS
'Writes into the ledger, in the caller''s transaction, that this consumer handles this id, such as a message''s uid. False: it has done so before, and there is nothing to do. Waits for another transaction that claims the same. Limits: 128 characters each. Errors: TO001 to TO003, TO008.';

CREATE FUNCTION taskoutbox.register_controller(
	task_type text,
	controller regprocedure,
	idempotency text DEFAULT 'atomic',
	queue text DEFAULT 'default'
) RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_register_controller';
COMMENT ON FUNCTION taskoutbox.register_controller(text, regprocedure, text, text) IS
'From the commit on a worker, connected as the owner of the function, calls it for each task of that type in that queue. Its argument is the payload (jsonb) or the message (taskoutbox.message). For the owner of the function only. idempotency: atomic (the call, a row of the ledger and the delete commit together), or natural (no ledger). Registering again replaces. Errors: TO001 to TO003, TO005, TO010, 42501 not the owner, or the task type has a controller of another role, 42P13 not such a function, 28000 its owner may not log in (before PostgreSQL 17), 55000.';

CREATE FUNCTION taskoutbox.unregister_controller(task_type text, queue text DEFAULT 'default') RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_unregister_controller';
COMMENT ON FUNCTION taskoutbox.unregister_controller(text, text) IS
'Ends what register_controller began; false if there was nothing. What runs is finished. Errors: TO001 to TO003, TO005, 42501.';


/*
 * Queues
 */

CREATE FUNCTION taskoutbox.create_queue(
	name text,
	backend text DEFAULT 'embedded',
	visibility_timeout interval DEFAULT '30 s',
	max_receive_count integer DEFAULT 5,
	deduplication_window interval DEFAULT '5 min',
	on_dead_letter text DEFAULT 'skip',
	dead_letter_retention interval DEFAULT '90 days',
	max_pending bigint DEFAULT 0,
	on_full text DEFAULT 'warn',
	url text DEFAULT NULL,
	region text DEFAULT NULL,
	endpoint text DEFAULT NULL,
	retry_base interval DEFAULT '1 s',
	retry_cap interval DEFAULT '5 min',
	max_connections integer DEFAULT 16,
	group_batching boolean DEFAULT false,
	require_dlq boolean DEFAULT true,
	allow_http boolean DEFAULT false,
	consumers integer DEFAULT 1,
	max_run_time interval DEFAULT '1 hour',
	ledger_retention interval DEFAULT '91 days',
	producer_role text DEFAULT NULL,
	consumer_role text DEFAULT NULL
) RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_create_queue';
COMMENT ON FUNCTION taskoutbox.create_queue(text, text, interval, integer, interval, text, interval, bigint, text, text, text, text, interval, interval, integer, boolean, boolean, boolean, integer, interval, interval, text, text) IS
'Creates a queue. visibility_timeout: how long a received message stays hidden (more than 0, up to 12 hours). max_receive_count: after that many receives without a delete the message goes to the dead letters (1 to 1000). deduplication_window: for how long a deduplication id is remembered (more than 0, up to 1000 days). on_dead_letter: what its message group does after a dead letter: skip (go on), or block (wait until it is redriven, cancelled or purged). dead_letter_retention: dead letters that block nothing are deleted after that time (more than 0, up to 100 years). max_pending: with more tasks than that in the outbox, delayed ones not counted, the queue is full (0: never), and enqueue warns or refuses, as on_full says; counted by the relay. consumers: workers for each role that has controllers in it (0 to 100). max_run_time: a controller that runs longer is cancelled (1 ms to 7 days). retry_base, retry_cap: the first and the longest pause after a failure, to SQS or of a controller. ledger_retention: for how long the ledger remembers at least (more than 0, up to 100 years). producer_role, consumer_role: only members of that role enqueue, or receive and have controllers. backend: embedded, or sqs to publish to the FIFO queue in SQS at url. Of those only: region; endpoint, where requests go instead of to the host of the url; max_connections (1 to 100); group_batching, several messages of a group in one request; require_dlq, refuse a queue that has no dead-letter queue; allow_http, not to this host alone. Errors: TO001 to TO003, TO010, TO014 queue exists, TO015 too many queues, 42704 no such role.';

CREATE FUNCTION taskoutbox.alter_queue(
	name text,
	visibility_timeout interval DEFAULT NULL,
	max_receive_count integer DEFAULT NULL,
	deduplication_window interval DEFAULT NULL,
	on_dead_letter text DEFAULT NULL,
	dead_letter_retention interval DEFAULT NULL,
	max_pending bigint DEFAULT NULL,
	on_full text DEFAULT NULL,
	url text DEFAULT NULL,
	region text DEFAULT NULL,
	endpoint text DEFAULT NULL,
	retry_base interval DEFAULT NULL,
	retry_cap interval DEFAULT NULL,
	max_connections integer DEFAULT NULL,
	group_batching boolean DEFAULT NULL,
	require_dlq boolean DEFAULT NULL,
	allow_http boolean DEFAULT NULL,
	consumers integer DEFAULT NULL,
	max_run_time interval DEFAULT NULL,
	ledger_retention interval DEFAULT NULL,
	producer_role text DEFAULT NULL,
	consumer_role text DEFAULT NULL,
	backend text DEFAULT NULL
) RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_alter_queue';
COMMENT ON FUNCTION taskoutbox.alter_queue(text, interval, integer, interval, text, interval, bigint, text, text, text, text, interval, interval, integer, boolean, boolean, boolean, integer, interval, interval, text, text, text) IS
'Changes settings of a queue, for what is received or enqueued from the commit on; NULL leaves one as it is, an empty url, region, endpoint, producer_role or consumer_role takes it away. Limits as for create_queue. Errors: TO001, TO005 unknown queue, TO010, TO018 backend or url changed while messages are in flight, 42704 no such role.';

CREATE FUNCTION taskoutbox.pause_queue(name text) RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_pause_queue';
COMMENT ON FUNCTION taskoutbox.pause_queue(text) IS
'From the commit on nothing of the queue is given out. Tasks can be enqueued, messages in flight be deleted. Errors: TO001, TO005.';

CREATE FUNCTION taskoutbox.resume_queue(name text) RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_resume_queue';
COMMENT ON FUNCTION taskoutbox.resume_queue(text) IS
'Ends pause_queue. Errors: TO001, TO005.';

CREATE FUNCTION taskoutbox.drop_queue(name text, force boolean DEFAULT false) RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_drop_queue';
COMMENT ON FUNCTION taskoutbox.drop_queue(text, boolean) IS
'Drops a queue that has neither tasks nor dead letters; with force, with all of them. Waits for transactions that enqueue, into whatever queue. Errors: TO001, TO005, TO010 the queue default without settings of its own, TO016 not empty.';


/*
 * Tasks
 */

CREATE FUNCTION taskoutbox.cancel(id bigint) RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_cancel';
COMMENT ON FUNCTION taskoutbox.cancel(bigint) IS
'Takes a task out of the outbox, or its dead letter away, in the caller''s transaction. False: it is in flight, done, or was never there, or another transaction is changing or deleting it. Error: TO001.';

CREATE FUNCTION taskoutbox.redrive(queue text, id bigint DEFAULT NULL) RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_redrive';
COMMENT ON FUNCTION taskoutbox.redrive(text, bigint) IS
'Makes tasks of dead letters again, of one or (id NULL) of all of a queue, and returns how many. They get new ids, in the order of the old ones, a receive count of 0, and redriven_from, the id of the first task; they are no duplicates of anything. In a queue with on_dead_letter = block they come first in their message groups, otherwise last. Of a queue in SQS, and id NULL, it also has the relay ask SQS, when the transaction has committed, to move what is in its dead-letter queue back (queue_metrics.sqs_redrive). Errors: TO001, TO005.';

CREATE FUNCTION taskoutbox.purge(queue text, dead_letters boolean DEFAULT false) RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_purge';
COMMENT ON FUNCTION taskoutbox.purge(text, boolean) IS
'Deletes all tasks of a queue, those in flight too (their receipt handles become stale), or its dead letters, and returns how many. Errors: TO001, TO005.';

CREATE FUNCTION taskoutbox.retry_now(queue text, group_id text DEFAULT NULL) RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_retry_now';
COMMENT ON FUNCTION taskoutbox.retry_now(text, text) IS
'Makes messages that failed (change_visibility with an error) and wait for their next try visible at once, of a queue or of one of its message groups, and returns how many. A queue in SQS is tried at once as a whole, whatever it waits for; the number is about how many wait. Not undone by a rollback. Errors: TO001, TO005.';

CREATE FUNCTION taskoutbox.confirm() RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'taskoutbox_confirm';
COMMENT ON FUNCTION taskoutbox.confirm() IS
'Says that the tasks of this database, which is a copy of another one (a restored dump, CREATE DATABASE ... TEMPLATE, pg_upgrade), are to be done here. Until then nothing is published, and no controller called.';


/*
 * What is happening
 */

CREATE FUNCTION taskoutbox.get_relay_status(
	OUT database_oid oid,
	OUT state text,
	OUT pid integer,
	OUT since timestamp with time zone,
	OUT messages bigint,
	OUT message_groups bigint,
	OUT memory_bytes bigint,
	OUT restarts bigint,
	OUT confirmed boolean,
	OUT hint text
) RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'taskoutbox_get_relay_status';
COMMENT ON FUNCTION taskoutbox.get_relay_status() IS
'What the view relay_status shows, from shared memory.';

CREATE VIEW taskoutbox.relay_status AS
SELECT d.datname AS database, s.state, s.pid, s.since, s.messages, s.message_groups, s.memory_bytes, s.restarts, s.confirmed, s.hint
FROM taskoutbox.get_relay_status() s LEFT JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) s.database_oid;
COMMENT ON VIEW taskoutbox.relay_status IS
'The relay of every database that has one, and of this one: running or why not. messages, message_groups and memory_bytes are what it holds in memory. confirmed: false in a copy of another database, until confirm(); null before the first enqueue.';

CREATE FUNCTION taskoutbox.get_queue_metrics(
	OUT queue text,
	OUT backend text,
	OUT waiting bigint,
	OUT delayed bigint,
	OUT in_flight bigint,
	OUT dead bigint,
	OUT blocked_groups bigint,
	OUT oldest_id bigint,
	OUT enqueued_per_second double precision,
	OUT delivered_per_second double precision,
	OUT delivered bigint,
	OUT retried bigint,
	OUT dead_lettered bigint,
	OUT duplicates bigint,
	OUT relay_running boolean,
	OUT problem text,
	OUT problem_since timestamp with time zone,
	OUT remedy text,
	OUT next_try timestamp with time zone,
	OUT sqs_visible bigint,
	OUT sqs_in_flight bigint,
	OUT sqs_dead_letters bigint,
	OUT sqs_looked_at timestamp with time zone,
	OUT sqs_redrive text
) RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'taskoutbox_get_queue_metrics';
COMMENT ON FUNCTION taskoutbox.get_queue_metrics() IS
'What the view queue_metrics shows, from shared memory, after the relay has looked at everything committed so far.';

CREATE VIEW taskoutbox.queue_metrics AS
SELECT m.queue, m.backend, m.waiting, m.delayed, m.in_flight, m.dead, m.blocked_groups,
	pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) (SELECT t.enqueued_at FROM taskoutbox.task_outbox t WHERE t.id OPERATOR(pg_catalog.=) m.oldest_id) AS oldest_age,
	m.enqueued_per_second, m.delivered_per_second,
	m.delivered, m.retried, m.dead_lettered, m.duplicates, m.relay_running, m.problem, m.problem_since, m.remedy, m.next_try,
	m.sqs_visible, m.sqs_in_flight, m.sqs_dead_letters, m.sqs_looked_at, m.sqs_redrive
FROM taskoutbox.get_queue_metrics() m;
COMMENT ON VIEW taskoutbox.queue_metrics IS
'Figures of every queue of this database. waiting, delayed, in_flight, dead and blocked_groups are now, rates those of the last minute; delivered, retried, dead_lettered and duplicates count since the server started. relay_running false: the figures are those of the last relay. problem: what keeps the queue from delivering, if something does, remedy: what to do about it, next_try: when the relay tries again. sqs_visible, sqs_in_flight and sqs_dead_letters: what SQS said at sqs_looked_at, approximately; sqs_redrive: what became of the last redrive of the dead letters there.';

CREATE FUNCTION taskoutbox.get_in_flight(
	OUT id bigint,
	OUT holder integer,
	OUT since timestamp with time zone,
	OUT until timestamp with time zone,
	OUT being_deleted boolean,
	OUT waits_for_retry boolean
) RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME', 'taskoutbox_get_in_flight';
COMMENT ON FUNCTION taskoutbox.get_in_flight() IS
'What the view in_flight shows, from shared memory.';

CREATE VIEW taskoutbox.in_flight AS
SELECT t.queue, f.id, t.task_type, t.group_id, f.holder, f.since, f.until, f.being_deleted, f.waits_for_retry,
	COALESCE(t.receive_count, 0) OPERATOR(pg_catalog.+) 1 AS receive_count, t.last_error
FROM taskoutbox.get_in_flight() f JOIN taskoutbox.task_outbox t ON t.id OPERATOR(pg_catalog.=) f.id;
COMMENT ON VIEW taskoutbox.in_flight IS
'Messages in flight: the process id of the session that received each, since when, until when it is hidden from others, the how manieth receive it is, and what the last one said. waits_for_retry: its consumer has given up, and it comes back at that time.';

CREATE VIEW taskoutbox.blocked_groups AS
SELECT f.queue, f.group_id, f.id, f.since, f.receive_count AS attempts, f.last_error, f.until AS next_try, false AS dead
FROM taskoutbox.in_flight f
WHERE f.group_id IS NOT NULL AND (f.receive_count OPERATOR(pg_catalog.>) 1 OR f.last_error IS NOT NULL)
UNION ALL
SELECT d.queue, d.group_id, d.id, d.died_at, d.receive_count, d.last_error, NULL, true
FROM taskoutbox.dead_letter d
WHERE d.blocks;
COMMENT ON VIEW taskoutbox.blocked_groups IS
'Message groups that wait because of a message of theirs: one that failed before, and is in flight or waits for its next try, or (dead) a dead letter of a queue with on_dead_letter = block, until it is redriven, cancelled or purged. Which one, since when, how often it was tried, why it failed, and when it comes back unless it is deleted.';

CREATE FUNCTION taskoutbox.get_controller_status(
	OUT queue text,
	OUT task_type text,
	OUT controller text,
	OUT idempotency text,
	OUT role text,
	OUT workers integer,
	OUT problem text
) RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'taskoutbox_get_controller_status';
COMMENT ON FUNCTION taskoutbox.get_controller_status() IS
'What the view controller_status shows.';

CREATE VIEW taskoutbox.controller_status AS
SELECT * FROM taskoutbox.get_controller_status();
COMMENT ON VIEW taskoutbox.controller_status IS
'Every registered controller, the role that it runs as, how many workers of that role run for its queue, and why it is not called, if it is not.';

CREATE TYPE taskoutbox.task_status AS (
	id bigint,
	state text,
	since timestamp with time zone,
	next_at timestamp with time zone,
	next text,
	queue text,
	task_type text,
	group_id text,
	enqueued_at timestamp with time zone,
	receive_count integer,
	last_error text,
	redriven_from bigint
);
COMMENT ON TYPE taskoutbox.task_status IS
'Result of task: where a task is, since when, and what comes next.';

CREATE FUNCTION taskoutbox.get_task(id bigint) RETURNS SETOF taskoutbox.task_status
LANGUAGE SQL VOLATILE PARALLEL UNSAFE ROWS 1
BEGIN ATOMIC
	SELECT t.id,
		CASE
			WHEN f.waits_for_retry THEN 'waiting for retry'
			WHEN f.id IS NOT NULL THEN 'in flight'
			WHEN t.deliver_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'delayed'
			WHEN q.paused THEN 'paused'
			WHEN letter.id IS NOT NULL THEN 'blocked'
			ELSE 'waiting'
		END,
		COALESCE(f.since, CASE WHEN t.deliver_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp() THEN t.deliver_at END, t.enqueued_at),
		CASE
			WHEN f.id IS NOT NULL THEN CASE WHEN pg_catalog.isfinite(f.until) THEN f.until END
			WHEN t.deliver_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN t.deliver_at
			WHEN q.paused OR letter.id IS NOT NULL THEN NULL
			ELSE elder.until
		END,
		CASE
			WHEN f.being_deleted THEN 'commit of the transaction that deletes it'
			WHEN f.id IS NOT NULL AND q.backend OPERATOR(pg_catalog.=) 'sqs' THEN 'acknowledgement by SQS'
			WHEN f.waits_for_retry THEN 'visible again'
			WHEN f.id IS NOT NULL THEN 'deletion by its consumer, or visible again'
			WHEN t.deliver_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'due'
			WHEN q.name IS NULL AND t.queue OPERATOR(pg_catalog.<>) 'default' THEN 'create_queue: its queue does not exist'
			WHEN q.paused THEN 'resume_queue'
			WHEN letter.id IS NOT NULL THEN pg_catalog.format('redrive, cancel or purge of dead letter %s of its group', letter.id)
			WHEN elder.waits_for_retry THEN pg_catalog.format('message %s of its group waits for its next try (retry_now)', elder.id)
			WHEN elder.id IS NOT NULL THEN pg_catalog.format('message %s of its group is in flight', elder.id)
			WHEN q.backend OPERATOR(pg_catalog.=) 'sqs' THEN 'publishing to SQS'
			ELSE 'receive'
		END,
		t.queue, t.task_type, t.group_id, t.enqueued_at,
		COALESCE(t.receive_count, 0) OPERATOR(pg_catalog.+) (f.id IS NOT NULL)::integer,
		t.last_error, t.redriven_from
	FROM taskoutbox.task_outbox t
	LEFT JOIN taskoutbox.queue q ON q.name OPERATOR(pg_catalog.=) t.queue
	LEFT JOIN taskoutbox.get_in_flight() f ON f.id OPERATOR(pg_catalog.=) t.id
	LEFT JOIN LATERAL (
		SELECT d.id FROM taskoutbox.dead_letter d
		WHERE d.blocks AND d.queue OPERATOR(pg_catalog.=) t.queue AND d.group_id OPERATOR(pg_catalog.=) t.group_id
		ORDER BY d.id LIMIT 1) letter ON true
	LEFT JOIN LATERAL (
		SELECT b.id, b.until, b.waits_for_retry FROM taskoutbox.in_flight b
		WHERE b.queue OPERATOR(pg_catalog.=) t.queue AND b.group_id OPERATOR(pg_catalog.=) t.group_id
		ORDER BY b.id LIMIT 1) elder ON true
	WHERE t.id OPERATOR(pg_catalog.=) get_task.id
	UNION ALL
	SELECT d.id, 'dead', d.died_at,
		CASE WHEN NOT d.blocks THEN d.died_at OPERATOR(pg_catalog.+) COALESCE(q.dead_letter_retention, '90 days') END,
		CASE WHEN d.blocks THEN 'redrive, cancel or purge: its message group waits for that' ELSE 'redrive, cancel or purge, or deletion' END,
		d.queue, d.task_type, d.group_id, d.enqueued_at, d.receive_count, d.last_error, d.redriven_from
	FROM taskoutbox.dead_letter d
	LEFT JOIN taskoutbox.queue q ON q.name OPERATOR(pg_catalog.=) d.queue
	WHERE d.id OPERATOR(pg_catalog.=) get_task.id
	UNION ALL
	SELECT get_task.id, 'gone', NULL, NULL, 'nothing: it is done, was cancelled, purged or redriven, or was never there',
		NULL, NULL, NULL, NULL, NULL, NULL, NULL
	WHERE NOT EXISTS (SELECT FROM taskoutbox.task_outbox t WHERE t.id OPERATOR(pg_catalog.=) get_task.id)
	AND NOT EXISTS (SELECT FROM taskoutbox.dead_letter d WHERE d.id OPERATOR(pg_catalog.=) get_task.id)
	LIMIT 1;
END;
COMMENT ON FUNCTION taskoutbox.get_task(bigint) IS
'What task shows: for the owner of the tables.';

CREATE FUNCTION taskoutbox.task(id bigint) RETURNS SETOF taskoutbox.task_status
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME', 'taskoutbox_task';
COMMENT ON FUNCTION taskoutbox.task(bigint) IS
'One row that says where a task is (waiting, delayed, in flight, waiting for retry, paused, blocked, dead, gone), since when, and what comes next, and when if that is known. Error: TO001.';


/*
 * Schedules
 */

CREATE FUNCTION taskoutbox.missed_periods(
	task_type text,
	period text,
	timezone text DEFAULT 'UTC',
	since timestamp with time zone DEFAULT NULL,
	queue text DEFAULT 'default',
	OUT period_id text,
	OUT period_start timestamp with time zone
) RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'taskoutbox_missed_periods';
COMMENT ON FUNCTION taskoutbox.missed_periods(text, text, text, timestamp with time zone, text) IS
'Periods that are over, began at or after since (NULL: after the first one that had a task, of the last 400 days), and had no task: the deduplication id that enqueue_period makes is free. Errors: TO001 to TO003, TO005, TO008, TO010 also for a since more than 400 days ago, and when ids were taken for a shorter time.';

CREATE FUNCTION taskoutbox.get_schedule_status(
	OUT jobid bigint,
	OUT jobname text,
	OUT schedule text,
	OUT database text,
	OUT username text,
	OUT active boolean,
	OUT last_run timestamp with time zone,
	OUT status text,
	OUT duration interval,
	OUT last_failure timestamp with time zone,
	OUT error text,
	OUT task_type text,
	OUT queue text,
	OUT id_prefix text,
	OUT period text,
	OUT timezone text,
	OUT last_period text,
	OUT last_task bigint,
	OUT missed_periods text[],
	OUT missed_starts timestamp with time zone[],
	OUT hint text
) RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'taskoutbox_get_schedule_status';
COMMENT ON FUNCTION taskoutbox.get_schedule_status() IS
'What the view schedule_status shows. Reads the tables of pg_cron with the rights of the caller.';

CREATE VIEW taskoutbox.schedule_status AS
SELECT s.jobid, s.jobname, s.schedule, s.database, s.username, s.active, s.last_run, s.status, s.duration, s.last_failure, s.error,
	s.task_type, s.queue, s.id_prefix, s.period, s.timezone, s.last_period, s.last_task, s.missed_periods, s.missed_starts, s.hint
FROM taskoutbox.get_schedule_status() s;
COMMENT ON VIEW taskoutbox.schedule_status IS
'Every pg_cron entry that calls enqueue or enqueue_period: its last run, the last failure in pg_cron''s log and why, what it enqueues, the last period that had its task, and the periods in which it was due and that had none. Empty, with a NOTICE, without pg_cron or the right to read its tables.';


/*
 * The library and the extension's objects
 */

CREATE FUNCTION taskoutbox.library_version() RETURNS text
LANGUAGE C STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'taskoutbox_library_version';
COMMENT ON FUNCTION taskoutbox.library_version() IS
'The version of the library that this session has loaded, which can be another one than that of the extension''s objects (pg_extension.extversion) until ALTER EXTENSION taskoutbox UPDATE, or a restart of the server.';

CREATE FUNCTION taskoutbox.check(
	OUT object text,
	OUT problem text,
	OUT remedy text
) RETURNS SETOF record
LANGUAGE SQL STABLE PARALLEL UNSAFE ROWS 1
BEGIN ATOMIC
	SELECT t.tgrelid::pg_catalog.regclass::text, pg_catalog.format('trigger %I is not supported: enqueue passes it by', t.tgname),
		'Drop it, and do its work in the transaction that enqueues, or in the consumer.'
	FROM pg_catalog.pg_trigger t
	JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) t.tgrelid
	JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) t.tgfoid
	WHERE c.relnamespace OPERATOR(pg_catalog.=) 'taskoutbox'::pg_catalog.regnamespace AND NOT t.tgisinternal
	AND p.pronamespace OPERATOR(pg_catalog.<>) c.relnamespace
	UNION ALL
	SELECT t.tgrelid::pg_catalog.regclass::text, pg_catalog.format('trigger %I is disabled, or not enabled ALWAYS', t.tgname),
		pg_catalog.format('Run ALTER TABLE %s ENABLE ALWAYS TRIGGER %I.', t.tgrelid::pg_catalog.regclass, t.tgname)
	FROM pg_catalog.pg_trigger t
	JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) t.tgrelid
	JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) t.tgfoid
	WHERE c.relnamespace OPERATOR(pg_catalog.=) 'taskoutbox'::pg_catalog.regnamespace AND NOT t.tgisinternal
	AND p.pronamespace OPERATOR(pg_catalog.=) c.relnamespace AND t.tgenabled OPERATOR(pg_catalog.<>) 'A'
	UNION ALL
	SELECT c.oid::pg_catalog.regclass::text, pg_catalog.format('rule %I is not supported', r.rulename), 'Drop it.'
	FROM pg_catalog.pg_rewrite r
	JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) r.ev_class
	WHERE c.relnamespace OPERATOR(pg_catalog.=) 'taskoutbox'::pg_catalog.regnamespace AND c.relkind OPERATOR(pg_catalog.=) 'r'
	UNION ALL
	SELECT c.oid::pg_catalog.regclass::text, 'row-level security is not supported: enqueue and receive pass it by',
		pg_catalog.format('Run ALTER TABLE %s DISABLE ROW LEVEL SECURITY.', c.oid::pg_catalog.regclass)
	FROM pg_catalog.pg_class c
	WHERE c.relnamespace OPERATOR(pg_catalog.=) 'taskoutbox'::pg_catalog.regnamespace AND c.relrowsecurity
	UNION ALL
	SELECT c.oid::pg_catalog.regclass::text, 'the index is not valid', pg_catalog.format('Run REINDEX INDEX %s.', c.oid::pg_catalog.regclass)
	FROM pg_catalog.pg_index i
	JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.indexrelid
	WHERE c.relnamespace OPERATOR(pg_catalog.=) 'taskoutbox'::pg_catalog.regnamespace AND NOT i.indisvalid
	UNION ALL
	SELECT s.seqrelid::pg_catalog.regclass::text, 'the sequence has a cache: ids are not drawn in the order of calls',
		pg_catalog.format('Run ALTER SEQUENCE %s CACHE 1.', s.seqrelid::pg_catalog.regclass)
	FROM pg_catalog.pg_sequence s
	JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) s.seqrelid
	WHERE c.relnamespace OPERATOR(pg_catalog.=) 'taskoutbox'::pg_catalog.regnamespace AND s.seqcache OPERATOR(pg_catalog.<>) 1
	UNION ALL
	SELECT pg_catalog.format('queue %s', q.name), pg_catalog.format('its %s, %s, does not exist: only superusers use it', r.setting, r.role),
		pg_catalog.format('Create that role, or pass another %s to alter_queue.', r.setting)
	FROM taskoutbox.queue q,
		LATERAL (VALUES ('producer_role', q.producer_role), ('consumer_role', q.consumer_role)) r (setting, role)
	WHERE r.role IS NOT NULL
	AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles p WHERE p.rolname OPERATOR(pg_catalog.=) r.role)
	UNION ALL
	SELECT 'extension taskoutbox', pg_catalog.format('its version is %s, that of the library is %s', e.extversion, taskoutbox.library_version()),
		'Run ALTER EXTENSION taskoutbox UPDATE; if that changes nothing, restart the server.'
	FROM pg_catalog.pg_extension e
	WHERE e.extname OPERATOR(pg_catalog.=) 'taskoutbox' AND e.extversion OPERATOR(pg_catalog.<>) taskoutbox.library_version()
	UNION ALL
	SELECT 'relay', 'it is ' OPERATOR(pg_catalog.||) r.state, r.hint
	FROM taskoutbox.get_relay_status() r
	JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) r.database_oid
	WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database() AND r.hint IS NOT NULL;
END;
COMMENT ON FUNCTION taskoutbox.check() IS
'What is not as it should be in this database, one row each, and what to do about it; no row: nothing. Triggers, rules and row-level security on the extension''s tables are unsupported.';


-- Functions and types are open to PUBLIC by default, tables and views are not.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA taskoutbox FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.enqueued FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.message FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.task_status FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.queue FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.controller FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.ledger FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.controller_status FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.installation FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.installation_pin FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.low_water_mark FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.task_outbox FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.dead_letter FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.deduplication FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.relay_status FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.queue_metrics FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.in_flight FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.blocked_groups FROM PUBLIC;
REVOKE ALL ON TYPE taskoutbox.schedule_status FROM PUBLIC;

-- pg_dump compares privileges with what an extension gave at first, but cannot do
-- so for row types of tables, and would warn of each of them at every dump.
DELETE FROM pg_catalog.pg_init_privs p
USING pg_catalog.pg_type t, pg_catalog.pg_class c
WHERE p.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_type'::pg_catalog.regclass
AND p.objoid OPERATOR(pg_catalog.=) t.oid
AND t.typnamespace OPERATOR(pg_catalog.=) 'taskoutbox'::pg_catalog.regnamespace
AND c.oid OPERATOR(pg_catalog.=) t.typrelid AND c.relkind OPERATOR(pg_catalog.<>) 'c';


/*
 * Roles, of the whole cluster. One that is there already keeps its members, who
 * get the rights that follow: so they are named.
 */
DO $$
DECLARE
	role text;
	members text;
BEGIN
	FOREACH role IN ARRAY ARRAY['taskoutbox_producer', 'taskoutbox_consumer', 'taskoutbox_monitor', 'taskoutbox_admin'] LOOP
		IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) role) THEN
			EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', role);
			CONTINUE;
		END IF;
		SELECT pg_catalog.string_agg(pg_catalog.quote_ident(m.rolname), ', ' ORDER BY m.rolname) INTO members
		FROM pg_catalog.pg_auth_members a
		JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) a.roleid
		JOIN pg_catalog.pg_roles m ON m.oid OPERATOR(pg_catalog.=) a.member
		WHERE r.rolname OPERATOR(pg_catalog.=) role AND m.rolname OPERATOR(pg_catalog.<>) 'taskoutbox_admin';
		IF members IS NOT NULL THEN
			RAISE WARNING 'role "%" exists, and has members: %', role, members
				USING HINT = 'They have its rights in this database, too. Revoke the membership where that is not wanted.';
		END IF;
	END LOOP;
END
$$;

GRANT USAGE ON SCHEMA taskoutbox TO taskoutbox_producer, taskoutbox_consumer, taskoutbox_monitor, taskoutbox_admin;
GRANT USAGE ON TYPE taskoutbox.enqueued TO taskoutbox_producer;
GRANT USAGE ON TYPE taskoutbox.message TO taskoutbox_consumer;
GRANT EXECUTE ON FUNCTION taskoutbox.enqueue, taskoutbox.enqueue_period, taskoutbox.period_id, taskoutbox.period_start
	TO taskoutbox_producer;
GRANT EXECUTE ON FUNCTION taskoutbox.receive, taskoutbox.delete(text, boolean), taskoutbox.delete(text[], boolean), taskoutbox.change_visibility,
	taskoutbox.claim, taskoutbox.register_controller, taskoutbox.unregister_controller
	TO taskoutbox_consumer;
GRANT SELECT ON taskoutbox.relay_status, taskoutbox.queue_metrics, taskoutbox.in_flight, taskoutbox.blocked_groups, taskoutbox.schedule_status,
	taskoutbox.controller_status
	TO taskoutbox_monitor;
GRANT EXECUTE ON FUNCTION taskoutbox.get_relay_status, taskoutbox.get_queue_metrics, taskoutbox.get_in_flight, taskoutbox.get_schedule_status,
	taskoutbox.get_controller_status,
	taskoutbox.task, taskoutbox.missed_periods, taskoutbox.period_id, taskoutbox.period_start, taskoutbox.library_version, taskoutbox.check
	TO taskoutbox_monitor;
GRANT EXECUTE ON FUNCTION taskoutbox.create_queue, taskoutbox.alter_queue, taskoutbox.drop_queue, taskoutbox.pause_queue, taskoutbox.resume_queue,
	taskoutbox.cancel, taskoutbox.redrive, taskoutbox.purge, taskoutbox.retry_now, taskoutbox.confirm
	TO taskoutbox_admin;
GRANT SELECT ON taskoutbox.queue, taskoutbox.task_outbox, taskoutbox.dead_letter, taskoutbox.deduplication, taskoutbox.controller, taskoutbox.ledger, taskoutbox.installation,
	taskoutbox.installation_pin, taskoutbox.low_water_mark TO taskoutbox_admin;
GRANT taskoutbox_producer, taskoutbox_consumer, taskoutbox_monitor TO taskoutbox_admin;
