/*
 * lease.h
 *	  Leases: which messages are in flight, until when, and who may delete them.
 */
#ifndef TASKOUTBOX_LEASE_H
#define TASKOUTBOX_LEASE_H

#include "taskoutbox.h"
#include "shared.h"

#define LEASE_SECRET_WORDS 2	/* 128 bits */

/*
 * The table is part of the key: ids start anew when the extension is dropped and
 * created again.
 */
typedef struct LeaseKey
{
	Oid			dboid;
	Oid			outbox;
	int64		id;
} LeaseKey;

typedef struct Lease
{
	LeaseKey	key;
	uint64		secret[LEASE_SECRET_WORDS];
	ItemPointerData place;		/* where the row was */
	TimestampTz since;
	TimestampTz until;			/* wall clock */
	int			holder;			/* pid of the session that received it */
	int			deleter;		/* pid of the open transaction that deletes, or 0 */
	bool		is_relays;		/* on its way to SQS: no receipt handle is good for it */
	bool		has_failed;		/* change_visibility said so: it waits for its next try */
	uint64		queue;			/* queue_key() */
} Lease;

/* What a receipt handle says: "<id>-<secret in 22 characters>". */
typedef struct Receipt
{
	int64		id;
	uint64		secret[LEASE_SECRET_WORDS];
	ItemPointerData place;		/* not in the text: where the row was */
	int64		rank;			/* not in it either: see lease_take */
} Receipt;

extern text *receipt_to_text(const Receipt *receipt);

/* Error TO011 when the text is not a receipt handle. */
extern Receipt receipt_from_text(const text *handle);

typedef enum LeaseResult
{
	LEASE_OK,
	LEASE_STALE,				/* ended, or given out again since */
	LEASE_BEING_DELETED			/* by another open transaction */
} LeaseResult;

/* Of the hash of leases: ids differ most. */
extern uint32 lease_key_hash(const void *key, Size keysize);

/* Registers the transaction callbacks; from _PG_init. */
extern void lease_init(void);


/*
 * For consumers; outbox is the table's oid.
 */

/* While all leases of the cluster are in use, taking is worth a try this often. */
#define FULL_RETRY (1 * USECS_PER_SEC)

/* The most that can be taken at once. */
#define TAKE_MAX 1000

/*
 * Take up to max offered messages of a queue, hide them until the given time,
 * and return their number. receipts has room for max; their ranks are ids, or
 * more where a group would get out of order by that. 0 also when the relay is to
 * offer longer parts of lanes first. Sets *full when the leases of the cluster
 * (taskoutbox.max_in_flight) are used up.
 */
extern int	lease_take(DatabaseSlot *db, Oid outbox, QueueSlot *queue, int max, TimestampTz until,
					   Receipt *receipts, bool *full);

/* As the end of a lease: while the process lives that has the message in hand. */
#define LEASE_WHILE_ALIVE DT_NOEND

/* Another session passed these on to this one. */
extern void lease_adopt(Oid outbox, const Receipt *receipts, int n);

/* Give messages back as if they had not been taken. */
extern void lease_give_back(Oid outbox, const Receipt *receipts, int n);

/*
 * Mark messages as being deleted by this transaction, and say of each how that went
 * and where its row was. To be called before the rows are touched. Commit ends the
 * leases, abort (of this subtransaction) and PREPARE clear the marks.
 */
extern void lease_mark_deleting(Oid outbox, Receipt *receipts, int n, LeaseResult *results);

/*
 * Move the end of a lease; at once, whatever becomes of the transaction.
 * has_failed: its holder has given up, and it waits for its next try.
 */
extern LeaseResult lease_change(Oid outbox, const Receipt *receipt, TimestampTz until, bool has_failed);

/*
 * End the wait for the next try of a lease that lease_snapshot showed, if it still
 * does. The relay has to be woken afterwards.
 */
extern bool lease_retry(Oid outbox, const Lease *seen);

/* This transaction changes the row: the relay is to look again when it ends. */
extern LeaseResult lease_touch(Oid outbox, const Receipt *receipt);


/*
 * This transaction deletes a row that nobody has, or (id 0) any rows: the relay
 * is to forget what is gone when it ends.
 */
extern void lease_forget_at_end(Oid outbox, int64 id);

/* This transaction deletes a row that is not due yet. */
extern void lease_recount_at_commit(Oid outbox);

/* The table is truncated: no lease outlives that, and the relay starts anew. */
extern void lease_end_all_at_commit(Oid outbox);

/*
 * If nothing of a queue is in somebody's hands, nothing will be until
 * lease_open_queue: no new leases are given out. False: something is.
 */
extern bool lease_close_queue(Oid outbox, uint64 queue);
extern void lease_open_queue(uint64 queue);

/* Whether a message is in somebody's hands, or was until the relay looks next. */
extern bool lease_exists(Oid outbox, int64 id);

/*
 * For the relay, which is the only one to end leases that nobody deleted.
 */
typedef enum LeaseState
{
	LEASE_NONE,
	LEASE_HELD,
	LEASE_EXPIRED				/* no receipt handle is good for it any more */
} LeaseState;

extern LeaseState lease_check(DatabaseSlot *db, int64 id, TimestampTz now);

/*
 * Let the relay have a message, until it drops the lease. False: all leases are
 * in use, a transaction deletes the message by its receipt handle, or changes
 * where the messages of its queue go.
 */
extern bool lease_hold(DatabaseSlot *db, int64 id, QueueSlot *queue);

/* Remove a lease that expired or whose row is gone, unless someone deletes it. */
extern void lease_drop(DatabaseSlot *db, int64 id);

/*
 * The ids of leases that end at or before the given time, in an array of the
 * current memory context. Stores the earliest end of the others in
 * db->next_expiry. Leases of a table that is no more are removed.
 */
extern int	lease_list(DatabaseSlot *db, TimestampTz until, int64 **ids);

/* The same of all leases, also of those that someone deletes. */
extern int	lease_list_all(DatabaseSlot *db, int64 **ids);

/*
 * Copies of this database's leases, in an array of the current memory context;
 * their number.
 */
extern int	lease_snapshot(Oid outbox, Lease **leases);

#endif							/* TASKOUTBOX_LEASE_H */
