/*
 * status.c
 *	  What is happening: the functions behind the views.
 *
 * They answer from shared memory, whether a relay runs or not, and count no rows
 * but dead letters. The figures of queues are the relay's own, so it is asked to take in
 * what has been committed first; with no answer they are those of its last
 * round, and say so.
 */
#include "taskoutbox.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "ask.h"
#include "lease.h"
#include "outbox.h"
#include "queue.h"
#include "shared.h"

PG_FUNCTION_INFO_V1(taskoutbox_get_relay_status);
PG_FUNCTION_INFO_V1(taskoutbox_get_queue_metrics);
PG_FUNCTION_INFO_V1(taskoutbox_get_in_flight);

static void
put_relay(ReturnSetInfo *rsinfo, Oid dboid, const char *state, const DatabaseSlot *db, const char *hint)
{
	Datum		values[10] = {0};
	bool		nulls[10] = {false};

	values[0] = ObjectIdGetDatum(dboid);
	values[1] = CStringGetTextDatum(state);
	nulls[2] = db == NULL || db->relay_pid == 0;
	nulls[3] = nulls[4] = nulls[5] = nulls[6] = nulls[7] = db == NULL;
	if (db)
	{
		values[2] = Int32GetDatum(db->relay_pid);
		values[3] = TimestampTzGetDatum(db->since);
		values[4] = Int64GetDatum(db->messages);
		values[5] = Int64GetDatum(db->message_groups);
		values[6] = Int64GetDatum(db->memory_bytes);
		values[7] = Int64GetDatum(Max(db->restarts, 0));
		values[8] = BoolGetDatum(db->pin == PIN_OWN);
	}
	nulls[8] = db == NULL || db->pin == PIN_NONE;
	nulls[9] = hint == NULL;
	if (hint)
		values[9] = CStringGetTextDatum(hint);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

Datum
taskoutbox_get_relay_status(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	bool		has_own = false;

	InitMaterializedSRF(fcinfo, 0);

	for (int i = 0; shared && i < taskoutbox_max_databases; i++)
	{
		DatabaseSlot db;
		const char *state;
		const char *hint = NULL;

		SpinLockAcquire(&shared->databases[i].mutex);
		db = shared->databases[i];
		SpinLockRelease(&shared->databases[i].mutex);

		switch (db.state)
		{
			case RELAY_STARTING:
				state = "starting";
				break;
			case RELAY_RUNNING:
				state = "running";
				if (db.pin == PIN_FOREIGN)
					hint = "This database is a copy, and delivers nothing by itself. If its tasks are to be done here, run SELECT taskoutbox.confirm().";
				else if (db.orphans > 0)
					hint = psprintf("Rows that wait for a queue that does not exist: %lld. Create it, or delete them.",
									(long long) db.orphans);
				break;
			case RELAY_STOPPED:
				state = "stopped";
				hint = db.no_worker ?
					"There is no free background worker slot: raise max_worker_processes, and restart the server." :
					psprintf("The launcher starts it again at %s; the server's log says why it ended.",
							 timestamptz_to_str(db.restart_at));
				break;
			default:
				continue;
		}
		has_own |= db.dboid == MyDatabaseId;
		put_relay(rsinfo, db.dboid, state, &db, hint);
	}

	if (shared == NULL)
		put_relay(rsinfo, MyDatabaseId, "not preloaded", NULL,
				  "Add taskoutbox to shared_preload_libraries in postgresql.conf, and restart the server.");
	else if (!has_own)
		put_relay(rsinfo, MyDatabaseId, "none", NULL,
				  RecoveryInProgress() ? "The server is a standby." :
				  shared->launcher_pid == 0 ?
				  "The launcher is not running: see the server's log, and max_worker_processes." :
				  "All database slots may be in use: see the server's log, and taskoutbox.max_databases.");
	return (Datum) 0;
}

/* As of now, like the other figures: the statement's snapshot is older. */
static int64
count_dead(const char *queue)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID};
	Datum		values[] = {CStringGetTextDatum(queue)};
	int64		n = 0;

	(void) outbox_execute(&plan,
						  "SELECT pg_catalog.count(*) FROM taskoutbox.dead_letter "
						  "WHERE queue OPERATOR(pg_catalog.=) $1",
						  1, types, values, NULL, true, &n);
	return n;
}

Datum
taskoutbox_get_queue_metrics(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DatabaseSlot *db = database_slot(MyDatabaseId);
	const QueueSettings *cached;
	QueueSettings *queues;
	Lease	   *leases;
	int			n;
	int			nleases;
	bool		is_running;
	TimestampTz now = GetCurrentTimestamp();

	InitMaterializedSRF(fcinfo, 0);

	is_running = db && db->relay_latch &&
		ask_relay(db, 0, false, GetCurrentTimestamp() + ANSWER_TIMEOUT, NULL);

	nleases = shared ? lease_snapshot(outbox_relid(), &leases) : 0;
	n = queue_list(&cached);
	queues = palloc(n * sizeof(QueueSettings));
	for (int i = 0; i < n; i++)
	{
		queues[i] = cached[i];
		queues[i].name = pstrdup(cached[i].name);
		queues[i].backend = pstrdup(cached[i].backend);
	}
	for (int i = 0; i < n; i++)
	{
		QueueSlot  *shared_slot = db ? queue_slot(db, queues[i].key) : NULL;
		int64		in_flight = 0;
		QueueSlot	slot = {0};
		Datum		values[24] = {0};
		bool		nulls[24] = {false};

		for (int j = 0; j < nleases; j++)
			in_flight += leases[j].queue == queues[i].key;

		if (shared_slot)
		{
			LWLockAcquire(shared->lease_lock, LW_SHARED);
			slot = *shared_slot;
			LWLockRelease(shared->lease_lock);
		}

		values[0] = CStringGetTextDatum(queues[i].name);
		values[1] = CStringGetTextDatum(queues[i].backend);
		for (int j = 2; j < 14; j++)
			nulls[j] = shared_slot == NULL;
		values[2] = Int64GetDatum(Max(slot.pending - in_flight, 0));
		values[3] = Int64GetDatum(slot.delayed);
		values[4] = Int64GetDatum(in_flight);
		values[5] = Int64GetDatum(count_dead(queues[i].name));
		nulls[5] = false;
		values[6] = Int64GetDatum(slot.blocked);
		values[7] = Int64GetDatum(slot.oldest_id);
		nulls[7] = slot.oldest_id == 0;
		values[8] = Float8GetDatum(rate_per_second(slot.enqueued_rate, now));
		values[9] = Float8GetDatum(rate_per_second(slot.delivered_rate, now));
		values[10] = Int64GetDatum(slot.delivered);
		values[11] = Int64GetDatum(slot.retried);
		values[12] = Int64GetDatum(slot.dead_lettered);
		values[13] = Int64GetDatum(slot.duplicates);
		values[14] = BoolGetDatum(is_running);
		nulls[15] = nulls[16] = slot.problem[0] == '\0';
		values[15] = CStringGetTextDatum(slot.problem);
		values[16] = TimestampTzGetDatum(slot.problem_since);
		nulls[17] = slot.remedy[0] == '\0';
		values[17] = CStringGetTextDatum(slot.remedy);
		nulls[18] = nulls[15] || slot.next_try == DT_NOEND;
		values[18] = TimestampTzGetDatum(slot.next_try);
		nulls[19] = nulls[20] = nulls[21] = nulls[22] = slot.sqs_looked_at == 0;
		values[19] = Int64GetDatum(slot.sqs_visible);
		values[20] = Int64GetDatum(slot.sqs_in_flight);
		values[21] = Int64GetDatum(slot.sqs_dead_letters);
		nulls[21] |= slot.sqs_dead_letters < 0;
		values[22] = TimestampTzGetDatum(slot.sqs_looked_at);
		nulls[23] = slot.sqs_redrive[0] == '\0';
		values[23] = CStringGetTextDatum(slot.sqs_redrive);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

Datum
taskoutbox_get_in_flight(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Lease	   *leases;
	int			n;

	InitMaterializedSRF(fcinfo, 0);

	n = shared ? lease_snapshot(outbox_relid(), &leases) : 0;
	for (int i = 0; i < n; i++)
	{
		Datum		values[] = {Int64GetDatum(leases[i].key.id),
			Int32GetDatum(leases[i].holder),
			TimestampTzGetDatum(leases[i].since),
			TimestampTzGetDatum(leases[i].until),
			BoolGetDatum(leases[i].deleter != 0),
			BoolGetDatum(leases[i].has_failed && leases[i].deleter == 0)
		};
		bool		nulls[lengthof(values)] = {false};

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
