/*
 * consumer.c
 *	  The consumers' side: receive, delete, change_visibility.
 *
 * receive takes what the relay has put on offer, and asks the relay only when
 * nothing is. It reads the rows as they are at this moment, so it works in a
 * transaction of any age and isolation level (a row that another transaction is
 * changing is left to the relay). delete marks the lease, then
 * deletes the row in the caller's transaction: work and delete commit together.
 * A lease itself is not transactional: a receive that is rolled back keeps it
 * (the message comes back when its time is up); one that fails gives it back.
 */
#include "taskoutbox.h"

#include "access/detoast.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "ask.h"
#include "check.h"
#include "consumer.h"
#include "lease.h"
#include "ledger.h"
#include "outbox.h"
#include "queue.h"
#include "shared.h"

#define DELETE_BATCH 100		/* under one lock */
#define WAIT_MAX (20 * USECS_PER_SEC)	/* as SQS's long poll */

#define ST_SORT sort_receipts
#define ST_ELEMENT_TYPE Receipt
#define ST_COMPARE(a, b) (((a)->rank > (b)->rank) - ((a)->rank < (b)->rank))
#define ST_SCOPE static
#define ST_DEFINE
#include "lib/sort_template.h"

/* Messages that were taken, but not returned to the caller yet. */
typedef struct Taken
{
	Oid			outbox;
	int			n;
	Receipt		receipts[FLEXIBLE_ARRAY_MEMBER];
} Taken;

PG_FUNCTION_INFO_V1(taskoutbox_receive);
PG_FUNCTION_INFO_V1(taskoutbox_delete);
PG_FUNCTION_INFO_V1(taskoutbox_delete_array);
PG_FUNCTION_INFO_V1(taskoutbox_change_visibility);

static void
give_back_taken(int code, Datum arg)
{
	Taken	   *taken = (Taken *) DatumGetPointer(arg);

	lease_give_back(taken->outbox, taken->receipts, taken->n);
}

/* What stays readable after the row is gone; what is not kept elsewhere is copied with the rest. */
static Datum
fetched(Datum value)
{
	struct varlena *varlena = (struct varlena *) DatumGetPointer(value);

	return VARATT_IS_EXTERNAL(varlena) ? PointerGetDatum(detoast_external_attr(varlena)) : value;
}

Oid
message_type(void)
{
	return GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum("message"),
						   ObjectIdGetDatum(get_namespace_oid(TASKOUTBOX_SCHEMA, false)));
}

bool
message_look(OutboxReader *reader, const Receipt *receipt, const char *queue)
{
	const text *name;

	if (outbox_look_at(reader, receipt->id, &receipt->place) != OUTBOX_HERE)
		return false;
	slot_getsomeattrs(reader->slot, OUTBOX_COLUMNS);
	/* Offers are kept by the hash of the queue's name. */
	name = DatumGetTextPP(reader->slot->tts_values[OUTBOX_QUEUE - 1]);
	return VARSIZE_ANY_EXHDR(name) == strlen(queue) &&
		memcmp(VARDATA_ANY(name), queue, VARSIZE_ANY_EXHDR(name)) == 0;
}

void
message_values(TupleTableSlot *slot, const Receipt *receipt, Datum *values, bool *nulls)
{
	const Datum *row = slot->tts_values;
	const bool *isnull = slot->tts_isnull;
	Datum		first_id = row[(isnull[OUTBOX_REDRIVEN_FROM - 1] ? OUTBOX_ID : OUTBOX_REDRIVEN_FROM) - 1];

	memset(nulls, false, MESSAGE_COLUMNS * sizeof(bool));
	nulls[MESSAGE_RECEIPT_HANDLE - 1] = receipt == NULL;
	nulls[MESSAGE_GROUP_ID - 1] = isnull[OUTBOX_GROUP_ID - 1];
	nulls[MESSAGE_DEDUPLICATION_ID - 1] = isnull[OUTBOX_DEDUPLICATION_ID - 1];
	nulls[MESSAGE_HEADERS - 1] = isnull[OUTBOX_HEADERS - 1];
	nulls[MESSAGE_LAST_ERROR - 1] = isnull[OUTBOX_LAST_ERROR - 1];
	values[MESSAGE_ID - 1] = row[OUTBOX_ID - 1];
	values[MESSAGE_RECEIPT_HANDLE - 1] = receipt ? PointerGetDatum(receipt_to_text(receipt)) : (Datum) 0;
	values[MESSAGE_QUEUE - 1] = row[OUTBOX_QUEUE - 1];
	values[MESSAGE_TASK_TYPE - 1] = row[OUTBOX_TASK_TYPE - 1];
	values[MESSAGE_PAYLOAD - 1] = fetched(row[OUTBOX_PAYLOAD - 1]);
	values[MESSAGE_GROUP_ID - 1] = row[OUTBOX_GROUP_ID - 1];
	values[MESSAGE_DEDUPLICATION_ID - 1] = row[OUTBOX_DEDUPLICATION_ID - 1];
	values[MESSAGE_HEADERS - 1] = nulls[MESSAGE_HEADERS - 1] ? (Datum) 0 : fetched(row[OUTBOX_HEADERS - 1]);
	values[MESSAGE_ENQUEUED_AT - 1] = row[OUTBOX_ENQUEUED_AT - 1];
	values[MESSAGE_RECEIVE_COUNT - 1] = Int32GetDatum(outbox_receive_count(slot) + 1);
	values[MESSAGE_LAST_ERROR - 1] = nulls[MESSAGE_LAST_ERROR - 1] ? (Datum) 0 : fetched(row[OUTBOX_LAST_ERROR - 1]);
	values[MESSAGE_UID - 1] = CStringGetTextDatum(task_uid(slot->tts_tableOid, DatumGetInt64(first_id),
											  DatumGetTimestampTz(row[OUTBOX_ENQUEUED_AT - 1])));
}

/*
 * Read the messages that were taken into the result, and keep in taken those
 * whose row is there; the relay finds out about the others. Returns how many
 * there are.
 */
static int
return_messages(Taken *taken, const char *queue, ReturnSetInfo *rsinfo)
{
	OutboxReader *reader = outbox_begin_dirty();
	TupleTableSlot *slot = reader->slot;
	int			n = 0;

	/* Messages of one group are far from each other in the table, those that came at one time are not. */
	sort_receipts(taken->receipts, taken->n);

	for (int i = 0; i < taken->n; i++)
	{
		Receipt    *receipt = &taken->receipts[i];
		Datum		values[MESSAGE_COLUMNS];
		bool		nulls[MESSAGE_COLUMNS];

		if (!message_look(reader, receipt, queue))
		{
			lease_give_back(taken->outbox, receipt, 1);
			/* Out of the list at once: an error below must not give it back twice. */
			taken->n--;
			memmove(receipt, receipt + 1, (taken->n - i) * sizeof(Receipt));
			i--;
			continue;
		}

		message_values(slot, receipt, values, nulls);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		n++;
	}
	outbox_end(reader);

	return n;
}

Datum
taskoutbox_receive(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	char	   *name = check_name("queue", fcinfo, 0);
	const QueueSettings *settings;
	uint64		key;
	int			max_messages;
	int64		visibility_timeout;
	int64		wait;
	TimestampTz deadline;
	bool		is_last_try = false;
	bool		full = false;
	bool		is_warned = false;
	Taken	   *taken;

	require_preload("receive");
	PreventCommandDuringRecovery("taskoutbox.receive()");
	PreventCommandIfParallelMode("taskoutbox.receive()");

	check_not_null("max_messages", fcinfo, 1);
	check_not_null("wait", fcinfo, 3);
	max_messages = PG_GETARG_INT32(1);
	if (max_messages < 1 || max_messages > TAKE_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("max_messages is out of range"),
				 errdetail("It must be between 1 and %d.", TAKE_MAX)));
	settings = queue_settings(name);
	queue_check_consumer(settings, GetUserId());
	if (!queue_is_embedded(settings))
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_NOT_HERE),
				 errmsg("queue \"%s\" is in SQS, not in this database", name),
				 errhint("Receive its messages from SQS, with AWS's SDK of your language.")));
	key = settings->key;
	visibility_timeout = PG_ARGISNULL(2) ? settings->visibility_timeout :
		interval_argument("visibility_timeout", PG_GETARG_INTERVAL_P(2),
						  1, VISIBILITY_MAX, "more than 0 and at most 12 hours");
	wait = interval_argument("wait", PG_GETARG_INTERVAL_P(3), 0, WAIT_MAX,
							 "between 0 and 20 seconds");

	InitMaterializedSRF(fcinfo, 0);

	taken = palloc(offsetof(Taken, receipts) + max_messages * sizeof(Receipt));
	taken->outbox = outbox_relid();

	deadline = GetCurrentTimestamp() + (wait > 0 ? wait : ANSWER_TIMEOUT);
	for (;;)
	{
		DatabaseSlot *db = database_slot(MyDatabaseId);
		QueueSlot  *queue = db ? queue_slot(db, key) : NULL;
		int			returned = 0;

		taken->n = queue == NULL ? 0 :
			lease_take(db, taken->outbox, queue, max_messages, GetCurrentTimestamp() + visibility_timeout,
					   taken->receipts, &full);
		if (taken->n > 0)
		{
			PG_ENSURE_ERROR_CLEANUP(give_back_taken, PointerGetDatum(taken));
			{
				returned = return_messages(taken, name, rsinfo);
			}
			PG_END_ENSURE_ERROR_CLEANUP(give_back_taken, PointerGetDatum(taken));
			if (returned > 0)
				break;
			continue;			/* all of it gone meanwhile */
		}
		if (full)
		{
			TimestampTz now = GetCurrentTimestamp();

			if (!is_warned)
				ereport(WARNING,
						(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						 errmsg("too many messages are in flight"),
						 errdetail("All %d leases of this server are in use.", taskoutbox_max_in_flight),
						 errhint("Delete messages sooner, use shorter visibility timeouts, or raise taskoutbox.max_in_flight (it takes effect at a server restart).")));
			is_warned = true;
			if (wait == 0 || now >= deadline)
				break;
			/* No answer to that, but the time to try again. */
			(void) ask_relay(NULL, 0, true, Min(deadline, now + FULL_RETRY), NULL);
			full = false;
			continue;
		}
		if (is_last_try)
			break;

		/*
		 * After no answer, or without a wait after any, one more look; but a queue
		 * that the relay did not know yet does not know yet how much we ask for.
		 */
		if (!ask_relay(db, key, wait > 0, deadline, NULL))
		{
			is_last_try = true;
			if (db == NULL || db->relay_latch == NULL)
				ereport(WARNING,
						(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						 errmsg("the relay of this database is not running"),
						 errhint("See the view %s.relay_status and the server's log.", TASKOUTBOX_SCHEMA)));
		}
		else if (wait == 0 && queue)
			is_last_try = true;
	}

	return (Datum) 0;
}

static void
stale_handle(int64 id)
{
	ereport(ERROR,
			(errcode(ERRCODE_TASKOUTBOX_STALE_HANDLE),
			 errmsg("receipt handle of message " INT64_FORMAT " is stale", id),
			 errdetail("Its visibility timeout has ended, or the message was deleted."),
			 errhint("Roll back what was done for this message: another consumer receives it again. Use a longer visibility timeout, or extend it with %s.change_visibility.",
					 TASKOUTBOX_SCHEMA)));
}

/* Raise what a lease operation found, or say whether it went well. */
static bool
succeeded(LeaseResult result, int64 id, bool missing_ok)
{
	if (result == LEASE_BEING_DELETED)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_BEING_DELETED),
				 errmsg("message " INT64_FORMAT " is being deleted or changed by another transaction", id),
				 errhint("Use each receipt handle in one transaction at a time.")));
	if (result == LEASE_STALE && !missing_ok)
		stale_handle(id);
	return result == LEASE_OK;
}

static int
compare_places(const void *a, const void *b)
{
	return ItemPointerCompare(&(*(Receipt *const *) a)->place, &(*(Receipt *const *) b)->place);
}

/* Returns how many there were. */
static int
delete_messages(Receipt *receipts, int n, bool missing_ok)
{
	OutboxReader *reader = outbox_begin_delete();
	LeaseResult *results = palloc(n * sizeof(LeaseResult));
	Receipt   **marked = palloc(n * sizeof(Receipt *));
	int			nmarked = 0;
	int			deleted = 0;

	lease_mark_deleting(RelationGetRelid(reader->rel), receipts, n, results);
	for (int i = 0; i < n; i++)
	{
		if (succeeded(results[i], receipts[i].id, missing_ok))
			marked[nmarked++] = &receipts[i];
	}
	/* Messages of one group are far from each other, those that came at one time are not. */
	qsort(marked, nmarked, sizeof(Receipt *), compare_places);
	for (int i = 0; i < nmarked; i++)
	{
		OutboxFate	fate = outbox_delete_leased(reader, marked[i]->id, &marked[i]->place);

		/* Busy: by its owner, or prepared. */
		deleted += succeeded(fate == OUTBOX_HERE ? LEASE_OK :
							 fate == OUTBOX_BUSY ? LEASE_BEING_DELETED : LEASE_STALE,
							 marked[i]->id, missing_ok);
	}
	outbox_end(reader);
	return deleted;
}

Datum
taskoutbox_delete(PG_FUNCTION_ARGS)
{
	Receipt		receipt;

	require_preload("delete");
	PreventCommandIfReadOnly("taskoutbox.delete()");
	PreventCommandIfParallelMode("taskoutbox.delete()");
	check_not_null("receipt_handle", fcinfo, 0);

	receipt = receipt_from_text(PG_GETARG_TEXT_PP(0));
	PG_RETURN_BOOL(delete_messages(&receipt, 1, !PG_ARGISNULL(1) && PG_GETARG_BOOL(1)) > 0);
}

Datum
taskoutbox_delete_array(PG_FUNCTION_ARGS)
{
	bool		missing_ok = !PG_ARGISNULL(1) && PG_GETARG_BOOL(1);
	Receipt		receipts[DELETE_BATCH];
	Datum	   *handles;
	bool	   *nulls;
	int			n;
	int			deleted = 0;

	require_preload("delete");
	PreventCommandIfReadOnly("taskoutbox.delete()");
	PreventCommandIfParallelMode("taskoutbox.delete()");
	/* What array_agg makes of no messages. */
	if (PG_ARGISNULL(0))
		PG_RETURN_INT32(0);

	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false, TYPALIGN_INT,
					  &handles, &nulls, &n);
	for (int i = 0; i < n;)
	{
		int			nreceipts = 0;

		while (i < n && nreceipts < DELETE_BATCH)
		{
			if (nulls[i])
				ereport(ERROR,
						(errcode(ERRCODE_TASKOUTBOX_MISSING),
						 errmsg("receipt_handles must not contain nulls")));
			receipts[nreceipts++] = receipt_from_text(DatumGetTextPP(handles[i++]));
		}
		deleted += delete_messages(receipts, nreceipts, missing_ok);
	}
	PG_RETURN_INT32(deleted);
}

Datum
taskoutbox_change_visibility(PG_FUNCTION_ARGS)
{
	Receipt		receipt;
	int64		visibility_timeout;
	bool		has_error = !PG_ARGISNULL(2);

	require_preload("change_visibility");
	if (has_error)
		PreventCommandIfReadOnly("taskoutbox.change_visibility()");
	PreventCommandDuringRecovery("taskoutbox.change_visibility()");
	PreventCommandIfParallelMode("taskoutbox.change_visibility()");
	check_not_null("receipt_handle", fcinfo, 0);
	check_not_null("visibility_timeout", fcinfo, 1);
	receipt = receipt_from_text(PG_GETARG_TEXT_PP(0));
	visibility_timeout = interval_argument("visibility_timeout", PG_GETARG_INTERVAL_P(1),
										   0, VISIBILITY_MAX, "between 0 and 12 hours");

	/* First the error, so that it is there when the message comes back. */
	if (has_error)
	{
		char	   *error = text_to_cstring(PG_GETARG_TEXT_PP(2));

		(void) succeeded(lease_touch(outbox_relid(), &receipt), receipt.id, false);
		(void) outbox_set_error(receipt.id, error);
	}
	(void) succeeded(lease_change(outbox_relid(), &receipt, GetCurrentTimestamp() + visibility_timeout,
								  has_error),
					 receipt.id, false);
	PG_RETURN_BOOL(true);
}
