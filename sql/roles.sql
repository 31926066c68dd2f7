-- The roles, and what each may do.
CREATE EXTENSION taskoutbox;

-- Functions (those that nobody may call are the owner's: triggers, and what others call inside)
SELECT p.oid::regprocedure AS function,
	concat_ws(' ', VARIADIC ARRAY(SELECT replace(r, 'taskoutbox_', '') FROM unnest('{taskoutbox_producer,taskoutbox_consumer,taskoutbox_monitor,taskoutbox_admin}'::text[]) r
		WHERE has_function_privilege(r, p.oid, 'EXECUTE'))) AS roles
FROM pg_proc p WHERE pronamespace = 'taskoutbox'::regnamespace ORDER BY p.proname, p.oid::regprocedure::text;
-- Tables and views: the rights that any of them has. Nobody writes a table, so nobody
-- gives a task another queue, url or controller than the functions let him (case C107).
SELECT c.relname, r AS role, string_agg(p, ', ' ORDER BY p) AS may
FROM pg_class c, unnest('{taskoutbox_producer,taskoutbox_consumer,taskoutbox_monitor,taskoutbox_admin}'::text[]) r,
	unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) p
WHERE c.relnamespace = 'taskoutbox'::regnamespace AND c.relkind IN ('r', 'v') AND has_table_privilege(r, c.oid, p)
GROUP BY 1, 2 ORDER BY 1, 2;
SELECT rolname, rolcanlogin, rolsuper, rolcreaterole, rolcreatedb FROM pg_roles WHERE rolname LIKE 'taskoutbox%' ORDER BY 1;

-- With the role alone
CREATE ROLE regress_taskoutbox_shop;
CREATE ROLE regress_taskoutbox_archive;
CREATE ROLE regress_taskoutbox_watch;
CREATE ROLE regress_taskoutbox_ops;
GRANT taskoutbox_producer TO regress_taskoutbox_shop;
GRANT taskoutbox_consumer TO regress_taskoutbox_archive;
GRANT taskoutbox_monitor TO regress_taskoutbox_watch;
GRANT taskoutbox_admin TO regress_taskoutbox_ops;
SET ROLE regress_taskoutbox_shop;
SELECT duplicate FROM taskoutbox.enqueue('order.archive');
SELECT count(*) FROM taskoutbox.receive();
SET ROLE regress_taskoutbox_archive;
DO $$
DECLARE
	m taskoutbox.message;
BEGIN
	SELECT * INTO m FROM taskoutbox.receive(wait => '10 s');
	PERFORM taskoutbox.change_visibility(m.receipt_handle, '1 min');
	PERFORM taskoutbox.delete(m.receipt_handle);
END
$$;
SELECT count(*) FROM taskoutbox.enqueue('x');
SELECT count(*) FROM taskoutbox.task_outbox;
SET ROLE regress_taskoutbox_watch;
SELECT queue, delivered FROM taskoutbox.queue_metrics;
SELECT count(*) FROM taskoutbox.in_flight;
SELECT count(*) FROM taskoutbox.blocked_groups;
SELECT state FROM taskoutbox.relay_status WHERE database = current_database();
SELECT state FROM taskoutbox.task(1);
SELECT * FROM taskoutbox.check();
SELECT count(*) FROM taskoutbox.dead_letter;
SELECT taskoutbox.pause_queue('default');
SET ROLE regress_taskoutbox_ops;
SELECT taskoutbox.create_queue('mail');
SELECT taskoutbox.pause_queue('mail');
SELECT count(*) FROM taskoutbox.enqueue('x', queue => 'mail');
SELECT taskoutbox.resume_queue('mail');
SELECT taskoutbox.cancel(id) FROM taskoutbox.task_outbox;
SELECT taskoutbox.redrive('mail'), taskoutbox.purge('mail'), taskoutbox.retry_now('mail');
SELECT taskoutbox.drop_queue('mail');
DELETE FROM taskoutbox.task_outbox;
UPDATE taskoutbox.queue SET paused = true;
RESET ROLE;

-- A queue can be kept for some of them (case C110): the others neither write nor read.
CREATE ROLE regress_taskoutbox_billing;
SET ROLE regress_taskoutbox_ops;
SELECT taskoutbox.create_queue('invoices', producer_role => 'regress_taskoutbox_billing', consumer_role => 'regress_taskoutbox_billing');
SELECT taskoutbox.create_queue('x', producer_role => 'regress_taskoutbox_nobody');
SELECT taskoutbox.alter_queue('invoices', consumer_role => 'regress_taskoutbox_nobody');
SET ROLE regress_taskoutbox_shop;
SELECT count(*) FROM taskoutbox.enqueue('x', queue => 'invoices');
SELECT count(*) FROM taskoutbox.enqueue('x', deduplication_id => 'd', queue => 'invoices');
\set SHOW_CONTEXT never
SELECT count(*) FROM taskoutbox.enqueue_period('x', 'day', queue => 'invoices');
\set SHOW_CONTEXT errors
SET ROLE regress_taskoutbox_archive;
SELECT count(*) FROM taskoutbox.receive('invoices');
-- An administrator is no exception: but he could change the settings.
SET ROLE regress_taskoutbox_ops;
SELECT count(*) FROM taskoutbox.enqueue('x', queue => 'invoices');
SELECT count(*) FROM taskoutbox.receive('invoices');
RESET ROLE;
GRANT regress_taskoutbox_billing TO regress_taskoutbox_shop, regress_taskoutbox_archive;
SET ROLE regress_taskoutbox_shop;
SELECT count(*) FROM taskoutbox.enqueue('invoice', queue => 'invoices');
-- To be its member is not enough: the right to receive at all is another.
SELECT count(*) FROM taskoutbox.receive('invoices');
SET ROLE regress_taskoutbox_archive;
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive('invoices', wait => '10 s');
RESET ROLE;
-- What is not given stays, '' takes it away.
SELECT taskoutbox.alter_queue('invoices', max_receive_count => 3);
SELECT taskoutbox.alter_queue('invoices', producer_role => '');
SELECT producer_role, consumer_role FROM taskoutbox.queue WHERE name = 'invoices';
REVOKE regress_taskoutbox_billing FROM regress_taskoutbox_shop, regress_taskoutbox_archive;
SET ROLE regress_taskoutbox_shop;
SELECT count(*) FROM taskoutbox.enqueue('invoice', queue => 'invoices');
SET ROLE regress_taskoutbox_archive;
SELECT count(*) FROM taskoutbox.receive('invoices');
RESET ROLE;
-- A role that is no more has no members: closed to all but superusers, and check() says so.
DROP ROLE regress_taskoutbox_billing;
SET ROLE regress_taskoutbox_archive;
SELECT count(*) FROM taskoutbox.receive('invoices');
RESET ROLE;
SELECT * FROM taskoutbox.check();
SELECT task_type, taskoutbox.delete(receipt_handle) FROM taskoutbox.receive('invoices', wait => '10 s');

-- Created again: whoever is a member already is named.
DROP EXTENSION taskoutbox;
CREATE EXTENSION taskoutbox;
REVOKE taskoutbox_producer FROM regress_taskoutbox_shop;
REVOKE taskoutbox_consumer FROM regress_taskoutbox_archive;
REVOKE taskoutbox_monitor FROM regress_taskoutbox_watch;
REVOKE taskoutbox_admin FROM regress_taskoutbox_ops;
DROP EXTENSION taskoutbox;
CREATE EXTENSION taskoutbox;
DROP EXTENSION taskoutbox;
DROP ROLE regress_taskoutbox_shop, regress_taskoutbox_archive, regress_taskoutbox_watch, regress_taskoutbox_ops;
