/*
 * ask.h
 *	  A question of a backend to the relay of its database.
 */
#ifndef TASKOUTBOX_ASK_H
#define TASKOUTBOX_ASK_H

#include "taskoutbox.h"
#include "shared.h"

/* How long one that does not wait for messages gives the relay to answer. */
#define ANSWER_TIMEOUT (1 * USECS_PER_SEC)

/*
 * Ask the relay to take in everything committed so far and, if queue is not 0,
 * to offer what is ready there. With wait, the answer comes only when something
 * is on offer. Returns false when there was no answer by the deadline, or when the
 * caller's latch is set and is_called (if not NULL) says that there is something
 * else to do. Can be cancelled.
 */
extern bool ask_relay(DatabaseSlot *db, uint64 queue, bool wait, TimestampTz deadline,
					  bool (*is_called) (void));

/* For the relay: the questions that are open when a round begins. */
typedef struct Question
{
	BackendSlot *slot;
	uint64		queue;
	bool		wait;
} Question;

/*
 * questions has room for shared->nbackends. *asked is a count to compare with
 * db->questions later: has anyone asked since?
 */
extern int	ask_open_questions(DatabaseSlot *db, Question *questions, uint64 *asked);
extern void ask_answer(Oid dboid, const Question *question);

#endif							/* TASKOUTBOX_ASK_H */
