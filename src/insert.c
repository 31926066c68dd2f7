/*
 * insert.c
 *	  Rows of the extension's tables that are inserted without a statement.
 *
 * The work is done by the executor's own functions. What a statement sets up for
 * them each time (what the catalogs say about the table and its indexes, compiled
 * predicates, memory) is made once for a table, and thrown away when the relcache
 * says that something about the table has changed. Locks are taken, and table and
 * indexes opened, by the first row that goes there, so that a partial index costs
 * nothing while no row does; they are closed when the transaction ends, when a
 * savepoint is rolled back, and before any utility statement, which may be about to
 * alter or drop them, and would find them in use. So none of this shows.
 *
 * A row that has only nulls after its eighth column is stored without those, as if
 * they had been added later, since its header is eight bytes shorter then.
 */
#include "taskoutbox.h"
#include "insert.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"

#include "outbox.h"

/* So many null bits fit beside a row's header. */
#define SHORT_ROW 8

static InsertTarget *targets = NULL;
static ResourceOwner owner = NULL;	/* of what is open, longer than a statement */

static ProcessUtility_hook_type prev_ProcessUtility = NULL;

static void
invalidate(Datum arg, Oid relid)
{
	for (InsertTarget *target = targets; target; target = target->next)
	{
		if (relid == InvalidOid || relid == target->relid)
			target->is_valid = false;
	}
}

static void
add_target(InsertTarget *target)
{
	if (targets == NULL)
	{
		CacheRegisterRelcacheCallback(invalidate, (Datum) 0);
		owner = ResourceOwnerCreate(NULL, "taskoutbox insert");
	}
	target->next = targets;
	targets = target;
}

static void
open_target(InsertTarget *target)
{
	ResultRelInfo *info = target->info;
	ResourceOwner old = CurrentResourceOwner;

	/* After an error in the middle, close_target knows what is open. */
	info->ri_RelationDesc = NULL;
	memset(info->ri_IndexRelationDescs, 0, info->ri_NumIndices * sizeof(Relation));
	target->is_open = true;

	CurrentResourceOwner = owner;
	info->ri_RelationDesc = table_open(target->relid, NoLock);
	CurrentResourceOwner = old;
}

/* Does the row in the slot go into an index? */
static bool
takes_row(InsertTarget *target, IndexInfo *index)
{
	ExprContext *context = GetPerTupleExprContext(target->estate);

	if (index->ii_Predicate == NIL)
		return true;
	if (index->ii_PredicateState == NULL)
		index->ii_PredicateState = ExecPrepareQual(index->ii_Predicate, target->estate);
	context->ecxt_scantuple = target->slot;
	return ExecQual(index->ii_PredicateState, context);
}

static void
open_index(InsertTarget *target, int i)
{
	ResourceOwner old = CurrentResourceOwner;

	LockRelationOid(target->indexes[i], RowExclusiveLock);
	CurrentResourceOwner = owner;
	target->info->ri_IndexRelationDescs[i] = index_open(target->indexes[i], NoLock);
	CurrentResourceOwner = old;
}

static void
close_target(InsertTarget *target)
{
	ResultRelInfo *info = target->info;
	ResourceOwner old = CurrentResourceOwner;

	if (!target->is_open)
		return;
	target->is_open = false;
	CurrentResourceOwner = owner;
	for (int i = 0; i < info->ri_NumIndices; i++)
	{
		if (info->ri_IndexRelationDescs[i])
			index_close(info->ri_IndexRelationDescs[i], NoLock);
	}
	if (info->ri_RelationDesc)
		table_close(info->ri_RelationDesc, NoLock);
	CurrentResourceOwner = old;
}

static void
close_all(void)
{
	for (InsertTarget *target = targets; target; target = target->next)
		close_target(target);
}

static TupleDesc
first_columns(TupleDesc from, int n)
{
	TupleDesc	desc = CreateTemplateTupleDesc(n);

	for (int i = 1; i <= n; i++)
		TupleDescCopyEntry(desc, i, from, i);
	return desc;
}

/* The table is locked. */
static void
set_up(InsertTarget *target)
{
	Relation	rel = table_open(target->relid, NoLock);
	MemoryContext old;
	ResultRelInfo *info;

	if (rel->rd_tableam != GetHeapamTableAmRoutine())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("table %s.%s has another access method than heap", TASKOUTBOX_SCHEMA, target->table),
				 errhint("Run ALTER TABLE %s.%s SET ACCESS METHOD heap.", TASKOUTBOX_SCHEMA, target->table)));

	if (target->estate)
		FreeExecutorState(target->estate);
	target->estate = NULL;

	old = MemoryContextSwitchTo(CacheMemoryContext);
	target->estate = CreateExecutorState();
	MemoryContextSwitchTo(target->estate->es_query_cxt);
	target->info = info = makeNode(ResultRelInfo);
	InitResultRelInfo(info, rel, 1, NULL, 0);
	ExecOpenIndices(info, true);
	target->indexes = palloc(info->ri_NumIndices * sizeof(Oid));
	for (int i = 0; i < info->ri_NumIndices; i++)
	{
		target->indexes[i] = RelationGetRelid(info->ri_IndexRelationDescs[i]);
		index_close(info->ri_IndexRelationDescs[i], NoLock);
	}
	target->slot = MakeSingleTupleTableSlot(CreateTupleDescCopyConstr(RelationGetDescr(rel)), &TTSOpsVirtual);
	target->slot->tts_tableOid = target->relid;
	target->desc = first_columns(RelationGetDescr(rel), target->ncolumns);
	target->short_desc = first_columns(RelationGetDescr(rel), Min(SHORT_ROW, target->ncolumns));
	MemoryContextSwitchTo(old);

	table_close(rel, NoLock);
	target->is_valid = true;
}

bool
insert_lock(InsertTarget *target)
{
	if (target->is_open && target->is_valid)
		return false;

	close_target(target);
	if (target->relid == InvalidOid)
		add_target(target);
	if (!target->is_valid)
		target->relid = outbox_sibling_relid(target->table);
	LockRelationOid(target->relid, RowExclusiveLock);
	if (!target->is_valid)
	{
		/* Only with the lock is what we find out what it stays. */
		target->relid = outbox_sibling_relid(target->table);
		LockRelationOid(target->relid, RowExclusiveLock);
		set_up(target);
	}
	open_target(target);
	return true;
}

/* Puts the row into the slot, too, where the indexes find it. */
static HeapTuple
begin_row(InsertTarget *target, const Datum *values, const bool *nulls)
{
	ResultRelInfo *info;
	TupleTableSlot *slot;
	int			n = target->ncolumns;
	HeapTuple	row;

	(void) insert_lock(target);
	info = target->info;
	slot = target->slot;
	memcpy(slot->tts_values, values, n * sizeof(Datum));
	memcpy(slot->tts_isnull, nulls, n * sizeof(bool));
	while (n > SHORT_ROW && nulls[n - 1])
		n--;
	row = heap_form_tuple(n > SHORT_ROW ? target->desc : target->short_desc, slot->tts_values, slot->tts_isnull);
	row->t_tableOid = target->relid;
	ExecClearTuple(slot);
	ExecStoreVirtualTuple(slot);

	/* The executor passes over indexes that are not open. */
	for (int i = 0; i < info->ri_NumIndices; i++)
	{
		IndexInfo  *index = info->ri_IndexRelationInfo[i];

		if (info->ri_IndexRelationDescs[i] == NULL && takes_row(target, index))
			open_index(target, i);
		/* What an access method keeps from row to row is for one statement. */
		index->ii_AmCache = NULL;
		index->ii_Context = GetPerTupleMemoryContext(target->estate);
	}
	return row;
}

/* Does what is left to do when the row is in the table; returns whether it conflicts with another one. */
static bool
insert_into_indexes(InsertTarget *target, HeapTuple row, bool no_error)
{
	bool		conflict = false;

	target->slot->tts_tid = row->t_self;
	(void) compat_ExecInsertIndexTuples(target->info, target->slot, target->estate, no_error, &conflict);
	return conflict;
}

static void
end_row(InsertTarget *target, HeapTuple row)
{
	ResultRelInfo *info = target->info;

	for (int i = 0; i < info->ri_NumIndices; i++)
	{
		if (info->ri_IndexRelationDescs[i])
			compat_index_insert_cleanup(info->ri_IndexRelationDescs[i], info->ri_IndexRelationInfo[i]);
	}
	ResetPerTupleExprContext(target->estate);
	heap_freetuple(row);
}

void
insert_row(InsertTarget *target, const Datum *values, const bool *nulls)
{
	HeapTuple	row = begin_row(target, values, nulls);

	heap_insert(target->info->ri_RelationDesc, row, GetCurrentCommandId(true), 0, NULL);
	(void) insert_into_indexes(target, row, false);
	end_row(target, row);
}

/* As the executor does INSERT ... ON CONFLICT DO NOTHING, but it would try again. */
bool
insert_new_row(InsertTarget *target, const Datum *values, const bool *nulls)
{
	HeapTuple	row = begin_row(target, values, nulls);
	ItemPointerData other;
	bool		conflict = true;

	if (compat_ExecCheckIndexConstraints(target->info, target->slot, target->estate, &other))
	{
		Relation	rel = target->info->ri_RelationDesc;
		TransactionId xid = GetCurrentTransactionId();

		HeapTupleHeaderSetSpeculativeToken(row->t_data, SpeculativeInsertionLockAcquire(xid));
		heap_insert(rel, row, GetCurrentCommandId(true), HEAP_INSERT_SPECULATIVE, NULL);
		conflict = insert_into_indexes(target, row, true);
		if (conflict)
			heap_abort_speculative(rel, &row->t_self);
		else
			heap_finish_speculative(rel, &row->t_self);
		SpeculativeInsertionLockRelease(xid);
	}
	end_row(target, row);
	return !conflict;
}

/* Saves the look. A row too many is deleted, as by a statement after the one that inserted it. */
bool
insert_probably_new_row(InsertTarget *target, const Datum *values, const bool *nulls)
{
	HeapTuple	row = begin_row(target, values, nulls);
	Relation	rel = target->info->ri_RelationDesc;
	bool		conflict;

	heap_insert(rel, row, GetCurrentCommandId(true), 0, NULL);
	conflict = insert_into_indexes(target, row, true);
	if (conflict)
	{
		CommandCounterIncrement();
		simple_heap_delete(rel, &row->t_self);
	}
	end_row(target, row);
	return !conflict;
}

static void
insert_xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
		close_all();
}

static void
insert_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
						SubTransactionId parentSubid, void *arg)
{
	/* The locks may have been taken inside, and are gone then. */
	if (event == SUBXACT_EVENT_ABORT_SUB)
		close_all();
}

static void
insert_ProcessUtility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
					  ProcessUtilityContext context, ParamListInfo params,
					  QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	close_all();
	prev_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
}

void
insert_init(void)
{
	RegisterXactCallback(insert_xact_callback, NULL);
	RegisterSubXactCallback(insert_subxact_callback, NULL);
	prev_ProcessUtility = ProcessUtility_hook ? ProcessUtility_hook : standard_ProcessUtility;
	ProcessUtility_hook = insert_ProcessUtility;
}
