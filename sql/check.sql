-- check(): what is not as it should be; and a library that does not fit the objects.
CREATE EXTENSION taskoutbox;

CREATE PROCEDURE until(condition text) LANGUAGE plpgsql AS $$
DECLARE
	holds boolean;
BEGIN
	FOR i IN 1 .. 2000 LOOP
		EXECUTE 'SELECT ' || condition INTO holds;
		EXIT WHEN holds;
		PERFORM pg_sleep(0.01);
		COMMIT;
	END LOOP;
	IF holds IS NOT TRUE THEN
		RAISE NOTICE 'never: %', condition;
	END IF;
END
$$;
CALL until($$state = 'running' FROM taskoutbox.relay_status WHERE database = current_database()$$);
SELECT * FROM taskoutbox.check();
SELECT taskoutbox.library_version() = extversion AS same FROM pg_extension WHERE extname = 'taskoutbox';

CREATE TRIGGER audit BEFORE INSERT ON taskoutbox.task_outbox FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
CREATE RULE quiet AS ON DELETE TO taskoutbox.dead_letter DO ALSO NOTHING;
ALTER TABLE taskoutbox.queue ENABLE ROW LEVEL SECURITY;
ALTER TABLE taskoutbox.task_outbox DISABLE TRIGGER task_outbox_check;
ALTER SEQUENCE taskoutbox.task_outbox_id_seq CACHE 10;
SELECT * FROM taskoutbox.check() ORDER BY object, problem;
DROP TRIGGER audit ON taskoutbox.task_outbox;
DROP RULE quiet ON taskoutbox.dead_letter;
ALTER TABLE taskoutbox.queue DISABLE ROW LEVEL SECURITY;
ALTER TABLE taskoutbox.task_outbox ENABLE ALWAYS TRIGGER task_outbox_check;
ALTER SEQUENCE taskoutbox.task_outbox_id_seq CACHE 1;
SELECT * FROM taskoutbox.check();

-- Objects of another version (case C58): producers go on, the relay waits, and says why.
UPDATE pg_extension SET extversion = '0.0' WHERE extname = 'taskoutbox';
SELECT count(pg_terminate_backend(pid)) FROM taskoutbox.relay_status WHERE database = current_database();
CALL until($$state = 'stopped' FROM taskoutbox.relay_status WHERE database = current_database()$$);
SELECT object, problem, remedy FROM taskoutbox.check() WHERE object <> 'relay';
SELECT count(*) FROM taskoutbox.enqueue('x');
SELECT count(*) FROM taskoutbox.receive();
UPDATE pg_extension SET extversion = taskoutbox.library_version() WHERE extname = 'taskoutbox';
CALL until($$state = 'running' FROM taskoutbox.relay_status WHERE database = current_database()$$);
SELECT task_type FROM taskoutbox.receive(wait => '10 s');
SELECT * FROM taskoutbox.check();

-- The chain of updates: from every version there is a way to this one, and it ends
-- with the objects of this one.
SELECT source, target, path FROM pg_extension_update_paths('taskoutbox') WHERE path IS NOT NULL;
SELECT version, installed, superuser, trusted, relocatable, schema, requires FROM pg_available_extension_versions WHERE name = 'taskoutbox';

DROP PROCEDURE until;
DROP EXTENSION taskoutbox;
