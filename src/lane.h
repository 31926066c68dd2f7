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
	bool		is_attempted;	/* was given out: stays ahead of its lane's others */
	bool		came_back;		/* its lease ended, and that is not counted yet */
} Message;

/* Rows that memory has no room for: from this id on, about so many. */
typedef struct LeftBehind
{
	int64		from;			/* NO_SWEEP: none */
	int64		count;
	uint64		pass;			/* the pass that counted them anew */
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
	bool		is_hungry;		/* in queue->hungry */
	uint64		offer_end;		/* embedded: position after its last offer */
	LeftBehind	left;
	dlist_node	in_queue;		/* ready or out */
	dlist_node	in_hungry;
};

struct Queue
{
	QueueSettings settings;
	const Backend *backend;
	QueueSlot  *slot;
	Lane		loose;
	dlist_head	messages;		/* all, in the order in which they came */
	dlist_head	ready;			/* lanes to deliver from, in turn */
	dlist_head	out;			/* lanes with messages out */
	dlist_head	hungry;			/* lanes with room for what they left behind */
	int64		nmessages;
	int64		nlanes;
	int64		nlanes_left;	/* sum of what lanes left behind */
	LeftBehind	left;			/* what the queue left behind */
};

extern Queue *lane_queues;		/* array */
extern int	lane_nqueues;

/* Empty memory; done at start. */
extern void lanes_init(void);

/* Set up the queues from their settings. False: one is gone, start anew. */
extern bool lanes_set_queues(DatabaseSlot *db);

extern Queue *lanes_queue(uint64 key);
extern Message *lanes_find(int64 id);

/*
 * A row that has become visible. Rows must be passed in the order of ids within
 * a pass. With is_out it is in somebody's hands already.
 */
extern void lanes_accept(const OutboxRow *row, bool is_out);

/*
 * Before a pass over the table: let queues and lanes that have room again forget
 * what they left behind, and return the smallest id from which the pass must
 * read so that it finds that again, or NO_SWEEP.
 */
extern int64 lanes_begin_pass(void);

/* From here to the next pass, rows are read from the table. */
extern void lanes_begin_scan(void);

/* The next lane to deliver from, or NULL. It is out, and has nout = 0. */
extern Lane *lanes_next(Queue *queue);

/* A message is done; the lane, too, when it was its last and nothing is out. */
extern void lanes_remove(Message *message);

/* Nothing of the lane is out any more: it takes its place among the ready. */
extern void lanes_return(Lane *lane);

extern int64 lanes_memory(void);	/* bytes */
extern int64 lanes_message_count(void);
extern int64 lanes_group_count(void);
extern int64 lanes_orphan_count(void);

#endif							/* TASKOUTBOX_LANE_H */
