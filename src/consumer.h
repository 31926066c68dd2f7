/*
 * consumer.h
 *	  Messages as consumers get them: programs by receive, controllers as an argument.
 */
#ifndef TASKOUTBOX_CONSUMER_H
#define TASKOUTBOX_CONSUMER_H

#include "taskoutbox.h"

#include "executor/tuptable.h"

#include "lease.h"
#include "outbox.h"

/* Columns of the type message. */
enum
{
	MESSAGE_ID = 1,
	MESSAGE_RECEIPT_HANDLE,
	MESSAGE_QUEUE,
	MESSAGE_TASK_TYPE,
	MESSAGE_PAYLOAD,
	MESSAGE_GROUP_ID,
	MESSAGE_DEDUPLICATION_ID,
	MESSAGE_HEADERS,
	MESSAGE_ENQUEUED_AT,
	MESSAGE_RECEIVE_COUNT,
	MESSAGE_LAST_ERROR,
	MESSAGE_UID,
	MESSAGE_COLUMNS = MESSAGE_UID
};

/* The type message. */
extern Oid	message_type(void);

/*
 * Find the row of a message that was taken, with a dirty reader; false when it is
 * gone, changed by someone just now, or of another queue than was asked for.
 */
extern bool message_look(OutboxReader *reader, const Receipt *receipt, const char *queue);

/*
 * The columns of the type message, of the row that was found. They are only good as
 * long as the reader stays there. receipt NULL: without a receipt handle.
 */
extern void message_values(TupleTableSlot *slot, const Receipt *receipt, Datum *values, bool *nulls);

#endif							/* TASKOUTBOX_CONSUMER_H */
