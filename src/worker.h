/*
 * worker.h
 *	  A consumer worker: calls the controllers of one role, for one queue.
 */
#ifndef TASKOUTBOX_WORKER_H
#define TASKOUTBOX_WORKER_H

#include "taskoutbox.h"

extern PGDLLEXPORT void taskoutbox_worker_main(Datum arg);

#endif							/* TASKOUTBOX_WORKER_H */
