/*
 * task.c
 *	  What operators do to tasks: look, cancel, redrive, purge, retry now.
 *
 * cancel must not take away what a consumer has. The consumer leases a message
 * first and looks at its row second; cancel deletes the row first and looks for
 * a lease second, in a subtransaction that it can undo. So at least one of them
 * sees the other: a message is cancelled or given out, never both.
 */
#include "taskoutbox.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "check.h"
#include "lease.h"
#include "outbox.h"
#include "queue.h"
#include "shared.h"

PG_FUNCTION_INFO_V1(taskoutbox_cancel);
PG_FUNCTION_INFO_V1(taskoutbox_redrive);
PG_FUNCTION_INFO_V1(taskoutbox_purge);
PG_FUNCTION_INFO_V1(taskoutbox_retry_now);
PG_FUNCTION_INFO_V1(taskoutbox_task);

static bool
remove_letter(int64 id)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(id)};

	return outbox_execute(&plan,
						  "DELETE FROM taskoutbox.dead_letter WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY("
						  "SELECT ctid FROM taskoutbox.dead_letter "
						  "WHERE id OPERATOR(pg_catalog.=) $1 FOR UPDATE SKIP LOCKED))",
						  1, types, values, NULL, true, NULL) > 0;
}

Datum
taskoutbox_cancel(PG_FUNCTION_ARGS)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int64		id;
	OutboxRow	row;
	OutboxFate	fate;
	bool		cancelled;

	PreventCommandIfReadOnly("taskoutbox.cancel()");
	PreventCommandIfParallelMode("taskoutbox.cancel()");
	check_not_null("id", fcinfo, 0);
	id = PG_GETARG_INT64(0);

	/* To delete the row and take that back would be in the way of whoever has it in hand. */
	if (shared && lease_exists(outbox_relid(), id))
		PG_RETURN_BOOL(false);

	/* So that it can take back what the same statement enqueued. */
	CommandCounterIncrement();

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		OutboxReader *reader = outbox_begin_delete();

		fate = outbox_delete(reader, id, NULL);
		if (fate == OUTBOX_HERE)
			row = outbox_row(reader);
		outbox_end(reader);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		RollbackAndReleaseCurrentSubTransaction();
		CurrentResourceOwner = owner;
		PG_RE_THROW();
	}
	PG_END_TRY();
	cancelled = fate == OUTBOX_HERE;
	if (cancelled && shared && lease_exists(outbox_relid(), id))
	{
		RollbackAndReleaseCurrentSubTransaction();
		cancelled = false;
	}
	else
		ReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;

	if (cancelled && row.deliver_at > GetCurrentTimestamp())
		lease_recount_at_commit(outbox_relid());
	else if (cancelled)
		lease_forget_at_end(outbox_relid(), id);
	else if (fate == OUTBOX_GONE)
		cancelled = remove_letter(id);
	PG_RETURN_BOOL(cancelled);
}

Datum
taskoutbox_redrive(PG_FUNCTION_ARGS)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID, INT8OID, BOOLOID};
	char	   *queue = check_name("queue", fcinfo, 0);
	Datum		values[] = {CStringGetTextDatum(queue),
		PG_ARGISNULL(1) ? Int64GetDatum(0) : PG_GETARG_DATUM(1),
		BoolGetDatum(PG_ARGISNULL(1))
	};
	const QueueSettings *settings;

	PreventCommandIfReadOnly("taskoutbox.redrive()");
	/* With the lock, the queue cannot be dropped. */
	LockRelationOid(outbox_relid(), RowExclusiveLock);
	settings = queue_settings(queue);
	if (!queue_is_embedded(settings) && PG_ARGISNULL(1))
		queue_redrive_at_commit(settings->key);

	/* Sorted before the ids are drawn. */
	PG_RETURN_INT64(outbox_execute(&plan,
								   "WITH letter AS (DELETE FROM taskoutbox.dead_letter "
								   "WHERE queue OPERATOR(pg_catalog.=) $1 AND ($3 OR id OPERATOR(pg_catalog.=) $2) RETURNING *) "
								   "INSERT INTO taskoutbox.task_outbox (enqueued_at, queue, group_id, task_type, payload, "
								   "deduplication_id, headers, last_error, redriven_from) "
								   "SELECT enqueued_at, queue, group_id, task_type, payload, deduplication_id, headers, last_error, "
								   "COALESCE(redriven_from, id) FROM letter ORDER BY id",
								   3, types, values, NULL, true, NULL));
}

Datum
taskoutbox_purge(PG_FUNCTION_ARGS)
{
	static SPIPlanPtr tasks = NULL;
	static SPIPlanPtr letters = NULL;
	static const Oid types[] = {TEXTOID};
	char	   *queue = check_name("queue", fcinfo, 0);
	Datum		values[] = {CStringGetTextDatum(queue)};

	PreventCommandIfReadOnly("taskoutbox.purge()");
	(void) queue_settings(queue);

	if (!PG_ARGISNULL(1) && PG_GETARG_BOOL(1))
		PG_RETURN_INT64(outbox_execute(&letters,
									   "DELETE FROM taskoutbox.dead_letter WHERE queue OPERATOR(pg_catalog.=) $1",
									   1, types, values, NULL, true, NULL));
	lease_forget_at_end(outbox_relid(), 0);
	PG_RETURN_INT64(outbox_execute(&tasks,
								   "DELETE FROM taskoutbox.task_outbox WHERE queue OPERATOR(pg_catalog.=) $1",
								   1, types, values, NULL, true, NULL));
}

/*
 * Which leases wait for a next try is known here; of which group they are, the
 * rows say.
 */
Datum
taskoutbox_retry_now(PG_FUNCTION_ARGS)
{
	char	   *name = check_name("queue", fcinfo, 0);
	const QueueSettings *settings = queue_settings(name);
	uint64		queue = settings->key;
	uint64		group = PG_ARGISNULL(1) ? 0 : group_key(queue, PG_GETARG_TEXT_PP(1));
	Oid			outbox = outbox_relid();
	DatabaseSlot *db = database_slot(MyDatabaseId);
	OutboxReader *dirty;
	Lease	   *leases;
	int			n;
	int64		retried = 0;

	PreventCommandDuringRecovery("taskoutbox.retry_now()");
	PreventCommandIfParallelMode("taskoutbox.retry_now()");
	if (db == NULL)
		PG_RETURN_INT64(0);

	/* The relay knows, and can only try the queue as a whole. */
	if (!queue_is_embedded(settings))
	{
		QueueSlot  *slot = queue_slot(db, queue);

		/* Counted first: it may be quicker than we are. */
		if (slot)
			retried = slot->problem[0] ? slot->pending : slot->sqs_retrying;
		queue_slot_request(MyDatabaseId, queue, QUEUE_RETRY_NOW);
		PG_RETURN_INT64(retried);
	}

	n = lease_snapshot(outbox, &leases);
	dirty = outbox_begin_dirty();
	for (int i = 0; i < n; i++)
	{
		if (leases[i].queue != queue || !leases[i].has_failed)
			continue;
		if (group != 0 &&
			(outbox_look(dirty, leases[i].key.id) == OUTBOX_GONE || outbox_row(dirty).group != group))
			continue;
		retried += lease_retry(outbox, &leases[i]);
	}
	outbox_end(dirty);
	if (retried > 0)
		wake_relay(db);
	PG_RETURN_INT64(retried);
}

/* One row, whatever became of the task. */
Datum
taskoutbox_task(PG_FUNCTION_ARGS)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {INT8OID};
	Datum		values[] = {PG_GETARG_DATUM(0)};

	check_not_null("id", fcinfo, 0);
	outbox_query(fcinfo, &plan, "SELECT * FROM taskoutbox.get_task($1)", 1, types, values);
	return (Datum) 0;
}
