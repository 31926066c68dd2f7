/*
 * lane.c
 *	  The order of delivery, in the relay's memory.
 *
 * A group is a lane: a list of messages of which only the first ones can be
 * out, and only once at a time. Messages without a group wait in one list, and
 * each becomes a lane of its own when its turn comes. Lanes that have something
 * to deliver take turns, so that a busy group hides no other.
 *
 * Memory is bounded. A lane holds up to LANE_MESSAGES, a queue its share of
 * taskoutbox.relay_memory; what does not fit is left behind in the table, and
 * only the smallest such id remembered (LeftBehind). As long as something of a
 * lane is left behind, all that comes later is, too, so nothing overtakes. When
 * there is room again the mark is forgotten and the table read from there, in
 * the order of ids, under one snapshot: what fits is taken in, the first that
 * does not fit sets the mark again, and ends the reading. When memory is full of
 * what has to wait for others, the youngest of that is left behind after all, so
 * that groups which need not wait get in.
 */
#include "taskoutbox.h"
#include "lane.h"

#include "blocked.h"

#include "common/hashfn.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#define LANE_MESSAGES 1000

/*
 * What a message, and a lane, takes with what the allocator keeps before it, and with
 * its part of a hash table.
 */
#define CHUNK_HEADER 16
#define MESSAGE_BYTES ((int64) (CHUNK_HEADER + sizeof(Message) + 2 * sizeof(MessageEntry)))
#define LANE_BYTES ((int64) (CHUNK_HEADER + sizeof(Lane) + 2 * sizeof(LaneEntry)))

typedef struct MessageEntry
{
	int64		id;
	Message    *message;
	char		status;
} MessageEntry;

#define SH_PREFIX known
#define SH_ELEMENT_TYPE MessageEntry
#define SH_KEY_TYPE int64
#define SH_KEY id
#define SH_HASH_KEY(tb, key) ((uint32) murmurhash64_of(key))
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE

static inline uint64
murmurhash64_of(uint64 h)
{
	h ^= h >> 33;
	h *= UINT64CONST(0xff51afd7ed558ccd);
	h ^= h >> 33;
	return h;
}

#include "lib/simplehash.h"

typedef struct LaneEntry
{
	uint64		key;
	Lane	   *lane;
	char		status;
} LaneEntry;

#define SH_PREFIX grouped
#define SH_ELEMENT_TYPE LaneEntry
#define SH_KEY_TYPE uint64
#define SH_KEY key
#define SH_HASH_KEY(tb, key) ((uint32) ((key) ^ ((key) >> 32)))
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

Queue	   *lane_queues = NULL;
int			lane_nqueues = 0;

static known_hash *known = NULL;
static grouped_hash *grouped = NULL;
static MemoryContext message_context;
static MemoryContext lane_context;
static int64 nmessages = 0;
static int64 nlanes = 0;

/* Rows of queues that do not exist. */
static LeftBehind orphans = {NO_SWEEP};
static int64 norphans = 0;
static bool queues_added = false;

/* What is being refilled, and the highest id ever seen, when reading began. */
static dlist_head refilling_lanes = DLIST_STATIC_INIT(refilling_lanes);
static int	nrefilling = 0;
static int64 highest_id = 0;
static int64 highest_before_scan = 0;	/* 0: not reading the table */

void
lanes_init(void)
{
	message_context = SlabContextCreate(TopMemoryContext, "taskoutbox messages",
										SLAB_DEFAULT_BLOCK_SIZE, sizeof(Message));
	lane_context = SlabContextCreate(TopMemoryContext, "taskoutbox lanes",
									 SLAB_DEFAULT_BLOCK_SIZE, sizeof(Lane));
	known = known_create(TopMemoryContext, 256, NULL);
	grouped = grouped_create(TopMemoryContext, 256, NULL);
	lane_queues = MemoryContextAllocZero(TopMemoryContext, taskoutbox_max_queues * sizeof(Queue));
}

static void
lane_init(Lane *lane, Queue *queue, uint64 key)
{
	memset(lane, 0, sizeof(Lane));
	lane->queue = queue;
	lane->key = key;
	lane->left.from = NO_SWEEP;
	dlist_init(&lane->messages);
}

bool
lanes_set_queues(DatabaseSlot *db)
{
	const QueueSettings *list;
	int			n = queue_list(&list);

	n = Min(n, taskoutbox_max_queues);
	for (int i = 0; i < lane_nqueues; i++)
	{
		bool		found = false;

		for (int j = 0; j < n; j++)
			found |= list[j].key == lane_queues[i].settings.key &&
				backend_by_name(list[j].backend) == lane_queues[i].backend;
		if (!found)
			return false;
	}

	/* Make room first: slots of queues that were there before. */
	if (lane_nqueues == 0)
	{
		uint64	   *keys = palloc(n * sizeof(uint64));

		for (int i = 0; i < n; i++)
			keys[i] = list[i].key;
		queue_slots_keep(db, keys, n);
		pfree(keys);
	}

	for (int i = 0; i < n; i++)
	{
		Queue	   *queue = lanes_queue(list[i].key);

		if (queue == NULL)
		{
			queue = &lane_queues[lane_nqueues];
			lane_init(&queue->loose, queue, 0);
			dlist_init(&queue->messages);
			dlist_init(&queue->ready);
			dlist_init(&queue->out);
			dlist_init(&queue->hungry);
			queue->left.from = NO_SWEEP;
			queue->slot = queue_slot_assign(db, list[i].key);
			queue->name = MemoryContextStrdup(TopMemoryContext, list[i].name);
			lane_nqueues++;
			queues_added = true;
		}
		queue->settings = list[i];
		queue_drop_texts(&queue->settings);
		queue->backend = backend_by_name(list[i].backend);
		if (queue->backend == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_TASKOUTBOX_RANGE),
					 errmsg("backend \"%s\" of queue \"%s\" is not known",
							list[i].backend, list[i].name)));
		if (queue->backend->configure)
			queue->backend->configure(queue, &list[i]);
	}
	return true;
}

Queue *
lanes_queue(uint64 key)
{
	for (int i = 0; i < lane_nqueues; i++)
	{
		if (lane_queues[i].settings.key == key)
			return &lane_queues[i];
	}
	return NULL;
}

Message *
lanes_find(int64 id)
{
	MessageEntry *entry = known_lookup(known, id);

	return entry ? entry->message : NULL;
}

int64
lanes_memory(void)
{
	return nmessages * MESSAGE_BYTES + nlanes * LANE_BYTES;
}

int64
lanes_message_count(void)
{
	return nmessages;
}

int64
lanes_group_count(void)
{
	return grouped->members;
}

int64
lanes_orphan_count(void)
{
	return norphans;
}

/* Queues share the memory evenly: one without consumers starves no other. */
static int64
share(void)
{
	return taskoutbox_relay_memory * INT64CONST(1024) / lane_nqueues;
}

static bool
has_room(Queue *queue, int percent)
{
	return queue->nmessages * MESSAGE_BYTES + queue->nlanes * LANE_BYTES <
		share() * percent / 100;
}

/* With little memory, a lane gets a small part of it. */
static int
lane_limit(void)
{
	return Max(8, Min(LANE_MESSAGES, share() / MESSAGE_BYTES / 16));
}

static void
leave_behind(LeftBehind *left, int64 id)
{
	if (left->from == NO_SWEEP && left->is_refilling)
	{
		left->is_refilling = false;
		nrefilling--;
	}
	left->from = Min(left->from, id);
}

static void
take_out(Message *message)
{
	message->lane->nmessages--;
	message->lane->queue->nmessages--;
	nmessages--;
	dlist_delete(&message->in_lane);
	dlist_delete(&message->in_queue);
	known_delete(known, message->id);
	pfree(message);
}

/* Has the lane room for what it left behind? */
static void
feel_hunger(Lane *lane)
{
	if (lane->left.from == NO_SWEEP || lane->is_hungry || lane->nmessages > lane_limit() / 4)
		return;
	lane->is_hungry = true;
	dlist_push_tail(&lane->queue->hungry, &lane->in_hungry);
}

static void
make_ready(Lane *lane)
{
	if (blocked_group(lane->key))
		return;
	lane->is_ready = true;
	dlist_push_tail(&lane->queue->ready, &lane->in_queue);
}

/* Nothing of the lane is out: it waits for its turn, or is not needed. */
static void
lane_rest(Lane *lane)
{
	if (lane->nmessages > 0)
		make_ready(lane);
	else if (lane != &lane->queue->loose && lane->left.from == NO_SWEEP && !lane->is_hungry)
	{
		if (lane->key != 0)
			grouped_delete(grouped, lane->key);
		lane->queue->nlanes--;
		nlanes--;
		pfree(lane);
	}
}

static Lane *
lane_create(Queue *queue, uint64 key)
{
	Lane	   *lane = MemoryContextAlloc(lane_context, sizeof(Lane));

	lane_init(lane, queue, key);
	queue->nlanes++;
	nlanes++;
	return lane;
}

static Lane *
lane_of_group(Queue *queue, uint64 key, bool create)
{
	bool		found;
	LaneEntry  *entry;

	if (key == 0)
		return &queue->loose;
	if (!create)
	{
		entry = grouped_lookup(grouped, key);
		return entry ? entry->lane : NULL;
	}
	entry = grouped_insert(grouped, key, &found);
	if (!found)
		entry->lane = lane_create(queue, key);
	return entry->lane;
}

/*
 * Put a message into a lane: at the end, or, when it has precedence, before those
 * that have none or have a higher one. The part that is out grows when the
 * message is put into it, or is out itself.
 */
static void
lane_put(Lane *lane, Message *message, bool is_out)
{
	int			position = lane->nmessages;
	dlist_iter	iter;

	message->lane = lane;
	dlist_push_tail(&lane->messages, &message->in_lane);
	lane->nmessages++;

	if (message->precedence != 0 && lane->key != 0)
	{
		position = 0;
		dlist_foreach(iter, &lane->messages)
		{
			Message    *other = dlist_container(Message, in_lane, iter.cur);

			if (other == message)
				break;
			if (other->precedence == 0 || other->precedence > message->precedence)
			{
				dlist_delete(&message->in_lane);
				dlist_insert_before(iter.cur, &message->in_lane);
				break;
			}
			position++;
		}
	}

	if (position < lane->nout)
		lane->nout++;
	else if (is_out)
		lane->nout = position + 1;
}

/* Was the row there before the table was read? Then it has been counted. */
static bool
is_read_again(const OutboxRow *row, RowSource source)
{
	return source == ROW_READ && row->id <= highest_before_scan;
}

void
lanes_delay(const OutboxRow *row, RowSource source)
{
	Queue	   *queue = lanes_queue(row->queue);

	if (queue && source != ROW_ANNOUNCED && !is_read_again(row, source))
	{
		queue->ndelayed++;
		queue->nenqueued++;
	}
	highest_id = Max(highest_id, row->id);
}

int64
lanes_precedence(const Queue *queue, const OutboxRow *row)
{
	return queue->settings.on_dead_letter == ON_DEAD_LETTER_BLOCK ? row->first_id : row->id;
}

void
lanes_accept(const OutboxRow *row, RowSource source)
{
	Queue	   *queue;
	Lane	   *lane;
	Message    *message;
	bool		found;
	bool		is_out = source == ROW_OUT;
	bool		is_again = is_read_again(row, source);
	bool		is_new = source != ROW_OUT && source != ROW_DUE && !is_again;
	bool		is_counted = source != ROW_ANNOUNCED && source != ROW_OUT && !is_again;
	bool		goes_first;
	bool		was_out;

	/* What was adopted at the start says nothing about those before it. */
	if (!is_out)
		highest_id = Max(highest_id, row->id);
	if (lanes_find(row->id))
		return;
	queue = lanes_queue(row->queue);
	if (queue == NULL)
	{
		leave_behind(&orphans, row->id);
		norphans += is_counted;
		return;
	}

	if (source == ROW_DUE && queue->ndelayed > 0)
		queue->ndelayed--;

	/*
	 * What was given out, or what a blocked group waited for, goes first in its
	 * group, so it cannot be left behind.
	 */
	goes_first = is_out || row->receive_count > 0 || lanes_precedence(queue, row) != row->id;
	lane = lane_of_group(queue, row->group, false);
	if (!is_out && !(goes_first && row->group != 0))
	{
		LeftBehind *left = NULL;

		if (queue->left.from != NO_SWEEP)
			left = &queue->left;
		else if (lane && (lane->left.from != NO_SWEEP ||
						  (row->group != 0 && lane->nmessages >= lane_limit())))
			left = &lane->left;
		else if (!has_room(queue, 100))
		{
			/* Lanes that wait hide nobody; and one that need not wait gets in. */
			if (lane && row->group != 0 && (lane->nout > 0 || blocked_group(row->group)))
				left = &lane->left;
			else if (!dlist_is_empty(&queue->ready))
				left = &queue->left;
		}
		if (left)
		{
			if (left != &queue->left && left->from == NO_SWEEP)
				queue->nlanes_left++;
			leave_behind(left, row->id);
			queue->nleft += is_counted;
			queue->nenqueued += is_new && is_counted;
			return;
		}
	}
	if (is_again && queue->nleft > 0)
		queue->nleft--;
	queue->nenqueued += is_new;

	if (is_out && row->group == 0)
		lane = lane_create(queue, 0);
	else if (lane == NULL)
		lane = lane_of_group(queue, row->group, true);

	message = MemoryContextAllocZero(message_context, sizeof(Message));
	message->id = row->id;
	message->place = row->place;
	message->precedence = goes_first ? lanes_precedence(queue, row) : 0;
	was_out = lane->nout > 0;
	lane_put(lane, message, is_out);
	dlist_push_tail(&queue->messages, &message->in_queue);
	queue->nmessages++;
	nmessages++;
	known_insert(known, row->id, &found)->message = message;

	if (is_out && !was_out)
	{
		if (lane->is_ready)
			dlist_delete(&lane->in_queue);
		lane->is_ready = false;
		dlist_push_tail(&queue->out, &lane->in_queue);
	}
	else if (!lane->is_ready && lane->nout == 0)
		make_ready(lane);
}

static void
forget_left(LeftBehind *left, int64 *from)
{
	*from = Min(*from, left->from);
	left->from = NO_SWEEP;
	left->is_refilling = true;
	nrefilling++;
}

/* Half of the queue's memory, if so much of it is of lanes that have to wait. */
static void
make_room(Queue *queue)
{
	dlist_node *node = queue->messages.head.prev;

	while (node != &queue->messages.head && !has_room(queue, 50))
	{
		Message    *message = dlist_container(Message, in_queue, node);
		Lane	   *lane = message->lane;

		node = node->prev;
		/* What is out comes first in its lane; and one to go on with. */
		if (message->precedence != 0 || lane->nmessages <= Max(lane->nout, 1))
			continue;

		/* Those that come in last are last in their lanes. */
		Assert(dlist_tail_node(&lane->messages) == &message->in_lane);
		if (lane->left.from == NO_SWEEP)
			queue->nlanes_left++;
		leave_behind(&lane->left, message->id);
		queue->nleft++;
		take_out(message);
	}
}

int64
lanes_refill_from(void)
{
	int64		from = NO_SWEEP;

	if (queues_added && orphans.from != NO_SWEEP)
	{
		forget_left(&orphans, &from);
		norphans = 0;
	}
	queues_added = false;

	for (int i = 0; i < lane_nqueues; i++)
	{
		Queue	   *queue = &lane_queues[i];
		dlist_mutable_iter iter;

		if (queue->left.from != NO_SWEEP && dlist_is_empty(&queue->ready))
		{
			make_room(queue);
			forget_left(&queue->left, &from);
		}
		else if (queue->left.from != NO_SWEEP && has_room(queue, 50))
			forget_left(&queue->left, &from);

		/* While the queue is full, its lanes must wait. */
		if (queue->left.from != NO_SWEEP)
			continue;
		dlist_foreach_modify(iter, &queue->hungry)
		{
			Lane	   *lane = dlist_container(Lane, in_hungry, iter.cur);

			dlist_delete(&lane->in_hungry);
			dlist_push_tail(&refilling_lanes, &lane->in_hungry);
			forget_left(&lane->left, &from);
			queue->nlanes_left--;
		}
	}
	return from;
}

void
lanes_begin_scan(void)
{
	highest_before_scan = highest_id;
}

bool
lanes_wants_more(void)
{
	return nrefilling > 0;
}

void
lanes_end_scan(bool reached_end)
{
	highest_before_scan = 0;

	while (!dlist_is_empty(&refilling_lanes))
	{
		Lane	   *lane = dlist_container(Lane, in_hungry,
										   dlist_pop_head_node(&refilling_lanes));

		lane->is_hungry = false;
		lane->left.is_refilling = false;
		if (lane->nmessages == 0)
			lane_rest(lane);
	}
	for (int i = 0; i < lane_nqueues; i++)
	{
		Queue	   *queue = &lane_queues[i];

		queue->left.is_refilling = false;
		if (reached_end && queue->left.from == NO_SWEEP && queue->nlanes_left == 0)
			queue->nleft = 0;
	}
	orphans.is_refilling = false;
	nrefilling = 0;
}

bool
lanes_are_stopped(const Queue *queue)
{
	return queue->settings.is_paused || queue->nblocked > BLOCKED_GROUPS_MAX;
}

/* Figures in it make no other problem: how long it took, by how much a clock is off. */
static bool
same_problem(const char *a, const char *b)
{
	do
	{
		a += strspn(a, "0123456789");
		b += strspn(b, "0123456789");
		if (*a != *b++)
			return false;
	} while (*a++ != '\0');
	return true;
}

void
lanes_report(Queue *queue, const Problem *problem)
{
	QueueSlot  *slot = queue->slot;
	char		what[sizeof(slot->problem)];
	bool		is_new;

	strlcpy(what, problem->what, sizeof(what));
	is_new = !same_problem(slot->problem, what);
	if (is_new && *problem->what)
		ereport(LOG,
				(errmsg("taskoutbox queue \"%s\" is stopped: %s", queue->name, problem->what),
				 problem->next_try == DT_NOEND ? 0 :
				 errdetail("The next try is at %s.", timestamptz_to_str(problem->next_try)),
				 errhint("%s", problem->remedy)));
	else if (is_new)
		ereport(LOG,
				(errmsg("taskoutbox queue \"%s\" goes on", queue->name)));
	if (!is_new && slot->next_try == problem->next_try)
		return;

	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	strlcpy(slot->problem, what, sizeof(slot->problem));
	strlcpy(slot->remedy, problem->remedy, sizeof(slot->remedy));
	if (is_new)
		slot->problem_since = GetCurrentTimestamp();
	slot->next_try = problem->next_try;
	LWLockRelease(shared->lease_lock);
}

Lane *
lanes_next(Queue *queue)
{
	Lane	   *lane;

	if (dlist_is_empty(&queue->ready))
		return NULL;
	lane = dlist_container(Lane, in_queue, dlist_pop_head_node(&queue->ready));
	lane->is_ready = false;

	if (lane == &queue->loose)
	{
		Message    *message = dlist_container(Message, in_lane,
											  dlist_pop_head_node(&lane->messages));

		if (--lane->nmessages > 0)
			make_ready(lane);
		lane = lane_create(queue, 0);
		lane_put(lane, message, false);
	}
	dlist_push_tail(&queue->out, &lane->in_queue);
	return lane;
}

void
lanes_remove(Message *message)
{
	Lane	   *lane = message->lane;

	take_out(message);
	feel_hunger(lane);
}

void
lanes_forget(Message *message)
{
	Lane	   *lane = message->lane;

	lanes_remove(message);
	if (lane->nmessages == 0)
	{
		if (lane->is_ready)
			dlist_delete(&lane->in_queue);
		lane->is_ready = false;
		lane_rest(lane);
	}
}

void
lanes_return(Lane *lane)
{
	dlist_delete(&lane->in_queue);
	lane->nout = 0;
	lane_rest(lane);
}

void
lanes_put_back(Lane *lane)
{
	lanes_return(lane);
	if (lane->is_ready)
		dlist_move_head(&lane->queue->ready, &lane->in_queue);
}

void
lanes_block(uint64 group)
{
	LaneEntry  *entry = grouped_lookup(grouped, group);

	if (entry && entry->lane->is_ready)
	{
		dlist_delete(&entry->lane->in_queue);
		entry->lane->is_ready = false;
	}
}

void
lanes_unblock(uint64 group)
{
	LaneEntry  *entry = grouped_lookup(grouped, group);

	if (entry == NULL || entry->lane->nout > 0 || entry->lane->is_ready)
		return;
	feel_hunger(entry->lane);
	lane_rest(entry->lane);
}
