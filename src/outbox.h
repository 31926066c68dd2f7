/*
 * outbox.h
 *	  The table task_outbox, row by row.
 */
#ifndef TASKOUTBOX_OUTBOX_H
#define TASKOUTBOX_OUTBOX_H

#include "taskoutbox.h"

#include "access/genam.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "storage/block.h"
#include "storage/itemptr.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

/* Columns of task_outbox: those that few rows need come last (insert.c leaves them out). */
enum
{
	OUTBOX_ID = 1,
	OUTBOX_ENQUEUED_AT,
	OUTBOX_PAYLOAD,
	OUTBOX_QUEUE,
	OUTBOX_GROUP_ID,
	OUTBOX_TASK_TYPE,
	OUTBOX_DEDUPLICATION_ID,
	OUTBOX_HEADERS,
	OUTBOX_DELIVER_AT,
	OUTBOX_REDRIVEN_FROM,
	OUTBOX_RECEIVE_COUNT,
	OUTBOX_LAST_ERROR,
	OUTBOX_COLUMNS = OUTBOX_LAST_ERROR
};

/* What the relay needs of a row. */
typedef struct OutboxRow
{
	int64		id;
	int64		first_id;		/* of the task that it was redriven from, or its own */
	int			receive_count;
	TimestampTz deliver_at;		/* DT_NOBEGIN: at once */
	uint64		queue;			/* queue_key() */
	uint64		group;			/* hash of queue and group_id; 0: no group */
	TransactionId xmin;
	ItemPointerData place;
} OutboxRow;

/* Of a row whose columns were read: null until its message has come back. */
static inline int
outbox_receive_count(const TupleTableSlot *slot)
{
	return slot->tts_isnull[OUTBOX_RECEIVE_COUNT - 1] ? 0 :
		DatumGetInt32(slot->tts_values[OUTBOX_RECEIVE_COUNT - 1]);
}

/* An open table and its primary key's index. */
typedef struct OutboxReader
{
	Relation	rel;
	Relation	index;
	BlockNumber nblocks;		/* of the table, when this reader began */
	bool		changes;		/* keeps its lock until the transaction ends */
	IndexScanDesc scan;
	Snapshot	since;			/* of a dirty one: as it was when that began */
	IndexScanDesc since_scan;
	TupleTableSlot *slot;
} OutboxReader;

/*
 * The table; another table, index or sequence of the extension, by its name; and
 * the role that owns them. Error 42P01 when there is none.
 */
extern Oid	outbox_relid(void);
extern Oid	outbox_sibling_relid(const char *name);
extern Oid	outbox_owner(void);

/* Hash of a queue's name, and of a group in it, never 0. */
extern uint64 queue_key(const char *name, int len);
extern uint64 group_key(uint64 queue, const text *group);

/*
 * Draw an id, with a RowExclusiveLock on the table that is kept until the
 * transaction ends, which is what makes the relay's floor exact (see relay.c); then
 * insert a row with it. values and nulls are in the order of the columns.
 */
extern int64 outbox_draw_id(void);
extern void outbox_insert(const Datum *values, const bool *nulls);

/* Reading by id, or in the order of ids, with the snapshot given. */
extern OutboxReader *outbox_begin(Snapshot snapshot);
extern bool outbox_lookup(OutboxReader *reader, int64 id);
extern void outbox_scan_from(OutboxReader *reader, int64 from);
extern bool outbox_next(OutboxReader *reader);

/*
 * Search the first row from *id to an id on, in so many entries of the index at most.
 * *id becomes where to search on. Returns whether there is more to search, and in
 * *found whether a row is there.
 */
extern bool outbox_search_from(OutboxReader *reader, int64 *id, int64 to, int max, bool *found);
extern OutboxRow outbox_row(OutboxReader *reader);
extern void outbox_end(OutboxReader *reader);

/* What became of a row; when it is HERE, the reader's slot has it. */
typedef enum OutboxFate
{
	OUTBOX_GONE,
	OUTBOX_BUSY,				/* somebody deletes or updates it, or did just now */
	OUTBOX_HERE
} OutboxFate;

extern OutboxReader *outbox_begin_dirty(void);
extern OutboxFate outbox_look(OutboxReader *reader, int64 id);

/* The same, first at a place where the row was before: a hint, which can be outdated. */
extern OutboxFate outbox_look_at(OutboxReader *reader, int64 id, const ItemPointerData *place);

/*
 * Delete a row if it is HERE, which is first looked for at a place, and return what
 * it was. The reader's slot has what it said.
 */
extern OutboxReader *outbox_begin_delete(void);
extern OutboxFate outbox_delete(OutboxReader *reader, int64 id, const ItemPointerData *place);

/* The same for one whose lease we have; waits for a cancel to take its deletion back. */
extern OutboxFate outbox_delete_leased(OutboxReader *reader, int64 id, const ItemPointerData *place);

/*
 * The delayed rows (deliver_at is set) that are due after one time and up to
 * another, in that order; outbox_next_due gives the earliest time after one, or
 * DT_NOEND.
 */
extern OutboxReader *outbox_begin_due(Snapshot snapshot);
extern void outbox_scan_due(OutboxReader *reader, TimestampTz after, TimestampTz up_to);
extern TimestampTz outbox_next_due(OutboxReader *reader, TimestampTz after);

/*
 * Run a statement as the owner of the table, hand each row that it makes to a
 * callback, if there is one, and return how many. nulls is as in SPI, or NULL: no
 * argument is null. With is_now the statement sees the state of this moment,
 * whatever the isolation level.
 */
typedef void (*OutboxRowCallback) (HeapTuple row, TupleDesc desc, void *arg);
extern uint64 outbox_for_each(SPIPlanPtr *plan, const char *sql, int nargs, const Oid *types,
							  const Datum *values, const char *nulls, bool is_now,
							  OutboxRowCallback each, void *arg);

/* The same for a statement that makes one row at most: a bigint, for *result if that is not NULL. */
extern uint64 outbox_execute(SPIPlanPtr *plan, const char *sql, int nargs, const Oid *types,
							 const Datum *values, const char *nulls, bool is_now, int64 *result);

/* Run a query like that, and return its rows from a set-returning function. */
extern void outbox_query(FunctionCallInfo fcinfo, SPIPlanPtr *plan, const char *sql, int nargs,
						 const Oid *types, const Datum *values);

/* Bytes that are kept of an error. */
#define LAST_ERROR_BYTES 1024

/* Reason of a dead letter of the stage "consumer". */
#define RECEIVED_TOO_OFTEN "received max_receive_count times without being deleted"

/*
 * Changes of a row. They return false when it is gone or another transaction
 * holds it; outbox_set_error waits for that one. outbox_bury moves it to the dead
 * letters: stage is "relay" or "consumer"; blocks: its message group waits.
 */
extern bool outbox_count_receive(int64 id, int receive_count);
extern bool outbox_bury(int64 id, int receive_count, const char *stage, const char *reason,
						bool blocks);

/*
 * Count a receive (reason NULL) or bury, in a subtransaction: what fails, too, is
 * reported and returns false.
 */
extern bool outbox_count_or_bury(int64 id, int receive_count, const char *stage, const char *reason,
								 bool blocks);

/* Delete rows, but for those that another transaction holds; returns how many. */
extern uint64 outbox_delete_published(const int64 *ids, int n);

extern bool outbox_set_error(int64 id, const char *error);

/* How many rows of a table the relay forgets in one transaction. */
#define PURGE_BATCH 1000

/*
 * Delete dead letters of a queue that died before a time and block no group, a
 * batch of them. Returns whether there may be more.
 */
extern bool outbox_forget_letters(const char *queue, TimestampTz before);

#endif							/* TASKOUTBOX_OUTBOX_H */
