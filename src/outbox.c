/*
 * outbox.c
 *	  The table task_outbox, row by row.
 *
 * Rows are found by their primary key, with the snapshot that the caller's
 * question needs: the relay's own snapshot for what has become visible; for what
 * becomes of a row, and for consumers, whose transactions may be older than the
 * message, the state of this moment, open changes of others included (a dirty
 * snapshot). Direct access to table and index, since no SQL statement can choose
 * its snapshot like that; rare changes of a row are SQL, run as the owner.
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
#include "executor/executor.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "announce.h"

/* An object of ours, looked for where CREATE EXTENSION put it. */
static Oid
our_relid(const char *name)
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
	return our_relid("task_outbox");
}

uint64
queue_key(const char *name, int len)
{
	uint64		key = hash_bytes_extended((const unsigned char *) name, len, 0);

	return key == 0 ? 1 : key;
}

static uint64
group_key(uint64 queue, text *group)
{
	uint64		key = hash_bytes_extended((const unsigned char *) VARDATA_ANY(group),
										  VARSIZE_ANY_EXHDR(group), queue);

	return key == 0 ? 1 : key;
}

int64
outbox_insert(Datum *values, bool *nulls)
{
	Oid			relid = outbox_relid();
	Relation	rel;
	TupleTableSlot *slot;
	EState	   *estate;
	ResultRelInfo *target;
	int64		id;

	/* The lock comes before the id: the relay's floor stands on that. */
	announce_lock(relid);
	id = nextval_internal(our_relid("task_outbox_id_seq"), false);
	values[OUTBOX_ID - 1] = Int64GetDatum(id);

	rel = table_open(relid, NoLock);
	slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), table_slot_callbacks(rel));
	memset(slot->tts_isnull, true, RelationGetDescr(rel)->natts * sizeof(bool));
	memcpy(slot->tts_values, values, OUTBOX_COLUMNS * sizeof(Datum));
	memcpy(slot->tts_isnull, nulls, OUTBOX_COLUMNS * sizeof(bool));
	ExecStoreVirtualTuple(slot);
	table_tuple_insert(rel, slot, GetCurrentCommandId(true), 0, NULL);

	estate = CreateExecutorState();
	target = makeNode(ResultRelInfo);
	InitResultRelInfo(target, rel, 1, NULL, 0);
	ExecOpenIndices(target, false);
	compat_ExecInsertIndexTuples(target, slot, estate);
	ExecCloseIndices(target);
	FreeExecutorState(estate);

	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, NoLock);

	announce_id(id);
	return id;
}

bool
outbox_delete(int64 id)
{
	OutboxReader *reader = outbox_begin(SnapshotSelf);
	bool		deleted = false;

	LockRelationOid(RelationGetRelid(reader->rel), RowExclusiveLock);
	while (outbox_lookup(reader, id))
	{
		TM_FailureData failure;
		TM_Result	result = table_tuple_delete(reader->rel, &reader->slot->tts_tid,
												GetCurrentCommandId(true),
												InvalidSnapshot, InvalidSnapshot,
												true, &failure, false);

		/* Someone wrote a newer version of the row meanwhile: look for it. */
		if (result == TM_Updated)
			continue;
		deleted = result == TM_Ok;
		break;
	}
	outbox_end(reader);

	return deleted;
}

static OutboxReader *
reader_open(Snapshot snapshot)
{
	OutboxReader *reader = palloc0(sizeof(OutboxReader));

	reader->rel = table_open(outbox_relid(), AccessShareLock);
	reader->index = index_open(compat_RelationGetPrimaryKeyIndex(reader->rel), AccessShareLock);
	reader->scan = compat_index_beginscan(reader->rel, reader->index, snapshot, 1);
	reader->slot = MakeSingleTupleTableSlot(RelationGetDescr(reader->rel),
											table_slot_callbacks(reader->rel));
	return reader;
}

OutboxReader *
outbox_begin(Snapshot snapshot)
{
	return reader_open(snapshot);
}

OutboxReader *
outbox_begin_dirty(void)
{
	Snapshot	dirty = palloc(sizeof(SnapshotData));

	InitDirtySnapshot(*dirty);
	return reader_open(dirty);
}

void
outbox_end(OutboxReader *reader)
{
	ExecDropSingleTupleTableSlot(reader->slot);
	index_endscan(reader->scan);
	index_close(reader->index, AccessShareLock);
	table_close(reader->rel, AccessShareLock);
}

static void
position(OutboxReader *reader, StrategyNumber strategy, RegProcedure procedure, int64 id)
{
	ScanKeyData key;

	ScanKeyInit(&key, 1, strategy, procedure, Int64GetDatum(id));
	index_rescan(reader->scan, &key, 1, NULL, 0);
}

bool
outbox_lookup(OutboxReader *reader, int64 id)
{
	position(reader, BTEqualStrategyNumber, F_INT8EQ, id);
	return outbox_next(reader);
}

void
outbox_scan_from(OutboxReader *reader, int64 from)
{
	position(reader, BTGreaterEqualStrategyNumber, F_INT8GE, from);
}

bool
outbox_next(OutboxReader *reader)
{
	return index_getnext_slot(reader->scan, ForwardScanDirection, reader->slot);
}

OutboxRow
outbox_row(OutboxReader *reader)
{
	TupleTableSlot *slot = reader->slot;
	HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, NULL);
	OutboxRow	row;
	text	   *name;

	slot_getsomeattrs(slot, OUTBOX_GROUP_ID);

	name = DatumGetTextPP(slot->tts_values[OUTBOX_QUEUE - 1]);
	row.id = DatumGetInt64(slot->tts_values[OUTBOX_ID - 1]);
	row.receive_count = DatumGetInt32(slot->tts_values[OUTBOX_RECEIVE_COUNT - 1]);
	row.queue = queue_key(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name));
	row.group = slot->tts_isnull[OUTBOX_GROUP_ID - 1] ? 0 :
		group_key(row.queue, DatumGetTextPP(slot->tts_values[OUTBOX_GROUP_ID - 1]));
	row.xmin = HeapTupleHeaderGetXmin(tuple->t_data);

	return row;
}

OutboxFate
outbox_look(OutboxReader *reader, int64 id)
{
	Snapshot	dirty = reader->scan->xs_snapshot;

	if (!outbox_lookup(reader, id))
		return OUTBOX_GONE;
	/* The visibility check left there who is at work on the row. */
	if (TransactionIdIsValid(dirty->xmin) || TransactionIdIsValid(dirty->xmax))
		return OUTBOX_BUSY;
	return OUTBOX_HERE;
}

/*
 * Run a statement of ours as the owner of the table, with a snapshot of now
 * (the row can be younger than the transaction's). All names in it are
 * qualified, operators too: it is parsed under the caller's search_path.
 */
static bool
execute_as_owner(SPIPlanPtr *plan, const char *sql, int nargs, Oid *types, Datum *values)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(outbox_relid()));
	Oid			owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	Oid			save_userid;
	int			save_sec_context;
	Snapshot	snapshot;
	int			result;

	ReleaseSysCache(tuple);

	GetUserIdAndSecContext(&save_userid, &save_sec_context);
	SetUserIdAndSecContext(owner, save_sec_context | SECURITY_LOCAL_USERID_CHANGE);
	SPI_connect();
	if (*plan == NULL)
	{
		*plan = SPI_prepare(sql, nargs, types);
		if (*plan == NULL)
			elog(ERROR, "could not prepare \"%s\"", sql);
		SPI_keepplan(*plan);
	}
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	result = SPI_execute_snapshot(*plan, values, NULL, snapshot, InvalidSnapshot,
								  false, false, 0);
	if (result < 0)
		elog(ERROR, "could not execute \"%s\": %s", sql, SPI_result_code_string(result));
	UnregisterSnapshot(snapshot);
	result = SPI_processed;
	SPI_finish();
	SetUserIdAndSecContext(save_userid, save_sec_context);

	return result > 0;
}

bool
outbox_count_receive(int64 id, int receive_count)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[] = {INT8OID, INT4OID};
	Datum		values[] = {Int64GetDatum(id), Int32GetDatum(receive_count)};

	return execute_as_owner(&plan,
							"UPDATE taskoutbox.task_outbox SET receive_count = $2 "
							"WHERE id OPERATOR(pg_catalog.=) (SELECT id FROM taskoutbox.task_outbox "
							"WHERE id OPERATOR(pg_catalog.=) $1 FOR UPDATE SKIP LOCKED)",
							2, types, values);
}

bool
outbox_bury(int64 id, int receive_count, const char *reason)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[] = {INT8OID, INT4OID, TEXTOID};
	Datum		values[] = {Int64GetDatum(id), Int32GetDatum(receive_count),
		CStringGetTextDatum(reason)
	};

	return execute_as_owner(&plan,
							"WITH dead AS (DELETE FROM taskoutbox.task_outbox "
							"WHERE id OPERATOR(pg_catalog.=) (SELECT id FROM taskoutbox.task_outbox "
							"WHERE id OPERATOR(pg_catalog.=) $1 FOR UPDATE SKIP LOCKED) RETURNING *) "
							"INSERT INTO taskoutbox.dead_letter (id, enqueued_at, receive_count, queue, "
							"group_id, task_type, payload, deduplication_id, headers, reason, last_error) "
							"SELECT id, enqueued_at, $2, queue, group_id, task_type, payload, "
							"deduplication_id, headers, $3, last_error FROM dead",
							3, types, values);
}

bool
outbox_set_error(int64 id, const char *error)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[] = {INT8OID, TEXTOID};
	Datum		values[] = {Int64GetDatum(id), CStringGetTextDatum(error)};

	return execute_as_owner(&plan,
							"UPDATE taskoutbox.task_outbox SET last_error = $2 "
							"WHERE id OPERATOR(pg_catalog.=) $1",
							2, types, values);
}
