-- receive, delete, change_visibility: the consumers' side of the embedded queue.
CREATE EXTENSION taskoutbox;

-- A receive with "wait" waits for the relay, too, which starts by itself.
SELECT taskoutbox.enqueue('order.archive', '{"order": 1}', headers => '{"traceparent": "00-1"}');
SELECT * FROM taskoutbox.receive(wait => '10 s') \gset first_
\echo :first_id :first_queue :first_task_type :first_payload :first_headers :first_receive_count
-- The receipt handle is the message's id and 128 random bits.
SELECT :'first_receipt_handle' ~ '^1-[A-Za-z0-9_-]{22}$' AS handle;

-- While it is in flight nobody else gets it, though its row is still there:
-- the row is the message, and goes away when the task is done.
SELECT id FROM taskoutbox.receive();
SELECT id FROM taskoutbox.task_outbox;
SELECT taskoutbox.delete(:'first_receipt_handle');
SELECT id FROM taskoutbox.task_outbox;

-- A message can be deleted once; more is an error, so that a consumer whose
-- message went to somebody else does not commit its work a second time.
SELECT taskoutbox.delete(:'first_receipt_handle');
\echo :SQLSTATE
SELECT taskoutbox.delete(:'first_receipt_handle', missing_ok => true);

-- Queues of our own, so that no leftover of one part disturbs another.
SELECT taskoutbox.create_queue('group');
SELECT taskoutbox.create_queue('batch');
SELECT taskoutbox.create_queue('retry', max_receive_count => 3);
SELECT taskoutbox.create_queue('rollback', visibility_timeout => '1 h');


--
-- Groups: one after the other, in order
--

CREATE TEMP TABLE got (LIKE taskoutbox.message);
CREATE TABLE steps (step integer, group_id text);
INSERT INTO steps VALUES (1, 'a'), (2, 'a'), (3, 'a'), (4, 'b');
SELECT e.id, group_id FROM steps s, LATERAL taskoutbox.enqueue('step', group_id => s.group_id, queue => 'group') e;
-- One receive may take several of a group, in order.
INSERT INTO got SELECT * FROM taskoutbox.receive('group', 2, wait => '10 s');
SELECT id, group_id FROM got;
-- Nothing else of that group comes while they are in flight; other groups do.
INSERT INTO got SELECT * FROM taskoutbox.receive('group', 10, wait => '10 s');
SELECT id, group_id FROM got OFFSET 2;
SELECT id FROM taskoutbox.receive('group', 10);
-- Not even when one of them is done.
SELECT id, taskoutbox.delete(receipt_handle) FROM got WHERE id = 2;
SELECT id FROM taskoutbox.receive('group', 10);
SELECT id, taskoutbox.delete(receipt_handle) FROM got WHERE id = 3;
SELECT id, group_id FROM taskoutbox.receive('group', 10, wait => '10 s');

-- A message that comes back stays ahead of its group.
TRUNCATE got;
UPDATE steps SET group_id = 'c';
SELECT e.id FROM steps s, LATERAL taskoutbox.enqueue('step', group_id => s.group_id, queue => 'group') e WHERE step <= 3;
INSERT INTO got SELECT * FROM taskoutbox.receive('group', 2, wait => '10 s');
SELECT id FROM got;
SELECT taskoutbox.change_visibility(receipt_handle, '0') FROM got WHERE id = 7;
-- The one before it is still in flight.
SELECT id FROM taskoutbox.receive('group', 10);
SELECT taskoutbox.change_visibility(receipt_handle, '0') FROM got WHERE id = 6;
SELECT id, receive_count FROM taskoutbox.receive('group', 10, wait => '10 s');

-- The order of one transaction is that of its calls, whatever was rolled back.
BEGIN;
SELECT taskoutbox.enqueue('one', group_id => 'd', queue => 'group');
SAVEPOINT s;
SELECT taskoutbox.enqueue('undone', group_id => 'd', queue => 'group');
ROLLBACK TO s;
SELECT taskoutbox.enqueue('two', group_id => 'd', queue => 'group');
COMMIT;
SELECT task_type FROM taskoutbox.receive('group', 10, wait => '10 s');


--
-- Many at once
--

TRUNCATE got;
SELECT count(taskoutbox.enqueue('x', queue => 'batch', group_id => 'all')) FROM generate_series(1, 5);
INSERT INTO got SELECT * FROM taskoutbox.receive('batch', 10, wait => '10 s');
-- One stale handle fails the whole call,
SELECT taskoutbox.delete(array_agg(receipt_handle) || ARRAY[:'first_receipt_handle']) FROM got;
\echo :SQLSTATE
SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = 'batch';
-- or is left out of the count.
SELECT taskoutbox.delete(array_agg(receipt_handle) || ARRAY[:'first_receipt_handle'], missing_ok => true) FROM got;
SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = 'batch';
-- No messages, nothing to delete: array_agg of no rows is NULL.
SELECT taskoutbox.delete(array_agg(receipt_handle)) FROM taskoutbox.receive('batch');

-- Receive, work and delete in one statement
CREATE TEMP TABLE done (task bigint, order_id integer);
SELECT taskoutbox.enqueue('order.archive', '{"order": 7}');
WITH m AS MATERIALIZED (SELECT * FROM taskoutbox.receive(wait => '10 s')),
	work AS (INSERT INTO done SELECT id, (payload ->> 'order')::integer FROM m RETURNING task)
SELECT taskoutbox.delete(m.receipt_handle) FROM m JOIN work ON work.task = m.id;
SELECT order_id FROM done;
SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = 'default';


--
-- Failures: given back, counted, and in the end put to the dead letters
--

SELECT taskoutbox.enqueue('mail.send', '{"to": "ann"}', group_id => 'ann', queue => 'retry', headers => '{"k": "v"}');
SELECT taskoutbox.enqueue('mail.send', '{"to": "ann", "second": true}', group_id => 'ann', queue => 'retry');
-- Given back at once, with the reason for whoever looks, and for the next consumer
SELECT receipt_handle, receive_count, last_error FROM taskoutbox.receive('retry', wait => '10 s') \gset
\echo :receive_count :last_error
SELECT taskoutbox.change_visibility(:'receipt_handle', '0', error => 'mail server is down');
SELECT last_error FROM taskoutbox.task_outbox WHERE payload = '{"to": "ann"}';
-- The old handle is stale, even before anybody has received the message again.
SELECT taskoutbox.change_visibility(:'receipt_handle', '1 min');
\echo :SQLSTATE
SELECT receipt_handle, receive_count, last_error FROM taskoutbox.receive('retry', wait => '10 s') \gset
\echo :receive_count :last_error
-- "later" keeps it hidden: neither this one nor the next of its group comes.
SELECT taskoutbox.change_visibility(:'receipt_handle', '12 hours', error => 'mail server is still down');
SELECT id FROM taskoutbox.receive('retry');
-- A first error that was rolled back is not kept, but the message is back.
BEGIN;
SELECT taskoutbox.change_visibility(:'receipt_handle', '0', error => 'rolled back');
ROLLBACK;
SELECT receipt_handle, receive_count, last_error FROM taskoutbox.receive('retry', wait => '10 s') \gset
\echo :receive_count :last_error
-- The third time was the last: max_receive_count is 3. The next one comes.
SELECT taskoutbox.change_visibility(:'receipt_handle', '0');
SELECT payload, receive_count FROM taskoutbox.receive('retry', wait => '10 s');
SELECT receive_count, queue, task_type, payload, group_id, headers, reason, last_error,
	   died_at BETWEEN enqueued_at AND clock_timestamp() AS died_at
FROM taskoutbox.dead_letter;
SELECT payload FROM taskoutbox.task_outbox WHERE queue = 'retry';

-- An error text is cut at 1024 bytes, between characters.
SELECT taskoutbox.enqueue('long');
SELECT receipt_handle FROM taskoutbox.receive(wait => '10 s') \gset
SELECT taskoutbox.change_visibility(:'receipt_handle', '1 min', error => 'x' || repeat('é', 1000));
SELECT length(last_error), octet_length(last_error) FROM taskoutbox.task_outbox WHERE task_type = 'long';
SELECT taskoutbox.delete(:'receipt_handle');


--
-- Transactions
--

-- A transaction does not receive what it has not committed.
BEGIN;
SELECT taskoutbox.enqueue('mine', queue => 'rollback');
SELECT id FROM taskoutbox.receive('rollback');
COMMIT;
-- A receive is not undone by a rollback: the message stays in flight.
BEGIN;
SELECT receipt_handle FROM taskoutbox.receive('rollback', wait => '10 s') \gset
ROLLBACK;
SELECT task_type FROM taskoutbox.receive('rollback');
-- A delete is, and the message stays in flight, too.
BEGIN;
SELECT taskoutbox.delete(:'receipt_handle');
-- It has been deleted, as far as this transaction goes.
SELECT taskoutbox.delete(:'receipt_handle', missing_ok => true);
SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = 'rollback';
ROLLBACK;
SELECT task_type FROM taskoutbox.receive('rollback');
SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = 'rollback';
-- Without missing_ok, the second delete in a transaction is an error.
BEGIN;
SELECT taskoutbox.delete(:'receipt_handle');
SELECT taskoutbox.delete(:'receipt_handle');
\echo :SQLSTATE
ROLLBACK;
-- Savepoints: only what is not rolled back counts.
BEGIN;
SAVEPOINT a;
SELECT taskoutbox.delete(:'receipt_handle');
ROLLBACK TO a;
SAVEPOINT b;
SELECT taskoutbox.delete(:'receipt_handle');
SAVEPOINT c;
RELEASE c;
RELEASE b;
SAVEPOINT d;
ROLLBACK TO d;
COMMIT;
SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = 'rollback';

-- The whole point: work and delete commit together, or not at all.
SELECT taskoutbox.enqueue('order.archive', '{"order": 8}', queue => 'rollback');
SELECT receipt_handle, payload FROM taskoutbox.receive('rollback', wait => '10 s') \gset
BEGIN;
INSERT INTO done (order_id) VALUES ((:'payload'::jsonb ->> 'order')::integer);
SELECT taskoutbox.delete(:'receipt_handle');
SELECT 1 / 0;
COMMIT;
SELECT count(*) FROM done WHERE order_id = 8;
BEGIN;
INSERT INTO done (order_id) VALUES ((:'payload'::jsonb ->> 'order')::integer);
SELECT taskoutbox.delete(:'receipt_handle');
COMMIT;
SELECT count(*) FROM done WHERE order_id = 8;

-- A lease that has ended: the work of that consumer is undone, too.
SELECT taskoutbox.enqueue('order.archive', '{"order": 9}', queue => 'rollback');
SELECT receipt_handle, payload FROM taskoutbox.receive('rollback', visibility_timeout => '1 us', wait => '10 s') \gset
BEGIN;
INSERT INTO done (order_id) VALUES (9);
SELECT taskoutbox.delete(:'receipt_handle');
\echo :SQLSTATE
COMMIT;
SELECT count(*) FROM done WHERE order_id = 9;
SELECT receipt_handle, receive_count FROM taskoutbox.receive('rollback', wait => '10 s') \gset
\echo :receive_count
SELECT taskoutbox.delete(:'receipt_handle');

-- A message can be received and deleted in a transaction whose snapshot is
-- older than it, or than its latest change.
TRUNCATE got;
SELECT taskoutbox.enqueue('first', queue => 'rollback');
SELECT taskoutbox.enqueue('second', queue => 'rollback');
INSERT INTO got SELECT * FROM taskoutbox.receive('rollback', wait => '10 s');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT task_type FROM got;
SELECT taskoutbox.change_visibility(receipt_handle, '0', 'not now') FROM got;
-- The change is not committed, so it is the second that comes.
SELECT task_type, receipt_handle FROM taskoutbox.receive('rollback', wait => '10 s') \gset
\echo :task_type
SELECT taskoutbox.delete(:'receipt_handle');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT task_type FROM got;
SELECT task_type, receive_count, last_error, receipt_handle FROM taskoutbox.receive('rollback', wait => '10 s') \gset
\echo :task_type :receive_count :last_error
SELECT taskoutbox.change_visibility(:'receipt_handle', '1 min', 'still not');
SELECT taskoutbox.delete(:'receipt_handle');
COMMIT;
SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = 'rollback';

-- Prepared transactions: nothing is delivered before COMMIT PREPARED,
BEGIN;
SELECT taskoutbox.enqueue('prepared', queue => 'rollback');
PREPARE TRANSACTION 'task';
SELECT task_type FROM taskoutbox.receive('rollback');
COMMIT PREPARED 'task';
SELECT task_type, receipt_handle FROM taskoutbox.receive('rollback', wait => '10 s') \gset
\echo :task_type
-- and nothing at all after ROLLBACK PREPARED.
BEGIN;
SELECT taskoutbox.enqueue('rolled back', queue => 'rollback');
PREPARE TRANSACTION 'task';
ROLLBACK PREPARED 'task';
SELECT task_type FROM taskoutbox.receive('rollback');
-- A prepared delete keeps the message in flight, even past its timeout.
BEGIN;
SELECT taskoutbox.delete(:'receipt_handle');
PREPARE TRANSACTION 'done';
SELECT taskoutbox.change_visibility(:'receipt_handle', '0');
SELECT task_type FROM taskoutbox.receive('rollback');
ROLLBACK PREPARED 'done';
SELECT task_type, receive_count, receipt_handle FROM taskoutbox.receive('rollback', wait => '10 s') \gset
\echo :task_type :receive_count
BEGIN;
SELECT taskoutbox.delete(:'receipt_handle');
PREPARE TRANSACTION 'done';
COMMIT PREPARED 'done';
SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = 'rollback';


--
-- Rows that come in by other means than enqueue
--

-- The owner may insert and copy: the same checks, and the relay is told.
INSERT INTO taskoutbox.task_outbox (queue, task_type, payload) VALUES ('rollback', 'inserted', '{"a": 1}');
SELECT task_type, payload, receive_count, receipt_handle FROM taskoutbox.receive('rollback', wait => '10 s') \gset
\echo :task_type :payload :receive_count
SELECT taskoutbox.delete(:'receipt_handle');
COPY taskoutbox.task_outbox (queue, task_type, group_id) FROM stdin;
rollback	copied	a
\.
SELECT task_type, payload, group_id, receipt_handle FROM taskoutbox.receive('rollback', wait => '10 s') \gset
\echo :task_type :payload :group_id
SELECT taskoutbox.delete(:'receipt_handle');
-- Also with ids of one's own, below all others, as in a restored dump
INSERT INTO taskoutbox.task_outbox (id, queue, task_type, receive_count) VALUES (1, 'rollback', 'restored', 1);
SELECT id, receive_count, receipt_handle FROM taskoutbox.receive('rollback', wait => '10 s') \gset
\echo :id :receive_count
SELECT taskoutbox.delete(:'receipt_handle');

INSERT INTO taskoutbox.task_outbox (task_type) VALUES ('');
\echo :SQLSTATE
INSERT INTO taskoutbox.task_outbox (task_type, payload) VALUES ('x', to_jsonb(repeat('x', 262144)));
\echo :SQLSTATE
INSERT INTO taskoutbox.task_outbox (task_type, headers) VALUES ('x', '{"a": 1}');
\echo :SQLSTATE
INSERT INTO taskoutbox.task_outbox (id, task_type) VALUES (0, 'x');
\echo :SQLSTATE
COPY taskoutbox.task_outbox (task_type, group_id) FROM stdin;
x	a b
\.
-- Nulls are the table's own matter. (Its DETAIL shows the row, with a time.)
\set VERBOSITY terse
INSERT INTO taskoutbox.task_outbox (task_type) VALUES (NULL);
INSERT INTO taskoutbox.task_outbox (task_type, payload) VALUES ('x', NULL);
\set VERBOSITY default
-- A transaction with such rows cannot be prepared.
BEGIN;
INSERT INTO taskoutbox.task_outbox (queue, task_type) VALUES ('rollback', 'x');
PREPARE TRANSACTION 'task';
\echo :SQLSTATE

-- Deleting a row cancels its task. While it waits, the next of its group comes;
SELECT e.id FROM steps s, LATERAL taskoutbox.enqueue('step', group_id => s.group_id, queue => 'rollback') e WHERE step <= 2;
SELECT min(id) AS first_id FROM taskoutbox.task_outbox WHERE queue = 'rollback' \gset
DELETE FROM taskoutbox.task_outbox WHERE id = :first_id;
SELECT id - :first_id AS nth, receipt_handle FROM taskoutbox.receive('rollback', wait => '10 s') \gset
\echo :nth
-- while it is in flight, its receipt handle becomes stale.
DELETE FROM taskoutbox.task_outbox WHERE id = :first_id + 1;
SELECT taskoutbox.delete(:'receipt_handle', missing_ok => true);
SELECT id FROM taskoutbox.receive('rollback');
-- Also when the relay has it on offer already: it did when it answered this.
SELECT e.id FROM steps s, LATERAL taskoutbox.enqueue('step', queue => 'rollback', group_id => 'e' || s.step) e WHERE step <= 3;
SELECT id - :first_id - 2 AS nth FROM taskoutbox.receive('rollback', wait => '10 s');
DELETE FROM taskoutbox.task_outbox WHERE id = :first_id + 3;
SELECT id - :first_id - 2 AS nth FROM taskoutbox.receive('rollback', wait => '10 s');


--
-- Arguments
--

SELECT taskoutbox.receive(NULL);
\echo :SQLSTATE
SELECT taskoutbox.receive('nowhere');
\echo :SQLSTATE
SELECT taskoutbox.receive(max_messages => 0);
\echo :SQLSTATE
SELECT taskoutbox.receive(max_messages => 1001);
SELECT id FROM taskoutbox.receive(max_messages => 1000);
SELECT taskoutbox.receive(max_messages => NULL);
SELECT taskoutbox.receive(visibility_timeout => '0');
\echo :SQLSTATE
SELECT taskoutbox.receive(visibility_timeout => '12 hours 1 us');
SELECT id FROM taskoutbox.receive(visibility_timeout => '12 hours');
SELECT taskoutbox.receive(visibility_timeout => '1 month');
SELECT taskoutbox.receive(wait => '-1 us');
SELECT taskoutbox.receive(wait => '20.000001 s');
\echo :SQLSTATE
SELECT taskoutbox.receive(wait => NULL);
SELECT taskoutbox.delete(NULL::text);
\echo :SQLSTATE
SELECT taskoutbox.delete('');
\echo :SQLSTATE
SELECT taskoutbox.delete('1');
SELECT taskoutbox.delete('1-Abcdefghi-_Nopqrstu01');
SELECT taskoutbox.delete('1-Abcdefghi-_Nopqrstu019A');
SELECT taskoutbox.delete('1-Abcdefghi+_Nopqrstu019');
SELECT taskoutbox.delete('1-Abcdefghi-/Nopqrstu019');
SELECT taskoutbox.delete('1-Abcdefghi-_Nopqrstu01=');
SELECT taskoutbox.delete('1-Abcdefghi-_Nopqrstu0é');
SELECT taskoutbox.delete('1_Abcdefghi-_Nopqrstu019');
-- Each of the two numbers has 64 bits, not 66.
SELECT taskoutbox.delete('1-Qbcdefghi-_Nopqrstu019');
SELECT taskoutbox.delete('1-Abcdefghi-__opqrstu019');
SELECT taskoutbox.delete('-1-Abcdefghi-_Nopqrstu019');
SELECT taskoutbox.delete('9999999999999999999-Abcdefghi-_Nopqrstu019');
-- missing_ok is no excuse for a handle that never was one.
SELECT taskoutbox.delete('1', missing_ok => true);
SELECT taskoutbox.delete('1-Abcdefghi-_Nopqrstu019');
\echo :SQLSTATE
SELECT taskoutbox.delete(ARRAY[NULL]::text[]);
\echo :SQLSTATE
SELECT taskoutbox.change_visibility(NULL, '1 s');
SELECT taskoutbox.change_visibility('1-Abcdefghi-_Nopqrstu019', NULL);
SELECT taskoutbox.change_visibility('x', '1 s');
\echo :SQLSTATE
SELECT taskoutbox.change_visibility('1-Abcdefghi-_Nopqrstu019', '-1 s');
SELECT taskoutbox.change_visibility('1-Abcdefghi-_Nopqrstu019', '12 hours 1 us');
\echo :SQLSTATE
SELECT taskoutbox.change_visibility('1-Abcdefghi-_Nopqrstu019', '12 hours');
\echo :SQLSTATE

-- In a read-only transaction one may look, but not delete.
BEGIN READ ONLY;
SELECT taskoutbox.delete('1-Abcdefghi-_Nopqrstu019');
\echo :SQLSTATE
ROLLBACK;

DROP TABLE steps;
DROP EXTENSION taskoutbox;
