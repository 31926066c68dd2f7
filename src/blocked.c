/*
 * blocked.c
 *	  Message groups that wait because of a dead letter.
 *
 * In a queue with on_dead_letter = block the group of a message that dies waits
 * until the letter is redriven, cancelled or purged. The dead letter says so
 * itself (column blocks), so that it outlives the relay. The relay keeps these
 * groups in a hash, which it reads at its start, and again when a trigger on the
 * dead letters reports a change at commit: then under the snapshot of a round,
 * after it has taken in the rows that the snapshot shows. So a redriven message,
 * which appears in the commit that removes its letter, is in its lane before the
 * lane goes on.
 */
#include "taskoutbox.h"
#include "blocked.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "commands/trigger.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "lane.h"
#include "outbox.h"
#include "shared.h"

/* Columns of dead_letter. */
enum
{
	DEAD_LETTER_QUEUE = 5,
	DEAD_LETTER_GROUP_ID
};

typedef struct BlockedGroup
{
	uint64		group;
	uint64		queue;
	char		status;
} BlockedGroup;

#define SH_PREFIX blocked
#define SH_ELEMENT_TYPE BlockedGroup
#define SH_KEY_TYPE uint64
#define SH_KEY group
#define SH_HASH_KEY(tb, key) ((uint32) ((key) ^ ((key) >> 32)))
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* Only the relay has it. */
static blocked_hash *blocked = NULL;

/* This transaction changed which groups are blocked. */
static bool has_changed = false;

PG_FUNCTION_INFO_V1(taskoutbox_dead_letter_changed);

Datum
taskoutbox_dead_letter_changed(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		elog(ERROR, "dead_letter_changed: not called by trigger manager");

	/* The relay knows what it does itself. */
	if (blocked == NULL)
		has_changed = true;
	PG_RETURN_POINTER(NULL);
}

static void
blocked_xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT && has_changed)
	{
		DatabaseSlot *db = database_slot(MyDatabaseId);

		if (db)
		{
			SpinLockAcquire(&db->mutex);
			db->check_blocked = true;
			SpinLockRelease(&db->mutex);
			wake_relay(db);
		}
	}
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
		has_changed = false;
}

void
blocked_init(void)
{
	RegisterXactCallback(blocked_xact_callback, NULL);
}

bool
blocked_group(uint64 group)
{
	return group != 0 && blocked->members > 0 && blocked_lookup(blocked, group) != NULL;
}

static void
add(blocked_hash *hash, uint64 queue, uint64 group)
{
	bool		found;

	blocked_insert(hash, group, &found)->queue = queue;
}

static void
count(uint64 queue_key, int n)
{
	Queue	   *queue = lanes_queue(queue_key);

	if (queue)
		queue->nblocked += n;
}

void
blocked_add(uint64 queue, uint64 group)
{
	if (blocked_group(group))
		return;
	add(blocked, queue, group);
	count(queue, 1);
	lanes_block(group);
}

void
blocked_read(Snapshot snapshot)
{
	blocked_hash *before = blocked;
	blocked_iterator i;
	BlockedGroup *entry;
	Relation	rel = table_open(outbox_sibling_relid("dead_letter"), AccessShareLock);
	Relation	index = index_open(outbox_sibling_relid("dead_letter_blocks_idx"), AccessShareLock);
	IndexScanDesc scan = compat_index_beginscan(rel, index, snapshot, 0);
	TupleTableSlot *slot = table_slot_create(rel, NULL);

	blocked = blocked_create(TopMemoryContext, 64, NULL);
	index_rescan(scan, NULL, 0, NULL, 0);
	while (index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		text	   *name;
		uint64		queue;

		slot_getsomeattrs(slot, DEAD_LETTER_GROUP_ID);
		name = DatumGetTextPP(slot->tts_values[DEAD_LETTER_QUEUE - 1]);
		queue = queue_key(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name));
		add(blocked, queue,
			group_key(queue, DatumGetTextPP(slot->tts_values[DEAD_LETTER_GROUP_ID - 1])));
	}
	ExecDropSingleTupleTableSlot(slot);
	index_endscan(scan);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);

	for (int q = 0; q < lane_nqueues; q++)
		lane_queues[q].nblocked = 0;
	blocked_start_iterate(blocked, &i);
	while ((entry = blocked_iterate(blocked, &i)) != NULL)
	{
		count(entry->queue, 1);
		lanes_block(entry->group);
	}

	if (before == NULL)
		return;
	blocked_start_iterate(before, &i);
	while ((entry = blocked_iterate(before, &i)) != NULL)
	{
		if (!blocked_group(entry->group))
			lanes_unblock(entry->group);
	}
	blocked_destroy(before);
}
