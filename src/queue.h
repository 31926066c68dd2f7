/*
 * queue.h
 *	  Queues and their settings.
 */
#ifndef TASKOUTBOX_QUEUE_H
#define TASKOUTBOX_QUEUE_H

#include "taskoutbox.h"

#include "datatype/timestamp.h"
#include "utils/timestamp.h"

/* The longest time a message can be hidden (an SQS limit, too: 43,200 s). */
#define VISIBILITY_MAX (12 * INT64CONST(3600) * USECS_PER_SEC)

#define RECEIVE_COUNT_MAX 1000

#define DEDUPLICATION_WINDOW_MAX (1000 * USECS_PER_DAY)

/* As the list of settings in queue.c has them. */
typedef enum OnDeadLetter
{
	ON_DEAD_LETTER_SKIP,
	ON_DEAD_LETTER_BLOCK
} OnDeadLetter;

typedef enum OnFull
{
	ON_FULL_WARN,
	ON_FULL_REFUSE
} OnFull;

typedef struct QueueSettings
{
	char	   *name;
	int			name_length;
	uint64		key;			/* queue_key() */
	char	   *backend;
	char	   *url;			/* sqs: where it is; NULL: it is not there */
	char	   *region;			/* NULL: as the url or taskoutbox.aws_region says */
	char	   *endpoint;		/* NULL: as the url says, or other settings */
	int64		visibility_timeout; /* microseconds, as all intervals here */
	int64		max_receive_count;
	int64		deduplication_window;
	int64		on_dead_letter;
	int64		dead_letter_retention;
	int64		max_pending;	/* 0: no limit */
	int64		on_full;
	int64		retry_base;
	int64		retry_cap;
	int64		max_connections;
	int64		group_batching;
	int64		require_dlq;
	int64		allow_http;
	int64		consumers;
	int64		max_run_time;
	int64		ledger_retention;
	char	   *producer_role;	/* who may enqueue, and who receive; NULL: whoever may at all */
	char	   *consumer_role;
	bool		is_paused;
	bool		is_built_in;	/* there is no row */
} QueueSettings;

/* Registers the transaction callback; from _PG_init. */
extern void queue_init(void);

/*
 * Settings of a queue: those of its row, or the built-in ones of the queue
 * "default" when it has none. Valid until settings are asked for again. Error
 * TO005 when there is no such queue.
 */
extern const QueueSettings *queue_settings(const char *name);
extern const QueueSettings *queue_settings_of(const text *name);

/* The same, or NULL when there is no such queue. */
extern const QueueSettings *queue_find(const char *name);

/* All queues of this database, "default" included; their number. */
extern int	queue_list(const QueueSettings **list);

/* Of a copy that is kept: its texts are only good until settings are asked for again. */
extern void queue_drop_texts(QueueSettings *copy);

/* Are its messages in this database? */
extern bool queue_is_embedded(const QueueSettings *queue);

/* Does this server do anything with its messages (taskoutbox.publish)? */
extern bool queue_is_served(const QueueSettings *queue);

/*
 * Error 42501 when the queue is kept for the members of a role (producer_role or
 * consumer_role), and this one is none of them.
 */
extern void queue_check_producer(const QueueSettings *queue, Oid role);
extern void queue_check_consumer(const QueueSettings *queue, Oid role);

/* Is there no consumer_role, or is this one of its members? */
extern bool queue_admits_consumer(const QueueSettings *queue, Oid role);

/*
 * A random time (microseconds) up to retry_base, doubled after each failure up to
 * retry_cap.
 */
extern int64 queue_retry_delay(const QueueSettings *queue, int failures);

/* A number that changes whenever a setting may have changed. */
extern uint64 queue_generation(void);

/* When this transaction commits, ask a queue's backend to redrive its dead letters. */
extern void queue_redrive_at_commit(uint64 key);

/* Read the table again, without waiting for an invalidation. */
extern void queue_read_again(void);

/* An interval in microseconds, a month as 30 days. */
extern double interval_microseconds(const Interval *interval);

/*
 * The same as a whole number. Error TO010, naming the argument, when it is not
 * within low and high.
 */
extern int64 interval_argument(const char *argument, const Interval *interval,
							   int64 low, int64 high, const char *limits);

#endif							/* TASKOUTBOX_QUEUE_H */
