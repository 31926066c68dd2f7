/*
 * sqs_in_flight.h
 *	  Messages of SQS that consumer workers have in hand: the relay renews their
 *	  visibility timeouts.
 */
#ifndef TASKOUTBOX_SQS_IN_FLIGHT_H
#define TASKOUTBOX_SQS_IN_FLIGHT_H

#include "taskoutbox.h"

#include "datatype/timestamp.h"

#include "shared.h"
#include "sqs_protocol.h"

/* Registers the shared memory; from _PG_init, when preloaded. */
extern void sqs_in_flight_init(void);

/*
 * For a worker, with the index of its slot: it has these messages, and they are
 * hidden until then, for that long each time; they are to stay hidden as long as
 * it has them, but not beyond last. And it has none any more. Both are done in
 * before_shmem_exit, too, so nothing stays there of a process that has ended.
 */
extern void sqs_in_flight_put(int worker, DatabaseSlot *db, uint64 queue, const SqsReceipt *receipts, int n,
							  TimestampTz until, int64 visibility, TimestampTz last);
extern void sqs_in_flight_clear(int worker);

/* Until when they are hidden. */
extern TimestampTz sqs_in_flight_until(int worker);

/* For the relay, in a transaction: renew what is due. Returns when to be called again. */
extern TimestampTz sqs_in_flight_settle(DatabaseSlot *db, TimestampTz now);

#endif							/* TASKOUTBOX_SQS_IN_FLIGHT_H */
