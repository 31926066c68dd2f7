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
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "check.h"
#include "outbox.h"

/* Columns of the table queue. */
enum
{
	QUEUE_NAME = 1,
	QUEUE_BACKEND,
	QUEUE_VISIBILITY_TIMEOUT,
	QUEUE_MAX_RECEIVE_COUNT
};

static MemoryContext cache_context = NULL;
static QueueSettings *cache = NULL;
static int	ncached = 0;
static Oid	cached_relid = InvalidOid;
static uint64 generation = 1;	/* counts what may have changed */
static uint64 cached_generation = 0;

PG_FUNCTION_INFO_V1(taskoutbox_create_queue);
PG_FUNCTION_INFO_V1(taskoutbox_queue_changed);

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

static void
cache_add(const char *name, const char *backend, int64 visibility_timeout,
		  int max_receive_count, bool is_built_in)
{
	QueueSettings *queue = &cache[ncached++];

	queue->name = MemoryContextStrdup(cache_context, name);
	queue->key = queue_key(name, strlen(name));
	queue->backend = MemoryContextStrdup(cache_context, backend);
	queue->visibility_timeout = visibility_timeout;
	queue->max_receive_count = max_receive_count;
	queue->is_built_in = is_built_in;
}

static void
load(void)
{
	Oid			relid = get_relname_relid("queue", get_namespace_oid(TASKOUTBOX_SCHEMA, false));
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
		char	   *name;

		if (ncached + 1 == size)
		{
			size *= 2;
			cache = repalloc(cache, size * sizeof(QueueSettings));
		}
		slot_getallattrs(slot);
		name = TextDatumGetCString(slot->tts_values[QUEUE_NAME - 1]);
		cache_add(name,
				  TextDatumGetCString(slot->tts_values[QUEUE_BACKEND - 1]),
				  interval_microseconds(DatumGetIntervalP(slot->tts_values[QUEUE_VISIBILITY_TIMEOUT - 1])),
				  DatumGetInt32(slot->tts_values[QUEUE_MAX_RECEIVE_COUNT - 1]),
				  false);
		if (strcmp(name, TASKOUTBOX_DEFAULT_QUEUE) == 0)
			has_default = true;
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);

	/* These are the defaults of create_queue, too. */
	if (!has_default)
		cache_add(TASKOUTBOX_DEFAULT_QUEUE, "embedded", 30 * USECS_PER_SEC, 5, true);
	cached_generation = seen;
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
	ereport(ERROR,
			(errcode(ERRCODE_TASKOUTBOX_UNKNOWN_QUEUE),
			 errmsg("queue \"%s\" does not exist", name),
			 errhint("Create it with %s.create_queue.", TASKOUTBOX_SCHEMA)));
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

Datum
taskoutbox_queue_changed(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		elog(ERROR, "queue_changed: not called by trigger manager");
	CacheInvalidateRelcache(trigger->tg_relation);
	PG_RETURN_POINTER(NULL);
}

Datum
taskoutbox_create_queue(PG_FUNCTION_ARGS)
{
	static const char *const backends[] = {"embedded"};
	char	   *name = check_name("name", fcinfo, 0);
	char	   *backend = check_name("backend", fcinfo, 1);
	int			max_receive_count;
	Oid			types[] = {TEXTOID, TEXTOID, INTERVALOID, INT4OID};
	Datum		values[4];
	bool		known = false;
	Oid			save_userid;
	int			save_sec_context;
	Relation	rel;

	check_not_null("visibility_timeout", fcinfo, 2);
	check_not_null("max_receive_count", fcinfo, 3);
	(void) interval_argument("visibility_timeout", PG_GETARG_INTERVAL_P(2),
							 1, VISIBILITY_MAX, "more than 0 and at most 12 hours");
	max_receive_count = PG_GETARG_INT32(3);
	if (max_receive_count < 1 || max_receive_count > RECEIVE_COUNT_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("max_receive_count is out of range"),
				 errdetail("It must be between 1 and %d.", RECEIVE_COUNT_MAX)));
	for (int i = 0; i < lengthof(backends); i++)
		known |= strcmp(backend, backends[i]) == 0;
	if (!known)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("backend \"%s\" is not known", backend),
				 errhint("The only backend of this version is \"embedded\".")));

	/* Two sessions that create queues at the same time see each other's. */
	rel = table_open(get_relname_relid("queue", get_namespace_oid(TASKOUTBOX_SCHEMA, false)),
					 ShareRowExclusiveLock);
	if (cached_generation != generation)
		load();
	for (int i = 0; i < ncached; i++)
	{
		if (strcmp(cache[i].name, name) == 0 && !cache[i].is_built_in)
			ereport(ERROR,
					(errcode(ERRCODE_TASKOUTBOX_QUEUE_EXISTS),
					 errmsg("queue \"%s\" exists already", name)));
	}
	if (ncached >= taskoutbox_max_queues && strcmp(name, TASKOUTBOX_DEFAULT_QUEUE) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_TOO_MANY_QUEUES),
				 errmsg("cannot create queue \"%s\": this database has %d queues already",
						name, ncached),
				 errhint("Raise taskoutbox.max_queues (it takes effect at a server restart), or tell kinds of work apart by task_type or group_id.")));

	GetUserIdAndSecContext(&save_userid, &save_sec_context);
	SetUserIdAndSecContext(rel->rd_rel->relowner, save_sec_context | SECURITY_LOCAL_USERID_CHANGE);
	SPI_connect();
	values[0] = CStringGetTextDatum(name);
	values[1] = CStringGetTextDatum(backend);
	values[2] = PG_GETARG_DATUM(2);
	values[3] = PG_GETARG_DATUM(3);
	if (SPI_execute_with_args("INSERT INTO taskoutbox.queue (name, backend, visibility_timeout, max_receive_count) "
							  "VALUES ($1, $2, $3, $4)",
							  4, types, values, NULL, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "could not insert into %s.queue", TASKOUTBOX_SCHEMA);
	SPI_finish();
	SetUserIdAndSecContext(save_userid, save_sec_context);
	table_close(rel, NoLock);

	PG_RETURN_VOID();
}
