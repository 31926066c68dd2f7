/*
 * enqueue.c
 *	  The producers' side: one task becomes one row, in the caller's transaction.
 *
 * enqueue checks everything that the queue would refuse later, then inserts the
 * row itself, without a statement: it skips triggers, row security and the
 * privileges on the table, which nobody but its owner has. Rows that come in
 * by other means meet the same checks in a trigger, which also tells the relay;
 * only their queue need not exist yet, since a restore can bring it later.
 */
#include "taskoutbox.h"

#include "access/xact.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "announce.h"
#include "check.h"
#include "outbox.h"
#include "queue.h"
#include "shared.h"

PG_FUNCTION_INFO_V1(taskoutbox_enqueue);
PG_FUNCTION_INFO_V1(taskoutbox_task_outbox_check);

/* Arguments of enqueue. */
enum
{
	ARG_TASK_TYPE,
	ARG_PAYLOAD,
	ARG_GROUP_ID,
	ARG_DEDUPLICATION_ID,
	ARG_QUEUE,
	ARG_DELIVER_AT,
	ARG_HEADERS,
	ARG_DEDUPLICATION_WINDOW
};

/* A row waits for ever without a relay, so say it, once per transaction. */
static void
warn_not_preloaded(void)
{
	static LocalTransactionId warned = InvalidLocalTransactionId;

	if (shared != NULL || warned == MY_LXID)
		return;
	warned = MY_LXID;
	ereport(WARNING,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("task is stored, but nothing delivers it: taskoutbox is not preloaded"),
			 errhint("Add taskoutbox to shared_preload_libraries in postgresql.conf, and restart the server.")));
}

/* Arguments of this interface whose mechanism this version lacks. */
static void
refuse_for_now(FunctionCallInfo fcinfo)
{
	if (!PG_ARGISNULL(ARG_DELIVER_AT) && TIMESTAMP_NOT_FINITE(PG_GETARG_TIMESTAMPTZ(ARG_DELIVER_AT)))
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_DELIVER_AT),
				 errmsg("deliver_at must be finite"),
				 errhint("Pass a time, or NULL to deliver as soon as possible.")));
	for (int n = 0; n <= ARG_DEDUPLICATION_WINDOW; n++)
	{
		const char *argument = n == ARG_DEDUPLICATION_ID ? "deduplication_id" :
			n == ARG_DELIVER_AT ? "deliver_at" :
			n == ARG_DEDUPLICATION_WINDOW ? "deduplication_window" : NULL;

		if (argument && !PG_ARGISNULL(n))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("%s is not supported yet", argument),
					 errhint("Leave it out.")));
	}
}

static char *
optional_text(FunctionCallInfo fcinfo, int n)
{
	return PG_ARGISNULL(n) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(n));
}

Datum
taskoutbox_enqueue(PG_FUNCTION_ARGS)
{
	TupleDesc	result_desc = fcinfo->flinfo->fn_extra;
	char	   *task_type = check_name("task_type", fcinfo, ARG_TASK_TYPE);
	char	   *queue = check_name("queue", fcinfo, ARG_QUEUE);
	Datum		values[OUTBOX_COLUMNS] = {0};
	bool		nulls[OUTBOX_COLUMNS];
	Datum		result[2];
	bool		result_nulls[2] = {false, false};

	PreventCommandIfReadOnly("taskoutbox.enqueue()");
	PreventCommandIfParallelMode("taskoutbox.enqueue()");

	check_not_null("payload", fcinfo, ARG_PAYLOAD);
	check_task(task_type, queue, PG_GETARG_JSONB_P(ARG_PAYLOAD),
			   optional_text(fcinfo, ARG_GROUP_ID), optional_text(fcinfo, ARG_DEDUPLICATION_ID),
			   PG_ARGISNULL(ARG_HEADERS) ? NULL : PG_GETARG_JSONB_P(ARG_HEADERS));
	refuse_for_now(fcinfo);
	(void) queue_settings(queue);
	warn_not_preloaded();

	memset(nulls, true, sizeof(nulls));
#define PUT(column, value) (values[(column) - 1] = (value), nulls[(column) - 1] = false)
	PUT(OUTBOX_ID, 0);			/* drawn by outbox_insert */
	PUT(OUTBOX_ENQUEUED_AT, TimestampTzGetDatum(GetCurrentTimestamp()));
	PUT(OUTBOX_RECEIVE_COUNT, Int32GetDatum(0));
	PUT(OUTBOX_QUEUE, PG_GETARG_DATUM(ARG_QUEUE));
	PUT(OUTBOX_TASK_TYPE, PG_GETARG_DATUM(ARG_TASK_TYPE));
	PUT(OUTBOX_PAYLOAD, PG_GETARG_DATUM(ARG_PAYLOAD));
	if (!PG_ARGISNULL(ARG_GROUP_ID))
		PUT(OUTBOX_GROUP_ID, PG_GETARG_DATUM(ARG_GROUP_ID));
	if (!PG_ARGISNULL(ARG_HEADERS))
		PUT(OUTBOX_HEADERS, PG_GETARG_DATUM(ARG_HEADERS));
#undef PUT

	if (result_desc == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);

		if (get_call_result_type(fcinfo, NULL, &result_desc) != TYPEFUNC_COMPOSITE)
			elog(ERROR, "return type must be a row type");
		result_desc = BlessTupleDesc(CreateTupleDescCopy(result_desc));
		fcinfo->flinfo->fn_extra = result_desc;
		MemoryContextSwitchTo(old);
	}
	result[0] = Int64GetDatum(outbox_insert(values, nulls));
	result[1] = BoolGetDatum(false);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(result_desc, result, result_nulls)));
}

Datum
taskoutbox_task_outbox_check(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	TupleDesc	desc;
	HeapTuple	tuple;
	Datum	   *values;
	bool	   *nulls;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		!TRIGGER_FIRED_BY_INSERT(trigger->tg_event) || !TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		elog(ERROR, "task_outbox_check: must be a BEFORE INSERT row trigger");
	tuple = trigger->tg_trigtuple;
	desc = RelationGetDescr(trigger->tg_relation);

	values = palloc(desc->natts * sizeof(Datum));
	nulls = palloc(desc->natts * sizeof(bool));
	heap_deform_tuple(tuple, desc, values, nulls);
#define TEXT(column) (nulls[(column) - 1] ? NULL : TextDatumGetCString(values[(column) - 1]))
	/* Nulls where none may be are left to the table's own constraints. */
	if (!nulls[OUTBOX_TASK_TYPE - 1] && !nulls[OUTBOX_QUEUE - 1] && !nulls[OUTBOX_PAYLOAD - 1])
		check_task(TEXT(OUTBOX_TASK_TYPE), TEXT(OUTBOX_QUEUE),
				   DatumGetJsonbP(values[OUTBOX_PAYLOAD - 1]),
				   TEXT(OUTBOX_GROUP_ID), TEXT(OUTBOX_DEDUPLICATION_ID),
				   nulls[OUTBOX_HEADERS - 1] ? NULL : DatumGetJsonbP(values[OUTBOX_HEADERS - 1]));
#undef TEXT
	warn_not_preloaded();
	if (!nulls[OUTBOX_ID - 1])
	{
		int64		id = DatumGetInt64(values[OUTBOX_ID - 1]);

		if (id < 1)
			ereport(ERROR,
					(errcode(ERRCODE_TASKOUTBOX_RANGE),
					 errmsg("id is out of range"),
					 errdetail("It must be greater than 0.")));
		announce_direct_id(id);
	}
	return PointerGetDatum(tuple);
}
