/*
 * deduplication.c
 *	  Tasks with a deduplication id: the first one counts.
 *
 * The table deduplication has a row for each (queue, id), entered in the
 * enqueuing transaction and kept until its window ends, or until the first task
 * has left the outbox if that is later. A second transaction with the same id
 * waits for the first: if that commits the second is a duplicate, and has
 * locked nothing; if it rolls back the second is the first. An entry whose
 * window has ended is taken over, or purged by the relay. A duplicate is never
 * an error: enqueue returns the first task, and at the end of the statement one
 * NOTICE says how many there were.
 */
#include "taskoutbox.h"
#include "deduplication.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "tcop/pquery.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "check.h"
#include "insert.h"
#include "outbox.h"
#include "shared.h"

/* Duplicates of the statement that runs, and how deep we are in statements. */
static int64 nduplicates = 0;
static int64 first_task = 0;
static char first_id[ID_CHARACTERS + 1];
static int	depth = 0;

static InsertTarget target = {"deduplication", 4};

static ExecutorRun_hook_type prev_ExecutorRun = NULL;
static ExecutorFinish_hook_type prev_ExecutorFinish = NULL;
static ProcessUtility_hook_type prev_ProcessUtility = NULL;

text *
deduplication_scoped(text *id)
{
	char	   *scoped;

	if (*taskoutbox_deduplication_scope == '\0')
		return id;
	scoped = psprintf("%s%s", taskoutbox_deduplication_scope, text_to_cstring(id));
	check_deduplication_id("deduplication_id with taskoutbox.deduplication_scope before it", scoped);
	return cstring_to_text(scoped);
}

int64
deduplication_enter(const text *queue, const text *id, int64 task_id, TimestampTz expires_at)
{
	static SPIPlanPtr insert = NULL;
	static SPIPlanPtr take_over = NULL;
	static SPIPlanPtr find = NULL;
	static const Oid types[] = {TEXTOID, TEXTOID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID};
	Datum		values[] = {PointerGetDatum(queue), PointerGetDatum(id),
		Int64GetDatum(task_id), TimestampTzGetDatum(expires_at),
		TimestampTzGetDatum(GetCurrentTimestamp())
	};
	bool		nulls[4] = {false};

	/* Nearly always. */
	if (insert_new_row(&target, values, nulls))
		return 0;

	for (;;)
	{
		int64		first;

		if (outbox_execute(&insert,
						   "INSERT INTO taskoutbox.deduplication (queue, deduplication_id, task_id, expires_at) "
						   "VALUES ($1, $2, $3, $4) ON CONFLICT (queue, deduplication_id) DO NOTHING",
						   4, types, values, NULL, false, NULL) > 0)
			return 0;
		if (outbox_execute(&take_over,
						   "UPDATE taskoutbox.deduplication d SET task_id = $3, expires_at = $4 "
						   "WHERE queue OPERATOR(pg_catalog.=) $1 AND deduplication_id OPERATOR(pg_catalog.=) $2 "
						   "AND expires_at OPERATOR(pg_catalog.<=) $5 AND NOT EXISTS (SELECT FROM taskoutbox.task_outbox t "
						   "WHERE t.id OPERATOR(pg_catalog.=) d.task_id)",
						   5, types, values, NULL, false, NULL) > 0)
			return 0;
		if (outbox_execute(&find,
						   "SELECT task_id FROM taskoutbox.deduplication "
						   "WHERE queue OPERATOR(pg_catalog.=) $1 AND deduplication_id OPERATOR(pg_catalog.=) $2",
						   2, types, values, NULL, false, &first) > 0)
		{
			queue_slot_count_duplicate(MyDatabaseId, queue_key(VARDATA_ANY(queue), VARSIZE_ANY_EXHDR(queue)));
			if (nduplicates++ == 0)
			{
				first_task = first;
				text_to_cstring_buffer(id, first_id, sizeof(first_id));
			}
			return first;
		}
		/* It was purged just now. */
	}
}

typedef struct Found
{
	int64	   *tasks;
	TimestampTz *expires_at;
} Found;

static void
take_found(HeapTuple row, TupleDesc desc, void *arg)
{
	Found	   *found = arg;
	bool		isnull;
	int64		n = DatumGetInt64(SPI_getbinval(row, desc, 1, &isnull)) - 1;

	found->tasks[n] = DatumGetInt64(SPI_getbinval(row, desc, 2, &isnull));
	found->expires_at[n] = DatumGetTimestampTz(SPI_getbinval(row, desc, 3, &isnull));
}

void
deduplication_find(const char *queue, int n, const Datum *ids, int64 *tasks, TimestampTz *expires_at)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID, TEXTARRAYOID};
	Datum		values[] = {CStringGetTextDatum(queue),
		PointerGetDatum(construct_array((Datum *) ids, n, TEXTOID, -1, false, TYPALIGN_INT))
	};
	Found		found = {tasks, expires_at};

	memset(tasks, 0, n * sizeof(int64));
	(void) outbox_for_each(&plan,
						"SELECT u.n, d.task_id, d.expires_at FROM pg_catalog.unnest($2) WITH ORDINALITY u (id, n) "
						"JOIN taskoutbox.deduplication d ON d.queue OPERATOR(pg_catalog.=) $1 "
						"AND d.deduplication_id OPERATOR(pg_catalog.=) u.id",
						2, types, values, NULL, false, take_found, &found);
}

void
deduplication_keep(const char *queue, const char *const *ids, int n, TimestampTz until)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID, TEXTARRAYOID, TIMESTAMPTZOID, TIMESTAMPTZOID};
	Datum	   *elements = palloc(n * sizeof(Datum));
	Datum		values[4];

	for (int i = 0; i < n; i++)
		elements[i] = CStringGetTextDatum(ids[i]);
	values[0] = CStringGetTextDatum(queue);
	values[1] = PointerGetDatum(construct_array(elements, n, TEXTOID, -1, false, TYPALIGN_INT));
	values[2] = TimestampTzGetDatum(until + DEDUPLICATION_MARGIN);
	values[3] = TimestampTzGetDatum(until + DEDUPLICATION_MARGIN + DEDUPLICATION_LEAD);
	(void) outbox_execute(&plan,
						  "UPDATE taskoutbox.deduplication SET expires_at = $4 WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY("
						  "SELECT d.ctid FROM taskoutbox.deduplication d WHERE d.queue OPERATOR(pg_catalog.=) $1 "
						  "AND d.deduplication_id OPERATOR(pg_catalog.=) ANY ($2) "
						  "AND d.expires_at OPERATOR(pg_catalog.<) $3 FOR UPDATE SKIP LOCKED))",
						  lengthof(values), types, values, NULL, true, NULL);
}

bool
deduplication_purge(void)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TIMESTAMPTZOID, INT4OID};
	Datum		values[] = {TimestampTzGetDatum(GetCurrentTimestamp()), Int32GetDatum(PURGE_BATCH)};

	return outbox_execute(&plan,
						  "DELETE FROM taskoutbox.deduplication WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY("
						  "SELECT d.ctid FROM taskoutbox.deduplication d "
						  "WHERE d.expires_at OPERATOR(pg_catalog.<=) $1 AND NOT EXISTS (SELECT FROM taskoutbox.task_outbox t "
						  "WHERE t.id OPERATOR(pg_catalog.=) d.task_id) "
						  "ORDER BY d.expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
						  2, types, values, NULL, true, NULL) == PURGE_BATCH;
}

/*
 * One NOTICE per statement: whatever is nested in it (functions, triggers, DO
 * blocks) belongs to it. Deferred triggers run when a transaction commits, in no
 * statement and no portal: what they do is reported once, before the commit.
 */
static void
report_duplicates(void)
{
	int64		n = nduplicates;

	if (n == 0)
		return;
	nduplicates = 0;
	ereport(NOTICE,
			(errmsg_plural("%lld task is a duplicate",
						   "%lld tasks are duplicates", n, (long long) n),
			 errdetail("The first has deduplication_id \"%s\", and task " INT64_FORMAT " was there before it.",
					   first_id, first_task)));
}

static void
leave_statement(void)
{
	if (depth == 0 && ActivePortal != NULL)
		report_duplicates();
}

static void
dedup_xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
		report_duplicates();
	else if (event == XACT_EVENT_ABORT)
		nduplicates = 0;
}

static void
dedup_ExecutorRun(QueryDesc *queryDesc, ScanDirection direction, uint64 count COMPAT_EXECUTE_ONCE_PARAMETER)
{
	depth++;
	PG_TRY();
	{
		if (prev_ExecutorRun)
			prev_ExecutorRun(queryDesc, direction, count COMPAT_EXECUTE_ONCE);
		else
			standard_ExecutorRun(queryDesc, direction, count COMPAT_EXECUTE_ONCE);
	}
	PG_FINALLY();
	{
		depth--;
	}
	PG_END_TRY();
	/* What writes has its AFTER triggers to come, in ExecutorFinish. */
	if (queryDesc->operation == CMD_SELECT && !queryDesc->plannedstmt->hasModifyingCTE)
		leave_statement();
}

/* AFTER triggers run here. */
static void
dedup_ExecutorFinish(QueryDesc *queryDesc)
{
	depth++;
	PG_TRY();
	{
		if (prev_ExecutorFinish)
			prev_ExecutorFinish(queryDesc);
		else
			standard_ExecutorFinish(queryDesc);
	}
	PG_FINALLY();
	{
		depth--;
	}
	PG_END_TRY();
	leave_statement();
}

static void
dedup_ProcessUtility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
					 ProcessUtilityContext context, ParamListInfo params,
					 QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	depth++;
	PG_TRY();
	{
		if (prev_ProcessUtility)
			prev_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
		else
			standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	}
	PG_FINALLY();
	{
		depth--;
	}
	PG_END_TRY();
	leave_statement();
}

void
deduplication_init(void)
{
	RegisterXactCallback(dedup_xact_callback, NULL);
	prev_ExecutorRun = ExecutorRun_hook;
	ExecutorRun_hook = dedup_ExecutorRun;
	prev_ExecutorFinish = ExecutorFinish_hook;
	ExecutorFinish_hook = dedup_ExecutorFinish;
	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = dedup_ProcessUtility;
}
