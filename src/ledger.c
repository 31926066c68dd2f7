/*
 * ledger.c
 *	  Which ids were handled: what a consumer claims once is not claimed again.
 *
 * A row (consumer, id) is written in the transaction that does the work, so it is
 * there exactly if the work is. A second transaction that claims the same id
 * meanwhile waits for the first: if that commits it is told so, if it rolls back it
 * has the claim. Rows are kept as long as the largest ledger_retention of all
 * queues says, which has to be longer than a message can come again (queue.c
 * warns), and removed by the relay in batches.
 */
#include "taskoutbox.h"
#include "ledger.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "check.h"
#include "insert.h"
#include "installation.h"
#include "outbox.h"
#include "queue.h"

/* Under this name the ids stand that controllers handled; claim refuses it. */
#define CONTROLLERS RESERVED_PREFIX "controllers"

static InsertTarget target = {"ledger", 3};

PG_FUNCTION_INFO_V1(taskoutbox_claim);

char *
task_uid(Oid outbox, int64 first_id, TimestampTz enqueued_at)
{
	static Oid	known_outbox = InvalidOid;
	static InstallationId id;

	if (known_outbox != outbox)
	{
		id = installation_read_id();
		if (installation_read_pin() != PIN_NONE)
			known_outbox = outbox;
	}
	return installation_task_uid(&id, first_id, enqueued_at);
}

/* Is there such a row, by the first columns of an index? Without a statement. */
static bool
exists(Relation rel, Oid index_relid, ScanKeyData *keys, int nkeys)
{
	Relation	index = index_open(index_relid, AccessShareLock);
	IndexScanDesc scan = compat_index_beginscan(rel, index, SnapshotSelf, nkeys);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	bool		found;

	index_rescan(scan, keys, nkeys, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, slot);
	ExecDropSingleTupleTableSlot(slot);
	index_endscan(scan);
	index_close(index, AccessShareLock);

	return found;
}

/* Is there a row with this consumer and id? */
static bool
is_entered(const Datum *values)
{
	Relation	rel = table_open(outbox_sibling_relid("ledger"), AccessShareLock);
	static const int columns[] = {1, 0};	/* of the primary key */
	ScanKeyData keys[lengthof(columns)];
	bool		found;

	for (int i = 0; i < lengthof(keys); i++)
		ScanKeyEntryInitialize(&keys[i], 0, i + 1, BTEqualStrategyNumber, InvalidOid,
							   C_COLLATION_OID, F_TEXTEQ, values[columns[i]]);
	found = exists(rel, compat_RelationGetPrimaryKeyIndex(rel), keys, lengthof(keys));
	table_close(rel, AccessShareLock);

	return found;
}

/*
 * For one session at a time this is as good as an INSERT ... ON CONFLICT, and much
 * cheaper. When two enter the same id at the same moment, which takes a copy of a
 * row, the second one waits for the first, and then fails by the primary key.
 */
bool
ledger_enter(const char *uid)
{
	Datum		values[] = {CStringGetTextDatum(CONTROLLERS), CStringGetTextDatum(uid),
		TimestampTzGetDatum(GetCurrentTimestamp())
	};
	bool		nulls[lengthof(values)] = {false};

	if (insert_probably_new_row(&target, values, nulls))
		return true;
	if (is_entered(values))
		return false;
	insert_row(&target, values, nulls);
	return true;
}

Datum
taskoutbox_claim(PG_FUNCTION_ARGS)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID, TEXTOID};
	char	   *consumer = check_name("consumer", fcinfo, 0);
	char	   *id = check_name("id", fcinfo, 1);
	Datum		values[] = {CStringGetTextDatum(consumer), CStringGetTextDatum(id)};

	PreventCommandIfReadOnly("taskoutbox.claim()");
	PreventCommandIfParallelMode("taskoutbox.claim()");
	if (strncmp(consumer, RESERVED_PREFIX, strlen(RESERVED_PREFIX)) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RESERVED),
				 errmsg("consumer must not start with \"%s\"", RESERVED_PREFIX),
				 errhint("The prefix is reserved for the ledger of controllers.")));
	PG_RETURN_BOOL(outbox_execute(&plan,
								  "INSERT INTO taskoutbox.ledger (consumer, id) VALUES ($1, $2) "
								  "ON CONFLICT (consumer, id) DO NOTHING",
								  lengthof(values), types, values, NULL, false, NULL) > 0);
}

/* Mostly there is nothing to forget. */
static bool
has_rows_before(TimestampTz time)
{
	Relation	rel = table_open(outbox_sibling_relid("ledger"), AccessShareLock);
	ScanKeyData key;
	bool		found;

	ScanKeyInit(&key, 1, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE, TimestampTzGetDatum(time));
	found = exists(rel, outbox_sibling_relid("ledger_claimed_at_idx"), &key, 1);
	table_close(rel, AccessShareLock);

	return found;
}

bool
ledger_purge(void)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TIMESTAMPTZOID, INT4OID};
	const QueueSettings *queues;
	int			n = queue_list(&queues);
	int64		retention = 0;
	TimestampTz before;
	Datum		values[2];

	for (int i = 0; i < n; i++)
		retention = Max(retention, queues[i].ledger_retention);
	before = GetCurrentTimestamp() - retention;
	if (!has_rows_before(before))
		return false;
	values[0] = TimestampTzGetDatum(before);
	values[1] = Int32GetDatum(PURGE_BATCH);
	return outbox_execute(&plan,
						  "DELETE FROM taskoutbox.ledger WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY("
						  "SELECT ctid FROM taskoutbox.ledger WHERE claimed_at OPERATOR(pg_catalog.<=) $1 "
						  "ORDER BY claimed_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
						  lengthof(values), types, values, NULL, true, NULL) == PURGE_BATCH;
}
