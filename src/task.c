/*
 * task.c
 *	  What operators do to single tasks: cancel, redrive, purge.
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

#include "check.h"
#include "lease.h"
#include "outbox.h"
#include "queue.h"
#include "shared.h"

PG_FUNCTION_INFO_V1(taskoutbox_cancel);
PG_FUNCTION_INFO_V1(taskoutbox_redrive);
PG_FUNCTION_INFO_V1(taskoutbox_purge);

Datum
taskoutbox_cancel(PG_FUNCTION_ARGS)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int64		id;
	bool		cancelled;

	PreventCommandIfReadOnly("taskoutbox.cancel()");
	PreventCommandIfParallelMode("taskoutbox.cancel()");
	check_not_null("id", fcinfo, 0);
	id = PG_GETARG_INT64(0);

	/* So that it can take back what the same statement enqueued. */
	CommandCounterIncrement();

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		cancelled = outbox_delete(id) == OUTBOX_HERE;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		RollbackAndReleaseCurrentSubTransaction();
		CurrentResourceOwner = owner;
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (cancelled && shared && lease_exists(outbox_relid(), id))
	{
		RollbackAndReleaseCurrentSubTransaction();
		cancelled = false;
	}
	else
		ReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;

	if (cancelled)
		lease_forget_at_end(outbox_relid(), id);
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

	PreventCommandIfReadOnly("taskoutbox.redrive()");
	/* With the lock, the queue cannot be dropped. */
	LockRelationOid(outbox_relid(), RowExclusiveLock);
	(void) queue_settings(queue);

	/* Sorted before the ids are drawn. */
	PG_RETURN_INT64(outbox_execute(&plan,
								   "WITH letter AS (DELETE FROM taskoutbox.dead_letter "
								   "WHERE queue OPERATOR(pg_catalog.=) $1 AND ($3 OR id OPERATOR(pg_catalog.=) $2) RETURNING *) "
								   "INSERT INTO taskoutbox.task_outbox (queue, group_id, task_type, payload, "
								   "deduplication_id, headers, last_error, redriven_from) "
								   "SELECT queue, group_id, task_type, payload, deduplication_id, headers, last_error, "
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
