/*
 * shared.c
 *	  Lays out the shared memory, and moves ids through its rings.
 *
 * Everything is allocated once, when the server starts, in the sizes that the
 * settings give. A ring that is full forgets ids and remembers that it did:
 * the relay then looks at the table itself. So no backend ever waits for the
 * relay, and nothing here can fail in a commit callback.
 */
#include "taskoutbox.h"
#include "shared.h"

#include "in_hand.h"
#include "lease.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#define TRANCHE_NAME "taskoutbox"

Shared	   *shared = NULL;
HTAB	   *lease_hash = NULL;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

typedef struct SharedArray
{
	const char *name;			/* of the lock's tranche, too */
	Size		element;
	void	  **array;
	LWLock	  **lock;
} SharedArray;

static SharedArray arrays[2];
static int	narrays = 0;

/* Server processes with a PGPROC of their own that can run transactions. */
static int
backend_count(void)
{
	return MaxBackends;
}

static Size
shared_size(void)
{
	Size		size = MAXALIGN(sizeof(Shared));
	Size		ring = mul_size(taskoutbox_ring_size, sizeof(IdRun));

	size = add_size(size, mul_size(backend_count(), MAXALIGN(sizeof(BackendSlot))));
	size = add_size(size, mul_size(backend_count(),
								   MAXALIGN(taskoutbox_announce_size * sizeof(IdRun))));
	size = add_size(size, mul_size(taskoutbox_max_databases, MAXALIGN(sizeof(DatabaseSlot))));
	size = add_size(size, mul_size(taskoutbox_max_databases, 2 * MAXALIGN(ring)));
	size = add_size(size, mul_size(mul_size(taskoutbox_max_databases, taskoutbox_max_queues),
								   MAXALIGN(sizeof(QueueSlot))));
	return size;
}

void
shared_array(const char *name, Size element, void **array, LWLock **lock)
{
	Assert(narrays < lengthof(arrays));
	arrays[narrays++] = (SharedArray) {name, element, array, lock};
}

static void
shared_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();

	RequestAddinShmemSpace(shared_size());
	RequestAddinShmemSpace(hash_estimate_size(taskoutbox_max_in_flight, sizeof(Lease)));
	RequestNamedLWLockTranche(TRANCHE_NAME, 1);
	for (int i = 0; i < narrays; i++)
	{
		RequestAddinShmemSpace(mul_size(max_worker_processes, arrays[i].element));
		RequestNamedLWLockTranche(arrays[i].name, 1);
	}
}

static void *
carve(char **at, Size size)
{
	void	   *result = *at;

	*at += MAXALIGN(size);
	return result;
}

static void
shared_startup(void)
{
	bool		found;
	HASHCTL		info = {0};

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);

	shared = ShmemInitStruct("taskoutbox", shared_size(), &found);
	if (!found)
	{
		char	   *at = (char *) shared;
		Size		ring = taskoutbox_ring_size * sizeof(IdRun);

		memset(shared, 0, shared_size());
		carve(&at, sizeof(Shared));
		shared->lease_lock = &(GetNamedLWLockTranche(TRANCHE_NAME))->lock;
		SpinLockInit(&shared->mutex);

		shared->nbackends = backend_count();
		shared->backends = carve(&at, shared->nbackends * sizeof(BackendSlot));
		for (int i = 0; i < shared->nbackends; i++)
		{
			SpinLockInit(&shared->backends[i].mutex);
			shared->backends[i].sweep = NO_SWEEP;
			shared->backends[i].runs = carve(&at, taskoutbox_announce_size * sizeof(IdRun));
		}

		shared->databases = carve(&at, taskoutbox_max_databases * sizeof(DatabaseSlot));
		for (int i = 0; i < taskoutbox_max_databases; i++)
		{
			DatabaseSlot *db = &shared->databases[i];

			SpinLockInit(&db->mutex);
			db->committed.sweep = NO_SWEEP;
			db->committed.runs = carve(&at, ring);
			db->ended.sweep = NO_SWEEP;
			db->ended.runs = carve(&at, ring);
			db->next_expiry = DT_NOEND;
			db->queues = carve(&at, taskoutbox_max_queues * sizeof(QueueSlot));
		}
		in_hand_startup(max_worker_processes);
	}

	for (int i = 0; i < narrays; i++)
	{
		Size		size = mul_size(max_worker_processes, arrays[i].element);

		*arrays[i].lock = &(GetNamedLWLockTranche(arrays[i].name))->lock;
		*arrays[i].array = ShmemInitStruct(arrays[i].name, size, &found);
		if (!found)
			memset(*arrays[i].array, 0, size);
	}

	info.hash = lease_key_hash;
	info.keysize = sizeof(LeaseKey);
	info.entrysize = sizeof(Lease);
	lease_hash = ShmemInitHash("taskoutbox leases",
							   taskoutbox_max_in_flight, taskoutbox_max_in_flight,
							   &info, HASH_ELEM | HASH_FUNCTION);

	LWLockRelease(AddinShmemInitLock);
}

/* Called from _PG_init, when the library is being preloaded. */
void
shared_init(void)
{
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = shared_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = shared_startup;
}

void
require_preload(const char *function)
{
	if (shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s.%s needs taskoutbox to be preloaded", TASKOUTBOX_SCHEMA, function),
				 errhint("Put shared_preload_libraries = 'taskoutbox' into postgresql.conf, and restart the server.")));
}

DatabaseSlot *
database_slot(Oid dboid)
{
	static int	last = 0;		/* nearly always asked for our own database */

	if (shared == NULL || !OidIsValid(dboid))
		return NULL;
	if (shared->databases[last].dboid == dboid)
		return &shared->databases[last];
	for (int i = 0; i < taskoutbox_max_databases; i++)
	{
		if (shared->databases[i].dboid == dboid)
		{
			last = i;
			return &shared->databases[i];
		}
	}
	return NULL;
}

QueueSlot *
queue_slot(DatabaseSlot *db, uint64 key)
{
	for (int i = 0; i < taskoutbox_max_queues; i++)
	{
		if (db->queues[i].key == key)
			return &db->queues[i];
	}
	return NULL;
}

QueueSlot *
queue_slot_assign(DatabaseSlot *db, uint64 key)
{
	QueueSlot  *slot = queue_slot(db, key);

	if (slot == NULL)
	{
		slot = queue_slot(db, 0);
		LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
		memset(slot, 0, sizeof(QueueSlot));
		slot->key = key;
		LWLockRelease(shared->lease_lock);
	}
	return slot;
}

void
queue_slots_keep(DatabaseSlot *db, const uint64 *keys, int nkeys)
{
	for (int i = 0; i < taskoutbox_max_queues; i++)
	{
		bool		found = false;

		for (int j = 0; j < nkeys; j++)
			found |= db->queues[i].key == keys[j];
		if (!found)
			db->queues[i].key = 0;
	}
}

int64
queue_slot_message_limit(Oid dboid, uint64 key)
{
	DatabaseSlot *db = database_slot(dboid);
	QueueSlot  *slot = db ? queue_slot(db, key) : NULL;

	return slot ? slot->max_message_bytes : 0;
}

void
queue_slot_request(Oid dboid, uint64 key, QueueRequest request)
{
	DatabaseSlot *db = database_slot(dboid);
	QueueSlot  *slot = db ? queue_slot(db, key) : NULL;

	if (slot == NULL)
		return;
	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	slot->requested[request] = true;
	LWLockRelease(shared->lease_lock);
	wake_relay(db);
}

bool
queue_slot_requested(QueueSlot *slot, QueueRequest request)
{
	bool		was_set = slot->requested[request];

	if (was_set)
	{
		LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
		slot->requested[request] = false;
		LWLockRelease(shared->lease_lock);
	}
	return was_set;
}

void
queue_slot_count_duplicate(Oid dboid, uint64 key)
{
	DatabaseSlot *db = database_slot(dboid);
	QueueSlot  *slot = db ? queue_slot(db, key) : NULL;

	if (slot == NULL)
		return;
	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	slot->duplicates++;
	LWLockRelease(shared->lease_lock);
}

BackendSlot *
my_backend_slot(void)
{
	Assert(MY_PROC_NUMBER < shared->nbackends);
	return &shared->backends[MY_PROC_NUMBER];
}

void
ring_push(Oid dboid, WhichRing which, const IdRun *runs, int nruns, int64 sweep)
{
	DatabaseSlot *db = database_slot(dboid);
	IdRing	   *ring;
	Latch	   *latch = NULL;

	if (db == NULL)
		return;					/* the relay will read all of the table when it starts */

	ring = which == RING_COMMITTED ? &db->committed : &db->ended;

	SpinLockAcquire(&db->mutex);
	if (db->dboid == dboid)
	{
		for (int i = 0; i < nruns; i++)
		{
			if (ring->pushed - ring->popped < (uint64) taskoutbox_ring_size)
				ring->runs[ring->pushed++ % taskoutbox_ring_size] = runs[i];
			else
				sweep = Min(sweep, runs[i].first);
		}
		ring->sweep = Min(ring->sweep, sweep);

		if (db->wants_wake ||
			(ring->pushed - ring->popped) * 2 >= (uint64) taskoutbox_ring_size)
			latch = db->relay_latch;
	}
	SpinLockRelease(&db->mutex);

	if (latch)
		SetLatch(latch);
}

int
ring_pop(DatabaseSlot *db, IdRing *ring, IdRun *runs, int64 *sweep)
{
	int			n = 0;

	SpinLockAcquire(&db->mutex);
	while (ring->popped < ring->pushed)
		runs[n++] = ring->runs[ring->popped++ % taskoutbox_ring_size];
	*sweep = ring->sweep;
	ring->sweep = NO_SWEEP;
	SpinLockRelease(&db->mutex);

	return n;
}

void
wake_relay(DatabaseSlot *db)
{
	Latch	   *latch;

	SpinLockAcquire(&db->mutex);
	latch = db->relay_latch;
	SpinLockRelease(&db->mutex);

	if (latch)
		SetLatch(latch);
}

void
wake_launcher(void)
{
	Latch	   *latch;

	SpinLockAcquire(&shared->mutex);
	latch = shared->launcher_latch;
	SpinLockRelease(&shared->mutex);

	if (latch)
		SetLatch(latch);
}
