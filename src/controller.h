/*
 * controller.h
 *	  Task controllers: which function is called for which task type.
 */
#ifndef TASKOUTBOX_CONTROLLER_H
#define TASKOUTBOX_CONTROLLER_H

#include "taskoutbox.h"

#include "fmgr.h"

/* What a worker knows of a task type of its queue. */
typedef struct Controller
{
	char	   *task_type;
	char	   *name;			/* of the function, for messages */
	char	   *problem;		/* why it cannot be called; NULL: it can */
	Oid			role;			/* owner of the function, now */
	bool		is_atomic;
	bool		takes_message;	/* and not its payload */
	FmgrInfo	function;
	double		average;		/* run time in microseconds; < 0: never ran */
} Controller;

/*
 * For a worker, at the start of a transaction, which makes changes known: read the
 * controllers of a queue if they may have changed; and find one, NULL: there is none.
 */
extern void controllers_read(const char *queue);
extern Controller *controller_find(const char *task_type);

/*
 * Is the function still what it was when it was read, and may its owner call it?
 * Error otherwise. To be asked right before the call, which it makes ready.
 */
extern void controller_check(Controller *controller);

/* For the relay: tell the pools (pool.h) which workers are wanted, if that may have changed. */
extern void controllers_want_workers(bool has_changed);

#endif							/* TASKOUTBOX_CONTROLLER_H */
