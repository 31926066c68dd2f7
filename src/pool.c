/*
 * pool.c
 *	  Consumer workers: which are wanted, and which run.
 *
 * The relay knows which functions are registered and whose they are, the launcher
 * can start workers, and both only have to agree on a slot in shared memory: the
 * relay makes it wanted, the launcher sees that a process has it, started again
 * at once, after errors with a growing delay. There are as many slots as the
 * server can have workers. Workers run only beside a running relay: whoever makes
 * a relay leave its database makes them leave, too, and they stay away as long.
 *
 * Offers know queues, not roles. A worker that took a message of another role's
 * task type puts it into a slot of that role's pool, where any worker of the pool
 * finds it; it stays leased all the time.
 */
#include "taskoutbox.h"
#include "pool.h"

#include <signal.h>

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/timestamp.h"

#include "in_hand.h"
#include "launcher.h"
#include "outbox.h"
#include "shared.h"

static LWLock *lock = NULL;
static WorkerSlot *slots = NULL;

/* Of this process, when it is a worker. */
static WorkerSlot *claimed = NULL;
static bool claimed_failed = false;

void
pool_init(void)
{
	shared_array("taskoutbox workers", sizeof(WorkerSlot), (void **) &slots, &lock);
}

static bool
is_of_pool(const WorkerSlot *slot, Oid dboid, Oid role, uint64 queue)
{
	return slot->state != WORKER_FREE && slot->dboid == dboid && slot->role == role &&
		slot->queue == queue;
}

/*
 * The relay
 */

static WorkerSlot *
free_slot(void)
{
	for (int i = 0; i < max_worker_processes; i++)
	{
		/* What a crash left is counted first. */
		if (slots[i].state == WORKER_FREE && slots[i].pid == 0 && !in_hand_is_left(i))
			return &slots[i];
	}
	return NULL;
}

/* Nobody will come for what waits in the slot. */
static void
empty_slot(WorkerSlot *slot)
{
	slot->state = WORKER_FREE;
	slot->leave = false;
}

void
pool_want(const Pool *pools, int npools)
{
	static bool no_slot_reported = false;
	bool		no_slot = false;
	bool		has_new = false;
	TimestampTz now = GetCurrentTimestamp();
	int		   *missing = palloc(npools * sizeof(int));

	for (int i = 0; i < npools; i++)
		missing[i] = pools[i].nworkers;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < max_worker_processes; i++)
	{
		WorkerSlot *slot = &slots[i];
		bool		is_wanted = false;

		if (slot->state == WORKER_FREE || slot->dboid != MyDatabaseId)
			continue;
		for (int j = 0; j < npools && !is_wanted; j++)
		{
			is_wanted = missing[j] > 0 && slot->role == pools[j].role &&
				strcmp(slot->queue_name, pools[j].queue) == 0;
			missing[j] -= is_wanted;
		}
		slot->leave = !is_wanted;
		if (slot->leave && slot->state == WORKER_STOPPED)
			empty_slot(slot);
		/* Stay or leave, there is news: perhaps other settings of its queue. */
		else if (slot->latch)
			SetLatch(slot->latch);
	}
	for (int i = 0; i < npools; i++)
	{
		for (; missing[i] > 0; missing[i]--)
		{
			WorkerSlot *slot = free_slot();

			if (slot == NULL)
			{
				no_slot = true;
				break;
			}
			memset(slot, 0, sizeof(WorkerSlot));
			slot->state = WORKER_STOPPED;
			slot->dboid = MyDatabaseId;
			slot->role = pools[i].role;
			slot->queue = queue_key(pools[i].queue, strlen(pools[i].queue));
			strlcpy(slot->queue_name, pools[i].queue, QUEUE_NAME_BYTES);
			slot->since = slot->restart_at = now;
			has_new = true;
		}
	}
	LWLockRelease(lock);

	if (no_slot && !no_slot_reported)
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("taskoutbox relay: no free slot for all consumer workers of this database"),
				 errhint("Raise max_worker_processes (it takes effect at a server restart), or let queues have fewer consumers.")));
	no_slot_reported = no_slot;
	pfree(missing);
	if (has_new)
		wake_launcher();
}

/*
 * The launcher
 */

/* A worker runs only beside a running relay. */
static bool
is_startable(const WorkerSlot *slot)
{
	DatabaseSlot *db = database_slot(slot->dboid);

	return slot->state == WORKER_STOPPED && db && db->state == RELAY_RUNNING &&
		db->hold_until <= GetCurrentTimestamp();
}

void
pool_start_workers(void)
{
	static bool no_worker_reported = false;
	TimestampTz now = GetCurrentTimestamp();

	for (int i = 0; i < max_worker_processes; i++)
	{
		WorkerSlot *slot = &slots[i];
		Oid			dboid;
		bool		is_due;

		LWLockAcquire(lock, LW_EXCLUSIVE);
		/* One that ended before it claimed the slot leaves no trace. */
		if (slot->state == WORKER_STARTING && slot->pid == 0 && now - slot->since > START_TIMEOUT)
			slot->state = WORKER_STOPPED;
		is_due = is_startable(slot) && slot->restart_at <= now;
		if (is_due)
		{
			slot->state = WORKER_STARTING;
			slot->no_worker = false;
			slot->since = now;
		}
		dboid = slot->dboid;
		LWLockRelease(lock);

		if (is_due &&
			!launcher_start("consumer", "taskoutbox_worker_main", i, dboid, &no_worker_reported))
		{
			LWLockAcquire(lock, LW_EXCLUSIVE);
			slot->state = WORKER_STOPPED;
			slot->no_worker = true;
			slot->restart_at = now + NO_WORKER_RETRY;
			LWLockRelease(lock);
		}
	}
}

TimestampTz
pool_next_start(void)
{
	TimestampTz next = DT_NOEND;

	LWLockAcquire(lock, LW_SHARED);
	for (int i = 0; i < max_worker_processes; i++)
	{
		if (slots[i].state == WORKER_STARTING)
			next = Min(next, slots[i].since + START_TIMEOUT);
		else if (is_startable(&slots[i]))
			next = Min(next, slots[i].restart_at);
	}
	LWLockRelease(lock);

	return next;
}

void
pool_stop(Oid dboid)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < max_worker_processes; i++)
	{
		WorkerSlot *slot = &slots[i];

		if (slot->state == WORKER_FREE || slot->dboid != dboid)
			continue;
		slot->leave = true;
		if (slot->pid != 0)
			kill(slot->pid, SIGTERM);
		else
			empty_slot(slot);
	}
	LWLockRelease(lock);

	/* The database may be dropped: nobody else would. */
	in_hand_forget(dboid);
}

/*
 * The slot, as its worker sees it
 */

/* In before_shmem_exit, so that the latch is never one of a process that ended. */
static void
pool_leave(int code, Datum arg)
{
	WorkerSlot *slot = claimed;
	TimestampTz now = GetCurrentTimestamp();
	Receipt		handed[HANDED_MAX];
	int			nhanded = 0;
	int64		ran_for;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	ran_for = slot->state == WORKER_RUNNING ? now - slot->since : 0;
	slot->pid = 0;
	slot->latch = NULL;
	slot->task = 0;
	slot->problem[0] = '\0';
	slot->restart_at = now;
	/* One that could not even connect failed, too. */
	if (claimed_failed || slot->state == WORKER_STARTING)
		slot->restart_at += launcher_count_failure(&slot->failures, ran_for);
	slot->since = now;
	slot->state = WORKER_STOPPED;
	nhanded = slot->nhanded;
	memcpy(handed, slot->handed, sizeof(handed));
	slot->nhanded = 0;
	if (slot->leave)
		empty_slot(slot);
	LWLockRelease(lock);

	if (nhanded > 0)
		lease_give_back(slot->outbox, handed, nhanded);
	wake_launcher();
}

WorkerSlot *
pool_claim(int index)
{
	WorkerSlot *slot = &slots[index];
	bool		is_mine = false;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (slot->state == WORKER_STARTING && slot->pid == 0)
	{
		/* Not wanted any more: then nobody waits for it either. */
		if (slot->leave)
			empty_slot(slot);
		else
		{
			slot->pid = MyProcPid;
			is_mine = true;
		}
	}
	LWLockRelease(lock);

	if (!is_mine)
		return NULL;
	claimed = slot;
	before_shmem_exit(pool_leave, (Datum) 0);
	return slot;
}

int
pool_index(const WorkerSlot *slot)
{
	return slot - slots;
}

int
pool_my_index(void)
{
	return pool_index(claimed);
}

void
pool_ready(Oid outbox)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	claimed->state = WORKER_RUNNING;
	claimed->outbox = outbox;
	claimed->since = GetCurrentTimestamp();
	claimed->latch = MyLatch;
	LWLockRelease(lock);
}

void
pool_failed(void)
{
	claimed_failed = true;
}

bool
pool_must_leave(void)
{
	return claimed->leave;
}

/* Without the lock: whoever hands over sets our latch afterwards. */
bool
pool_is_handed(void)
{
	for (int i = 0; i < max_worker_processes; i++)
	{
		if (slots[i].nhanded > 0 && is_of_pool(&slots[i], claimed->dboid, claimed->role, claimed->queue))
			return true;
	}
	return false;
}

void
pool_set_task(int64 id)
{
	claimed->task = id;
}

void
pool_set_problem(const char *problem)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	strlcpy(claimed->problem, problem, sizeof(claimed->problem));
	LWLockRelease(lock);
}

int
pool_hand_over(Oid role, const Receipt *receipts, int n)
{
	WorkerSlot *best = NULL;
	int			room = 0;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < max_worker_processes; i++)
	{
		if (slots[i].latch && is_of_pool(&slots[i], claimed->dboid, role, claimed->queue) &&
			!slots[i].leave && HANDED_MAX - slots[i].nhanded > room)
		{
			best = &slots[i];
			room = HANDED_MAX - best->nhanded;
		}
	}
	n = Min(n, room);
	if (n > 0)
	{
		memcpy(&best->handed[best->nhanded], receipts, n * sizeof(Receipt));
		best->nhanded += n;
	}
	/* All of them: the one that is free comes. */
	for (int i = 0; n > 0 && i < max_worker_processes; i++)
	{
		if (slots[i].latch && is_of_pool(&slots[i], claimed->dboid, role, claimed->queue))
			SetLatch(slots[i].latch);
	}
	LWLockRelease(lock);

	return n;
}

int
pool_take_handed(Receipt *receipts)
{
	int			n = 0;

	if (!pool_is_handed())
		return 0;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < max_worker_processes && n == 0; i++)
	{
		WorkerSlot *slot = &slots[i];

		if (slot->nhanded == 0 || !is_of_pool(slot, claimed->dboid, claimed->role, claimed->queue))
			continue;
		/* All: a message group must not be in two hands. */
		n = slot->nhanded;
		memcpy(receipts, slot->handed, n * sizeof(Receipt));
		slot->nhanded = 0;
	}
	LWLockRelease(lock);

	return n;
}

int
pool_snapshot(WorkerSlot **copies)
{
	int			n = 0;

	*copies = palloc(max_worker_processes * sizeof(WorkerSlot));
	LWLockAcquire(lock, LW_SHARED);
	for (int i = 0; i < max_worker_processes; i++)
	{
		if (slots[i].state != WORKER_FREE && slots[i].dboid == MyDatabaseId)
			(*copies)[n++] = slots[i];
	}
	LWLockRelease(lock);

	return n;
}
