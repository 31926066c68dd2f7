/*
 * source.h
 *	  Where a consumer worker has its tasks from: the embedded queue, or SQS.
 *
 * The worker (worker.c) runs them, in one way for all sources; a source gets them,
 * and tells the queue what became of them.
 */
#ifndef TASKOUTBOX_SOURCE_H
#define TASKOUTBOX_SOURCE_H

#include "taskoutbox.h"

#include "access/htup.h"
#include "access/tupdesc.h"

#include "lease.h"

struct QueueSettings;

typedef enum TaskState
{
	TASK_TAKEN,					/* in our hands, and not run yet */
	TASK_RUN,					/* it went well, in this transaction */
	TASK_DONE,					/* committed */
	TASK_FAILED,				/* and is to be recorded */
	TASK_AWAY					/* given back or passed on */
} TaskState;

typedef struct Task
{
	Receipt		receipt;
	TaskState	state;
	int			receive_count;	/* before this one */
	uint64		group;			/* OutboxRow.group; 0: no group */
	char	   *task_type;
	char	   *uid;
	HeapTuple	message;
	ErrorData  *error;

	/* in SQS */
	char	   *handle;
	char	   *message_id;		/* of SQS */
	const char *problem;		/* why it cannot be handled; NULL: it can */
	int			hide_seconds;	/* when it is not done: from others, and from us */
} Task;

typedef struct Source
{
	/*
	 * The queue counts each receive, whatever becomes of it. So nothing is taken to be
	 * given back, and what a crash interrupts is counted already.
	 */
	bool		counts_receives;

	/*
	 * Fill in up to max tasks, those of a group in their order, and return their
	 * number. Never waits. In a transaction.
	 */
	int			(*take) (const struct QueueSettings *settings, TupleDesc message_desc, Task *tasks, int max);

	/* Is a task ours still? NULL: always. */
	bool		(*is_ours) (const Task *task);

	/* What is to commit together with the work; isolated: in a subtransaction of its own. NULL: nothing. */
	void		(*finish) (Task *task, bool is_isolated);

	/* Give back what was not run, and what failed (has been logged): in no transaction. */
	void		(*give_back) (Task *task);
	void		(*fail) (Task *task);

	/* All of them were run, and all is committed. May wait. NULL: nothing to do. */
	void		(*settle) (Task *tasks, int n);

	/* Nothing was there to run: wait. */
	void		(*wait) (void);

	/* At exit; is_running: its controller was interrupted. NULL: nothing to do. */
	void		(*leave) (Task *task, bool is_running);
} Source;

extern const Source sqs_source;

#endif							/* TASKOUTBOX_SOURCE_H */
