/*
 * blocked.h
 *	  Message groups that wait because of a dead letter.
 */
#ifndef TASKOUTBOX_BLOCKED_H
#define TASKOUTBOX_BLOCKED_H

#include "taskoutbox.h"

#include "utils/snapshot.h"

/* With more blocked groups than these, a queue gives out nothing. */
#define BLOCKED_GROUPS_MAX 10000

/* Registers the transaction callback; from _PG_init. */
extern void blocked_init(void);

/*
 * The rest is for the relay. Whether a group (OutboxRow.group) waits; no is the
 * answer for 0, which is no group.
 */
extern bool blocked_group(uint64 group);

/* A message of the group was moved to the dead letters, and blocks it. */
extern void blocked_add(uint64 queue, uint64 group);

/* Read from the dead letters which groups wait, and tell the lanes. */
extern void blocked_read(Snapshot snapshot);

#endif							/* TASKOUTBOX_BLOCKED_H */
