/*
 * outbox.h
 *	  The table task_outbox, row by row.
 */
#ifndef TASKOUTBOX_OUTBOX_H
#define TASKOUTBOX_OUTBOX_H

#include "taskoutbox.h"

#include "access/genam.h"
#include "executor/tuptable.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

/* Columns of task_outbox. */
enum
{
	OUTBOX_ID = 1,
	OUTBOX_ENQUEUED_AT,
	OUTBOX_RECEIVE_COUNT,
	OUTBOX_QUEUE,
	OUTBOX_GROUP_ID,
	OUTBOX_TASK_TYPE,
	OUTBOX_PAYLOAD,
	OUTBOX_DEDUPLICATION_ID,
	OUTBOX_HEADERS,
	OUTBOX_LAST_ERROR,
	OUTBOX_COLUMNS = OUTBOX_LAST_ERROR
};

/* What the relay needs of a row. */
typedef struct OutboxRow
{
	int64		id;
	int			receive_count;
	uint64		queue;			/* queue_key() */
	uint64		group;			/* hash of queue and group_id; 0: no group */
	TransactionId xmin;
} OutboxRow;

/* An open table and its primary key's index. */
typedef struct OutboxReader
{
	Relation	rel;
	Relation	index;
	IndexScanDesc scan;
	TupleTableSlot *slot;
} OutboxReader;

extern Oid	outbox_relid(void);

/* Hash of a queue's name, never 0. */
extern uint64 queue_key(const char *name, int len);

/*
 * Insert a row. values and nulls are in the order of the columns; the id is
 * drawn here and stored in values, too. The lock is kept until the transaction
 * ends.
 */
extern int64 outbox_insert(Datum *values, bool *nulls);

/* Delete a row by its id, waiting for other transactions. False: it is gone. */
extern bool outbox_delete(int64 id);

/* Reading by id, or in the order of ids, with the snapshot given. */
extern OutboxReader *outbox_begin(Snapshot snapshot);
extern bool outbox_lookup(OutboxReader *reader, int64 id);
extern void outbox_scan_from(OutboxReader *reader, int64 from);
extern bool outbox_next(OutboxReader *reader);
extern OutboxRow outbox_row(OutboxReader *reader);
extern void outbox_end(OutboxReader *reader);

/* What became of a row; when it is HERE, the reader's slot has it. */
typedef enum OutboxFate
{
	OUTBOX_GONE,
	OUTBOX_BUSY,				/* an open transaction deletes or updates it */
	OUTBOX_HERE
} OutboxFate;

extern OutboxReader *outbox_begin_dirty(void);
extern OutboxFate outbox_look(OutboxReader *reader, int64 id);

/*
 * Statements, run as the owner of the table. They return false when the row is
 * gone or another transaction holds it; outbox_set_error waits for that one.
 */
extern bool outbox_count_receive(int64 id, int receive_count);
extern bool outbox_bury(int64 id, int receive_count, const char *reason);
extern bool outbox_set_error(int64 id, const char *error);

#endif							/* TASKOUTBOX_OUTBOX_H */
