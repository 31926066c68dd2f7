/*
 * in_hand.h
 *	  What consumer workers are at, in a file that outlives a crash of the server.
 */
#ifndef TASKOUTBOX_IN_HAND_H
#define TASKOUTBOX_IN_HAND_H

#include "taskoutbox.h"

/* Messages that one transaction of a worker handles at most. */
#define IN_HAND_MAX 60

/* Maps the file, with room for so many workers; in the postmaster. */
extern void in_hand_startup(int nworkers);

/*
 * For a worker, with the index of its slot: from now on a crash of this process
 * counts as a receive of these messages; or of none.
 */
extern void in_hand_put(int worker, Oid outbox, const int64 *ids, int n);
extern void in_hand_clear(int worker);

/* In a signal handler: the crash that ends this process is not its own. */
extern void in_hand_survive(int worker);

/* Does the place of a worker still hold what a crash left there? */
extern bool in_hand_is_left(int worker);

/*
 * For the relay, at its start, in a transaction: count what crashes left there of
 * this database as received; and, when that is committed, forget it.
 */
extern void in_hand_count(void);
extern void in_hand_forget(Oid dboid);

#endif							/* TASKOUTBOX_IN_HAND_H */
