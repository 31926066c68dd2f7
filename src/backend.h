/*
 * backend.h
 *	  A backend: where the relay takes the messages of a queue.
 *
 * The engine (relay.c, lane.c) keeps order; a backend delivers. The embedded
 * one leases rows to consumers. All functions run in the relay.
 */
#ifndef TASKOUTBOX_BACKEND_H
#define TASKOUTBOX_BACKEND_H

#include "taskoutbox.h"

#include "datatype/timestamp.h"

#include "shared.h"

struct Lane;
struct Queue;
struct OutboxReader;

typedef struct Backend
{
	const char *name;

	/*
	 * The relay starts: pass the messages that are out already to lanes_accept.
	 * The reader shows what is visible; in a transaction.
	 */
	void		(*start) (DatabaseSlot *db, struct OutboxReader *reader);

	/*
	 * Find out what became of the messages that are out, and tell the lanes;
	 * in a transaction. Returns when to be called again without any news.
	 */
	TimestampTz (*settle) (DatabaseSlot *db);

	/* The transaction of settle has committed. */
	void		(*committed) (DatabaseSlot *db);

	/* How many messages of the queue could be taken now. */
	int			(*room) (struct Queue *queue);

	/*
	 * Take messages from the lane's head, as many as it likes but at least one
	 * and no more than room said, and set lane->nout. Must not wait.
	 */
	void		(*deliver) (struct Queue *queue, struct Lane *lane, int room);
} Backend;

extern const Backend embedded_backend;

/* All of them, ended by NULL; and one, or NULL when there is none of that name. */
extern const Backend *const backends[];
extern const Backend *backend_by_name(const char *name);

#endif							/* TASKOUTBOX_BACKEND_H */
