/*
 * ledger.h
 *	  Which ids were handled: what a consumer claims once is not claimed again.
 */
#ifndef TASKOUTBOX_LEDGER_H
#define TASKOUTBOX_LEDGER_H

#include "taskoutbox.h"

#include "datatype/timestamp.h"

/* The id of a task that stays the same over retries and redrives. */
extern char *task_uid(Oid outbox, int64 first_id, TimestampTz enqueued_at);

/* Write an id down for a controller; false: it was there. */
extern bool ledger_enter(const char *uid);

/* For the relay: forget what is old enough, a batch of it; may there be more? */
extern bool ledger_purge(void);

#endif							/* TASKOUTBOX_LEDGER_H */
