/*
 * launcher.h
 *	  The launcher, and how a relay of one database lives in its slot.
 */
#ifndef TASKOUTBOX_LAUNCHER_H
#define TASKOUTBOX_LAUNCHER_H

#include "taskoutbox.h"
#include "shared.h"

/* Registers the worker and the hooks; from _PG_init, when preloaded. */
extern void launcher_init(void);

extern PGDLLEXPORT void taskoutbox_launcher_main(Datum arg);
extern PGDLLEXPORT void taskoutbox_relay_main(Datum arg);

/*
 * What relays and consumer workers have in common. A start that is not seen through
 * by START_TIMEOUT is tried again; with too few worker slots, after NO_WORKER_RETRY.
 */
#define START_TIMEOUT (30 * USECS_PER_SEC)
#define NO_WORKER_RETRY (5 * USECS_PER_SEC)

/*
 * For the launcher: start a process of a kind ("relay") for a slot of its own. False:
 * there is no worker slot for it, which is reported unless *is_reported says that it
 * was.
 */
extern bool launcher_start(const char *kind, const char *function, int index, Oid dboid,
						   bool *is_reported);

/* For a process of ours, the launcher too: take signals, and read the configuration first. */
extern void launcher_take_signals(void);

/*
 * A process failed that had run for so long (microseconds; 0: it did not come that
 * far): count its failures in a row, and return the delay before its next start.
 */
extern int64 launcher_count_failure(int *failures, int64 ran_for);

/*
 * For a relay: take the slot over, and return it, or NULL when another relay
 * has it. It is left behind at exit, by itself.
 */
extern DatabaseSlot *relay_slot_claim(int index);

/* The extension is not there (any more): no relay wanted. */
extern void relay_slot_free(DatabaseSlot *db);

/* The relay can be waked; or is about to end for an error, to be delayed. */
extern void relay_slot_ready(DatabaseSlot *db);
extern void relay_slot_failed(void);

#endif							/* TASKOUTBOX_LAUNCHER_H */
