/*
 * check.h
 *	  Arguments of SQL functions, refused in the caller's hand.
 *
 * n is the position of the argument, counted from 0. Every error names the
 * argument, the limit, and a remedy.
 */
#ifndef TASKOUTBOX_CHECK_H
#define TASKOUTBOX_CHECK_H

#include "taskoutbox.h"

#include "fmgr.h"
#include "utils/guc.h"
#include "utils/jsonb.h"

#define ID_CHARACTERS 128		/* SQS: MessageGroupId, MessageDeduplicationId */

/* Ids with this prefix are our own. */
#define RESERVED_PREFIX "taskoutbox:"

/* Error TO001 */
extern void check_not_null(const char *argument, FunctionCallInfo fcinfo, int n);

/* Not empty (TO001), at most 128 characters (TO002), allowed ones (TO003) */
extern void check_name_text(const char *argument, const text *name);

/* The same, and not null (TO001) */
extern text *check_name_argument(const char *argument, FunctionCallInfo fcinfo, int n);
extern char *check_name(const char *argument, FunctionCallInfo fcinfo, int n);

/*
 * Not empty (TO001), at most 128 characters (TO002) of the allowed ones (TO003),
 * not with the reserved prefix (TO008).
 */
extern void check_deduplication_id(const char *argument, const char *id);

/*
 * The checks of one task whose names are checked, as enqueue and the trigger make
 * them. Optional texts can be NULL; headers, too.
 */
extern void check_task(const text *task_type, const text *queue, Jsonb *payload,
					   const text *group_id, const text *deduplication_id, Jsonb *headers);

/* Check hook of a setting that becomes part of an id; can be empty. */
extern bool check_id_setting(char **value, void **extra, GucSource source);

#endif							/* TASKOUTBOX_CHECK_H */
