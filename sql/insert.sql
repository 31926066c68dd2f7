--
-- What enqueue keeps about its tables, when those change: in the same transaction, by
-- the owner, between savepoints.
--
CREATE EXTENSION taskoutbox;
CREATE FUNCTION enqueue(task_type text, payload jsonb DEFAULT '{}', deduplication_id text DEFAULT NULL, deliver_at timestamptz DEFAULT NULL) RETURNS boolean
LANGUAGE sql AS 'SELECT duplicate FROM taskoutbox.enqueue(task_type, payload, deduplication_id => deduplication_id, deliver_at => deliver_at)';
-- Every row as a sequential scan and as each index shows it.
CREATE FUNCTION rows(OUT task_type text, OUT by_scan integer, OUT by_key integer, OUT by_time integer) RETURNS SETOF record
LANGUAGE plpgsql AS $$
BEGIN
	FOR task_type IN SELECT DISTINCT o.task_type FROM taskoutbox.task_outbox o ORDER BY 1 LOOP
		SET LOCAL enable_indexscan = off;
		SET LOCAL enable_bitmapscan = off;
		SET LOCAL enable_indexonlyscan = off;
		SET LOCAL enable_seqscan = on;
		by_scan := (SELECT count(*) FROM taskoutbox.task_outbox o WHERE o.task_type = rows.task_type AND o.id > 0);
		SET LOCAL enable_indexscan = on;
		SET LOCAL enable_seqscan = off;
		by_key := (SELECT count(*) FROM taskoutbox.task_outbox o WHERE o.task_type = rows.task_type AND o.id > 0);
		by_time := (SELECT count(*) FROM taskoutbox.task_outbox o WHERE o.task_type = rows.task_type AND o.deliver_at > now());
		RETURN NEXT;
	END LOOP;
END $$;

-- Rows with and without the columns that few have are all there.
SELECT enqueue('short'), enqueue('long', deliver_at => now() + interval '1 day'), enqueue('short');
SELECT task_type, headers, deliver_at > now() AS later, redriven_from, receive_count, last_error FROM taskoutbox.task_outbox ORDER BY id;
SELECT pg_column_size(o) - pg_column_size(o.payload) < 72 AS short_header FROM taskoutbox.task_outbox o WHERE task_type = 'short' LIMIT 1;
SELECT * FROM rows();

-- The same transaction changes the table, and the next row is right.
BEGIN;
SELECT enqueue('before the index', deliver_at => now() + interval '1 day');
CREATE INDEX later_idx ON taskoutbox.task_outbox (task_type, (payload ->> 'n')) WHERE payload ? 'n';
SELECT enqueue('after the index', '{"n": 7}');
SET LOCAL enable_seqscan = off;
SELECT task_type FROM taskoutbox.task_outbox WHERE task_type = 'after the index' AND payload ->> 'n' = '7' AND payload ? 'n';
DROP INDEX taskoutbox.later_idx;
SELECT enqueue('after its end', '{"n": 7}');
ALTER TABLE taskoutbox.task_outbox ADD COLUMN added integer DEFAULT 5;
SELECT enqueue('after the column'), enqueue('after the column', deliver_at => now() + interval '1 day');
SELECT task_type, added FROM taskoutbox.task_outbox WHERE task_type LIKE 'after%' ORDER BY id;
ALTER TABLE taskoutbox.task_outbox DROP COLUMN added;
SELECT enqueue('after its end');
CLUSTER taskoutbox.task_outbox USING task_outbox_pkey;
REINDEX TABLE taskoutbox.task_outbox;
SELECT enqueue('after the rewrite');
SELECT * FROM rows();
DO $$
BEGIN
	PERFORM enqueue('in a block');
	CREATE INDEX block_idx ON taskoutbox.task_outbox (task_type);
	PERFORM enqueue('in a block');
	DROP INDEX taskoutbox.block_idx;
	PERFORM enqueue('in a block');
END $$;
SELECT * FROM rows() WHERE task_type = 'in a block';
ROLLBACK;
SELECT enqueue('after rollback');
SELECT * FROM rows();

-- Another index, with another access method, stays right over transactions.
CREATE INDEX payload_idx ON taskoutbox.task_outbox USING gin (payload);
CREATE INDEX enqueued_idx ON taskoutbox.task_outbox USING brin (enqueued_at);
SELECT count(enqueue('gin', jsonb_build_object('n', n))) FROM generate_series(1, 100) n;
SELECT enqueue('gin', '{"n": 101}');
SET enable_seqscan = off;
SELECT count(*) FROM taskoutbox.task_outbox WHERE payload @> '{"n": 50}';
SELECT count(*) FROM taskoutbox.task_outbox WHERE payload @> '{"n": 101}';
SELECT count(*) FROM taskoutbox.task_outbox WHERE enqueued_at > now() - interval '1 hour' AND task_type = 'gin';
RESET enable_seqscan;
DROP INDEX taskoutbox.payload_idx, taskoutbox.enqueued_idx;

-- A constraint of the owner's: the error undoes its savepoint, and nothing else.
CREATE UNIQUE INDEX one_idx ON taskoutbox.task_outbox (task_type) WHERE task_type = 'one';
BEGIN;
SAVEPOINT a;
SELECT enqueue('one');
SAVEPOINT b;
SELECT enqueue('one');
ROLLBACK TO b;
SELECT enqueue('two');
ROLLBACK TO a;
-- The lock was taken in there: it is gone, and taken again.
SELECT count(*) FROM pg_locks WHERE relation = 'taskoutbox.task_outbox'::regclass AND mode = 'RowExclusiveLock' AND pid = pg_backend_pid();
SELECT enqueue('one');
SELECT count(*) FROM pg_locks WHERE relation = 'taskoutbox.task_outbox'::regclass AND mode = 'RowExclusiveLock' AND pid = pg_backend_pid();
COMMIT;
DROP INDEX taskoutbox.one_idx;
SELECT * FROM rows() WHERE task_type IN ('one', 'two');

-- The index of delayed tasks is opened by the first one, and again after its savepoint is gone.
CREATE FUNCTION locked() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT count(*) FROM pg_locks WHERE relation = 'taskoutbox.task_outbox_deliver_at_idx'::regclass AND mode = 'RowExclusiveLock' AND pid = pg_backend_pid() $$;
SELECT enqueue('some are late');
BEGIN;
SELECT enqueue('some are late'), locked();
SAVEPOINT a;
SELECT enqueue('some are late', deliver_at => now() + interval '1 day'), locked();
ROLLBACK TO a;
SELECT enqueue('some are late'), locked();
SELECT enqueue('some are late', deliver_at => now() + n * interval '1 day'), locked() FROM generate_series(0, 2) n;
COMMIT;
SELECT * FROM rows() WHERE task_type = 'some are late';

-- enqueue within enqueue's own statement: from a trigger, for each row of an INSERT.
CREATE TABLE orders (id integer);
CREATE FUNCTION order_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		PERFORM enqueue('order', deduplication_id => 'order/' || NEW.id / 2);
		IF NEW.id = 3 THEN
			RAISE EXCEPTION 'no';
		END IF;
	EXCEPTION WHEN raise_exception THEN
		PERFORM enqueue('refused');
	END;
	RETURN NEW;
END $$;
CREATE TRIGGER order_made BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION order_made();
INSERT INTO orders SELECT n FROM generate_series(1, 5) n WHERE NOT enqueue('round') RETURNING id;
SELECT task_type, deduplication_id FROM taskoutbox.task_outbox WHERE task_type IN ('round', 'order', 'refused') ORDER BY id;

-- Later statements of the same transaction see the row, and a function in the same one does.
BEGIN;
CREATE FUNCTION seen() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT count(*) FROM taskoutbox.task_outbox WHERE task_type = 'seen' $$;
SELECT enqueue('seen'), seen(), enqueue('seen'), seen();
SELECT seen();
ROLLBACK;


-- The extension goes in the transaction that used it, and comes again.
BEGIN;
SELECT enqueue('last', deduplication_id => 'last');
DROP EXTENSION taskoutbox;
CREATE EXTENSION taskoutbox;
SELECT id, duplicate FROM taskoutbox.enqueue('first', deduplication_id => 'last');
SAVEPOINT a;
DROP EXTENSION taskoutbox;
ROLLBACK TO a;
SELECT id, duplicate FROM taskoutbox.enqueue('second', deduplication_id => 'last');
ROLLBACK;
SELECT id, duplicate FROM taskoutbox.enqueue('later', deduplication_id => 'last') \gset
SELECT task_type, :'duplicate' AS duplicate FROM taskoutbox.task_outbox WHERE id = :id;

DROP TABLE orders;
DROP FUNCTION enqueue, rows, locked, order_made;
DROP EXTENSION taskoutbox;
