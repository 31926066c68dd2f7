-- The pin: which database the tasks belong to. Copies are in test/t/025_copies.pl.
CREATE EXTENSION taskoutbox;
-- The relay is there, to say what it reads.
DO $$
BEGIN
	FOR i IN 1 .. 2000 LOOP
		EXIT WHEN (SELECT every(relay_running) FROM taskoutbox.queue_metrics);
		PERFORM pg_sleep(0.005);
	END LOOP;
END
$$;

CREATE VIEW pin AS SELECT count(*) AS rows, bool_and(system_identifier = (SELECT system_identifier::text FROM pg_control_system())
	AND database_oid = (SELECT oid FROM pg_database WHERE datname = current_database())) AS own FROM taskoutbox.installation_pin;

-- Not by the script, nor by an enqueue that is rolled back
SELECT * FROM pin;
BEGIN;
SELECT count(*) FROM taskoutbox.enqueue('x');
SELECT * FROM pin;
ROLLBACK;
SELECT * FROM pin;
BEGIN;
SAVEPOINT s;
SELECT count(*) FROM taskoutbox.enqueue('x');
ROLLBACK TO s;
SELECT * FROM pin;
SELECT count(*) FROM taskoutbox.enqueue('x');
SELECT count(*) FROM taskoutbox.enqueue('x');
SELECT * FROM pin;
COMMIT;
SELECT * FROM pin;
SELECT count(*) FROM taskoutbox.enqueue('x');
SELECT * FROM pin;
SELECT id AS uuid FROM taskoutbox.installation \gset

-- A foreign one: messages can be received, and confirm makes it our own.
UPDATE taskoutbox.installation_pin SET system_identifier = '42';
SELECT count(*) FROM taskoutbox.queue_metrics;
SELECT confirmed, hint FROM taskoutbox.relay_status WHERE database = current_database();
SELECT count(taskoutbox.delete(receipt_handle)) FROM taskoutbox.receive(max_messages => 10, wait => '10 s');
SELECT count(*) FROM taskoutbox.enqueue('x');
SELECT * FROM pin;
BEGIN;
SELECT taskoutbox.confirm();
ROLLBACK;
SELECT * FROM pin;
SELECT taskoutbox.confirm();
SELECT * FROM pin;
SELECT count(*) FROM taskoutbox.queue_metrics;
SELECT confirmed, hint FROM taskoutbox.relay_status WHERE database = current_database();
SELECT id = :'uuid' AS same FROM taskoutbox.installation;
-- Two that were put together: one that is foreign is enough.
INSERT INTO taskoutbox.installation_pin (system_identifier, database_oid) VALUES ('42', 42);
SELECT count(*) FROM taskoutbox.queue_metrics;
SELECT confirmed FROM taskoutbox.relay_status WHERE database = current_database();
SELECT taskoutbox.confirm();
SELECT * FROM pin;
-- Before anything was enqueued
TRUNCATE taskoutbox.installation_pin;
SELECT count(*) FROM taskoutbox.queue_metrics;
SELECT confirmed, hint FROM taskoutbox.relay_status WHERE database = current_database();
SELECT taskoutbox.confirm();
SELECT * FROM pin;
BEGIN READ ONLY;
SELECT taskoutbox.confirm();
\echo :SQLSTATE
ROLLBACK;

DROP VIEW pin;
DROP EXTENSION taskoutbox;
