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
