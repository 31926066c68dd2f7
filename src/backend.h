/*
 * backend.h
 *	  A backend: where the relay takes the messages of a queue.
 *
 * The engine (relay.c, lane.c) keeps order; a backend delivers. The embedded
 * one leases rows to consumers, the other publishes them to SQS. All functions run in the
 * relay, if nothing else is said.
 */
#ifndef TASKOUTBOX_BACKEND_H
#define TASKOUTBOX_BACKEND_H

#include "taskoutbox.h"

#include "datatype/timestamp.h"

#include "shared.h"

struct Lane;
struct Queue;
struct QueueSettings;
struct OutboxReader;

/* What keeps a queue from delivering; texts of the one who says it. */
typedef struct Problem
{
	const char *what;
	const char *remedy;
	TimestampTz next_try;		/* DT_NOEND: when something is done about it */
} Problem;

typedef struct Backend
{
	const char *name;

	/*
	 * In a session: do these settings make sense for a queue of this backend?
	 * Error TO001 or TO010, naming the argument, if not.
	 */
	void		(*check) (const struct QueueSettings *settings);

	/*
	 * The settings of a queue were read, perhaps again. Its texts are there for
	 * this call. NULL: nothing to do.
	 */
	void		(*configure) (struct Queue *queue, const struct QueueSettings *settings);

	/*
	 * The relay starts: pass the messages that are out already to lanes_accept.
	 * The reader shows what is visible; in a transaction. NULL: none that another
	 * backend has not passed (leases are common to all).
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

	/* It would take new messages at once, though nobody asks. NULL: never. */
	bool		(*wants_news) (struct Queue *queue);

	/*
	 * What is wrong outside of this database? Fills in all of it, sets what to NULL
	 * (that is not known yet), or leaves it alone (nothing). NULL: nothing, ever.
	 */
	void		(*problem) (struct Queue *queue, Problem *problem);
} Backend;

extern const Backend embedded_backend;
extern const Backend sqs_backend;

/* All of them, ended by NULL; and one, or NULL when there is none of that name. */
extern const Backend *const backends[];
extern const Backend *backend_by_name(const char *name);

#endif							/* TASKOUTBOX_BACKEND_H */
