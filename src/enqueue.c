/*
 * enqueue.c
 *	  The producers' side: one task becomes one row, in the caller's transaction.
 *
 * enqueue checks everything that the queue would refuse later, and whether the
 * task is a duplicate (deduplication.c), then inserts the row itself, without a
 * statement (insert.c): it skips triggers, row security and the privileges on the
 * table, which nobody but its owner has. Rows that come in
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
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

#include "announce.h"
#include "check.h"
#include "deduplication.h"
#include "lease.h"
#include "low_water.h"
#include "outbox.h"
#include "period.h"
#include "queue.h"
#include "shared.h"

PG_FUNCTION_INFO_V1(taskoutbox_enqueue);
PG_FUNCTION_INFO_V1(taskoutbox_enqueue_period);
PG_FUNCTION_INFO_V1(taskoutbox_task_outbox_check);
PG_FUNCTION_INFO_V1(taskoutbox_task_outbox_truncated);

/* Also the MAXVALUE of the sequence: no arithmetic with ids can overflow. */
#define TASK_ID_MAX (PG_INT64_MAX / 2)

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
	ARG_DEDUPLICATION_WINDOW,
	ENQUEUE_ARGS
};

/* Arguments of enqueue_period. */
enum
{
	PERIOD_ARG_TASK_TYPE,
	PERIOD_ARG_PERIOD,
	PERIOD_ARG_PAYLOAD,
	PERIOD_ARG_GROUP_ID,
	PERIOD_ARG_TIMEZONE,
	PERIOD_ARG_AT,
	PERIOD_ARG_QUEUE
};

/* For an error in the log of a schedule: which task it was. */
typedef struct TaskName
{
	const text *task_type;
	const text *deduplication_id;	/* or NULL */
} TaskName;

static void
name_task(void *arg)
{
	const TaskName *name = arg;
	char	   *task_type = text_to_cstring(name->task_type);

	if (name->deduplication_id)
		errcontext("enqueue of a task of type \"%s\" with deduplication_id \"%.*s\"",
				   task_type, ID_CHARACTERS, text_to_cstring(name->deduplication_id));
	else
		errcontext("enqueue of a task of type \"%s\"", task_type);
}

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

static void
check_deliver_at(TimestampTz deliver_at)
{
	if (TIMESTAMP_NOT_FINITE(deliver_at))
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_DELIVER_AT),
				 errmsg("deliver_at must be finite"),
				 errhint("Pass a time, or NULL to deliver as soon as possible.")));
}

/* When to deliver: DT_NOBEGIN for at once. */
static TimestampTz
deliver_at_argument(FunctionCallInfo fcinfo, TimestampTz now)
{
	TimestampTz deliver_at;

	if (PG_ARGISNULL(ARG_DELIVER_AT))
		return DT_NOBEGIN;
	deliver_at = PG_GETARG_TIMESTAMPTZ(ARG_DELIVER_AT);
	check_deliver_at(deliver_at);
	return deliver_at > now ? deliver_at : DT_NOBEGIN;
}

/* For how long to tell duplicates from now on, in microseconds. */
static int64
window_argument(FunctionCallInfo fcinfo, const QueueSettings *settings)
{
	/* In SQS an id is taken from the sending on, which is a bit later. */
	int64		lead = queue_is_embedded(settings) ? 0 : DEDUPLICATION_MARGIN + DEDUPLICATION_LEAD;

	if (PG_ARGISNULL(ARG_DEDUPLICATION_WINDOW))
		return settings->deduplication_window + lead;
	if (PG_ARGISNULL(ARG_DEDUPLICATION_ID))
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_MISSING),
				 errmsg("deduplication_window needs a deduplication_id"),
				 errhint("Pass a deduplication_id, too, or leave deduplication_window out.")));
	return lead + interval_argument("deduplication_window", PG_GETARG_INTERVAL_P(ARG_DEDUPLICATION_WINDOW),
									settings->deduplication_window, DEDUPLICATION_WINDOW_MAX,
									"at least the queue's deduplication_window, and at most 1000 days");
}

/*
 * More waits in the queue than it is to hold? As the relay counted last: so it
 * costs nothing, and what is not committed yet is not counted.
 */
static void
check_not_full(const QueueSettings *settings)
{
	static LocalTransactionId warned = InvalidLocalTransactionId;
	DatabaseSlot *db = settings->max_pending > 0 ? database_slot(MyDatabaseId) : NULL;
	QueueSlot  *slot = db ? queue_slot(db, settings->key) : NULL;

	if (slot == NULL || slot->pending <= settings->max_pending)
		return;
	if (settings->on_full == ON_FULL_WARN)
	{
		if (warned == MY_LXID)
			return;
		warned = MY_LXID;
	}
	ereport(settings->on_full == ON_FULL_REFUSE ? ERROR : WARNING,
			(errcode(ERRCODE_TASKOUTBOX_QUEUE_FULL),
			 errmsg("queue \"%s\" is full", settings->name),
			 errdetail(INT64_FORMAT " tasks are pending; max_pending is " INT64_FORMAT ".",
					   slot->pending, settings->max_pending),
			 errhint("Let consumers catch up, or raise max_pending with %s.alter_queue.",
					 TASKOUTBOX_SCHEMA)));
}

static text *
optional_text(FunctionCallInfo fcinfo, int n)
{
	return PG_ARGISNULL(n) ? NULL : PG_GETARG_TEXT_PP(n);
}

/* A value of the type enqueued, as a row has it. */
typedef struct Enqueued
{
	int64		id;
	bool		duplicate;
} Enqueued;

/*
 * The result. Values differ in nothing but these two, so one is made and copied: to
 * find out about the type takes longer than all else here.
 */
static Datum
enqueued(FunctionCallInfo fcinfo, int64 id, bool duplicate)
{
	static HeapTuple made = NULL;
	static Oid	made_for;		/* another one when the extension was created anew */
	HeapTupleHeader result;
	Enqueued   *content;

	if (made == NULL || made_for != fcinfo->flinfo->fn_oid)
	{
		TupleDesc	desc = lookup_rowtype_tupdesc(get_func_rettype(fcinfo->flinfo->fn_oid), -1);
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
		Datum		values[2] = {0};
		bool		nulls[2] = {false};
		HeapTuple	before = made;

		made = heap_form_tuple(desc, values, nulls);
		made_for = fcinfo->flinfo->fn_oid;
		if (before)
			heap_freetuple(before);
		MemoryContextSwitchTo(old);
		ReleaseTupleDesc(desc);
	}
	result = palloc(made->t_len);
	memcpy(result, made->t_data, made->t_len);
	content = (Enqueued *) ((char *) result + result->t_hoff);
	content->id = id;
	content->duplicate = duplicate;
	PG_RETURN_HEAPTUPLEHEADER(result);
}

Datum
taskoutbox_enqueue(PG_FUNCTION_ARGS)
{
	text	   *task_type = check_name_argument("task_type", fcinfo, ARG_TASK_TYPE);
	text	   *queue = check_name_argument("queue", fcinfo, ARG_QUEUE);
	text	   *group_id = optional_text(fcinfo, ARG_GROUP_ID);
	text	   *deduplication_id = optional_text(fcinfo, ARG_DEDUPLICATION_ID);
	const QueueSettings *settings;
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz deliver_at;
	int64		window;
	int64		id;
	int64		first = 0;
	Datum		values[OUTBOX_COLUMNS] = {0};
	bool		nulls[OUTBOX_COLUMNS];
	TaskName	name = {task_type, deduplication_id};
	ErrorContextCallback context = {.previous = error_context_stack, .callback = name_task, .arg = &name};

	error_context_stack = &context;
	PreventCommandIfReadOnly("taskoutbox.enqueue()");
	PreventCommandIfParallelMode("taskoutbox.enqueue()");

	check_not_null("payload", fcinfo, ARG_PAYLOAD);
	check_task(task_type, queue, PG_GETARG_JSONB_P(ARG_PAYLOAD), group_id, deduplication_id,
			   PG_ARGISNULL(ARG_HEADERS) ? NULL : PG_GETARG_JSONB_P(ARG_HEADERS));
	deliver_at = deliver_at_argument(fcinfo, now);
	warn_not_preloaded();

	/* With the lock that comes with the id, the queue cannot be dropped. */
	id = outbox_draw_id();
	settings = queue_settings_of(queue);
	queue_check_producer(settings, GetUserId());
	window = window_argument(fcinfo, settings);
	if (deduplication_id)
	{
		deduplication_id = deduplication_scoped(deduplication_id);
		first = deduplication_enter(queue, deduplication_id, id, now + window);
	}

	memset(nulls, true, sizeof(nulls));
#define PUT(column, value) (values[(column) - 1] = (value), nulls[(column) - 1] = false)
	PUT(OUTBOX_ID, Int64GetDatum(id));
	PUT(OUTBOX_ENQUEUED_AT, TimestampTzGetDatum(now));
	if (deliver_at != DT_NOBEGIN)
		PUT(OUTBOX_DELIVER_AT, TimestampTzGetDatum(deliver_at));
	PUT(OUTBOX_QUEUE, PointerGetDatum(queue));
	PUT(OUTBOX_TASK_TYPE, PointerGetDatum(task_type));
	PUT(OUTBOX_PAYLOAD, PG_GETARG_DATUM(ARG_PAYLOAD));
	if (group_id)
		PUT(OUTBOX_GROUP_ID, PointerGetDatum(group_id));
	if (deduplication_id)
		PUT(OUTBOX_DEDUPLICATION_ID, PointerGetDatum(deduplication_id));
	if (!PG_ARGISNULL(ARG_HEADERS))
		PUT(OUTBOX_HEADERS, PG_GETARG_DATUM(ARG_HEADERS));
#undef PUT
	if (first == 0)
	{
		check_not_full(settings);
		outbox_insert(values, nulls);
	}

	error_context_stack = context.previous;
	return enqueued(fcinfo, first == 0 ? id : first, first != 0);
}

/* The longest of the queue's window and of what lets nobody run a period twice. */
static Interval *
period_window(const Period *period, TimestampTz now, int64 queue_window)
{
	Interval   *window = palloc0(sizeof(Interval));

	window->time = Max(Max(period->start - now, 0) + PERIOD_KEPT, queue_window);
	return window;
}

static Jsonb *
period_headers(const PeriodRule *rule, const Period *period)
{
	const char *pairs[] = {
		"period", period_kind_name(rule),
		"period_start", period_local_start(rule, period),
		"timezone", pg_get_timezone_name(rule->zone)
	};
	JsonbParseState *state = NULL;
	JsonbValue	value = {.type = jbvString};

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < lengthof(pairs); i++)
	{
		value.val.string.val = unconstify(char *, pairs[i]);
		value.val.string.len = strlen(pairs[i]);
		pushJsonbValue(&state, i % 2 == 0 ? WJB_KEY : WJB_VALUE, &value);
	}
	return JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
}

/* enqueue, with an id, a window and headers that say which period it is for. */
Datum
taskoutbox_enqueue_period(PG_FUNCTION_ARGS)
{
	LOCAL_FCINFO(enqueue, ENQUEUE_ARGS);
	text	   *task_type = check_name_argument("task_type", fcinfo, PERIOD_ARG_TASK_TYPE);
	text	   *queue = check_name_argument("queue", fcinfo, PERIOD_ARG_QUEUE);
	PeriodRule	rule = period_rule_argument(fcinfo, PERIOD_ARG_PERIOD, PERIOD_ARG_TIMEZONE);
	Period		period = period_at(&rule, period_time_argument("at", fcinfo, PERIOD_ARG_AT));
	text	   *id = cstring_to_text(period_checked_id("task_type", text_to_cstring(task_type), &period));
	TimestampTz now = GetCurrentTimestamp();
	TaskName	name = {task_type, id};
	ErrorContextCallback context = {.previous = error_context_stack, .callback = name_task, .arg = &name};

	error_context_stack = &context;
	if (period.start < now - PERIOD_KEPT || period.start > now + PERIOD_KEPT)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("at is out of range"),
				 errdetail("The period must begin less than %d days ago, and not more than %d days from now: whether an older one had its task is not known any more.",
						   PERIOD_KEPT_DAYS, PERIOD_KEPT_DAYS),
				 errhint("If you know that it had none, use enqueue with a deduplication_id of your own.")));

	InitFunctionCallInfoData(*enqueue, fcinfo->flinfo, ENQUEUE_ARGS, fcinfo->fncollation, fcinfo->context, NULL);
	for (int i = 0; i < ENQUEUE_ARGS; i++)
		enqueue->args[i].isnull = true;
#define PASS(n, datum) (enqueue->args[n].value = (datum), enqueue->args[n].isnull = false)
	enqueue->args[ARG_TASK_TYPE] = fcinfo->args[PERIOD_ARG_TASK_TYPE];
	enqueue->args[ARG_PAYLOAD] = fcinfo->args[PERIOD_ARG_PAYLOAD];
	enqueue->args[ARG_GROUP_ID] = fcinfo->args[PERIOD_ARG_GROUP_ID];
	enqueue->args[ARG_QUEUE] = fcinfo->args[PERIOD_ARG_QUEUE];
	PASS(ARG_DEDUPLICATION_ID, PointerGetDatum(id));
	PASS(ARG_HEADERS, JsonbPGetDatum(period_headers(&rule, &period)));
	PASS(ARG_DEDUPLICATION_WINDOW,
		 IntervalPGetDatum(period_window(&period, now, queue_settings_of(queue)->deduplication_window)));
#undef PASS
	error_context_stack = context.previous;
	return taskoutbox_enqueue(enqueue);
}

/* Nobody else's tables have the columns that these triggers read. */
static void
require_own_trigger(FunctionCallInfo fcinfo)
{
	if (!CALLED_AS_TRIGGER(fcinfo) ||
		RelationGetRelid(((TriggerData *) fcinfo->context)->tg_relation) != outbox_relid())
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function must be called as a trigger of %s.task_outbox", TASKOUTBOX_SCHEMA)));
}

Datum
taskoutbox_task_outbox_truncated(PG_FUNCTION_ARGS)
{
	require_own_trigger(fcinfo);
	if (shared)
		lease_end_all_at_commit(outbox_relid());
	/* It may have set back the sequence. */
	low_water_lower(1);
	PG_RETURN_POINTER(NULL);
}

Datum
taskoutbox_task_outbox_check(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	TupleDesc	desc;
	HeapTuple	tuple;
	Datum	   *values;
	bool	   *nulls;

	require_own_trigger(fcinfo);
	if (!TRIGGER_FIRED_BEFORE(trigger->tg_event) || !TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		elog(ERROR, "task_outbox_check: must be a BEFORE row trigger");
	tuple = TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ? trigger->tg_newtuple : trigger->tg_trigtuple;
	desc = RelationGetDescr(trigger->tg_relation);

	values = palloc(desc->natts * sizeof(Datum));
	nulls = palloc(desc->natts * sizeof(bool));
	heap_deform_tuple(tuple, desc, values, nulls);
#define TEXT(column) (nulls[(column) - 1] ? NULL : DatumGetTextPP(values[(column) - 1]))
	/* Nulls where none may be are left to the table's own constraints. */
	if (!nulls[OUTBOX_TASK_TYPE - 1] && !nulls[OUTBOX_QUEUE - 1] && !nulls[OUTBOX_PAYLOAD - 1])
	{
		check_name_text("task_type", TEXT(OUTBOX_TASK_TYPE));
		check_name_text("queue", TEXT(OUTBOX_QUEUE));
		check_task(TEXT(OUTBOX_TASK_TYPE), TEXT(OUTBOX_QUEUE),
				   DatumGetJsonbP(values[OUTBOX_PAYLOAD - 1]),
				   TEXT(OUTBOX_GROUP_ID), TEXT(OUTBOX_DEDUPLICATION_ID),
				   nulls[OUTBOX_HEADERS - 1] ? NULL : DatumGetJsonbP(values[OUTBOX_HEADERS - 1]));
	}
#undef TEXT
	if (!nulls[OUTBOX_DELIVER_AT - 1])
		check_deliver_at(DatumGetTimestampTz(values[OUTBOX_DELIVER_AT - 1]));
	if (!nulls[OUTBOX_RECEIVE_COUNT - 1] &&
		(DatumGetInt32(values[OUTBOX_RECEIVE_COUNT - 1]) < 0 ||
		 DatumGetInt32(values[OUTBOX_RECEIVE_COUNT - 1]) > RECEIVE_COUNT_MAX))
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("receive_count is out of range"),
				 errdetail("It must be between 0 and %d.", RECEIVE_COUNT_MAX)));
	warn_not_preloaded();
	if (!nulls[OUTBOX_ID - 1])
	{
		int64		id = DatumGetInt64(values[OUTBOX_ID - 1]);

		if (id < 1 || id > TASK_ID_MAX)
			ereport(ERROR,
					(errcode(ERRCODE_TASKOUTBOX_RANGE),
					 errmsg("id is out of range"),
					 errdetail("It must be between 1 and " INT64_FORMAT ".", TASK_ID_MAX)));
		announce_direct_id(id);
		low_water_lower(id);
	}
	return PointerGetDatum(tuple);
}
