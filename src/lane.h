/*
 * lane.h
 *	  What the relay keeps in memory: messages in lanes, lanes in queues.
 */
#ifndef TASKOUTBOX_LANE_H
#define TASKOUTBOX_LANE_H

#include "taskoutbox.h"

#include "lib/ilist.h"

#include "backend.h"
#include "outbox.h"
#include "queue.h"
#include "shared.h"

typedef struct Lane Lane;
typedef struct Queue Queue;

/* A row of the outbox that the relay has in memory. */
typedef struct Message
{
	int64		id;
	Lane	   *lane;
	dlist_node	in_lane;
	dlist_node	in_queue;
	int64		precedence;		/* see lane_put; 0: as they come */
	ItemPointerData place;		/* where the row was when it came in */
	bool		may_be_sent;	/* sqs: SQS may have it */
	bool		is_accepted;	/* sqs: SQS has it, and the row is to be deleted */
} Message;

/* What memory has no room for, of a lane or of a queue. */
typedef struct LeftBehind
{
	int64		from;			/* the smallest such id; NO_SWEEP: none */
	bool		is_refilling;	/* the table is being read for it */
} LeftBehind;

/*
 * The messages of one group, or one message without a group; or, as loose in
 * Queue, all messages without a group that wait.
 */
struct Lane
{
	Queue	   *queue;
	uint64		key;			/* OutboxRow.group; 0: no group */
	dlist_head	messages;
	int			nmessages;
	int			nout;			/* the first so many are out */
	bool		is_ready;		/* in queue->ready; when out, in queue->out */
	bool		is_busy;		/* embedded: out, because someone changes a row */
	bool		is_hungry;		/* in queue->hungry, or being refilled */
	uint64		offer_end;		/* embedded: position after its last offer */
	bool		is_alone;		/* sqs: its message is to be sent with no other */
	int			attempts;		/* sqs: that failed in a row */
	TimestampTz retry_at;		/* sqs: when out, and nothing is on its way */
	dlist_node	in_backend;		/* sqs: when out, in one of its lists */
	LeftBehind	left;
	dlist_node	in_queue;		/* ready or out */
	dlist_node	in_hungry;
};

struct Queue
{
	char	   *name;
	QueueSettings settings;
	const Backend *backend;
	void	   *own;			/* the backend's own */
	QueueSlot  *slot;
	Lane		loose;
	dlist_head	messages;		/* all, in the order in which they came */
	dlist_head	ready;			/* lanes to deliver from, in turn */
	dlist_head	out;			/* lanes with messages out */
	dlist_head	hungry;			/* lanes with room for what they left behind */
	int64		nmessages;
	int64		nlanes;
	int64		nleft;			/* about how many rows are left behind */
	int64		nlanes_left;	/* lanes that left some behind */
	int64		nblocked;		/* groups that wait for a dead letter */
	int64		ndelayed;		/* about how many rows are not due yet */
	int64		nenqueued;		/* rows that are new since the last look at it */
	LeftBehind	left;			/* what does not fit into the queue's share */
};

extern Queue *lane_queues;		/* array */
extern int	lane_nqueues;

/* Empty memory; done at start. */
extern void lanes_init(void);

/* Set up the queues from their settings. False: one is gone, start anew. */
extern bool lanes_set_queues(DatabaseSlot *db);

extern Queue *lanes_queue(uint64 key);
extern Message *lanes_find(int64 id);

/* Where a row comes from: what is left behind is counted once. */
typedef enum RowSource
{
	ROW_ANNOUNCED,				/* will be named again */
	ROW_NAMED,
	ROW_READ,					/* from the table, perhaps again */
	ROW_DUE,					/* was delayed */
	ROW_OUT						/* in somebody's hands already */
} RowSource;

/*
 * A row that is visible. Rows that became visible since the last round must be
 * passed in the order of ids.
 */
extern void lanes_accept(const OutboxRow *row, RowSource source);

/*
 * Where a message stands among those of its group that go first: what blocked its
 * group has the place of the task that it was redriven from.
 */
extern int64 lanes_precedence(const Queue *queue, const OutboxRow *row);

/* A row that is visible, but not due yet: it is only counted. */
extern void lanes_delay(const OutboxRow *row, RowSource source);

/*
 * Let queues and lanes that have room again forget what they left behind, and
 * return the smallest id from which the table is to be read so that they find
 * it again, or NO_SWEEP. Then, if the table is read for that or another reason:
 * begin, accept rows, and end. While only lanes_wants_more() is a reason, the
 * reading can stop when it says no.
 */
extern int64 lanes_refill_from(void);
extern void lanes_begin_scan(void);
extern bool lanes_wants_more(void);
extern void lanes_end_scan(bool reached_end);

/* Whether the queue as a whole gives out nothing. */
extern bool lanes_are_stopped(const Queue *queue);

/*
 * Say what keeps a queue from delivering; an empty text: nothing. A change goes to
 * the log and to queue_metrics.
 */
extern void lanes_report(Queue *queue, const Problem *problem);

/* The next lane to deliver from, or NULL. It is out, and has nout = 0. */
extern Lane *lanes_next(Queue *queue);

/* A message is done; the lane, too, when it was its last and nothing is out. */
extern void lanes_remove(Message *message);

/* A message that is not out is gone. */
extern void lanes_forget(Message *message);

/* Nothing of the lane is out any more: it takes its place among the ready. */
extern void lanes_return(Lane *lane);

/* What was delivered was not taken: the lane is the next one again. */
extern void lanes_put_back(Lane *lane);

/* blocked_group() has become true, or false, for a group. */
extern void lanes_block(uint64 group);
extern void lanes_unblock(uint64 group);

extern int64 lanes_memory(void);	/* bytes */
extern int64 lanes_message_count(void);
extern int64 lanes_group_count(void);
extern int64 lanes_orphan_count(void);

#endif							/* TASKOUTBOX_LANE_H */
