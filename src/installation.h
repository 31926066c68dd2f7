/*
 * installation.h
 *	  Which installation this database is, and whether it is the one that its tasks
 *	  belong to.
 */
#ifndef TASKOUTBOX_INSTALLATION_H
#define TASKOUTBOX_INSTALLATION_H

#include "taskoutbox.h"

#include "datatype/timestamp.h"

#include "shared.h"

/* Make sure that the installation with this outbox has a pin, in a transaction that enqueues. */
extern void installation_pin(Oid outbox);

/* The pin, and the installation's own id, as they are at this moment. */
extern InstallationPin installation_read_pin(void);
extern InstallationId installation_read_id(void);

/*
 * The id that a task keeps over all its retries and redrives:
 * "<uuid>:<first id>:<enqueue time in microseconds>".
 */
extern char *installation_task_uid(const InstallationId *id, int64 first_id, TimestampTz enqueued_at);

#endif							/* TASKOUTBOX_INSTALLATION_H */
