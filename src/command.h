/*
 * command.h
 *	  What the command of a pg_cron entry enqueues.
 */
#ifndef TASKOUTBOX_COMMAND_H
#define TASKOUTBOX_COMMAND_H

#include "taskoutbox.h"

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"

/* A call of enqueue or enqueue_period; what the command does not say as a constant is NULL. */
typedef struct EnqueueCall
{
	char	   *task_type;
	char	   *queue;
	char	   *prefix;			/* of the deduplication id, before the period */
	char	   *period;
	char	   *timezone;
	Interval   *ahead;			/* from now() to "at" */
	const char *hint;			/* why its periods cannot be known, if so */
} EnqueueCall;

/* The calls in a command; an empty list for one that cannot be parsed. */
extern List *command_calls(const char *command);

#endif							/* TASKOUTBOX_COMMAND_H */
