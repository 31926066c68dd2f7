-- enqueue: one task becomes one row, in the caller's transaction.
CREATE EXTENSION taskoutbox;

CREATE TABLE orders (id integer PRIMARY KEY, item text);

-- What is in the outbox since the last look.
CREATE FUNCTION new_tasks(OUT id bigint, OUT task_type text, OUT payload jsonb, OUT group_id text)
RETURNS SETOF record LANGUAGE sql AS $$
	WITH seen AS (DELETE FROM taskoutbox.task_outbox t RETURNING t.*)
	SELECT id, task_type, payload, group_id FROM seen ORDER BY id
$$;

-- An empty task: only its type is needed.
SELECT * FROM taskoutbox.enqueue('order.archive');
SELECT id, receive_count, queue, group_id, task_type, payload, deduplication_id, headers, last_error,
	   enqueued_at BETWEEN now() - interval '1 min' AND clock_timestamp() AS enqueued_now
FROM taskoutbox.task_outbox;

-- A task with everything.
SELECT taskoutbox.create_queue('mail');
SELECT * FROM taskoutbox.enqueue(
	'mail.send',
	'{"to": "Zoë 🛒"}',
	group_id => 'customer-7',
	queue => 'mail',
	headers => '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}');
SELECT queue, group_id, payload, headers FROM taskoutbox.task_outbox WHERE id = 2;
SELECT count(*) FROM new_tasks();


--
-- The task exists exactly when the caller's change exists.
--

BEGIN;
INSERT INTO orders VALUES (1, 'lamp');
SELECT taskoutbox.enqueue('order.archive', '{"order": 1}');
COMMIT;
BEGIN;
INSERT INTO orders VALUES (2, 'chair');
SELECT taskoutbox.enqueue('order.archive', '{"order": 2}');
ROLLBACK;
SELECT * FROM orders;
SELECT * FROM new_tasks();

-- A later error in the same statement takes the task with it.
SELECT taskoutbox.enqueue('order.archive'), 1 / (id - 1) FROM orders;

-- So does a rollback to a savepoint, and only with what came after it.
BEGIN;
SELECT taskoutbox.enqueue('kept before');
SAVEPOINT a;
SELECT taskoutbox.enqueue('undone');
SAVEPOINT b;
SELECT taskoutbox.enqueue('undone with the outer savepoint');
RELEASE b;
ROLLBACK TO a;
SELECT taskoutbox.enqueue('kept after');
SAVEPOINT c;
SELECT taskoutbox.enqueue('kept, released');
RELEASE c;
COMMIT;
SELECT * FROM new_tasks();

-- And a block of PL/pgSQL that caught an error.
DO $$
BEGIN
	PERFORM taskoutbox.enqueue('kept');
	BEGIN
		PERFORM taskoutbox.enqueue('undone');
		PERFORM 1 / 0;
	EXCEPTION WHEN division_by_zero THEN
		PERFORM taskoutbox.enqueue('division failed');
	END;
END
$$;
SELECT * FROM new_tasks();

-- A refused task undoes what was done with it, as any error does.
BEGIN;
INSERT INTO orders VALUES (3, 'table');
SELECT taskoutbox.enqueue('order.archive', queue => 'nowhere');
COMMIT;
SELECT count(*) FROM orders WHERE id = 3;

-- Where nothing can be written, nothing can be enqueued.
BEGIN READ ONLY;
SELECT taskoutbox.enqueue('order.archive');
\echo :SQLSTATE
ROLLBACK;


--
-- From everywhere in SQL
--

-- Trigger of a business table, also under COPY
CREATE FUNCTION archive_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM taskoutbox.enqueue('order.archive', jsonb_build_object('order', new.id), group_id => 'order-' || new.id);
	RETURN new;
END
$$;
CREATE TRIGGER archive_order AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION archive_order();
INSERT INTO orders VALUES (10, 'shelf'), (11, 'desk');
COPY orders FROM stdin;
12	bed
13	rug
\.
SELECT * FROM new_tasks();
DROP TRIGGER archive_order ON orders;

-- Deferred trigger: at commit
CREATE CONSTRAINT TRIGGER archive_order AFTER INSERT ON orders
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION archive_order();
BEGIN;
INSERT INTO orders VALUES (14, 'sofa');
SELECT count(*) AS before_commit FROM taskoutbox.task_outbox;
COMMIT;
SELECT * FROM new_tasks();
DROP TRIGGER archive_order ON orders;

-- DO block, with transactions of its own
DO $$
BEGIN
	PERFORM taskoutbox.enqueue('committed');
	COMMIT;
	PERFORM taskoutbox.enqueue('rolled back');
	ROLLBACK;
	PERFORM taskoutbox.enqueue('at the end');
END
$$;
SELECT * FROM new_tasks();

-- PL/pgSQL function: the result is a row
CREATE FUNCTION place_order(id integer, item text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	task taskoutbox.enqueued;
BEGIN
	INSERT INTO orders VALUES (id, item);
	task := taskoutbox.enqueue('order.archive', jsonb_build_object('order', id));
	RETURN format('order %s, task %s, duplicate: %s', id, task.id, task.duplicate);
END
$$;
SELECT place_order(20, 'clock');
SELECT place_order(21, 'vase');
SELECT * FROM new_tasks();

-- SQL function
CREATE FUNCTION archive(id integer) RETURNS bigint LANGUAGE sql
RETURN (taskoutbox.enqueue('order.archive', jsonb_build_object('order', id))).id;
SELECT archive(20);
SELECT * FROM new_tasks();

-- Prepared statement, past the point where it gets a generic plan
PREPARE archive(integer, text) AS
	SELECT e.id FROM taskoutbox.enqueue('order.archive', jsonb_build_object('order', $1), group_id => $2) e;
EXECUTE archive(1, 'g');
EXECUTE archive(2, NULL);
EXECUTE archive(3, 'g');
EXECUTE archive(4, 'g');
EXECUTE archive(5, 'g');
EXECUTE archive(6, 'g');
EXECUTE archive(7, NULL);
SELECT * FROM new_tasks();

-- In bulk: one call per row, ids in the order of the rows
SELECT o.id AS order, e.* FROM (SELECT id FROM orders WHERE id >= 10 ORDER BY id DESC) o,
	LATERAL taskoutbox.enqueue('order.archive', jsonb_build_object('order', o.id)) e;
SELECT * FROM new_tasks();

-- For what a statement has just written
WITH placed AS (INSERT INTO orders VALUES (30, 'mirror'), (31, 'stool') RETURNING id)
SELECT p.id AS order, e.id FROM placed p,
	LATERAL taskoutbox.enqueue('order.archive', jsonb_build_object('order', p.id)) e;
SELECT * FROM new_tasks();

-- In the select list
SELECT id AS order, taskoutbox.enqueue('order.archive', jsonb_build_object('order', id)) FROM orders WHERE id IN (30, 31) ORDER BY id;
SELECT * FROM new_tasks();

-- PostgreSQL calls a function in (...).* once per column: two tasks. And one in
-- FROM only once, when its arguments do not depend on the other table's rows.
SELECT (taskoutbox.enqueue('twice')).*;
SELECT o.id AS order, e.id FROM orders o, LATERAL taskoutbox.enqueue('once') e WHERE o.id < 12;
SELECT * FROM new_tasks();


--
-- What the queue would refuse later is refused here, in the caller's hand.
-- Each kind of mistake has its own SQLSTATE.
--

CREATE FUNCTION try(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	state text;
	message text;
	detail text;
	hint text;
BEGIN
	EXECUTE 'SELECT taskoutbox.enqueue(' || call || ')';
	RETURN 'accepted';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
		detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n      ', state || ' ' || message, nullif(detail, ''), nullif(hint, ''));
END
$$;
\pset format unaligned
\pset tuples_only on

-- TO001: missing. A NULL is never taken for a default.
SELECT try($$ NULL $$);
SELECT try($$ '' $$);
SELECT try($$ 'x', payload => NULL $$);
SELECT try($$ 'x', queue => NULL $$);
SELECT try($$ 'x', queue => '' $$);
SELECT try($$ 'x', group_id => '' $$);
SELECT try($$ 'x', deduplication_id => '' $$);

-- TO002: too long. Names are counted in characters, not in bytes.
SELECT try($$ repeat('x', 128) $$);
SELECT try($$ repeat('x', 129) $$);
SELECT try($$ repeat('é', 128) $$);
SELECT try($$ repeat('é', 129) $$);
SELECT try($$ 'x', group_id => repeat('g', 128) $$);
SELECT try($$ 'x', group_id => repeat('g', 129) $$);
SELECT try($$ 'x', deduplication_id => repeat('d', 129) $$);
SELECT try($$ 'x', queue => repeat('q', 129) $$);
SELECT taskoutbox.create_queue(repeat('é', 128));
SELECT try($$ 'x', queue => repeat('é', 128) $$);
SELECT try($$ 'x', queue => repeat('é', 129) $$);

-- TO003: characters that a message cannot carry: control characters other than
-- tab, line feed and carriage return, U+FFFE, U+FFFF
SELECT try($$ E'a\tb\nc\rd\x7f' $$);
SELECT try($$ E'a\x01b' $$);
SELECT try($$ E'a\x1f' $$);
SELECT try($$ '🛒' $$);
SELECT try($$ 'ab' || chr(65533) $$);
SELECT try($$ 'ab' || chr(65534) $$);
SELECT try($$ 'é' || chr(65535) $$);
SELECT try($$ 'x', queue => E'q\x0b' $$);
SELECT try($$ 'x', jsonb_build_object('a', '🛒' || chr(65533)) $$);
SELECT try($$ 'x', jsonb_build_object('a', chr(65534)) $$);
SELECT try($$ 'x', '{"\uffff": 1}' $$);
-- jsonb prints control characters as escapes, which is what is sent.
SELECT try($$ 'x', '{"a": "\u0001\u001f\n"}' $$);

-- TO003 and the ids: ASCII letters, digits, punctuation marks
SELECT try($$ 'x', group_id => '!"#$%&''()*+,-./:;<=>?@[\]^_`{|}~azAZ09' $$);
SELECT try($$ 'x', group_id => 'a b' $$);
SELECT try($$ 'x', group_id => 'é' $$);
SELECT try($$ 'x', group_id => E'g\n' $$);
SELECT try($$ 'x', group_id => E'g\x7f' $$);
SELECT try($$ 'x', deduplication_id => 'a b' $$);
SELECT try($$ 'x', deduplication_id => 'naïve' $$);

-- TO004: too large. Counted are the bytes of the payload, as jsonb prints it in
-- UTF-8, and of the attributes: 146 of the relay's own, and the task type.
SHOW taskoutbox.max_message_bytes;
SELECT try($$ 'x', to_jsonb(repeat('a', 262144 - 146 - 1 - 2)) $$);
SELECT try($$ 'x', to_jsonb(repeat('a', 262144 - 146 - 1 - 2 + 1)) $$);
SELECT try($$ 'xy', to_jsonb(repeat('a', 262144 - 146 - 1 - 2)) $$);
SELECT try($$ 'x', to_jsonb(repeat('é', (262144 - 146 - 1 - 2) / 2)) $$);
SELECT try($$ 'x', to_jsonb(repeat('é', (262144 - 146 - 1 - 2) / 2 + 1)) $$);
SELECT try($$ 'x', to_jsonb(repeat('🛒', (262144 - 146 - 1 - 2) / 4)) $$);
SELECT try($$ 'x', to_jsonb(repeat('🛒', (262144 - 146 - 1 - 2) / 4 + 1)) $$);
-- What is longer as text than it is stored: escapes and numbers.
SELECT try($$ 'x', to_jsonb(repeat(E'\x01', 43665)) $$);
SELECT try($$ 'x', to_jsonb(repeat(E'\x01', 43666)) $$);
SELECT try($$ 'x', '[1e130990, {"a": [1e130990]}]' $$);
SELECT try($$ 'x', '[1e130992, {"a": [1e130992]}]' $$);
-- Headers count with their names, their type "String" and their values.
SELECT try($$ 'x', to_jsonb(repeat('a', 262144 - 146 - 1 - 2 - 9)), headers => '{"k": "é"}' $$);
SELECT try($$ 'x', to_jsonb(repeat('a', 262144 - 146 - 1 - 2 - 8)), headers => '{"k": "é"}' $$);

-- TO005: no such queue
SELECT try($$ 'x', queue => 'nowhere' $$);
SELECT try($$ 'x', queue => 'Default' $$);

-- TO006: deliver_at
SELECT try($$ 'x', deliver_at => 'infinity' $$);
SELECT try($$ 'x', deliver_at => '-infinity' $$);

-- TO007: headers: an object of up to seven strings
SELECT try($$ 'x', headers => '{}' $$);
SELECT try($$ 'x', headers => '{"a": "1", "b": "2", "c": "3", "d": "4", "e": "5", "f": "6", "g": "7"}' $$);
SELECT try($$ 'x', headers => '{"a": "1", "b": "2", "c": "3", "d": "4", "e": "5", "f": "6", "g": "7", "h": "8"}' $$);
SELECT try($$ 'x', headers => '[]' $$);
SELECT try($$ 'x', headers => '["a"]' $$);
SELECT try($$ 'x', headers => '"a"' $$);
SELECT try($$ 'x', headers => 'null' $$);
SELECT try($$ 'x', headers => '{"a": 1}' $$);
SELECT try($$ 'x', headers => '{"a": null}' $$);
SELECT try($$ 'x', headers => '{"a": true}' $$);
SELECT try($$ 'x', headers => '{"a": {"b": "c"}}' $$);
SELECT try($$ 'x', headers => '{"a": ["b"]}' $$);
SELECT try($$ 'x', headers => '{"a": ""}' $$);
SELECT try($$ 'x', headers => '{"a": "b\u0001"}' $$);
-- Their names are those of message attributes.
SELECT try($$ 'x', headers => '{"Az_09-.z": "1"}' $$);
SELECT try($$ 'x', headers => '{"": "1"}' $$);
SELECT try($$ 'x', headers => '{"a b": "1"}' $$);
SELECT try($$ 'x', headers => '{"ä": "1"}' $$);
SELECT try($$ 'x', headers => '{".a": "1"}' $$);
SELECT try($$ 'x', headers => '{"a.": "1"}' $$);
SELECT try($$ 'x', headers => '{"a..b": "1"}' $$);
SELECT try($$ 'x', headers => '{"aWs.a": "1"}' $$);
SELECT try($$ 'x', headers => '{"Amazon.a": "1"}' $$);
SELECT try($$ 'x', headers => '{"Amazonas": "1"}' $$);
SELECT try($$ 'x', headers => jsonb_build_object(repeat('n', 256), '1') $$);
SELECT try($$ 'x', headers => jsonb_build_object(repeat('n', 257), '1') $$);
SELECT try($$ 'x', headers => '{"task_uid": "1"}' $$);

-- TO008: reserved
SELECT try($$ 'x', deduplication_id => 'taskoutbox:1' $$);

\pset tuples_only off
\pset format aligned

-- What was accepted above is all that was written.
SELECT count(*) FROM taskoutbox.task_outbox;

DROP TABLE orders;
DROP FUNCTION new_tasks, archive_order, place_order, archive, try;
DROP EXTENSION taskoutbox;
