/*
 * deduplication.h
 *	  Tasks with a deduplication id: the first one counts.
 */
#ifndef TASKOUTBOX_DEDUPLICATION_H
#define TASKOUTBOX_DEDUPLICATION_H

#include "taskoutbox.h"

#include "datatype/timestamp.h"

/* Registers the hooks for the NOTICE; from _PG_init. */
extern void deduplication_init(void);

/* The caller's id with taskoutbox.deduplication_scope before it; errors TO002, TO008. */
extern text *deduplication_scoped(text *id);

/*
 * Enter a task under its (scoped) id, until the given time. Returns 0 when it is
 * the first one, or the id of the task that is. Waits for a transaction that
 * enters the same id; above READ COMMITTED that can end in error 40001.
 */
extern int64 deduplication_enter(const text *queue, const text *id, int64 task_id,
								 TimestampTz expires_at);

/*
 * For n (scoped) ids of a queue, texts: the tasks that took them, 0 for none, and
 * until when they are taken.
 */
extern void deduplication_find(const char *queue, int n, const Datum *ids,
							   int64 *tasks, TimestampTz *expires_at);

/*
 * Ids of a queue stay taken until then and a bit: DEDUPLICATION_MARGIN at least.
 * With DEDUPLICATION_LEAD more at enqueue, most need no change when they are sent.
 */
#define DEDUPLICATION_MARGIN (60 * USECS_PER_SEC)
#define DEDUPLICATION_LEAD (120 * USECS_PER_SEC)

extern void deduplication_keep(const char *queue, const char *const *ids, int n, TimestampTz until);

/* For the relay: forget a batch of expired entries; returns whether there may be more. */
extern bool deduplication_purge(void);

#endif							/* TASKOUTBOX_DEDUPLICATION_H */
