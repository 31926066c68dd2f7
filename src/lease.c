/*
 * lease.c
 *	  Leases stand in one shared hash, so that neither a restart of the relay
 *	  nor its being busy touches what consumers hold.
 *
 * A lease is born when a consumer takes an offer (one lock for both, so a
 * message is offered, leased, or neither: never both) and ends in one of three
 * ways: its deletion commits, its time is up, or it is given back. A delete
 * marks the lease, under the lock and in time, before it touches the row; the
 * relay takes a lease whose time is up for ended, under the lock, if it has no
 * mark. So a message is never given out again while a delete that will succeed
 * is under way, and no delete succeeds after it. Whatever ends a lease tells the
 * relay by the ring of ended ids.
 */
#include "taskoutbox.h"
#include "lease.h"
#include "shared.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* What this transaction does to leases, to be finished when it ends. */
typedef enum PendingKind
{
	PENDING_DELETE,				/* marked; ended at commit */
	PENDING_LOOK,				/* tell the relay to look at the message */
	PENDING_FORGET,				/* tell it to look at all that wait */
	PENDING_END_ALL,			/* at commit, end all of the table */
	PENDING_RECOUNT				/* at commit, count the delayed ones anew */
} PendingKind;

typedef struct PendingLease
{
	LeaseKey	key;
	PendingKind kind;
	SubTransactionId subxid;
} PendingLease;

/* Random bytes for the next receipt handles; it is cheaper to get many at once. */
static uint64 secrets[TAKE_MAX][LEASE_SECRET_WORDS];
static int	nsecrets = 0;

static PendingLease *pending = NULL;
static int	npending = 0;
static int	pending_size = 0;

uint32
lease_key_hash(const void *key, Size keysize)
{
	const LeaseKey *lease_key = key;

	/* Neighbours are taken together, and stand side by side: what mixes the bits misses the CPU's caches. */
	return (uint32) lease_key->id + murmurhash32(lease_key->dboid + lease_key->outbox);
}

static Lease *
lease_find(LeaseKey key)
{
	return hash_search(lease_hash, &key, HASH_FIND, NULL);
}

static void
lease_remove(LeaseKey key)
{
	bool		found;

	hash_search(lease_hash, &key, HASH_REMOVE, &found);
	if (found)
		shared->nleases--;
}

/* All leases of a table; InvalidOid: of tables and databases that are no more. */
static void
remove_leases(Oid dboid, Oid outbox)
{
	HASH_SEQ_STATUS seq;
	Lease	   *lease;

	hash_seq_init(&seq, lease_hash);
	while ((lease = hash_seq_search(&seq)) != NULL)
	{
		DatabaseSlot *db;
		bool		is_orphan;

		if (OidIsValid(outbox))
		{
			if (lease->key.dboid == dboid && lease->key.outbox == outbox)
				lease_remove(lease->key);
			continue;
		}
		db = database_slot(lease->key.dboid);
		is_orphan = db == NULL || (OidIsValid(db->outbox) && db->outbox != lease->key.outbox);
		if (is_orphan)
			lease_remove(lease->key);
	}
}

static LeaseKey
own_key(Oid outbox, int64 id)
{
	LeaseKey	key = {.dboid = MyDatabaseId,.outbox = outbox,.id = id};

	return key;
}

static LeaseKey
relay_key(DatabaseSlot *db, int64 id)
{
	LeaseKey	key = {.dboid = db->dboid,.outbox = db->outbox,.id = id};

	return key;
}

/*
 * Receipt handles
 */

/* Of base64url: they need no quotes, neither in an array nor in JSON or a URL. */
static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* One more than what it stands for; 0: no digit. */
static const uint8 digit_values[256] = {
	['A'] = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
	['a'] = 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52,
	['0'] = 53, 54, 55, 56, 57, 58, 59, 60, 61, 62,
	['-'] = 63,
	['_'] = 64
};

/* Each word of the secret is a number of base 64, whose first digit has 4 bits. */
#define WORD_DIGITS 11
#define SECRET_DIGITS (LEASE_SECRET_WORDS * WORD_DIGITS)

text *
receipt_to_text(const Receipt *receipt)
{
	text	   *handle = palloc(VARHDRSZ + MAXINT8LEN + 1 + SECRET_DIGITS);
	char	   *at = VARDATA(handle);

	at += pg_lltoa(receipt->id, at);
	*at++ = '-';
	for (int i = 0; i < LEASE_SECRET_WORDS; i++)
	{
		for (int shift = 6 * (WORD_DIGITS - 1); shift >= 0; shift -= 6)
			*at++ = digits[receipt->secret[i] >> shift & 63];
	}
	SET_VARSIZE(handle, at - (char *) handle);
	return handle;
}

Receipt
receipt_from_text(const text *handle)
{
	const unsigned char *at = (const unsigned char *) VARDATA_ANY(handle);
	int			len = VARSIZE_ANY_EXHDR(handle);
	Receipt		receipt = {0};
	int			i = 0;
	uint64		id = 0;
	bool		good;

	/* 19 digits fit into 64 bits, if not into a bigint. */
	while (i < len && i < 19 && at[i] >= '0' && at[i] <= '9')
		id = id * 10 + (at[i++] - '0');
	receipt.id = (int64) id;
	good = i > 0 && id <= PG_INT64_MAX && len - i == 1 + SECRET_DIGITS && at[i] == '-';
	i++;
	for (int word = 0; good && word < LEASE_SECRET_WORDS; word++)
	{
		uint64		bits = 0;
		int			all = digit_values[at[i]] - 1;

		good = all < 16;
		for (int j = 0; j < WORD_DIGITS; j++)
		{
			int			value = digit_values[at[i++]] - 1;

			all |= value;
			bits = bits << 6 | value;
		}
		good &= all >= 0;
		receipt.secret[word] = bits;
	}
	if (!good)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_BAD_HANDLE),
				 errmsg("malformed receipt handle"),
				 errhint("Pass the receipt_handle of a message exactly as %s.receive returned it.",
						 TASKOUTBOX_SCHEMA)));
	return receipt;
}

/*
 * Consumers
 */

/*
 * All leases are in use: let every relay look whether the rows are still there.
 * What their owner deleted can hold leases for long.
 */
static void
check_all_leases(void)
{
	for (int i = 0; i < taskoutbox_max_databases; i++)
	{
		DatabaseSlot *db = &shared->databases[i];

		SpinLockAcquire(&db->mutex);
		db->check_leases = true;
		SpinLockRelease(&db->mutex);
		wake_relay(db);
	}
}

int
lease_take(DatabaseSlot *db, Oid outbox, QueueSlot *queue, int max, TimestampTz until,
		   Receipt *receipts, bool *full)
{
	uint64		key = queue->key;
	TimestampTz now = GetCurrentTimestamp();
	int			n = 0;
	bool		wake;

	if (nsecrets < max)
	{
		nsecrets = 0;
		if (!pg_strong_random(secrets, sizeof(secrets)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random receipt handles")));
		nsecrets = TAKE_MAX;
	}

	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);

	/*
	 * The relay offers as much of a lane as the largest receive can take. What a
	 * relay of another installation offered is not for us, nor what was offered
	 * before a queue was paused.
	 */
	if (queue->wanted < Min(max, LANE_OFFER_MAX) || db->outbox != outbox || queue->is_closed ||
		db->settings_changes != db->settings_read)
	{
		queue->wanted = Max(queue->wanted, Min(max, LANE_OFFER_MAX));
		LWLockRelease(shared->lease_lock);
		return 0;
	}

	while (n < max && queue->taken < queue->offered)
	{
		const Offer *offer = &queue->offers[queue->taken % OFFERS_PER_QUEUE];
		LeaseKey	lkey = own_key(outbox, offer->id);
		Lease	   *lease;

		/* Nobody else looks after leases of what was dropped. */
		if (shared->nleases >= taskoutbox_max_in_flight)
			remove_leases(InvalidOid, InvalidOid);
		if (shared->nleases >= taskoutbox_max_in_flight)
		{
			*full = true;
			break;
		}
		queue->taken++;

		lease = hash_search(lease_hash, &lkey, HASH_ENTER, NULL);
		shared->nleases++;
		receipts[n].id = offer->id;
		receipts[n].place = lease->place = offer->place;
		/* What was redriven can have a larger id than the next one of its group. */
		receipts[n].rank = n > 0 && offer->is_next ? Max(offer->id, receipts[n - 1].rank + 1) : offer->id;
		memcpy(receipts[n].secret, secrets[--nsecrets], sizeof(lease->secret));
		memcpy(lease->secret, receipts[n].secret, sizeof(lease->secret));
		lease->since = now;
		lease->until = until;
		lease->holder = MyProcPid;
		lease->deleter = 0;
		lease->is_relays = lease->has_failed = false;
		lease->queue = key;
		n++;
	}

	/* A lane is offered as a whole: what we leave of it, nobody else gets. */
	while (n > 0 && queue->taken < queue->offered &&
		   queue->offers[queue->taken % OFFERS_PER_QUEUE].is_next)
		queue->taken++;

	wake = queue->more && queue->offered - queue->taken < OFFERS_PER_QUEUE / 2;
	if (n > 0 && until < db->next_expiry)
	{
		db->next_expiry = until;
		wake = true;
	}

	LWLockRelease(shared->lease_lock);

	if (*full)
		check_all_leases();
	if (wake)
		wake_relay(db);
	return n;
}

void
lease_adopt(Oid outbox, const Receipt *receipts, int n)
{
	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		Lease	   *lease = lease_find(own_key(outbox, receipts[i].id));

		if (lease)
			lease->holder = MyProcPid;
	}
	LWLockRelease(shared->lease_lock);
}

void
lease_give_back(Oid outbox, const Receipt *receipts, int n)
{
	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
		lease_remove(own_key(outbox, receipts[i].id));
	LWLockRelease(shared->lease_lock);

	for (int i = 0; i < n; i++)
	{
		IdRun		run = {receipts[i].id, receipts[i].id};

		ring_push(MyDatabaseId, RING_ENDED, &run, 1, NO_SWEEP);
	}
}

/* Find the lease that a receipt names, under the lock. */
static LeaseResult
lease_of_receipt(Oid outbox, const Receipt *receipt, TimestampTz now, Lease **lease)
{
	*lease = lease_find(own_key(outbox, receipt->id));
	if (*lease == NULL || (*lease)->is_relays ||
		memcmp((*lease)->secret, receipt->secret, sizeof(receipt->secret)) != 0 ||
		(*lease)->until <= now)
		return LEASE_STALE;
	if ((*lease)->deleter != 0)
		return (*lease)->deleter == MyProcPid ? LEASE_STALE : LEASE_BEING_DELETED;
	return LEASE_OK;
}

/* Make room first: what follows must not fail half-way. */
static void
pending_reserve(int n)
{
	if (npending + n <= pending_size)
		return;
	pending_size = Max(Max(64, n), pending_size * 2);
	if (pending == NULL)
		pending = MemoryContextAlloc(TopMemoryContext, pending_size * sizeof(PendingLease));
	else
		pending = repalloc_huge(pending, pending_size * sizeof(PendingLease));
}

static void
pending_add(Oid outbox, int64 id, PendingKind kind)
{
	pending[npending].key = own_key(outbox, id);
	pending[npending].kind = kind;
	pending[npending].subxid = GetCurrentSubTransactionId();
	npending++;
}

void
lease_mark_deleting(Oid outbox, Receipt *receipts, int n, LeaseResult *results)
{
	TimestampTz now;

	pending_reserve(n);

	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	now = GetCurrentTimestamp();
	for (int i = 0; i < n; i++)
	{
		Lease	   *lease;

		results[i] = lease_of_receipt(outbox, &receipts[i], now, &lease);
		if (results[i] != LEASE_OK)
			continue;
		lease->deleter = MyProcPid;
		receipts[i].place = lease->place;
		pending_add(outbox, receipts[i].id, PENDING_DELETE);
	}
	LWLockRelease(shared->lease_lock);
}

LeaseResult
lease_change(Oid outbox, const Receipt *receipt, TimestampTz until, bool has_failed)
{
	DatabaseSlot *db = database_slot(MyDatabaseId);
	Lease	   *lease;
	LeaseResult result;
	bool		wake = false;

	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	result = lease_of_receipt(outbox, receipt, GetCurrentTimestamp(), &lease);
	if (result == LEASE_OK)
	{
		lease->until = until;
		lease->has_failed = has_failed;
		if (db && until < db->next_expiry)
		{
			db->next_expiry = until;
			wake = true;
		}
	}
	LWLockRelease(shared->lease_lock);

	if (wake)
		wake_relay(db);
	return result;
}

bool
lease_retry(Oid outbox, const Lease *seen)
{
	DatabaseSlot *db = database_slot(MyDatabaseId);
	Lease	   *lease;
	bool		result;

	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	lease = lease_find(seen->key);
	result = lease && lease->has_failed && lease->deleter == 0 &&
		memcmp(lease->secret, seen->secret, sizeof(seen->secret)) == 0;
	if (result)
	{
		lease->until = GetCurrentTimestamp();
		if (db)
			db->next_expiry = Min(db->next_expiry, lease->until);
	}
	LWLockRelease(shared->lease_lock);

	return result;
}

LeaseResult
lease_touch(Oid outbox, const Receipt *receipt)
{
	Lease	   *lease;
	LeaseResult result;

	pending_reserve(1);

	LWLockAcquire(shared->lease_lock, LW_SHARED);
	result = lease_of_receipt(outbox, receipt, GetCurrentTimestamp(), &lease);
	LWLockRelease(shared->lease_lock);

	if (result == LEASE_OK)
		pending_add(outbox, receipt->id, PENDING_LOOK);
	return result;
}

void
lease_forget_at_end(Oid outbox, int64 id)
{
	if (shared == NULL)
		return;
	pending_reserve(1);
	pending_add(outbox, id, id == 0 ? PENDING_FORGET : PENDING_LOOK);
}

void
lease_recount_at_commit(Oid outbox)
{
	if (shared == NULL)
		return;
	pending_reserve(1);
	pending_add(outbox, 0, PENDING_RECOUNT);
}

void
lease_end_all_at_commit(Oid outbox)
{
	pending_reserve(1);
	pending_add(outbox, 0, PENDING_END_ALL);
}

bool
lease_close_queue(Oid outbox, uint64 queue)
{
	DatabaseSlot *db = database_slot(MyDatabaseId);
	QueueSlot  *slot = db ? queue_slot(db, queue) : NULL;
	HASH_SEQ_STATUS seq;
	Lease	   *lease;
	bool		exists = false;

	if (slot == NULL)
		return true;			/* no relay knows it, so nothing is given out */
	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	hash_seq_init(&seq, lease_hash);
	while ((lease = hash_seq_search(&seq)) != NULL)
		exists |= lease->key.dboid == MyDatabaseId && lease->key.outbox == outbox && lease->queue == queue;
	if (!exists)
		slot->is_closed = true;
	LWLockRelease(shared->lease_lock);

	return !exists;
}

void
lease_open_queue(uint64 queue)
{
	DatabaseSlot *db = database_slot(MyDatabaseId);
	QueueSlot  *slot = db ? queue_slot(db, queue) : NULL;

	if (slot == NULL)
		return;
	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	slot->is_closed = false;
	LWLockRelease(shared->lease_lock);
}

bool
lease_exists(Oid outbox, int64 id)
{
	bool		exists;

	LWLockAcquire(shared->lease_lock, LW_SHARED);
	exists = lease_find(own_key(outbox, id)) != NULL;
	LWLockRelease(shared->lease_lock);

	return exists;
}

/*
 * The end of a transaction, or of a subtransaction that is rolled back, for
 * what was added from a point on: nothing here may fail.
 */
static void
pending_finish(int from, bool committed)
{
	DatabaseSlot *db;
	TimestampTz now;

	if (npending <= from)
		return;

	db = database_slot(MyDatabaseId);
	now = GetCurrentTimestamp();
	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	for (int i = from; i < npending; i++)
	{
		Lease	   *lease;

		if (pending[i].kind == PENDING_END_ALL && committed)
			remove_leases(MyDatabaseId, pending[i].key.outbox);
		if (pending[i].kind != PENDING_DELETE)
			continue;
		lease = lease_find(pending[i].key);
		if (lease == NULL || lease->deleter != MyProcPid)
			continue;
		if (committed)
		{
			QueueSlot  *queue = db ? queue_slot(db, lease->queue) : NULL;

			if (queue)
			{
				queue->delivered++;
				rate_add(&queue->delivered_rate, 1, now);
			}
			lease_remove(pending[i].key);
		}
		else
			lease->deleter = 0;
	}
	LWLockRelease(shared->lease_lock);

	for (int i = from; i < npending; i++)
	{
		IdRun		run = {pending[i].key.id, pending[i].key.id};

		if (run.first == 0)
		{
			if (db)
			{
				SpinLockAcquire(&db->mutex);
				db->check_rows |= pending[i].kind == PENDING_FORGET;
				db->start_anew |= pending[i].kind == PENDING_END_ALL && committed;
				db->check_delayed |= pending[i].kind == PENDING_RECOUNT && committed;
				SpinLockRelease(&db->mutex);
				/* Figures can wait until somebody asks for them. */
				if (pending[i].kind != PENDING_RECOUNT)
					wake_relay(db);
			}
			continue;
		}
		/* Neighbours, as a batch of one group is, make one entry. */
		while (i + 1 < npending && pending[i + 1].key.id == run.last + 1)
			run.last = pending[++i].key.id;
		ring_push(MyDatabaseId, RING_ENDED, &run, 1, NO_SWEEP);
	}
	npending = from;
}

static void
lease_xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			pending_finish(0, true);
			break;

			/*
			 * A prepared delete keeps its row locked: when the lease ends the
			 * relay sees that, and COMMIT PREPARED makes it look again.
			 */
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			pending_finish(0, false);
			break;
		default:
			break;
	}
}

static void
lease_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
					   SubTransactionId parentSubid, void *arg)
{
	int			from = npending;

	if (event != SUBXACT_EVENT_ABORT_SUB && event != SUBXACT_EVENT_COMMIT_SUB)
		return;

	while (from > 0 && pending[from - 1].subxid == mySubid)
		from--;
	if (event == SUBXACT_EVENT_ABORT_SUB)
		pending_finish(from, false);
	else
		for (int i = from; i < npending; i++)
			pending[i].subxid = parentSubid;
}

void
lease_init(void)
{
	RegisterXactCallback(lease_xact_callback, NULL);
	RegisterSubXactCallback(lease_subxact_callback, NULL);
}

/*
 * The relay
 */

LeaseState
lease_check(DatabaseSlot *db, int64 id, TimestampTz now)
{
	Lease	   *lease;
	LeaseState	state = LEASE_HELD;

	LWLockAcquire(shared->lease_lock, LW_SHARED);
	lease = lease_find(relay_key(db, id));
	if (lease == NULL)
		state = LEASE_NONE;
	/* The relay's own, and asked for: its queue was in SQS before. */
	else if (lease->deleter == 0 && (lease->until <= now || lease->is_relays))
		state = LEASE_EXPIRED;
	LWLockRelease(shared->lease_lock);

	return state;
}

bool
lease_hold(DatabaseSlot *db, int64 id, QueueSlot *queue)
{
	LeaseKey	key = relay_key(db, id);
	Lease	   *lease;

	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	lease = lease_find(key);
	if (lease == NULL && !queue->is_closed && db->settings_changes == db->settings_read &&
		shared->nleases < taskoutbox_max_in_flight)
	{
		lease = hash_search(lease_hash, &key, HASH_ENTER, NULL);
		shared->nleases++;
		lease->is_relays = lease->has_failed = false;
		lease->deleter = 0;
	}
	if (lease && lease->deleter != 0)
		lease = NULL;
	if (lease && !lease->is_relays)
	{
		lease->is_relays = true;
		lease->since = GetCurrentTimestamp();
		lease->until = DT_NOEND;
		lease->queue = queue->key;
	}
	if (lease)
		lease->holder = MyProcPid;
	LWLockRelease(shared->lease_lock);

	return lease != NULL;
}

void
lease_drop(DatabaseSlot *db, int64 id)
{
	Lease	   *lease;

	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	lease = lease_find(relay_key(db, id));
	if (lease && lease->deleter == 0)
		lease_remove(lease->key);
	LWLockRelease(shared->lease_lock);
}

static int
list_leases(DatabaseSlot *db, TimestampTz until, bool all, int64 **ids)
{
	HASH_SEQ_STATUS seq;
	Lease	   *lease;
	TimestampTz next = DT_NOEND;
	int			n = 0;
	int64	   *result;

	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	result = palloc((shared->nleases + 1) * sizeof(int64));
	hash_seq_init(&seq, lease_hash);
	while ((lease = hash_seq_search(&seq)) != NULL)
	{
		if (lease->key.dboid != db->dboid)
			continue;
		if (lease->key.outbox != db->outbox)
		{
			lease_remove(lease->key);
			continue;
		}

		/* Past its time but being deleted: the end of that will tell us. */
		if (all || (lease->until <= until && lease->deleter == 0))
			result[n++] = lease->key.id;
		if (lease->until > until)
			next = Min(next, lease->until);
	}
	db->next_expiry = next;
	LWLockRelease(shared->lease_lock);

	*ids = result;
	return n;
}

int
lease_list(DatabaseSlot *db, TimestampTz until, int64 **ids)
{
	return list_leases(db, until, false, ids);
}

int
lease_list_all(DatabaseSlot *db, int64 **ids)
{
	return list_leases(db, DT_NOBEGIN, true, ids);
}

int
lease_snapshot(Oid outbox, Lease **leases)
{
	HASH_SEQ_STATUS seq;
	Lease	   *lease;
	int			n = 0;

	LWLockAcquire(shared->lease_lock, LW_SHARED);
	*leases = palloc((shared->nleases + 1) * sizeof(Lease));
	hash_seq_init(&seq, lease_hash);
	while ((lease = hash_seq_search(&seq)) != NULL)
	{
		if (lease->key.dboid == MyDatabaseId && lease->key.outbox == outbox)
			(*leases)[n++] = *lease;
	}
	LWLockRelease(shared->lease_lock);

	return n;
}
