/*
 * shared.h
 *	  The shared memory of taskoutbox: what backends, relays and the launcher
 *	  tell each other. Nothing in it is local to a process; latches point into
 *	  the PGPROC array, which every process maps at the same address.
 */
#ifndef TASKOUTBOX_SHARED_H
#define TASKOUTBOX_SHARED_H

#include "taskoutbox.h"

#include "datatype/timestamp.h"
#include "storage/itemptr.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/hsearch.h"

#include "rate.h"

/* A run of task ids, both ends included. */
typedef struct IdRun
{
	int64		first;
	int64		last;
} IdRun;

/* "No sweep asked for", and "a sweep from the relay's floor will do". */
#define NO_SWEEP		PG_INT64_MAX
#define SWEEP_FLOOR		(PG_INT64_MAX - 1)

/*
 * A bounded mailbox of ids, from any backend to the relay of its database.
 * What does not fit is replaced by the request to look for oneself: sweep.
 */
typedef struct IdRing
{
	uint64		pushed;
	uint64		popped;
	int64		sweep;			/* NO_SWEEP, SWEEP_FLOOR, or an id to start from */
	IdRun	   *runs;			/* taskoutbox_ring_size of them */
} IdRing;

/* Messages that a queue keeps ready for receive: a small ring of these. */
typedef struct Offer
{
	int64		id;
	ItemPointerData place;		/* where the row was */
	bool		is_next;		/* of the same lane as the one before it */
} Offer;

#define OFFERS_PER_QUEUE 256

/* Of a lane that many messages at most, for one receive (SQS's limit, too). */
#define LANE_OFFER_MAX 10

/* What sessions can ask of a backend for a queue. */
typedef enum QueueRequest
{
	QUEUE_RETRY_NOW,
	QUEUE_REDRIVE				/* its dead letters out there */
} QueueRequest;

#define QUEUE_REQUESTS (QUEUE_REDRIVE + 1)

typedef struct QueueSlot
{
	uint64		key;			/* queue_key() of the name, 0: free */

	/* the offers, under the lease lock */
	uint64		offered;
	uint64		taken;
	int			wanted;			/* of a lane, by the largest receive so far */
	int			width;			/* what the relay offered of lanes, at most */
	bool		more;			/* the relay has more ready than fits */
	bool		is_closed;		/* a transaction changes where its messages go */
	Offer		offers[OFFERS_PER_QUEUE];

	/* figures, under the lease lock */
	int64		delivered;		/* deleted by their receipt handle */
	Rate		delivered_rate;
	int64		duplicates;		/* not enqueued for that */

	/* figures, written by the relay alone */
	int64		pending;		/* all but delayed ones */
	int64		delayed;
	int64		oldest_id;
	int64		blocked;		/* message groups */
	Rate		enqueued_rate;
	int64		retried;
	int64		dead_lettered;

	/* why nothing is delivered, and since when; empty: nothing is wrong */
	char		problem[256];
	char		remedy[256];
	TimestampTz problem_since;
	TimestampTz next_try;

	/* what sessions ask the relay for, under the lease lock */
	bool		requested[QUEUE_REQUESTS];

	/* what SQS said of its queue; -1 and 0: not known */
	int64		max_message_bytes;
	int64		sqs_visible;
	int64		sqs_in_flight;
	int64		sqs_dead_letters;
	TimestampTz sqs_looked_at;
	char		sqs_redrive[128];	/* what became of the last one; empty: there was none */
	int64		sqs_retrying;	/* lanes that wait for their next try */

	/* until then workers receive one message at a time from SQS; under the lease lock */
	TimestampTz sqs_careful_until;
} QueueSlot;

/* Does this database have a pin (installation.c), and is it its own? */
typedef enum InstallationPin
{
	PIN_NONE,
	PIN_OWN,
	PIN_FOREIGN
} InstallationPin;

/* Its uuid, as text: all uids of its tasks begin with that. */
typedef struct InstallationId
{
	char		text[37];
} InstallationId;

typedef enum RelayState
{
	RELAY_NONE,					/* free slot */
	RELAY_STARTING,				/* registered, not there yet */
	RELAY_RUNNING,
	RELAY_STOPPED				/* ended; the launcher starts it again */
} RelayState;

/* One database that has, or may have, the extension. */
typedef struct DatabaseSlot
{
	slock_t		mutex;			/* guards all but the queues */
	Oid			dboid;
	RelayState	state;
	int			relay_pid;
	Latch	   *relay_latch;	/* NULL: no relay */
	TimestampTz since;			/* of the state */
	TimestampTz restart_at;		/* RELAY_STOPPED: not before this */
	TimestampTz hold_until;		/* no start before this: a command needs the database alone */
	int			failures;		/* errors in a row */
	int64		restarts;
	bool		probe_again;	/* the extension may have been created again */
	bool		wants_wake;		/* the relay wants to know of each commit */
	uint64		questions;		/* how many were asked so far */
	bool		check_extension;	/* it may have been dropped */
	bool		start_anew;		/* the table was truncated */
	bool		no_worker;		/* RELAY_STOPPED: for want of a worker slot */
	uint64		settings_changes;	/* of queues, counted at commit */
	uint64		settings_read;	/* how many of them the relay follows */
	bool		check_leases;	/* something ended that named no id */
	bool		check_rows;		/* rows were deleted that are not in flight */
	bool		check_blocked;	/* a dead letter began or ceased to block its group */
	bool		check_delayed;	/* a delayed row was cancelled */
	IdRing		committed;		/* enqueued and committed */
	IdRing		ended;			/* leases that ended */

	/* figures, written by the relay alone */
	int64		messages;
	int64		message_groups;
	int64		memory_bytes;
	int64		orphans;		/* rows of queues that do not exist */
	InstallationPin pin;
	InstallationId installation;

	/* under the lock of sqs_in_flight.c, where the relay looks then */
	TimestampTz next_renewal;

	/* under the lease lock */
	Oid			outbox;			/* the table whose ids are on offer */
	TimestampTz next_expiry;	/* no lease of ours ends earlier */
	QueueSlot  *queues;			/* taskoutbox_max_queues of them */
} DatabaseSlot;

typedef enum AskState
{
	ASK_NOTHING,
	ASK_OPEN,
	ASK_ANSWERED
} AskState;

/* One backend: what it is about to commit, and what it waits for. */
typedef struct BackendSlot
{
	slock_t		mutex;

	/* announced ids (announce.c); InvalidOid: nothing */
	Oid			announced_dboid;
	int			nruns;
	int64		sweep;
	IdRun	   *runs;			/* taskoutbox_announce_size of them */

	/* a question to the relay (ask.c) */
	Oid			ask_dboid;
	uint64		ask_queue;		/* 0: any figures, just look */
	bool		ask_wait;
	AskState	ask_state;
	Latch	   *ask_latch;
} BackendSlot;

#define PROBES_MAX 32

typedef struct Shared
{
	LWLock	   *lease_lock;		/* guards the leases and all offers */
	int			nleases;

	slock_t		mutex;			/* guards what follows */
	int			launcher_pid;
	Latch	   *launcher_latch; /* NULL: no launcher */
	int			nprobes;		/* databases to look at; > PROBES_MAX: all */
	Oid			probes[PROBES_MAX];

	int			nbackends;
	BackendSlot *backends;
	DatabaseSlot *databases;	/* taskoutbox_max_databases of them */
} Shared;

/* NULL when the library is not in shared_preload_libraries. */
extern Shared *shared;
extern HTAB *lease_hash;

extern void shared_init(void);

/*
 * An array in shared memory with a zeroed element for each worker process that there
 * can be, and a lock for it. From _PG_init; both are there when the server has started.
 */
extern void shared_array(const char *name, Size element, void **array, LWLock **lock);

/* Error 55000, naming the function, when there is no shared memory. */
extern void require_preload(const char *function);

/*
 * The slot of a database, or NULL. Slots do not move, but one can change hands:
 * ring_push and the like check the database again under the mutex.
 */
extern DatabaseSlot *database_slot(Oid dboid);

/* The slot of a queue in a database, or NULL while the relay does not know it. */
extern QueueSlot *queue_slot(DatabaseSlot *db, uint64 key);

/*
 * For the relay: a slot for a queue, with its figures when it had one before;
 * and giving up the slots of queues that are not among the keys.
 */
extern QueueSlot *queue_slot_assign(DatabaseSlot *db, uint64 key);
extern void queue_slots_keep(DatabaseSlot *db, const uint64 *keys, int nkeys);

/* Bytes that a message of the queue may have, by its destination; 0: it has not said. */
extern int64 queue_slot_message_limit(Oid dboid, uint64 key);

/* Ask for something, and wake the relay; no errors. And take note of it, in the relay. */
extern void queue_slot_request(Oid dboid, uint64 key, QueueRequest request);
extern bool queue_slot_requested(QueueSlot *slot, QueueRequest request);

/* Count a duplicate. */
extern void queue_slot_count_duplicate(Oid dboid, uint64 key);

/* This backend's own slot. */
extern BackendSlot *my_backend_slot(void);

/*
 * Put runs of ids into a ring of the database, and wake its relay if it wants
 * that or the ring is half full. sweep: as in IdRing. No errors: safe in commit
 * callbacks.
 */
typedef enum WhichRing
{
	RING_COMMITTED,
	RING_ENDED
} WhichRing;

extern void ring_push(Oid dboid, WhichRing which, const IdRun *runs, int nruns, int64 sweep);

/*
 * Empty a ring into runs (room for taskoutbox_ring_size), return their number,
 * and the sweep that was asked for.
 */
extern int	ring_pop(DatabaseSlot *db, IdRing *ring, IdRun *runs, int64 *sweep);

/* Set the latch of the database's relay, or of the launcher, if there is one. */
extern void wake_relay(DatabaseSlot *db);
extern void wake_launcher(void);

#endif							/* TASKOUTBOX_SHARED_H */
