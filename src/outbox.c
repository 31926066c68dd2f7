/*
 * outbox.c
 *	  The table task_outbox, row by row.
 *
 * Rows are found by their primary key, or faster where they were before (the
 * relay saw it, and says so in the offer): a row with that id there is the one.
 * The snapshot is the one that the caller's question needs: the relay's own for
 * what has become visible; for what becomes of a row, and for consumers, whose
 * transactions may be older than the message, the state of this moment, open
 * changes of others included (a dirty snapshot). Direct access to table and index,
 * since no SQL statement can choose its snapshot like that; rare changes of a row
 * are SQL, run as the owner.
 */
#include "taskoutbox.h"
#include "outbox.h"

#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "announce.h"
#include "insert.h"
#include "installation.h"

/* How often to complain about a row that cannot be changed at all. */
#define REPORT_INTERVAL (60 * USECS_PER_SEC)

/* A cancel takes its deletion back in much less. */
#define CANCEL_MS 2000

static InsertTarget target = {"task_outbox", OUTBOX_COLUMNS};

Oid
outbox_sibling_relid(const char *name)
{
	Oid			relid = get_relname_relid(name, get_namespace_oid(TASKOUTBOX_SCHEMA, false));

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s.%s\" does not exist", TASKOUTBOX_SCHEMA, name),
				 errhint("Run CREATE EXTENSION taskoutbox.")));
	return relid;
}

Oid
outbox_relid(void)
{
	return outbox_sibling_relid("task_outbox");
}

Oid
outbox_owner(void)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(outbox_relid()));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", outbox_relid());
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);

	return owner;
}

uint64
queue_key(const char *name, int len)
{
	uint64		key = hash_bytes_extended((const unsigned char *) name, len, 0);

	return key == 0 ? 1 : key;
}

uint64
group_key(uint64 queue, const text *group)
{
	uint64		key = hash_bytes_extended((const unsigned char *) VARDATA_ANY(group),
										  VARSIZE_ANY_EXHDR(group), queue);

	return key == 0 ? 1 : key;
}

int64
outbox_draw_id(void)
{
	static Oid	known_outbox = InvalidOid;
	static Oid	sequence;

	/* The lock comes before the id: the relay's floor stands on that. */
	if (insert_lock(&target))
	{
		installation_pin(target.relid);
		if (known_outbox != target.relid)
			sequence = outbox_sibling_relid("task_outbox_id_seq");
		known_outbox = target.relid;
	}
	return nextval_internal(sequence, false);
}

void
outbox_insert(const Datum *values, const bool *nulls)
{
	insert_row(&target, values, nulls);
	announce_id(DatumGetInt64(values[OUTBOX_ID - 1]));
}

OutboxFate
outbox_delete(OutboxReader *reader, int64 id, const ItemPointerData *place)
{
	OutboxFate	fate;

	while ((fate = outbox_look_at(reader, id, place)) == OUTBOX_HERE)
	{
		TM_FailureData failure;

		CHECK_FOR_INTERRUPTS();
		/* When someone was faster after all, look what became of it. */
		if (table_tuple_delete(reader->rel, &reader->slot->tts_tid,
							   GetCurrentCommandId(true), InvalidSnapshot, InvalidSnapshot,
							   true, &failure, false) == TM_Ok)
			break;
	}
	return fate;
}

/*
 * A cancel that was a moment late has deleted the row, sees our lease, and takes
 * that back: so it is worth a wait, but none that an owner's transaction can prolong.
 */
OutboxFate
outbox_delete_leased(OutboxReader *reader, int64 id, const ItemPointerData *place)
{
	Snapshot	dirty = reader->scan->xs_snapshot;
	OutboxFate	fate = outbox_delete(reader, id, place);

	for (int ms = 0; ms < CANCEL_MS && fate == OUTBOX_BUSY && TransactionIdIsValid(dirty->xmax); ms++)
	{
		CHECK_FOR_INTERRUPTS();
		pg_usleep(1000);
		fate = outbox_delete(reader, id, place);
	}
	return fate;
}

/* By the primary key, or by another index. */
static OutboxReader *
reader_open(Snapshot snapshot, const char *index, LOCKMODE lock)
{
	OutboxReader *reader = palloc0(sizeof(OutboxReader));

	reader->rel = table_open(outbox_relid(), lock);
	reader->nblocks = RelationGetNumberOfBlocks(reader->rel);
	reader->index = index_open(index ? outbox_sibling_relid(index) :
							   compat_RelationGetPrimaryKeyIndex(reader->rel), AccessShareLock);
	reader->scan = compat_index_beginscan(reader->rel, reader->index, snapshot, index ? 2 : 1);
	reader->slot = MakeSingleTupleTableSlot(RelationGetDescr(reader->rel),
											table_slot_callbacks(reader->rel));
	return reader;
}

OutboxReader *
outbox_begin(Snapshot snapshot)
{
	return reader_open(snapshot, NULL, AccessShareLock);
}

static OutboxReader *
begin_dirty(LOCKMODE lock)
{
	Snapshot	dirty = palloc(sizeof(SnapshotData));
	OutboxReader *reader;

	InitDirtySnapshot(*dirty);
	reader = reader_open(dirty, NULL, lock);
	reader->changes = lock != AccessShareLock;
	reader->since = RegisterSnapshot(GetLatestSnapshot());
	return reader;
}

OutboxReader *
outbox_begin_dirty(void)
{
	return begin_dirty(AccessShareLock);
}

OutboxReader *
outbox_begin_delete(void)
{
	return begin_dirty(RowExclusiveLock);
}

void
outbox_end(OutboxReader *reader)
{
	ExecDropSingleTupleTableSlot(reader->slot);
	index_endscan(reader->scan);
	if (reader->since_scan)
		index_endscan(reader->since_scan);
	if (reader->since)
		UnregisterSnapshot(reader->since);
	index_close(reader->index, AccessShareLock);
	table_close(reader->rel, reader->changes ? NoLock : AccessShareLock);
}

static void
position(IndexScanDesc scan, StrategyNumber strategy, RegProcedure procedure, int64 id)
{
	ScanKeyData key;

	ScanKeyInit(&key, 1, strategy, procedure, Int64GetDatum(id));
	index_rescan(scan, &key, 1, NULL, 0);
}

bool
outbox_lookup(OutboxReader *reader, int64 id)
{
	position(reader->scan, BTEqualStrategyNumber, F_INT8EQ, id);
	return outbox_next(reader);
}

void
outbox_scan_from(OutboxReader *reader, int64 from)
{
	position(reader->scan, BTGreaterEqualStrategyNumber, F_INT8GE, from);
}

bool
outbox_next(OutboxReader *reader)
{
	return index_getnext_slot(reader->scan, ForwardScanDirection, reader->slot);
}

/* What the executor does step by step, since dead rows are passed over in there. */
bool
outbox_search_from(OutboxReader *reader, int64 *id, int64 to, int max, bool *found)
{
	IndexScanDesc scan = reader->scan;
	bool		more = false;

	*found = false;
	scan->xs_want_itup = true;
	outbox_scan_from(reader, *id);
	*id = to + 1;
	while (index_getnext_tid(scan, ForwardScanDirection))
	{
		bool		isnull;
		int64		at = DatumGetInt64(index_getattr(scan->xs_itup, 1, scan->xs_itupdesc, &isnull));

		if (at > to)
			break;
		*found = index_fetch_heap(scan, reader->slot);
		more = !*found && --max == 0;
		if (*found || more)
		{
			*id = at;
			break;
		}
	}
	scan->xs_want_itup = false;
	return more;
}

OutboxReader *
outbox_begin_due(Snapshot snapshot)
{
	return reader_open(snapshot, "task_outbox_deliver_at_idx", AccessShareLock);
}

void
outbox_scan_due(OutboxReader *reader, TimestampTz after, TimestampTz up_to)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], 1, BTGreaterStrategyNumber, F_TIMESTAMPTZ_GT, TimestampTzGetDatum(after));
	ScanKeyInit(&keys[1], 1, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE, TimestampTzGetDatum(up_to));
	index_rescan(reader->scan, keys, 2, NULL, 0);
}

TimestampTz
outbox_next_due(OutboxReader *reader, TimestampTz after)
{
	outbox_scan_due(reader, after, DT_NOEND);
	return outbox_next(reader) ? outbox_row(reader).deliver_at : DT_NOEND;
}

OutboxRow
outbox_row(OutboxReader *reader)
{
	TupleTableSlot *slot = reader->slot;
	HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, NULL);
	OutboxRow	row;
	text	   *name;

	slot_getsomeattrs(slot, OUTBOX_RECEIVE_COUNT);

	name = DatumGetTextPP(slot->tts_values[OUTBOX_QUEUE - 1]);
	row.id = DatumGetInt64(slot->tts_values[OUTBOX_ID - 1]);
	row.first_id = slot->tts_isnull[OUTBOX_REDRIVEN_FROM - 1] ? row.id :
		DatumGetInt64(slot->tts_values[OUTBOX_REDRIVEN_FROM - 1]);
	row.receive_count = outbox_receive_count(slot);
	row.deliver_at = slot->tts_isnull[OUTBOX_DELIVER_AT - 1] ? DT_NOBEGIN :
		DatumGetTimestampTz(slot->tts_values[OUTBOX_DELIVER_AT - 1]);
	row.queue = queue_key(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name));
	row.group = slot->tts_isnull[OUTBOX_GROUP_ID - 1] ? 0 :
		group_key(row.queue, DatumGetTextPP(slot->tts_values[OUTBOX_GROUP_ID - 1]));
	row.xmin = HeapTupleHeaderGetXmin(tuple->t_data);
	row.place = slot->tts_tid;

	return row;
}

/* What this transaction deleted since then is gone for it all the same. */
static bool
was_there(OutboxReader *reader, int64 id)
{
	reader->since->curcid = GetCurrentCommandId(false) + 1;
	if (reader->since_scan == NULL)
		reader->since_scan = compat_index_beginscan(reader->rel, reader->index, reader->since, 1);
	position(reader->since_scan, BTEqualStrategyNumber, F_INT8EQ, id);
	return index_getnext_slot(reader->since_scan, ForwardScanDirection, reader->slot);
}

/*
 * Is the row still where it was? After an update, a vacuum or another table in its
 * place it need not be.
 */
static bool
is_at(OutboxReader *reader, int64 id, const ItemPointerData *place)
{
	ItemPointerData tid = *place;
	bool		call_again = false;
	bool		all_dead = false;
	bool		isnull;

	return ItemPointerGetBlockNumber(place) < reader->nblocks &&
		table_index_fetch_tuple(reader->scan->xs_heapfetch, &tid, reader->scan->xs_snapshot,
								reader->slot, &call_again, &all_dead) &&
		DatumGetInt64(slot_getattr(reader->slot, OUTBOX_ID, &isnull)) == id;
}

OutboxFate
outbox_look(OutboxReader *reader, int64 id)
{
	return outbox_look_at(reader, id, NULL);
}

OutboxFate
outbox_look_at(OutboxReader *reader, int64 id, const ItemPointerData *place)
{
	Snapshot	dirty = reader->scan->xs_snapshot;

	/*
	 * By a dirty snapshot alone, a row that is updated between our look at the
	 * index and at the table is missed: the old version is dead by then, and the
	 * entry of the new one came too late. What was there when this reader began
	 * cannot be missed; and what was not is gone.
	 */
	if (!(place && is_at(reader, id, place)))
	{
		if (!was_there(reader, id))
			return OUTBOX_GONE;
		if (!outbox_lookup(reader, id))
			return OUTBOX_BUSY;
	}
	/* The visibility check left there who is at work on the row. */
	if (TransactionIdIsValid(dirty->xmin) || TransactionIdIsValid(dirty->xmax))
		return OUTBOX_BUSY;
	return OUTBOX_HERE;
}

/*
 * SQL as the owner. All names in a statement are qualified, operators too: it is
 * parsed under the caller's search_path. Leaves what to hand to end_as_owner.
 */
typedef struct Caller
{
	Oid			userid;
	int			sec_context;
} Caller;

static Caller
begin_as_owner(SPIPlanPtr *plan, const char *sql, int nargs, const Oid *types)
{
	Oid			owner = outbox_owner();
	Caller		caller;

	GetUserIdAndSecContext(&caller.userid, &caller.sec_context);
	SetUserIdAndSecContext(owner, caller.sec_context | SECURITY_LOCAL_USERID_CHANGE);
	SPI_connect();
	if (*plan == NULL)
	{
		*plan = SPI_prepare(sql, nargs, (Oid *) types);
		if (*plan == NULL)
			elog(ERROR, "could not prepare \"%s\"", sql);
		SPI_keepplan(*plan);
	}
	return caller;
}

static void
end_as_owner(Caller caller)
{
	SPI_finish();
	SetUserIdAndSecContext(caller.userid, caller.sec_context);
}

uint64
outbox_for_each(SPIPlanPtr *plan, const char *sql, int nargs, const Oid *types,
				const Datum *values, const char *nulls, bool is_now,
				OutboxRowCallback each, void *arg)
{
	Caller		caller = begin_as_owner(plan, sql, nargs, types);
	int			code;
	uint64		processed;

	if (is_now)
	{
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());

		code = SPI_execute_snapshot(*plan, (Datum *) values, nulls, snapshot, InvalidSnapshot,
									false, true, 0);
		UnregisterSnapshot(snapshot);
	}
	else
		code = SPI_execute_plan(*plan, (Datum *) values, nulls, false, 0);
	if (code < 0)
		elog(ERROR, "could not execute \"%s\": %s", sql, SPI_result_code_string(code));

	processed = SPI_processed;
	for (uint64 i = 0; each && i < processed; i++)
		each(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, arg);
	end_as_owner(caller);

	return processed;
}

static void
take_bigint(HeapTuple row, TupleDesc desc, void *result)
{
	bool		isnull;

	*(int64 *) result = DatumGetInt64(SPI_getbinval(row, desc, 1, &isnull));
}

uint64
outbox_execute(SPIPlanPtr *plan, const char *sql, int nargs, const Oid *types,
			   const Datum *values, const char *nulls, bool is_now, int64 *result)
{
	return outbox_for_each(plan, sql, nargs, types, values, nulls, is_now,
						   result ? take_bigint : NULL, result);
}

void
outbox_query(FunctionCallInfo fcinfo, SPIPlanPtr *plan, const char *sql, int nargs,
			 const Oid *types, const Datum *values)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Caller		caller;

	InitMaterializedSRF(fcinfo, 0);
	caller = begin_as_owner(plan, sql, nargs, types);
	if (SPI_execute_plan(*plan, (Datum *) values, NULL, true, 0) < 0)
		elog(ERROR, "could not execute \"%s\"", sql);
	for (uint64 i = 0; i < SPI_processed; i++)
		tuplestore_puttuple(rsinfo->setResult, SPI_tuptable->vals[i]);
	end_as_owner(caller);
}

bool
outbox_count_receive(int64 id, int receive_count)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[] = {INT8OID, INT4OID};
	Datum		values[] = {Int64GetDatum(id), Int32GetDatum(receive_count)};

	return outbox_execute(&plan,
						  "UPDATE taskoutbox.task_outbox SET receive_count = $2 "
						  "WHERE id OPERATOR(pg_catalog.=) (SELECT id FROM taskoutbox.task_outbox "
						  "WHERE id OPERATOR(pg_catalog.=) $1 FOR UPDATE SKIP LOCKED)",
							2, types, values, NULL, true, NULL) > 0;
}

bool
outbox_bury(int64 id, int receive_count, const char *stage, const char *reason, bool blocks)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[] = {INT8OID, INT4OID, TEXTOID, TEXTOID, BOOLOID};
	Datum		values[] = {Int64GetDatum(id), Int32GetDatum(receive_count),
		CStringGetTextDatum(stage), CStringGetTextDatum(reason), BoolGetDatum(blocks)
	};

	return outbox_execute(&plan,
						  "WITH dead AS (DELETE FROM taskoutbox.task_outbox "
						  "WHERE id OPERATOR(pg_catalog.=) (SELECT id FROM taskoutbox.task_outbox "
						  "WHERE id OPERATOR(pg_catalog.=) $1 FOR UPDATE SKIP LOCKED) RETURNING *) "
						  "INSERT INTO taskoutbox.dead_letter (id, enqueued_at, receive_count, queue, "
						  "group_id, task_type, payload, deduplication_id, headers, stage, reason, last_error, "
						  "redriven_from, blocks) "
						  "SELECT id, enqueued_at, $2, queue, group_id, task_type, payload, "
						  "deduplication_id, headers, $3, $4, last_error, redriven_from, $5 FROM dead",
							lengthof(values), types, values, NULL, true, NULL) > 0;
}

/*
 * What fails for one row must not stop the others: it is reported, and tried
 * again later.
 */
bool
outbox_count_or_bury(int64 id, int receive_count, const char *stage, const char *reason, bool blocks)
{
	static TimestampTz next_report = 0;
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool done = false;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		done = reason ?
			outbox_bury(id, receive_count, stage, reason, blocks) :
			outbox_count_receive(id, receive_count);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		/* A cancel or shutdown is for the relay as a whole. */
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED || error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
			ReThrowError(error);
		if (GetCurrentTimestamp() >= next_report)
			ereport(LOG,
					(errcode(error->sqlerrcode),
					 errmsg("taskoutbox relay could not %s message " INT64_FORMAT ": %s",
							reason ? "move to the dead letters" : "count a receive of",
							id, error->message),
					 errhint("It tries again; its message group waits.")));
		next_report = GetCurrentTimestamp() + REPORT_INTERVAL;
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;

	return done;
}

uint64
outbox_delete_published(const int64 *ids, int n)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {INT8ARRAYOID};
	Datum	   *elements = palloc(n * sizeof(Datum));
	Datum		values[1];

	for (int i = 0; i < n; i++)
		elements[i] = Int64GetDatum(ids[i]);
	values[0] = PointerGetDatum(construct_array(elements, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	return outbox_execute(&plan,
						  "DELETE FROM taskoutbox.task_outbox WHERE id OPERATOR(pg_catalog.=) ANY (ARRAY("
						  "SELECT t.id FROM taskoutbox.task_outbox t WHERE t.id OPERATOR(pg_catalog.=) ANY ($1) "
						  "FOR UPDATE SKIP LOCKED))",
						  1, types, values, NULL, true, NULL);
}

bool
outbox_set_error(int64 id, const char *error)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[] = {INT8OID, TEXTOID};
	int			length = pg_mbcliplen(error, strlen(error), LAST_ERROR_BYTES);
	Datum		values[] = {Int64GetDatum(id), PointerGetDatum(cstring_to_text_with_len(error, length))};

	return outbox_execute(&plan,
						  "UPDATE taskoutbox.task_outbox SET last_error = $2 "
						  "WHERE id OPERATOR(pg_catalog.=) $1",
							2, types, values, NULL, true, NULL) > 0;
}

bool
outbox_forget_letters(const char *queue, TimestampTz before)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[] = {TEXTOID, TIMESTAMPTZOID, INT4OID};
	Datum		values[] = {CStringGetTextDatum(queue), TimestampTzGetDatum(before),
		Int32GetDatum(PURGE_BATCH)
	};

	return outbox_execute(&plan,
						  "DELETE FROM taskoutbox.dead_letter WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY("
						  "SELECT ctid FROM taskoutbox.dead_letter "
						  "WHERE queue OPERATOR(pg_catalog.=) $1 AND died_at OPERATOR(pg_catalog.<) $2 AND NOT blocks "
						  "ORDER BY died_at LIMIT $3 FOR UPDATE SKIP LOCKED))",
						  lengthof(values), types, values, NULL, true, NULL) == PURGE_BATCH;
}
