/*
 * announce.c
 *	  From a commit to the relay: announce, then push.
 *
 * The relay must learn of every committed row without searching the table for
 * it, and must never see a row while an older one of its group, committed
 * before, is unknown to it. So a transaction that enqueued writes its ids into
 * its backend's slot *before* it becomes visible (pre-commit), and moves them
 * to the relay's ring *after* (commit). The relay takes a snapshot first and
 * looks at slots, then ring, second: a row that the snapshot shows is in one
 * of them. Ids are kept as runs; what does not fit becomes "sweep": look at
 * the table. A prepared transaction is committed by another session, which
 * knows no ids: COMMIT PREPARED announces, and pushes, a sweep.
 */
#include "taskoutbox.h"
#include "announce.h"
#include "shared.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"

/* Ids of others between two of ours are looked up in vain, which is cheap. */
#define GAP_TO_MERGE 8

/* What the current transaction has to tell. */
static IdRun *runs = NULL;		/* taskoutbox_announce_size of them */
static int	nruns = 0;
static int64 sweep = NO_SWEEP;
static bool has_direct_ids = false;
static bool is_announced = false;

static ProcessUtility_hook_type next_ProcessUtility = NULL;

static void
forget(void)
{
	nruns = 0;
	sweep = NO_SWEEP;
	has_direct_ids = false;
	is_announced = false;
}

/* Make the slot say what this transaction has to tell. */
static void
announce(void)
{
	BackendSlot *slot = my_backend_slot();

	SpinLockAcquire(&slot->mutex);
	memcpy(slot->runs, runs, nruns * sizeof(IdRun));
	slot->nruns = nruns;
	slot->sweep = sweep;
	slot->announced_dboid = MyDatabaseId;
	SpinLockRelease(&slot->mutex);

	is_announced = true;
}

static void
withdraw(void)
{
	BackendSlot *slot = my_backend_slot();

	SpinLockAcquire(&slot->mutex);
	slot->announced_dboid = InvalidOid;
	SpinLockRelease(&slot->mutex);
}

void
announce_id(int64 id)
{
	IdRun	   *last;

	if (shared == NULL)
		return;

	/* Commit callbacks must not allocate, so this is done here. */
	if (runs == NULL)
		runs = MemoryContextAlloc(TopMemoryContext, taskoutbox_announce_size * sizeof(IdRun));

	last = nruns > 0 ? &runs[nruns - 1] : NULL;
	if (nruns > 0 && id > last->last && id - last->last <= GAP_TO_MERGE)
		last->last = id;
	else if (nruns < taskoutbox_announce_size)
	{
		runs[nruns].first = runs[nruns].last = id;
		nruns++;
	}
	else
		sweep = Min(sweep, id);

	/* Another extension's pre-commit callback may enqueue after ours ran. */
	if (is_announced)
		announce();
}

void
announce_direct_id(int64 id)
{
	has_direct_ids = true;
	announce_id(id);
}

static void
announce_xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (nruns > 0 || sweep != NO_SWEEP)
				announce();
			break;

		case XACT_EVENT_COMMIT:
			/* The slot is cleared last: an id is never in neither place. */
			if (nruns > 0 || sweep != NO_SWEEP)
				ring_push(MyDatabaseId, RING_COMMITTED, runs, nruns, sweep);
			if (is_announced)
				withdraw();
			forget();
			break;

		case XACT_EVENT_PRE_PREPARE:

			/*
			 * COMMIT PREPARED makes the relay look from its floor on, and an
			 * id of the caller's own choice can lie below that.
			 */
			if (has_direct_ids)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that redrove dead letters, or inserted into %s.task_outbox directly",
								TASKOUTBOX_SCHEMA),
						 errhint("Use %s.enqueue in transactions that are to be prepared.",
								 TASKOUTBOX_SCHEMA)));
			break;

		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			if (is_announced)
				withdraw();
			forget();
			break;

		default:
			break;
	}
}

static void
announce_ProcessUtility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
						ProcessUtilityContext context, ParamListInfo params,
						QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	TransactionStmt *stmt = (TransactionStmt *) pstmt->utilityStmt;
	bool		is_commit;
	DatabaseSlot *db;

	if (shared == NULL || !IsA(pstmt->utilityStmt, TransactionStmt) ||
		(stmt->kind != TRANS_STMT_COMMIT_PREPARED && stmt->kind != TRANS_STMT_ROLLBACK_PREPARED))
	{
		next_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
		return;
	}

	/* It may enqueue, and it may delete received messages. */
	is_commit = stmt->kind == TRANS_STMT_COMMIT_PREPARED;
	if (is_commit)
	{
		sweep = SWEEP_FLOOR;
		announce();
	}
	PG_TRY();
	{
		next_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	}
	PG_FINALLY();
	{
		db = database_slot(MyDatabaseId);
		if (db)
		{
			SpinLockAcquire(&db->mutex);
			db->check_leases = true;
			db->check_blocked = true;
			db->check_delayed = true;
			SpinLockRelease(&db->mutex);
		}
		ring_push(MyDatabaseId, RING_COMMITTED, NULL, 0, is_commit ? SWEEP_FLOOR : NO_SWEEP);
		if (is_commit)
		{
			withdraw();
			forget();
		}
	}
	PG_END_TRY();
}

void
announce_init(void)
{
	RegisterXactCallback(announce_xact_callback, NULL);

	next_ProcessUtility = ProcessUtility_hook ? ProcessUtility_hook : standard_ProcessUtility;
	ProcessUtility_hook = announce_ProcessUtility;
}
