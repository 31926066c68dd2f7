/*
 * taskoutbox.h
 *	  What every file of the extension shares: its settings, its SQLSTATEs, and
 *	  the names under which its objects are found.
 */
#ifndef TASKOUTBOX_H
#define TASKOUTBOX_H

#include "pg_compat.h"

/* Of the SQL objects that this library is made for, too (pg_extension.extversion). */
#define TASKOUTBOX_VERSION "0.1"

#define TASKOUTBOX_SCHEMA "taskoutbox"
#define TASKOUTBOX_DEFAULT_QUEUE "default"

/*
 * Errors of our own, in class TO (listed in doc/reference.md).
 */
#define ERRCODE_TASKOUTBOX_MISSING			MAKE_SQLSTATE('T','O','0','0','1')
#define ERRCODE_TASKOUTBOX_TOO_LONG			MAKE_SQLSTATE('T','O','0','0','2')
#define ERRCODE_TASKOUTBOX_CHARACTER		MAKE_SQLSTATE('T','O','0','0','3')
#define ERRCODE_TASKOUTBOX_TOO_LARGE		MAKE_SQLSTATE('T','O','0','0','4')
#define ERRCODE_TASKOUTBOX_UNKNOWN_QUEUE	MAKE_SQLSTATE('T','O','0','0','5')
#define ERRCODE_TASKOUTBOX_DELIVER_AT		MAKE_SQLSTATE('T','O','0','0','6')
#define ERRCODE_TASKOUTBOX_HEADERS			MAKE_SQLSTATE('T','O','0','0','7')
#define ERRCODE_TASKOUTBOX_RESERVED			MAKE_SQLSTATE('T','O','0','0','8')
#define ERRCODE_TASKOUTBOX_RANGE			MAKE_SQLSTATE('T','O','0','1','0')
#define ERRCODE_TASKOUTBOX_BAD_HANDLE		MAKE_SQLSTATE('T','O','0','1','1')
#define ERRCODE_TASKOUTBOX_STALE_HANDLE		MAKE_SQLSTATE('T','O','0','1','2')
#define ERRCODE_TASKOUTBOX_BEING_DELETED	MAKE_SQLSTATE('T','O','0','1','3')
#define ERRCODE_TASKOUTBOX_QUEUE_EXISTS		MAKE_SQLSTATE('T','O','0','1','4')
#define ERRCODE_TASKOUTBOX_TOO_MANY_QUEUES	MAKE_SQLSTATE('T','O','0','1','5')
#define ERRCODE_TASKOUTBOX_QUEUE_NOT_EMPTY	MAKE_SQLSTATE('T','O','0','1','6')
#define ERRCODE_TASKOUTBOX_QUEUE_FULL		MAKE_SQLSTATE('T','O','0','1','7')
#define ERRCODE_TASKOUTBOX_IN_FLIGHT		MAKE_SQLSTATE('T','O','0','1','8')
#define ERRCODE_TASKOUTBOX_NOT_HERE			MAKE_SQLSTATE('T','O','0','1','9')
#define ERRCODE_TASKOUTBOX_NO_CONTROLLER	MAKE_SQLSTATE('T','O','0','2','0')

/* Both are NULL, or they say the same. */
static inline bool
same_text(const char *a, const char *b)
{
	return a && b ? strcmp(a, b) == 0 : a == b;
}

/*
 * Settings (taskoutbox.c). The sizes are fixed when the server starts.
 */
extern int	taskoutbox_max_databases;
extern int	taskoutbox_max_queues;	/* per database */
extern int	taskoutbox_max_in_flight;	/* messages, whole cluster */
extern int	taskoutbox_relay_memory;	/* kB, per database */
extern int	taskoutbox_max_message_bytes;
extern char *taskoutbox_deduplication_scope;
extern char *taskoutbox_aws_credentials_file;
extern char *taskoutbox_aws_profile;
extern char *taskoutbox_aws_region;
extern char *taskoutbox_aws_endpoint_url;
extern int	taskoutbox_request_timeout;	/* ms */
extern bool taskoutbox_publish;
extern int	taskoutbox_ring_size;	/* runs of ids, per database and ring */
extern int	taskoutbox_announce_size;	/* runs of ids, per backend */

#endif							/* TASKOUTBOX_H */
