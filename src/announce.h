/*
 * announce.h
 *	  Tells the relay which ids a transaction commits.
 */
#ifndef TASKOUTBOX_ANNOUNCE_H
#define TASKOUTBOX_ANNOUNCE_H

#include "taskoutbox.h"

/* Registers the transaction callbacks and the utility hook; from _PG_init. */
extern void announce_init(void);

/* This transaction inserted a task with this id, by enqueue. */
extern void announce_id(int64 id);

/*
 * This transaction inserted a task with this id, by other means than enqueue.
 * Such a transaction cannot be prepared: error 0A000 at PREPARE TRANSACTION.
 */
extern void announce_direct_id(int64 id);

#endif							/* TASKOUTBOX_ANNOUNCE_H */
