/*
 * queue.c
 *	  Queues and their settings.
 *
 * A queue is a row of the table queue; only the queue "default" exists without
 * one. Every process keeps the settings in memory and reads the table again
 * after the trigger on it has sent a relcache invalidation, which reaches all
 * sessions when the change commits. So enqueue and receive look nothing up, and
 * a change takes effect with the next statement, whoever made it and how.
 */
#include "taskoutbox.h"
#include "queue.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "backend.h"
#include "check.h"
#include "outbox.h"
#include "shared.h"

/* Columns of the table queue. */
enum
{
	QUEUE_NAME = 1,
	QUEUE_BACKEND,
	QUEUE_VISIBILITY_TIMEOUT,
	QUEUE_MAX_RECEIVE_COUNT,
	QUEUE_DEDUPLICATION_WINDOW,
	QUEUE_PAUSED
};

static MemoryContext cache_context = NULL;
static QueueSettings *cache = NULL;
static int	ncached = 0;
static Oid	cached_relid = InvalidOid;
static uint64 generation = 1;	/* counts what may have changed */
static uint64 cached_generation = 0;

/* This transaction changed a queue. */
static bool has_changed = false;

PG_FUNCTION_INFO_V1(taskoutbox_create_queue);
PG_FUNCTION_INFO_V1(taskoutbox_alter_queue);
PG_FUNCTION_INFO_V1(taskoutbox_pause_queue);
PG_FUNCTION_INFO_V1(taskoutbox_resume_queue);
PG_FUNCTION_INFO_V1(taskoutbox_drop_queue);
PG_FUNCTION_INFO_V1(taskoutbox_queue_changed);

static Oid
queue_relid(void)
{
	return outbox_sibling_relid("queue");
}

static void
invalidate(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == cached_relid)
		generation++;
}

static double
interval_microseconds(const Interval *interval)
{
	return interval->time +
		((double) interval->month * DAYS_PER_MONTH + interval->day) * USECS_PER_DAY;
}

int64
interval_argument(const char *argument, const Interval *interval,
				  int64 low, int64 high, const char *limits)
{
	double		microseconds = interval_microseconds(interval);

	if (!(microseconds >= low && microseconds <= high))
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("%s is out of range", argument),
				 errdetail("It must be %s.", limits)));
	return (int64) microseconds;
}

/* Add a queue to the cache, to be filled in. */
static QueueSettings *
cache_add(const char *name, const char *backend)
{
	QueueSettings *queue = &cache[ncached++];

	memset(queue, 0, sizeof(QueueSettings));
	queue->name = MemoryContextStrdup(cache_context, name);
	queue->key = queue_key(name, strlen(name));
	queue->backend = MemoryContextStrdup(cache_context, backend);
	return queue;
}

static void
load(void)
{
	Oid			relid = queue_relid();
	Relation	rel;
	Snapshot	snapshot;
	TableScanDesc scan;
	TupleTableSlot *slot;
	bool		has_default = false;
	int			size = 8;
	uint64		seen;

	if (cache_context == NULL)
	{
		cache_context = AllocSetContextCreate(CacheMemoryContext, "taskoutbox queues",
											  ALLOCSET_SMALL_SIZES);
		CacheRegisterRelcacheCallback(invalidate, (Datum) 0);
	}
	MemoryContextReset(cache_context);
	ncached = 0;
	cache = MemoryContextAlloc(cache_context, size * sizeof(QueueSettings));

	rel = table_open(relid, AccessShareLock);
	/* From here on a change makes what we read invalid. */
	cached_relid = relid;
	seen = generation;

	snapshot = RegisterSnapshot(GetLatestSnapshot());
	slot = table_slot_create(rel, NULL);
	scan = table_beginscan(rel, snapshot, 0, NULL);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		Datum	   *values = slot->tts_values;
		QueueSettings *queue;

		if (ncached + 1 == size)
		{
			size *= 2;
			cache = repalloc(cache, size * sizeof(QueueSettings));
		}
		slot_getallattrs(slot);
		queue = cache_add(TextDatumGetCString(values[QUEUE_NAME - 1]),
						  TextDatumGetCString(values[QUEUE_BACKEND - 1]));
		queue->visibility_timeout =
			interval_microseconds(DatumGetIntervalP(values[QUEUE_VISIBILITY_TIMEOUT - 1]));
		queue->max_receive_count = DatumGetInt32(values[QUEUE_MAX_RECEIVE_COUNT - 1]);
		queue->deduplication_window =
			interval_microseconds(DatumGetIntervalP(values[QUEUE_DEDUPLICATION_WINDOW - 1]));
		queue->is_paused = DatumGetBool(values[QUEUE_PAUSED - 1]);
		if (strcmp(queue->name, TASKOUTBOX_DEFAULT_QUEUE) == 0)
			has_default = true;
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);

	/* These are the defaults of create_queue, too. */
	if (!has_default)
	{
		QueueSettings *queue = cache_add(TASKOUTBOX_DEFAULT_QUEUE, "embedded");

		queue->visibility_timeout = 30 * USECS_PER_SEC;
		queue->max_receive_count = 5;
		queue->deduplication_window = 5 * 60 * USECS_PER_SEC;
		queue->is_built_in = true;
	}
	cached_generation = seen;
}

pg_attribute_noreturn()
static void
unknown_queue(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_TASKOUTBOX_UNKNOWN_QUEUE),
			 errmsg("queue \"%s\" does not exist", name),
			 errhint("Create it with %s.create_queue.", TASKOUTBOX_SCHEMA)));
}

const QueueSettings *
queue_settings(const char *name)
{
	if (cached_generation != generation)
		load();
	for (int i = 0; i < ncached; i++)
	{
		if (strcmp(cache[i].name, name) == 0)
			return &cache[i];
	}
	unknown_queue(name);
}

int
queue_list(const QueueSettings **list)
{
	if (cached_generation != generation)
		load();
	*list = cache;
	return ncached;
}

uint64
queue_generation(void)
{
	return generation;
}

static void
too_many_queues(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_TASKOUTBOX_TOO_MANY_QUEUES),
			 errmsg("this database has too many queues"),
			 errdetail("It would have %d; the limit is %d (taskoutbox.max_queues).",
					   ncached, taskoutbox_max_queues),
			 errhint("Raise taskoutbox.max_queues (it takes effect at a server restart), or tell kinds of work apart by task_type or group_id.")));
}

void
queue_read_again(void)
{
	generation++;
}

/*
 * Changes. The relay is told at commit, which is before the invalidation is
 * sent: so it reads the table again for that, and receives wait until it has.
 */
Datum
taskoutbox_queue_changed(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		elog(ERROR, "queue_changed: not called by trigger manager");
	CacheInvalidateRelcache(trigger->tg_relation);
	has_changed = true;

	/* However it came there: the relay has room for so many. */
	CommandCounterIncrement();
	load();
	if (ncached > taskoutbox_max_queues)
		too_many_queues();
	PG_RETURN_POINTER(NULL);
}

static void
queue_xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT && has_changed)
	{
		DatabaseSlot *db = database_slot(MyDatabaseId);

		if (db)
		{
			SpinLockAcquire(&db->mutex);
			db->settings_changes++;
			SpinLockRelease(&db->mutex);
			wake_relay(db);
		}
	}
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
		has_changed = false;
}

void
queue_init(void)
{
	RegisterXactCallback(queue_xact_callback, NULL);
}

/* Arguments of create_queue and alter_queue from a position on; null: as it is. */
static void
check_settings(FunctionCallInfo fcinfo, int first)
{
	if (!PG_ARGISNULL(first))
		(void) interval_argument("visibility_timeout", PG_GETARG_INTERVAL_P(first),
								 1, VISIBILITY_MAX, "more than 0 and at most 12 hours");
	if (!PG_ARGISNULL(first + 1) &&
		(PG_GETARG_INT32(first + 1) < 1 || PG_GETARG_INT32(first + 1) > RECEIVE_COUNT_MAX))
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("max_receive_count is out of range"),
				 errdetail("It must be between 1 and %d.", RECEIVE_COUNT_MAX)));
	if (!PG_ARGISNULL(first + 2))
		(void) interval_argument("deduplication_window", PG_GETARG_INTERVAL_P(first + 2),
								 1, DEDUPLICATION_WINDOW_MAX, "more than 0 and at most 1000 days");
}

Datum
taskoutbox_create_queue(PG_FUNCTION_ARGS)
{
	char	   *name = check_name("name", fcinfo, 0);
	char	   *backend = check_name("backend", fcinfo, 1);
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID, TEXTOID, INTERVALOID, INT4OID, INTERVALOID};
	Datum		values[5];

	PreventCommandIfReadOnly("taskoutbox.create_queue()");
	check_not_null("visibility_timeout", fcinfo, 2);
	check_not_null("max_receive_count", fcinfo, 3);
	check_not_null("deduplication_window", fcinfo, 4);
	check_settings(fcinfo, 2);
	if (backend_by_name(backend) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("backend \"%s\" is not known", backend),
				 errhint("The only backend of this version is \"embedded\".")));

	/* Two sessions that create queues at the same time see each other's. */
	LockRelationOid(queue_relid(), ShareRowExclusiveLock);
	if (cached_generation != generation)
		load();
	for (int i = 0; i < ncached; i++)
	{
		if (strcmp(cache[i].name, name) == 0 && !cache[i].is_built_in)
			ereport(ERROR,
					(errcode(ERRCODE_TASKOUTBOX_QUEUE_EXISTS),
					 errmsg("queue \"%s\" exists already", name)));
	}
	for (int i = 0; i < lengthof(values); i++)
		values[i] = PG_GETARG_DATUM(i);
	(void) outbox_execute(&plan,
						  "INSERT INTO taskoutbox.queue (name, backend, visibility_timeout, max_receive_count, "
						  "deduplication_window) VALUES ($1, $2, $3, $4, $5)",
						  lengthof(values), types, values, NULL, true, NULL);
	PG_RETURN_VOID();
}

/*
 * Change settings of a queue; a null leaves one as it is. The queue "default"
 * gets its row here.
 */
static void
change_queue(const char *name, const NullableDatum *settings, int paused)
{
	static SPIPlanPtr insert = NULL;
	static SPIPlanPtr update = NULL;
	static const Oid types[] = {TEXTOID, INTERVALOID, INT4OID, INTERVALOID, BOOLOID};
	Datum		values[5] = {0};
	char		nulls[5] = {' ', 'n', 'n', 'n', 'n'};

	if (queue_settings(name)->is_built_in)
		(void) outbox_execute(&insert,
							  "INSERT INTO taskoutbox.queue (name) VALUES ('default') "
							  "ON CONFLICT (name) DO NOTHING",
							  0, NULL, NULL, NULL, true, NULL);

	values[0] = CStringGetTextDatum(name);
	for (int i = 0; settings && i < 3; i++)
	{
		values[i + 1] = settings[i].value;
		nulls[i + 1] = settings[i].isnull ? 'n' : ' ';
	}
	if (paused >= 0)
	{
		values[4] = BoolGetDatum(paused);
		nulls[4] = ' ';
	}
	if (outbox_execute(&update,
					   "UPDATE taskoutbox.queue SET visibility_timeout = COALESCE($2, visibility_timeout), "
					   "max_receive_count = COALESCE($3, max_receive_count), "
					   "deduplication_window = COALESCE($4, deduplication_window), "
					   "paused = COALESCE($5, paused) WHERE name OPERATOR(pg_catalog.=) $1",
					   lengthof(values), types, values, nulls, true, NULL) == 0)
		unknown_queue(name);	/* dropped just now */
}

Datum
taskoutbox_alter_queue(PG_FUNCTION_ARGS)
{
	char	   *name = check_name("name", fcinfo, 0);

	PreventCommandIfReadOnly("taskoutbox.alter_queue()");
	check_settings(fcinfo, 1);
	change_queue(name, &fcinfo->args[1], -1);
	PG_RETURN_VOID();
}

Datum
taskoutbox_pause_queue(PG_FUNCTION_ARGS)
{
	PreventCommandIfReadOnly("taskoutbox.pause_queue()");
	change_queue(check_name("name", fcinfo, 0), NULL, true);
	PG_RETURN_VOID();
}

Datum
taskoutbox_resume_queue(PG_FUNCTION_ARGS)
{
	PreventCommandIfReadOnly("taskoutbox.resume_queue()");
	change_queue(check_name("name", fcinfo, 0), NULL, false);
	PG_RETURN_VOID();
}

Datum
taskoutbox_drop_queue(PG_FUNCTION_ARGS)
{
	char	   *name = check_name("name", fcinfo, 0);
	bool		force = !PG_ARGISNULL(1) && PG_GETARG_BOOL(1);
	static SPIPlanPtr plans[5] = {NULL};
	static const Oid types[] = {TEXTOID};
	static const char *const deletes[] = {
		"DELETE FROM taskoutbox.task_outbox WHERE queue OPERATOR(pg_catalog.=) $1",
		"DELETE FROM taskoutbox.dead_letter WHERE queue OPERATOR(pg_catalog.=) $1",
		"DELETE FROM taskoutbox.deduplication WHERE queue OPERATOR(pg_catalog.=) $1",
		"DELETE FROM taskoutbox.queue WHERE name OPERATOR(pg_catalog.=) $1"
	};
	Datum		values[] = {CStringGetTextDatum(name)};

	PreventCommandIfReadOnly("taskoutbox.drop_queue()");
	if (queue_settings(name)->is_built_in)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("queue \"%s\" cannot be dropped", name),
				 errdetail("It exists without a row, with default settings.")));

	/* Nobody enqueues meanwhile; those who did are waited for. */
	LockRelationOid(outbox_relid(), ShareRowExclusiveLock);
	(void) queue_settings(name);	/* not dropped while we waited? */
	if (!force &&
		outbox_execute(&plans[4],
					   "SELECT 1::bigint FROM taskoutbox.task_outbox WHERE queue OPERATOR(pg_catalog.=) $1 "
					   "UNION ALL SELECT 1 FROM taskoutbox.dead_letter WHERE queue OPERATOR(pg_catalog.=) $1 LIMIT 1",
					   1, types, values, NULL, true, NULL) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_QUEUE_NOT_EMPTY),
				 errmsg("queue \"%s\" is not empty", name),
				 errdetail("It has tasks or dead letters."),
				 errhint("Wait until they are done, or pass force => true to delete them with the queue.")));
	for (int i = 0; i < lengthof(deletes); i++)
		(void) outbox_execute(&plans[i], deletes[i], 1, types, values, NULL, true, NULL);
	PG_RETURN_VOID();
}
