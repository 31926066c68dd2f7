/*
 * relay.c
 *	  The relay of one database: from committed rows to the backends.
 *
 * The relay works in rounds. It takes a snapshot first, then reads what other
 * backends announced, then empties the ring of committed ids (announce.c): so
 * every row that the snapshot shows is known or named there, and is read by its
 * id; ids that the snapshot does not show yet wait for the next round. Where ids
 * were lost, or memory has room for rows left behind (lane.c), it takes a new
 * snapshot and reads the table in the order of ids. Rows taken in under one
 * snapshot, in that order, keep the order of groups: whatever had committed
 * before another enqueue began has the smaller id and is visible, too. Only
 * when their commits are on disk are they handed out.
 */
#include "taskoutbox.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "ask.h"
#include "backend.h"
#include "blocked.h"
#include "controller.h"
#include "deduplication.h"
#include "http.h"
#include "id_array.h"
#include "in_hand.h"
#include "installation.h"
#include "lane.h"
#include "launcher.h"
#include "ledger.h"
#include "lease.h"
#include "low_water.h"
#include "outbox.h"
#include "pool.h"
#include "queue.h"
#include "shared.h"

/* When more ids than these are named, the table is read instead. */
#define NAMED_MAX 100000

/* While the table is read, serve consumers every so many rows. */
#define SERVE_EVERY 4096

/* Look at the table without a reason this often, in milliseconds. */
#define FALLBACK_MS 60000

/* How often to look for dead letters that are too old. */
#define LETTER_PURGE_INTERVAL (10 * USECS_PER_MINUTE)

/* Try to raise the floor at most this often. */
#define FLOOR_INTERVAL (1 * USECS_PER_SEC)

/* Offers that lie there while a receive waits: wake another one after this. */
#define RENEWED_WAKE_MS 20

static DatabaseSlot *db;
static MemoryContext round_context;
static uint64 settings_generation = 0;

/* Ids that were popped, but not visible yet; and from where the table is to be read for others. */
static IdArray carried = {0};
static int64 carried_sweep = NO_SWEEP;

/* What must be on disk before anything is handed out. */
static XLogRecPtr flush_to = InvalidXLogRecPtr;

/* Backends that wait for us, and whether all asked before the round began. */
static Question *questions = NULL;
static int	nquestions = 0;
static bool asked_before = false;
static uint64 asked = 0;

/* Delayed rows: those due up to then were taken in; when the next one is due. */
static TimestampTz due_up_to = DT_NOBEGIN;
static TimestampTz next_due = DT_NOEND;
static TimestampTz recount_at = 0;	/* not before this */

static bool is_started = false;
static bool is_complete = false;	/* all that was there at the start is known */
static TimestampTz next_fallback = 0;
static TimestampTz next_purge = 0;
static TimestampTz next_letter_purge = 0;

/*
 * The floor: no row at or below it can appear by enqueue any more.
 *
 * enqueue locks the table before it draws an id. So read the sequence, then who
 * holds such a lock: when all of those have ended, every id up to what the
 * sequence said is settled, and a snapshot taken after that shows those rows.
 */
static int64 settled_floor = 0;
static int64 floor_candidate = 0;
static VirtualTransactionId *floor_holders = NULL;
static TimestampTz floor_next_try = 0;

/* Before a snapshot is taken: may the candidate become the floor with it? */
static bool
floor_is_settled(void)
{
	if (floor_candidate == 0)
		return false;
	for (VirtualTransactionId *holder = floor_holders; VirtualTransactionIdIsValid(*holder); holder++)
	{
		if (!VirtualXactLock(*holder, false))
			return false;
	}
	return true;
}

static int64
sequence_value(void)
{
	Oid			relid = get_relname_relid("task_outbox_id_seq",
										  get_namespace_oid(TASKOUTBOX_SCHEMA, false));
	LOCAL_FCINFO(fcinfo, 1);
	Datum		value;

	InitFunctionCallInfoData(*fcinfo, NULL, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = ObjectIdGetDatum(relid);
	fcinfo->args[0].isnull = false;
	value = pg_sequence_last_value(fcinfo);

	return fcinfo->isnull ? 0 : DatumGetInt64(value);
}

static void
floor_propose(TimestampTz now)
{
	LOCKTAG		tag;
	VirtualTransactionId *holders;
	int			n;

	if (floor_candidate != 0 || now < floor_next_try)
		return;
	floor_next_try = now + FLOOR_INTERVAL;

	floor_candidate = sequence_value();
	if (floor_candidate <= settled_floor)
	{
		floor_candidate = 0;
		return;
	}
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, outbox_relid());
	holders = GetLockConflicts(&tag, ShareLock, &n);
	if (floor_holders)
		pfree(floor_holders);
	floor_holders = MemoryContextAlloc(TopMemoryContext, (n + 1) * sizeof(VirtualTransactionId));
	memcpy(floor_holders, holders, (n + 1) * sizeof(VirtualTransactionId));
}

static bool
take_flag(bool *flag)
{
	bool		was_set;

	SpinLockAcquire(&db->mutex);
	was_set = *flag;
	*flag = false;
	SpinLockRelease(&db->mutex);

	return was_set;
}

/*
 * Serving: hand out what is ready. Called in a round, and while reading.
 */
static void
serve(void)
{
	/* Nothing to do for synchronous commits: it is there already. */
	if (flush_to != InvalidXLogRecPtr)
	{
		XLogFlush(flush_to);
		flush_to = InvalidXLogRecPtr;
	}

	for (int i = 0; i < lane_nqueues; i++)
	{
		Queue	   *queue = &lane_queues[i];
		int			room = lanes_are_stopped(queue) ? 0 : queue->backend->room(queue);

		while (room > 0)
		{
			Lane	   *lane = lanes_next(queue);

			if (lane == NULL)
				break;
			queue->backend->deliver(queue, lane, room);
			room -= lane->nout;
		}
		queue->slot->more = !dlist_is_empty(&queue->ready);
		queue->slot->pending = queue->nmessages + queue->nleft;
		queue->slot->delayed = queue->ndelayed;
		queue->slot->blocked = queue->nblocked;
		if (queue->nenqueued > 0 && is_complete)
			rate_add(&queue->slot->enqueued_rate, queue->nenqueued, GetCurrentTimestamp());
		queue->nenqueued = 0;
		queue->slot->oldest_id = dlist_is_empty(&queue->messages) ? 0 :
			dlist_container(Message, in_queue, dlist_head_node(&queue->messages))->id;
	}
}

static int
messages_on_offer(Queue *queue)
{
	int			n;

	LWLockAcquire(shared->lease_lock, LW_SHARED);
	n = queue->slot->offered - queue->slot->taken;
	LWLockRelease(shared->lease_lock);

	return n;
}

/*
 * Answer questions: one receive per message on offer and, when all that was
 * committed before they were asked is known, those that do not wait; those for
 * figures also while the table is read. Returns whether some still wait, and in
 * *renew whether others were answered in their queue: those may never come, so it
 * is worth a look soon.
 */
static bool
answer(bool *renew)
{
	static int	start = 0;		/* not always the same ones first */
	int		   *on_offer;
	bool		waiting = false;

	*renew = false;
	if (nquestions == 0)
		return false;

	on_offer = palloc(lane_nqueues * sizeof(int));
	for (int i = 0; i < lane_nqueues; i++)
		on_offer[i] = messages_on_offer(&lane_queues[i]);

	start++;
	for (int i = 0; i < nquestions; i++)
	{
		Question   *question = &questions[(start + i) % nquestions];
		Queue	   *queue = lanes_queue(question->queue);

		if (queue && on_offer[queue - lane_queues] > 0)
			on_offer[queue - lane_queues]--;
		else if (question->wait || (!asked_before && question->queue != 0))
		{
			waiting = true;
			*renew |= queue && messages_on_offer(queue) > 0;
			continue;
		}
		ask_answer(db->dboid, question);
	}
	pfree(on_offer);
	return waiting;
}

/* What keeps whole queues from delivering. */
static void
report_problems(void)
{
	for (int i = 0; i < lane_nqueues; i++)
	{
		Queue	   *queue = &lane_queues[i];
		Problem		problem = {.what = "",.remedy = "",.next_try = DT_NOEND};

		if (queue->nblocked > BLOCKED_GROUPS_MAX)
		{
			problem.what = psprintf("more than %d of its message groups wait for dead letters",
									BLOCKED_GROUPS_MAX);
			problem.remedy = "Redrive or purge its dead letters.";
		}
		else if (queue->backend->problem)
			queue->backend->problem(queue, &problem);
		if (problem.what)
			lanes_report(queue, &problem);
	}
}

/*
 * Taking in
 */

typedef struct NamedId
{
	int64		id;
	bool		is_popped;		/* just now: may be visible only in the next round */
	bool		is_final;		/* it will not be named again */
} NamedId;

/* Sorted before it is read, once, along with the table. */
typedef struct IdList
{
	NamedId    *ids;
	int			n;
	int			size;
	int			next;			/* to be read */
} IdList;

static int
compare_ids(const void *a, const void *b)
{
	int64		left = ((const NamedId *) a)->id;
	int64		right = ((const NamedId *) b)->id;

	return (left > right) - (left < right);
}

static void
add_id(IdList *list, int64 id, bool is_popped, bool is_final)
{
	if (list->n == list->size)
	{
		list->size = Max(256, list->size * 2);
		list->ids = list->ids == NULL ? palloc(list->size * sizeof(NamedId)) :
			repalloc_huge(list->ids, list->size * sizeof(NamedId));
	}
	list->ids[list->n].id = id;
	list->ids[list->n].is_popped = is_popped;
	list->ids[list->n].is_final = is_final;
	list->n++;
}

/* Sort, and make one of those that are named twice. */
static void
sort_ids(IdList *list)
{
	int			n = 0;

	if (list->n == 0)
		return;
	qsort(list->ids, list->n, sizeof(NamedId), compare_ids);
	for (int i = 1; i < list->n; i++)
	{
		if (list->ids[i].id == list->ids[n].id)
		{
			list->ids[n].is_popped |= list->ids[i].is_popped;
			list->ids[n].is_final |= list->ids[i].is_final;
		}
		else
			list->ids[++n] = list->ids[i];
	}
	list->n = n + 1;
}

/* Lowers *from to where the table is to be read instead. */
static void
add_runs(IdList *list, const IdRun *runs, int nruns, bool is_popped, int64 *from)
{
	for (int i = 0; i < nruns; i++)
	{
		if (list->n + (runs[i].last - runs[i].first) >= NAMED_MAX)
			*from = Min(*from, runs[i].first);
		else
			for (int64 id = runs[i].first; id <= runs[i].last; id++)
				add_id(list, id, is_popped, is_popped);
	}
}

/* What backends announce that are about to commit. */
static void
read_announcements(IdList *list, int64 *from)
{
	IdRun	   *runs = palloc(taskoutbox_announce_size * sizeof(IdRun));

	for (int i = 0; i < shared->nbackends; i++)
	{
		BackendSlot *slot = &shared->backends[i];
		int			nruns = 0;

		/* Our snapshot was a barrier: what it shows was announced before. */
		if (slot->announced_dboid != db->dboid)
			continue;
		SpinLockAcquire(&slot->mutex);
		if (slot->announced_dboid == db->dboid)
		{
			nruns = slot->nruns;
			memcpy(runs, slot->runs, nruns * sizeof(IdRun));
			*from = Min(*from, slot->sweep);
		}
		SpinLockRelease(&slot->mutex);
		add_runs(list, runs, nruns, false, from);
	}
}

static void
pop_committed(IdList *list, int64 *from)
{
	static IdRun *runs = NULL;
	int64		sweep;
	int			n;

	if (runs == NULL)
		runs = MemoryContextAlloc(TopMemoryContext, taskoutbox_ring_size * sizeof(IdRun));

	n = ring_pop(db, &db->committed, runs, &sweep);
	*from = Min(*from, sweep);
	add_runs(list, runs, n, true, from);

	for (int i = 0; i < carried.n; i++)
		add_id(list, carried.ids[i], false, true);
	carried.n = 0;
}

static void
take_in_row(const OutboxRow *row, RowSource source)
{
	XLogRecPtr	commit_at = TransactionIdGetCommitLSN(row->xmin);

	/* Zero for what is on disk for sure. */
	flush_to = Max(flush_to, commit_at);
	if (row->deliver_at <= due_up_to)
		lanes_accept(row, source);
	else
	{
		lanes_delay(row, source);
		next_due = Min(next_due, row->deliver_at);
	}
}

/*
 * Delayed rows are not kept in memory: only when the next one is due. They take
 * their place in their groups then.
 */
static void
take_in_due(Snapshot snapshot, TimestampTz now)
{
	OutboxReader *reader = outbox_begin_due(snapshot);

	outbox_scan_due(reader, due_up_to, now);
	due_up_to = now;
	while (outbox_next(reader))
	{
		OutboxRow	row = outbox_row(reader);

		take_in_row(&row, ROW_DUE);
	}
	next_due = outbox_next_due(reader, now);
	outbox_end(reader);

	for (int i = 0; i < lane_nqueues && next_due == DT_NOEND; i++)
		lane_queues[i].ndelayed = 0;
}

/*
 * Delayed rows are counted as they come and go. When some were purged or
 * cancelled they are counted anew, in a tenth of our time at most.
 */
static void
count_delayed(Snapshot snapshot, TimestampTz now)
{
	OutboxReader *reader;
	int64		n = 0;

	if (now < recount_at)
		return;
	(void) take_flag(&db->check_delayed);
	for (int i = 0; i < lane_nqueues; i++)
		lane_queues[i].ndelayed = 0;
	reader = outbox_begin_due(snapshot);
	outbox_scan_due(reader, due_up_to, DT_NOEND);
	while (outbox_next(reader))
	{
		Queue	   *queue = lanes_queue(outbox_row(reader).queue);

		if (queue)
			queue->ndelayed++;
		if (++n % SERVE_EVERY == 0)
		{
			CHECK_FOR_INTERRUPTS();
			serve();
		}
	}
	outbox_end(reader);
	recount_at = n < SERVE_EVERY ? 0 : now + 10 * (GetCurrentTimestamp() - now);
}

/* A row that is named will be counted when it is named for the last time. */
static RowSource
source_of(const NamedId *named)
{
	return named->is_final ? ROW_NAMED : ROW_ANNOUNCED;
}

static void
carry(const NamedId *named)
{
	if (named->is_popped)
		id_array_add(&carried, named->id);
}

/* Read the rows that are named up to an id. */
static void
read_named(OutboxReader *reader, IdList *list, int64 to)
{
	for (; list->next < list->n && list->ids[list->next].id <= to; list->next++)
	{
		const NamedId *named = &list->ids[list->next];

		if (lanes_find(named->id))
			continue;
		if (outbox_lookup(reader, named->id))
		{
			OutboxRow	row = outbox_row(reader);

			take_in_row(&row, source_of(named));
		}
		else
			carry(named);
	}
}

/*
 * Read the table from an id on: to its end, or as long as lanes want more. So those
 * that are named from there on are read, too.
 */
static void
read_table(OutboxReader *reader, IdList *list, int64 from, bool to_end)
{
	int64		n = 0;
	bool		is_enough = false;

	lanes_begin_scan();
	outbox_scan_from(reader, from);
	while (!is_enough && outbox_next(reader))
	{
		OutboxRow	row = outbox_row(reader);
		RowSource	source = ROW_READ;

		while (list->next < list->n && list->ids[list->next].id < row.id)
			carry(&list->ids[list->next++]);
		if (list->next < list->n && list->ids[list->next].id == row.id)
			source = source_of(&list->ids[list->next++]);
		take_in_row(&row, source);

		is_enough = !to_end && !lanes_wants_more();
		if (++n % SERVE_EVERY == 0)
		{
			bool		renew;

			CHECK_FOR_INTERRUPTS();
			serve();
			(void) http_work();
			nquestions = ask_open_questions(db, questions, &asked);
			asked_before = false;
			(void) answer(&renew);
		}
	}
	lanes_end_scan(!is_enough);
}

/* Returns whether there is more to look at. */
static bool
take_in(TimestampTz now)
{
	Snapshot	snapshot;
	OutboxReader *reader;
	IdList		list = {0};
	int64		sweep_from = carried_sweep;
	int64		begin;
	int64		refill_from;
	int64		read_from;
	int64		missed;
	bool		more;
	bool		is_settled = floor_is_settled();
	bool		check_blocked = take_flag(&db->check_blocked);
	bool		check_delayed = db->check_delayed || db->check_rows;	/* it is settle that takes that one */

	/* The order of these three is what everything stands on. */
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	read_announcements(&list, &sweep_from);
	pop_committed(&list, &sweep_from);

	refill_from = lanes_refill_from();
	if (now >= next_fallback)
	{
		sweep_from = Min(sweep_from, SWEEP_FLOOR);
		next_fallback = now + FALLBACK_MS * INT64CONST(1000);
	}

	/*
	 * Some ids are not named. A new snapshot shows all that was popped, and all
	 * that it shows above the floor is read. What is named in the meantime is read
	 * with it, too; if some of that was lost, the next round reads the table again.
	 */
	carried_sweep = NO_SWEEP;
	if (sweep_from != NO_SWEEP)
	{
		UnregisterSnapshot(snapshot);
		snapshot = RegisterSnapshot(GetLatestSnapshot());
		read_announcements(&list, &sweep_from);
		pop_committed(&list, &carried_sweep);
		sweep_from = Min(sweep_from, carried_sweep);
		begin = is_started ? settled_floor + 1 : low_water_read();
		sweep_from = Min(sweep_from, begin);
	}

	reader = outbox_begin(snapshot);
	if (!is_started)
	{
		due_up_to = now;
		blocked_read(snapshot);
		for (int i = 0; backends[i]; i++)
		{
			if (backends[i]->start)
				backends[i]->start(db, reader);
		}
		is_started = true;
	}

	/* All in the order of ids: named ones, the table's, named ones. */
	read_from = Min(sweep_from, refill_from);
	sort_ids(&list);
	read_named(reader, &list, read_from - 1);
	if (read_from != NO_SWEEP)
		read_table(reader, &list, read_from, sweep_from != NO_SWEEP);
	read_named(reader, &list, PG_INT64_MAX);
	more = low_water_look(reader, settled_floor, now, &missed);
	carried_sweep = Min(carried_sweep, missed);
	outbox_end(reader);
	if (next_due <= now)
		take_in_due(snapshot, now);
	if (check_delayed)
		count_delayed(snapshot, now);
	if (check_blocked)
		blocked_read(snapshot);
	UnregisterSnapshot(snapshot);
	is_complete = true;

	if (is_settled)
	{
		settled_floor = floor_candidate;
		floor_candidate = 0;
	}
	floor_propose(now);
	return more;
}

/*
 * The process
 */

/* Others have to know it: those who would call a controller, or publish. */
static void
read_pin(void)
{
	InstallationPin pin = installation_read_pin();

	if (pin == PIN_FOREIGN && db->pin != PIN_FOREIGN)
		ereport(LOG,
				(errmsg("taskoutbox: database \"%s\" is a copy, and delivers nothing by itself",
						get_database_name(MyDatabaseId)),
				 errhint("If its tasks are to be done here, run SELECT %s.confirm().", TASKOUTBOX_SCHEMA)));
	if (db->pin == pin)
		return;
	db->installation = installation_read_id();
	db->pin = pin;
	wake_launcher();
}

static void
set_queues(void)
{
	if (!lanes_set_queues(db))
	{
		ereport(LOG,
				(errmsg("taskoutbox relay restarts because a queue was removed, or has another backend")));
		proc_exit(1);
	}
	settings_generation = queue_generation();
}

/* A library that is newer, or older, than the objects: neither may be guessed at. */
static void
check_version(void)
{
	ScanKeyData key;
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		isnull;
	char	   *version = NULL;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum("taskoutbox"));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		version = TextDatumGetCString(heap_getattr(tuple, Anum_pg_extension_extversion,
												   RelationGetDescr(rel), &isnull));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);

	if (version && strcmp(version, TASKOUTBOX_VERSION) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("taskoutbox has version %s in database \"%s\", and its library is version %s",
						version, get_database_name(MyDatabaseId), TASKOUTBOX_VERSION),
				 errhint("Run ALTER EXTENSION taskoutbox UPDATE; if that changes nothing, restart the server.")));
}

/*
 * Does not come back when the extension is not there, or not the one that we
 * started with, or its table was truncated: then another relay is to start with an empty memory.
 */
static void
leave_without_extension(void)
{
	bool		must_start_anew = take_flag(&db->start_anew);

	if (!OidIsValid(get_extension_oid("taskoutbox", true)))
	{
		pool_want(NULL, 0);
		in_hand_forget(MyDatabaseId);
		relay_slot_free(db);
	}
	else if (!is_started)
	{
		check_version();
		return;
	}
	else if (outbox_relid() == db->outbox && !must_start_anew)
		return;
	CommitTransactionCommand();
	proc_exit(0);
}

/* Dead letters that are older than their queue keeps them; are there more of them? */
static bool
purge_dead_letters(TimestampTz now)
{
	bool		more = false;

	for (int i = 0; i < lane_nqueues; i++)
		more |= outbox_forget_letters(lane_queues[i].name,
									  now - lane_queues[i].settings.dead_letter_retention);
	return more;
}

/* Lock the table for this round, if it is still there. */
static bool
lock_outbox(void)
{
	if (!is_started)
		return false;
	LockRelationOid(db->outbox, AccessShareLock);
	return SearchSysCacheExists1(RELOID, ObjectIdGetDatum(db->outbox));
}

/* One round; returns when a next one is due without any news. */
static TimestampTz
relay_round(void)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next = DT_NOEND;
	uint64		settings_changes;
	bool		has_changed;

	pgstat_report_activity(STATE_RUNNING, "taking in committed tasks");
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	if (!lock_outbox() || take_flag(&db->check_extension) || db->start_anew)
		leave_without_extension();
	SpinLockAcquire(&db->mutex);
	settings_changes = db->settings_changes;
	SpinLockRelease(&db->mutex);
	has_changed = settings_changes != db->settings_read || !is_started;
	if (has_changed)
	{
		queue_read_again();
		read_pin();
	}
	if (settings_generation != queue_generation())
	{
		set_queues();
		has_changed = true;
	}
	controllers_want_workers(has_changed);
	if (take_in(now))
		next = now;
	for (int i = 0; backends[i]; i++)
	{
		TimestampTz due = backends[i]->settle(db);

		next = Min(next, due);
	}
	if (now >= next_purge)
		next_purge = deduplication_purge() || ledger_purge() ? now : now + FALLBACK_MS * INT64CONST(1000);
	if (now >= next_letter_purge)
		next_letter_purge = purge_dead_letters(now) ? now : now + LETTER_PURGE_INTERVAL;
	CommitTransactionCommand();
	for (int i = 0; backends[i]; i++)
		backends[i]->committed(db);

	/* Offers of paused queues are withdrawn: receives may take offers again. */
	SpinLockAcquire(&db->mutex);
	db->settings_read = settings_changes;
	SpinLockRelease(&db->mutex);

	MemoryContextSwitchTo(round_context);
	report_problems();
	serve();

	db->messages = lanes_message_count();
	db->message_groups = lanes_group_count();
	db->memory_bytes = lanes_memory();
	db->orphans = lanes_orphan_count();

	next = Min(next, next_due);
	next = Min(next, next_purge);
	next = Min(next, next_letter_purge);
	if (db->check_delayed)
		next = Min(next, recount_at);
	return Min(next, next_fallback);
}

static TimestampTz
next_expiry(void)
{
	TimestampTz result;

	LWLockAcquire(shared->lease_lock, LW_SHARED);
	result = db->next_expiry;
	LWLockRelease(shared->lease_lock);

	return result;
}

/*
 * Ready to sleep? Says to others whether we want to be woken by each of them. A
 * lock that we waited for in the round may have used up our latch, so all that
 * it can stand for is looked at here.
 */
static bool
may_sleep(bool waiting)
{
	bool		idle;
	uint64		committed;
	uint64		ended;

	SpinLockAcquire(&db->mutex);
	db->wants_wake = waiting;
	committed = db->committed.pushed - db->committed.popped;
	ended = db->ended.pushed - db->ended.popped;
	if (waiting)
		idle = committed == 0 && ended == 0 &&
			db->committed.sweep == NO_SWEEP && db->ended.sweep == NO_SWEEP && !db->check_leases && !db->check_rows && !db->check_blocked;
	else
		idle = Max(committed, ended) * 2 < (uint64) taskoutbox_ring_size;
	idle &= !db->check_extension && !db->start_anew && db->settings_changes == db->settings_read &&
		db->questions == asked;
	SpinLockRelease(&db->mutex);

	return idle && carried.n == 0 && carried_sweep == NO_SWEEP && asked_before && !ConfigReloadPending;
}

/*
 * Some backend waits for messages as a receive does, or enqueue wants to know at
 * once when a queue is full, or is not any more.
 */
static bool
queues_want_news(void)
{
	for (int i = 0; i < lane_nqueues; i++)
	{
		Queue	   *queue = &lane_queues[i];

		if (queue->settings.max_pending > 0 ||
			(queue->backend->wants_news && queue->backend->wants_news(queue)))
			return true;
	}
	return false;
}

static void
relay_loop(void)
{
	uint32		wait_event = COMPAT_WAIT_EVENT("TaskoutboxRelayMain");

	questions = MemoryContextAlloc(TopMemoryContext, shared->nbackends * sizeof(Question));
	round_context = AllocSetContextCreate(TopMemoryContext, "taskoutbox relay round",
										  ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		TimestampTz next;
		TimestampTz now;
		bool		waiting;
		bool		renew;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			queue_read_again();
		}

		MemoryContextReset(round_context);
		MemoryContextSwitchTo(round_context);
		nquestions = ask_open_questions(db, questions, &asked);
		asked_before = true;
		next = relay_round();
		waiting = answer(&renew);

		if (!may_sleep(waiting || queues_want_news()))
		{
			(void) http_work();
			continue;
		}

		now = GetCurrentTimestamp();
		next = Min(next, next_expiry());
		if (renew)
			next = Min(next, now + RENEWED_WAKE_MS * INT64CONST(1000));
		pgstat_report_stat(next - now >= USECS_PER_SEC);
		pgstat_report_activity(STATE_IDLE, NULL);
		http_sleep(next, wait_event);
	}
}

/* What no setting of a database or a role may change for us. */
static void
pin_settings(void)
{
	static const char *const pinned[][2] = {
		{"search_path", "pg_catalog, pg_temp"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"synchronous_commit", "local"},
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
		{"deadlock_timeout", "100ms"},	/* with DROP EXTENSION: we give way */
		{"idle_in_transaction_session_timeout", "0"},
		{"row_security", "off"},
		{"session_replication_role", "origin"},
		{"jit", "off"},
		{"enable_seqscan", "off"}	/* our tables are never analyzed */
	};

	for (int i = 0; i < lengthof(pinned); i++)
		SetConfigOption(pinned[i][0], pinned[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	compat_disable_transaction_timeout();
}

void
taskoutbox_relay_main(Datum arg)
{
	launcher_take_signals();

	db = relay_slot_claim(DatumGetInt32(arg));
	if (db == NULL)
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(db->dboid, InvalidOid, 0);
	pgstat_report_appname("taskoutbox relay");
	pin_settings();

	PG_TRY();
	{
		StartTransactionCommand();
		leave_without_extension();
		in_hand_count();
		CommitTransactionCommand();
		in_hand_forget(MyDatabaseId);

		lanes_init();
		relay_slot_ready(db);
		relay_loop();
	}
	PG_CATCH();
	{
		relay_slot_failed();
		PG_RE_THROW();
	}
	PG_END_TRY();
}
