/*
 * pool.h
 *	  Consumer workers: which are wanted, and which run.
 *
 * The workers of one (database, role, queue) are a pool. The relay says which are
 * wanted, the launcher starts them; everything is guarded by one lock of its own.
 */
#ifndef TASKOUTBOX_POOL_H
#define TASKOUTBOX_POOL_H

#include "taskoutbox.h"

#include "datatype/timestamp.h"
#include "storage/latch.h"

#include "lease.h"

/* Messages that wait in a worker's slot for the pool that it belongs to. */
#define HANDED_MAX 60

/* The longest name of a queue, with its end: 128 characters of up to 4 bytes. */
#define QUEUE_NAME_BYTES (128 * 4 + 1)

typedef enum WorkerState
{
	WORKER_FREE,
	WORKER_STOPPED,				/* the launcher starts it */
	WORKER_STARTING,			/* registered, not there yet */
	WORKER_RUNNING
} WorkerState;

typedef struct WorkerSlot
{
	WorkerState state;
	Oid			dboid;
	Oid			role;
	uint64		queue;			/* queue_key() of the name */
	char		queue_name[QUEUE_NAME_BYTES];
	int			pid;
	Latch	   *latch;
	bool		leave;			/* not wanted any more */
	bool		no_worker;		/* STOPPED: for want of a worker slot */
	TimestampTz since;			/* of the state */
	TimestampTz restart_at;		/* STOPPED: not before this */
	int			failures;		/* errors in a row */
	int64		task;			/* that it is at; 0: none */
	char		problem[512];	/* why it gets no messages; empty: it does */

	/* taken by workers of other pools, but for this one, from this table */
	Oid			outbox;
	int			nhanded;
	Receipt		handed[HANDED_MAX];
} WorkerSlot;

/* Registers the shared memory; from _PG_init, when preloaded. */
extern void pool_init(void);

/* A pool that the relay wants, of its own database. */
typedef struct Pool
{
	Oid			role;
	char	   *queue;
	int			nworkers;
} Pool;

/* For the relay: these pools and no others. */
extern void pool_want(const Pool *pools, int npools);

/*
 * For the launcher: start the workers that are due, and when the next ones are;
 * DT_NOEND: none.
 */
extern void pool_start_workers(void);
extern TimestampTz pool_next_start(void);

/*
 * All workers of a database are to end, in the middle of what they do. They come
 * back when its relay wants them.
 */
extern void pool_stop(Oid dboid);

/* For a worker: take the slot over, or NULL when it is not for us. Left at exit. */
extern WorkerSlot *pool_claim(int index);
extern int	pool_index(const WorkerSlot *slot);
extern int	pool_my_index(void);
extern void pool_ready(Oid outbox);
extern void pool_failed(void);

/* Reasons not to wait: to leave, and something that was handed over to one's pool. */
extern bool pool_must_leave(void);
extern bool pool_is_handed(void);
extern void pool_set_task(int64 id);
extern void pool_set_problem(const char *problem);

/*
 * Pass messages on to a pool of this database and queue; returns how many of them,
 * from the first on, found room. And take what was passed on to one's own pool
 * (receipts has room for HANDED_MAX).
 */
extern int	pool_hand_over(Oid role, const Receipt *receipts, int n);
extern int	pool_take_handed(Receipt *receipts);

/* Copies of this database's slots that are in use, and their number. */
extern int	pool_snapshot(WorkerSlot **slots);

#endif							/* TASKOUTBOX_POOL_H */
