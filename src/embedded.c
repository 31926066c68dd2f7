/*
 * embedded.c
 *	  The embedded queue: the relay's side.
 *
 * The relay keeps the heads of ready lanes on offer in shared memory, so that
 * receive takes them without waiting for anyone. To deliver a lane is to offer
 * its first messages; they are out until each of them is known to be done or
 * back. For that the relay looks at what the ring of ended ids names, and at
 * leases whose time is up: at the lease first, then at the row, with a dirty
 * snapshot. Gone: done. Being changed by an open transaction: still out. There:
 * back. When all of a lane are back, those that a consumer had are counted, and
 * after max_receive_count times moved to the dead letters.
 */
#include "taskoutbox.h"
#include "backend.h"

#include "access/xact.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "blocked.h"
#include "id_array.h"
#include "lane.h"
#include "lease.h"
#include "outbox.h"
#include "shared.h"

/* How often to look at a row that an open transaction changes. */
#define BUSY_RETRY (500 * INT64CONST(1000))

/* Lanes that are out because someone changes a row, and when to look again. */
static int	nbusy = 0;
static TimestampTz busy_retry = DT_NOEND;

/*
 * Messages that came back and are counted: their leases are kept until that is
 * committed, so that a relay that ends before leaves them to be counted.
 */
static IdArray counted = {0};

static void
embedded_committed(DatabaseSlot *db)
{
	for (int i = 0; i < counted.n; i++)
		lease_drop(db, counted.ids[i]);
	counted.n = 0;
}

/* What others have out is theirs to look after. */
static bool
is_ours(const Queue *queue)
{
	return queue->backend == &embedded_backend;
}

/* Whether the lane's offer is still there: it is taken as a whole. */
static bool
is_on_offer(Lane *lane)
{
	bool		result;

	LWLockAcquire(shared->lease_lock, LW_SHARED);
	result = lane->queue->slot->taken < lane->offer_end;
	LWLockRelease(shared->lease_lock);

	return result;
}

static void
embedded_start(DatabaseSlot *db, OutboxReader *reader)
{
	int64	   *ids;
	int			n;

	/* What the last relay offered and nobody took is not out. */
	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	for (int i = 0; i < taskoutbox_max_queues; i++)
		db->queues[i].offered = db->queues[i].taken = 0;
	db->outbox = RelationGetRelid(reader->rel);
	LWLockRelease(shared->lease_lock);

	n = lease_list_all(db, &ids);
	for (int i = 0; i < n; i++)
	{
		if (outbox_lookup(reader, ids[i]))
		{
			OutboxRow	row = outbox_row(reader);

			lanes_accept(&row, ROW_OUT);
		}
		else
			lease_drop(db, ids[i]);
	}
	pfree(ids);
}

/*
 * Look at the messages of a lane that are out: at their leases, then at rows.
 * They are counted when all of them are back, so that a crash finds none counted
 * whose elders in the lane are not. With look_at_all the rows of held leases are
 * looked at, too: an id that ended was lost.
 */
static void
settle_lane(DatabaseSlot *db, Lane *lane, OutboxReader *dirty, TimestampTz now, bool look_at_all)
{
	Queue	   *queue = lane->queue;
	int			nout = lane->nout;
	int			still_out = 0;
	dlist_mutable_iter iter;

	if (nout == 0 || is_on_offer(lane))
		return;

	nbusy -= lane->is_busy;
	lane->is_busy = false;

	/* What is done, and what is still in somebody's hands? */
	dlist_foreach_modify(iter, &lane->messages)
	{
		Message    *message = dlist_container(Message, in_lane, iter.cur);
		LeaseState	state;
		OutboxFate	fate;

		if (nout-- == 0)
			break;
		state = lease_check(db, message->id, now);
		fate = state == LEASE_HELD && !look_at_all ? OUTBOX_HERE :
			outbox_look_at(dirty, message->id, &message->place);

		if (fate == OUTBOX_GONE)
		{
			lease_drop(db, message->id);
			lanes_remove(message);
			lane->nout--;
		}
		else if (state == LEASE_HELD || fate == OUTBOX_BUSY)
		{
			still_out++;
			lane->is_busy |= fate == OUTBOX_BUSY;
		}
	}

	/*
	 * All are back: count those that a consumer had. One that cannot be changed
	 * now keeps those after it from being counted, too.
	 */
	nout = still_out == 0 ? lane->nout : 0;
	dlist_foreach_modify(iter, &lane->messages)
	{
		Message    *message = dlist_container(Message, in_lane, iter.cur);
		OutboxRow	row;
		int			receive_count;
		bool		is_last;
		bool		blocks;

		if (nout-- <= 0)
			break;
		if (outbox_look_at(dirty, message->id, &message->place) != OUTBOX_HERE)
		{
			still_out++;
			lane->is_busy = true;
			break;
		}
		row = outbox_row(dirty);
		receive_count = Min(row.receive_count, RECEIVE_COUNT_MAX) + 1;
		/* In a blocked group, those after the dead one get another chance. */
		is_last = receive_count >= queue->settings.max_receive_count && !blocked_group(row.group);
		blocks = queue->settings.on_dead_letter == ON_DEAD_LETTER_BLOCK && row.group != 0;

		if (lease_check(db, message->id, now) != LEASE_NONE)
		{
			if (!outbox_count_or_bury(message->id, receive_count, "consumer",
									  is_last ? RECEIVED_TOO_OFTEN : NULL, blocks))
			{
				still_out++;
				lane->is_busy = true;
				break;
			}
			id_array_add(&counted, message->id);
			message->precedence = lanes_precedence(queue, &row);
			if (is_last)
			{
				queue->slot->dead_lettered++;
				if (blocks)
					blocked_add(row.queue, row.group);
				lanes_remove(message);
				lane->nout--;
				continue;
			}
			queue->slot->retried++;
		}
		/* Its owner may have moved the row to another queue. */
		if (row.queue != queue->settings.key)
		{
			lanes_remove(message);
			lane->nout--;
			lanes_accept(&row, ROW_NAMED);
		}
	}

	nbusy += lane->is_busy;
	if (still_out == 0)
		lanes_return(lane);
}

/*
 * Receives ask for more of a lane than is on offer, or the queue is paused: take
 * the offers back, to be made anew.
 */
static void
withdraw_offers(Queue *queue)
{
	QueueSlot  *slot = queue->slot;
	uint64		taken;
	dlist_node *node;

	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	slot->width = slot->wanted;
	taken = slot->taken;
	slot->taken = slot->offered;
	LWLockRelease(shared->lease_lock);

	/* The last one first: each becomes the first of those that are ready. */
	for (node = queue->out.head.prev; node != &queue->out.head;)
	{
		Lane	   *lane = dlist_container(Lane, in_queue, node);

		node = node->prev;
		if (lane->offer_end > taken)
			lanes_put_back(lane);
	}
}

/* A message that is not out, and whose row is gone. */
static void
forget(DatabaseSlot *db, Message *message)
{
	if (message->may_be_sent)
		lease_drop(db, message->id);
	lanes_forget(message);
}

/* Forget those of a queue. */
static void
forget_gone(DatabaseSlot *db, Queue *queue, OutboxReader *dirty)
{
	dlist_mutable_iter iter;

	withdraw_offers(queue);
	dlist_foreach_modify(iter, &queue->messages)
	{
		Message    *message = dlist_container(Message, in_queue, iter.cur);

		if (message->lane->nout == 0 && outbox_look_at(dirty, message->id, &message->place) == OUTBOX_GONE)
			forget(db, message);
	}
}

static TimestampTz
embedded_settle(DatabaseSlot *db)
{
	static IdRun *runs = NULL;
	int			nruns;
	int64		sweep;
	bool		look_at_all;
	bool		look_at_rows;
	bool		look_at_busy;
	TimestampTz now = GetCurrentTimestamp();
	bool		has_expired = db->next_expiry <= now;
	OutboxReader *dirty = NULL;

	if (runs == NULL)
		runs = MemoryContextAlloc(TopMemoryContext, taskoutbox_ring_size * sizeof(IdRun));

	nruns = ring_pop(db, &db->ended, runs, &sweep);
	SpinLockAcquire(&db->mutex);
	look_at_all = db->check_leases || sweep != NO_SWEEP;
	db->check_leases = false;
	look_at_rows = db->check_rows;
	look_at_all |= look_at_rows;
	db->check_rows = false;
	SpinLockRelease(&db->mutex);

	/* Mostly nothing ended, and somebody waits for what came. */
	if (nruns > 0 || look_at_all || nbusy > 0 || has_expired)
		dirty = outbox_begin_dirty();

	for (int i = 0; i < nruns; i++)
	{
		for (int64 id = runs[i].first; id <= runs[i].last; id++)
		{
			Message    *message = lanes_find(id);

			if (message && message->lane->nout > 0 && !is_ours(message->lane->queue))
				continue;
			if (message && message->lane->nout > 0 && is_on_offer(message->lane))
				withdraw_offers(message->lane->queue);
			if (message && message->lane->nout > 0)
				settle_lane(db, message->lane, dirty, now, false);
			else if (message && outbox_look(dirty, id) == OUTBOX_GONE)
				forget(db, message);
		}
	}
	if (has_expired)
	{
		int64	   *ids;
		int			n = lease_list(db, now, &ids);

		for (int i = 0; i < n; i++)
		{
			Message    *message = lanes_find(ids[i]);

			if (message)
				settle_lane(db, message->lane, dirty, now, false);
			else
				lease_drop(db, ids[i]);	/* of a row that is gone */
		}
		pfree(ids);
	}

	/* An id was lost, or rows were busy: look at every lane that may be back. */
	look_at_busy = nbusy > 0 && now >= busy_retry;
	for (int i = 0; i < lane_nqueues && (look_at_all || look_at_busy); i++)
	{
		dlist_mutable_iter iter;

		if (!is_ours(&lane_queues[i]))
			continue;
		dlist_foreach_modify(iter, &lane_queues[i].out)
		{
			Lane	   *lane = dlist_container(Lane, in_queue, iter.cur);

			if (look_at_all || lane->is_busy)
				settle_lane(db, lane, dirty, now, look_at_all);
		}
	}
	for (int i = 0; i < lane_nqueues && look_at_rows; i++)
		forget_gone(db, &lane_queues[i], dirty);
	if (dirty)
		outbox_end(dirty);

	for (int i = 0; i < lane_nqueues; i++)
	{
		QueueSlot  *slot = lane_queues[i].slot;

		if (slot->width != slot->wanted ||
			(lanes_are_stopped(&lane_queues[i]) && slot->taken != slot->offered))
			withdraw_offers(&lane_queues[i]);
	}

	if (nbusy == 0)
		busy_retry = DT_NOEND;
	else if (look_at_busy || busy_retry == DT_NOEND)
		busy_retry = now + BUSY_RETRY;
	return Min(busy_retry, db->next_expiry);
}

static int
embedded_room(Queue *queue)
{
	int			room;

	LWLockAcquire(shared->lease_lock, LW_SHARED);
	room = OFFERS_PER_QUEUE - (int) (queue->slot->offered - queue->slot->taken);
	LWLockRelease(shared->lease_lock);

	return room;
}

static void
embedded_deliver(Queue *queue, Lane *lane, int room)
{
	QueueSlot  *slot = queue->slot;
	dlist_iter	iter;

	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	room = Min(room, Max(1, slot->width));
	dlist_foreach(iter, &lane->messages)
	{
		Message    *message = dlist_container(Message, in_lane, iter.cur);
		Offer	   *offer = &slot->offers[slot->offered % OFFERS_PER_QUEUE];

		if (lane->nout == room)
			break;
		offer->id = message->id;
		offer->place = message->place;
		offer->is_next = lane->nout > 0;
		slot->offered++;
		lane->nout++;
	}
	lane->offer_end = slot->offered;
	LWLockRelease(shared->lease_lock);
}

static void
embedded_check(const QueueSettings *settings)
{
	const char *other = settings->url ? "url" : settings->region ? "region" :
		settings->endpoint ? "endpoint" : NULL;

	if (other)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("%s is for queues in SQS", other),
				 errhint("Pass backend => 'sqs', too, or leave %s out.", other)));
}

const Backend embedded_backend = {
	.name = "embedded",
	.check = embedded_check,
	.start = embedded_start,
	.settle = embedded_settle,
	.committed = embedded_committed,
	.room = embedded_room,
	.deliver = embedded_deliver
};
