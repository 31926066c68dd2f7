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

#include <math.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "backend.h"
#include "check.h"
#include "lease.h"
#include "outbox.h"
#include "shared.h"
#include "small_table.h"

/*
 * The settings, in the order in which the table queue and create_queue have them;
 * alter_queue has the first one last. Each is one number in QueueSettings (an
 * interval in microseconds, a number, a truth value, or the place of a word among
 * those that are allowed), or a text of any kind, NULL: none.
 */
typedef struct Setting
{
	const char *name;			/* of the column and of the argument */
	Oid			type;
	bool		is_role;		/* a text that names one */
	size_t		offset;			/* in QueueSettings */
	int64		built_in;		/* of the queue "default"; and of create_queue */
	int64		low;
	int64		high;
	const char *limits;			/* those two, in words */
	const char *words[3];		/* of a text that is one of them; ended by NULL */
} Setting;

#define SETTING(name) #name, .offset = offsetof(QueueSettings, name)

static const Setting settings[] = {
	{SETTING(backend), .type = TEXTOID},
	{SETTING(visibility_timeout), .type = INTERVALOID, .built_in = 30 * USECS_PER_SEC,
	.low = 1, .high = VISIBILITY_MAX, .limits = "more than 0 and at most 12 hours"},
	{SETTING(max_receive_count), .type = INT4OID, .built_in = 5,
	.low = 1, .high = RECEIVE_COUNT_MAX, .limits = "between 1 and 1000"},
	{SETTING(deduplication_window), .type = INTERVALOID, .built_in = 5 * 60 * USECS_PER_SEC,
	.low = 1, .high = DEDUPLICATION_WINDOW_MAX, .limits = "more than 0 and at most 1000 days"},
	{SETTING(on_dead_letter), .type = TEXTOID, .built_in = ON_DEAD_LETTER_SKIP,
	.words = {"skip", "block"}},
	{SETTING(dead_letter_retention), .type = INTERVALOID, .built_in = 90 * USECS_PER_DAY,
	.low = 1, .high = 36000 * USECS_PER_DAY, .limits = "more than 0 and at most 100 years"},
	{SETTING(max_pending), .type = INT8OID, .built_in = 0,
	.low = 0, .high = PG_INT64_MAX, .limits = "0 (no limit) or more"},
	{SETTING(on_full), .type = TEXTOID, .built_in = ON_FULL_WARN,
	.words = {"warn", "refuse"}},
	{SETTING(url), .type = TEXTOID},
	{SETTING(region), .type = TEXTOID},
	{SETTING(endpoint), .type = TEXTOID},
	{SETTING(retry_base), .type = INTERVALOID, .built_in = USECS_PER_SEC,
	.low = 1000, .high = USECS_PER_HOUR, .limits = "between 1 ms and 1 hour"},
	{SETTING(retry_cap), .type = INTERVALOID, .built_in = 5 * 60 * USECS_PER_SEC,
	.low = 1000, .high = USECS_PER_DAY, .limits = "between 1 ms and 1 day"},
	{SETTING(max_connections), .type = INT4OID, .built_in = 16,
	.low = 1, .high = 100, .limits = "between 1 and 100"},
	{SETTING(group_batching), .type = BOOLOID, .built_in = false},
	{SETTING(require_dlq), .type = BOOLOID, .built_in = true},
	{SETTING(allow_http), .type = BOOLOID, .built_in = false},
	{SETTING(consumers), .type = INT4OID, .built_in = 1,
	.low = 0, .high = 100, .limits = "between 0 and 100"},
	{SETTING(max_run_time), .type = INTERVALOID, .built_in = USECS_PER_HOUR,
	.low = 1000, .high = 7 * USECS_PER_DAY, .limits = "between 1 ms and 7 days"},
	{SETTING(ledger_retention), .type = INTERVALOID, .built_in = 91 * USECS_PER_DAY,
	.low = 1, .high = 36000 * USECS_PER_DAY, .limits = "more than 0 and at most 100 years"},
	{SETTING(producer_role), .type = TEXTOID, .is_role = true},
	{SETTING(consumer_role), .type = TEXTOID, .is_role = true}
};

/* Columns of the table queue. */
enum
{
	QUEUE_NAME = 1,
	QUEUE_SETTINGS,				/* the first of them */
	QUEUE_PAUSED = QUEUE_SETTINGS + lengthof(settings)
};

static MemoryContext cache_context = NULL;
static QueueSettings *cache = NULL;
static int	ncached = 0;
static Oid	cached_relid = InvalidOid;
static uint64 generation = 1;	/* counts what may have changed */
static uint64 cached_generation = 0;

static bool has_changed = false;	/* a queue, by this transaction */

/*
 * What this transaction does to queues: it changes where the messages of some go, so
 * that nothing is given out until it has ended, and redrives the dead letters of
 * others in SQS when it commits.
 */
typedef struct Undertaking
{
	uint64		queue;
	bool		is_redrive;
	SubTransactionId subxid;
} Undertaking;

static Undertaking *undertaken = NULL;
static int	nundertaken = 0;
static int	undertaken_size = 0;

PG_FUNCTION_INFO_V1(taskoutbox_create_queue);
PG_FUNCTION_INFO_V1(taskoutbox_alter_queue);
PG_FUNCTION_INFO_V1(taskoutbox_pause_queue);
PG_FUNCTION_INFO_V1(taskoutbox_resume_queue);
PG_FUNCTION_INFO_V1(taskoutbox_drop_queue);
PG_FUNCTION_INFO_V1(taskoutbox_settings_changed);

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

double
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

static bool
is_text(const Setting *setting)
{
	return setting->type == TEXTOID && setting->words[0] == NULL;
}

static char **
text_of(QueueSettings *queue, const Setting *setting)
{
	return (char **) ((char *) queue + setting->offset);
}

static int64 *
number_of(QueueSettings *queue, const Setting *setting)
{
	return (int64 *) ((char *) queue + setting->offset);
}

/* A value as a number; TO010 when it is not allowed. */
static int64
setting_value(const Setting *setting, Datum value)
{
	int64		number;

	if (setting->type == INTERVALOID)
		return interval_argument(setting->name, DatumGetIntervalP(value),
								 setting->low, setting->high, setting->limits);
	if (setting->type == TEXTOID)
	{
		const char *word = TextDatumGetCString(value);

		for (int i = 0; setting->words[i]; i++)
		{
			if (strcmp(setting->words[i], word) == 0)
				return i;
		}
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("%s must be \"%s\" or \"%s\"", setting->name, setting->words[0], setting->words[1])));
	}
	if (setting->type == BOOLOID)
		return DatumGetBool(value);
	number = setting->type == INT4OID ? DatumGetInt32(value) : DatumGetInt64(value);
	if (number < setting->low || number > setting->high)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("%s is out of range", setting->name),
				 errdetail("It must be %s.", setting->limits)));
	return number;
}

/* Add a queue to the cache, to be filled in. */
static QueueSettings *
cache_add(const char *name)
{
	QueueSettings *queue = &cache[ncached++];

	memset(queue, 0, sizeof(QueueSettings));
	queue->name = MemoryContextStrdup(cache_context, name);
	queue->name_length = strlen(name);
	queue->key = queue_key(name, queue->name_length);
	return queue;
}

static void
load(void)
{
	SmallTable	table;
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

	/* From here on a change makes what we read invalid. */
	cached_relid = queue_relid();
	seen = generation;

	table = small_table_begin("queue");
	while (small_table_next(&table))
	{
		const Datum *values = table.slot->tts_values;
		QueueSettings *queue;

		if (ncached + 1 == size)
		{
			size *= 2;
			cache = repalloc(cache, size * sizeof(QueueSettings));
		}
		queue = cache_add(TextDatumGetCString(values[QUEUE_NAME - 1]));
		for (int i = 0; i < lengthof(settings); i++)
		{
			Datum		value = values[QUEUE_SETTINGS + i - 1];

			if (!is_text(&settings[i]))
				*number_of(queue, &settings[i]) = setting_value(&settings[i], value);
			else if (!table.slot->tts_isnull[QUEUE_SETTINGS + i - 1])
				*text_of(queue, &settings[i]) = MemoryContextStrdup(cache_context, TextDatumGetCString(value));
		}
		queue->is_paused = DatumGetBool(values[QUEUE_PAUSED - 1]);
		if (strcmp(queue->name, TASKOUTBOX_DEFAULT_QUEUE) == 0)
			has_default = true;
	}
	small_table_end(&table);

	if (!has_default)
	{
		QueueSettings *queue = cache_add(TASKOUTBOX_DEFAULT_QUEUE);

		queue->backend = MemoryContextStrdup(cache_context, "embedded");
		for (int i = 0; i < lengthof(settings); i++)
		{
			if (!is_text(&settings[i]))
				*number_of(queue, &settings[i]) = settings[i].built_in;
		}
		queue->is_built_in = true;
	}
	cached_generation = seen;
}

pg_noreturn static void
unknown_queue(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_TASKOUTBOX_UNKNOWN_QUEUE),
			 errmsg("queue \"%s\" does not exist", name),
			 errhint("Create it with %s.create_queue.", TASKOUTBOX_SCHEMA)));
}

static const QueueSettings *
find(const char *name, int length)
{
	if (cached_generation != generation)
		load();
	for (int i = 0; i < ncached; i++)
	{
		if (cache[i].name_length == length && memcmp(cache[i].name, name, length) == 0)
			return &cache[i];
	}
	return NULL;
}

const QueueSettings *
queue_find(const char *name)
{
	return find(name, strlen(name));
}

const QueueSettings *
queue_settings(const char *name)
{
	const QueueSettings *queue = queue_find(name);

	if (queue == NULL)
		unknown_queue(name);
	return queue;
}

const QueueSettings *
queue_settings_of(const text *name)
{
	const QueueSettings *queue = find(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name));

	if (queue == NULL)
		unknown_queue(text_to_cstring(name));
	return queue;
}

int
queue_list(const QueueSettings **list)
{
	if (cached_generation != generation)
		load();
	*list = cache;
	return ncached;
}

void
queue_drop_texts(QueueSettings *copy)
{
	copy->name = NULL;
	for (int i = 0; i < lengthof(settings); i++)
	{
		if (is_text(&settings[i]))
			*text_of(copy, &settings[i]) = NULL;
	}
}

bool
queue_is_embedded(const QueueSettings *queue)
{
	return strcmp(queue->backend, embedded_backend.name) == 0;
}

bool
queue_is_served(const QueueSettings *queue)
{
	return taskoutbox_publish || queue_is_embedded(queue);
}

/* NULL has everybody. A group that is no more, dropped or lost in a restore, has no members. */
static bool
is_member(Oid role, const char *group)
{
	Oid			oid;

	if (group == NULL)
		return true;
	oid = get_role_oid(group, true);
	return OidIsValid(oid) ? has_privs_of_role(role, oid) : superuser_arg(role);
}

static void
check_member(const QueueSettings *queue, Oid role, const char *setting, const char *group)
{
	if (is_member(role, group))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for queue \"%s\"", queue->name),
			 errdetail("It is kept for members of role \"%s\" (%s), and role \"%s\" is none.",
					   group, setting, GetUserNameFromId(role, true)),
			 errhint("Run GRANT ..., or change %s with %s.alter_queue.", setting, TASKOUTBOX_SCHEMA)));
}

void
queue_check_producer(const QueueSettings *queue, Oid role)
{
	check_member(queue, role, "producer_role", queue->producer_role);
}

void
queue_check_consumer(const QueueSettings *queue, Oid role)
{
	check_member(queue, role, "consumer_role", queue->consumer_role);
}

bool
queue_admits_consumer(const QueueSettings *queue, Oid role)
{
	return is_member(role, queue->consumer_role);
}

int64
queue_retry_delay(const QueueSettings *queue, int failures)
{
	double		limit = queue->retry_base * pow(2, Min(failures, 30));

	return pg_prng_double(&pg_global_prng_state) * Min(limit, queue->retry_cap);
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
taskoutbox_settings_changed(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		elog(ERROR, "settings_changed: not called by trigger manager");
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
undertaken_add(uint64 queue, bool is_redrive)
{
	if (nundertaken == undertaken_size)
	{
		undertaken_size = Max(8, undertaken_size * 2);
		undertaken = undertaken == NULL ?
			MemoryContextAlloc(TopMemoryContext, undertaken_size * sizeof(Undertaking)) :
			repalloc(undertaken, undertaken_size * sizeof(Undertaking));
	}
	undertaken[nundertaken].queue = queue;
	undertaken[nundertaken].is_redrive = is_redrive;
	undertaken[nundertaken].subxid = GetCurrentSubTransactionId();
	nundertaken++;
}

/* What was added from a point on: the transaction, or a part of it, has ended. */
static void
undertaken_finish(int from, bool committed)
{
	for (int i = from; i < nundertaken; i++)
	{
		if (!undertaken[i].is_redrive)
			lease_open_queue(undertaken[i].queue);
		else if (committed)
			queue_slot_request(MyDatabaseId, undertaken[i].queue, QUEUE_REDRIVE);
	}
	nundertaken = from;
}

/*
 * Keep the messages of a queue where they are until this transaction has ended. False:
 * some are in somebody's hands.
 */
static bool
close_queue(uint64 queue)
{
	for (int i = 0; i < nundertaken; i++)
	{
		if (undertaken[i].queue == queue && !undertaken[i].is_redrive)
			return true;
	}
	undertaken_add(queue, false);
	return lease_close_queue(outbox_relid(), queue);
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
	/* Neither is on disk. */
	if (event == XACT_EVENT_PRE_PREPARE && nundertaken > 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot PREPARE a transaction that redrives dead letters in SQS, or changes where the messages of a queue go")));
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
	{
		has_changed = false;
		/* The relay knows already that it is to look. */
		undertaken_finish(0, event == XACT_EVENT_COMMIT);
	}
}

static void
queue_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
					   SubTransactionId parentSubid, void *arg)
{
	int			from = nundertaken;

	if (event != SUBXACT_EVENT_ABORT_SUB)
		return;
	/* What it and those in it did comes last, and has its number or a higher one. */
	while (from > 0 && undertaken[from - 1].subxid >= mySubid)
		from--;
	undertaken_finish(from, false);
}

void
queue_redrive_at_commit(uint64 key)
{
	undertaken_add(key, true);
}

void
queue_init(void)
{
	RegisterXactCallback(queue_xact_callback, NULL);
	RegisterSubXactCallback(queue_subxact_callback, NULL);
}

/*
 * A message can come again until its last retry, and as long as its dead letter can
 * be redriven. A ledger that forgets earlier lets it be handled twice. Said by each
 * statement that sets one of these.
 */
static void
warn_of_forgetting(const QueueSettings *queue, const NullableDatum *arguments)
{
	int64		retries = queue->max_receive_count *
		(Max(queue->visibility_timeout, queue->max_run_time) + queue->retry_cap);
	bool		is_about_it = false;

	for (int i = 0; i < lengthof(settings); i++)
	{
		size_t		offset = settings[i].offset;

		is_about_it |= !arguments[i].isnull &&
			(offset == offsetof(QueueSettings, ledger_retention) ||
			 offset == offsetof(QueueSettings, dead_letter_retention) ||
			 offset == offsetof(QueueSettings, max_receive_count) ||
			 offset == offsetof(QueueSettings, visibility_timeout) ||
			 offset == offsetof(QueueSettings, max_run_time) ||
			 offset == offsetof(QueueSettings, retry_cap));
	}
	if (is_about_it && queue->ledger_retention < retries + queue->dead_letter_retention)
		ereport(WARNING,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("ledger_retention of queue \"%s\" is shorter than its messages can come again",
						queue->name),
				 errdetail("With all its retries a message lives up to %.1f days, and a dead letter can be redriven for %.1f more.",
						   (double) retries / USECS_PER_DAY,
						   (double) queue->dead_letter_retention / USECS_PER_DAY),
				 errhint("Set ledger_retention to more than both together, or a shorter dead_letter_retention.")));
}

/*
 * Put arguments (in the order of the settings; null: as it is) into a queue's
 * settings, and see whether they are allowed, each and together.
 */
static void
apply_settings(QueueSettings *queue, const NullableDatum *arguments)
{
	const Backend *backend;

	for (int i = 0; i < lengthof(settings); i++)
	{
		char	   *value;

		if (arguments[i].isnull)
			continue;
		if (!is_text(&settings[i]))
		{
			*number_of(queue, &settings[i]) = setting_value(&settings[i], arguments[i].value);
			continue;
		}
		/* An empty text takes a setting away. */
		value = TextDatumGetCString(arguments[i].value);
		*text_of(queue, &settings[i]) = *value == '\0' ? NULL : value;
		/* And the backend takes what belongs to the other one. */
		if (i == 0)
			queue->url = queue->region = queue->endpoint = NULL;
		if (settings[i].is_role && *value != '\0')
			(void) get_role_oid(value, false);
	}

	if (queue->on_full == ON_FULL_REFUSE && queue->max_pending == 0)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("on_full \"refuse\" needs max_pending"),
				 errdetail("Queue \"%s\" has no max_pending, so it is never full.", queue->name),
				 errhint("Pass max_pending, too, or on_full => 'warn'.")));
	if (queue->retry_base > queue->retry_cap)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("retry_base must not be longer than retry_cap")));
	backend = queue->backend ? backend_by_name(queue->backend) : NULL;
	if (backend == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("backend \"%s\" is not known", queue->backend ? queue->backend : ""),
				 errhint("The backends are \"embedded\" and \"sqs\".")));
	backend->check(queue);
	warn_of_forgetting(queue, arguments);
}

/* Parameters of a statement: $1 is the name, then come the settings as they are now. */
static void
settings_parameters(QueueSettings *queue, const NullableDatum *arguments, Oid *types, Datum *values, char *nulls)
{
	types[0] = TEXTOID;
	values[0] = CStringGetTextDatum(queue->name);
	nulls[0] = ' ';
	for (int i = 0; i < lengthof(settings); i++)
	{
		char	   *value = is_text(&settings[i]) ? *text_of(queue, &settings[i]) : NULL;

		types[1 + i] = settings[i].type;
		values[1 + i] = value ? CStringGetTextDatum(value) : arguments[i].value;
		nulls[1 + i] = value || (!is_text(&settings[i]) && !arguments[i].isnull) ? ' ' : 'n';
	}
}

Datum
taskoutbox_create_queue(PG_FUNCTION_ARGS)
{
	char	   *name = check_name("name", fcinfo, 0);
	QueueSettings queue = {.name = name};
	static SPIPlanPtr plan = NULL;
	Oid			types[1 + lengthof(settings)];
	Datum		values[lengthof(types)];
	char		nulls[lengthof(types)];
	StringInfoData columns;
	StringInfoData parameters;
	const QueueSettings *existing;

	PreventCommandIfReadOnly("taskoutbox.create_queue()");
	initStringInfo(&columns);
	initStringInfo(&parameters);
	for (int i = 0; i < lengthof(settings); i++)
	{
		if (i == 0 || !is_text(&settings[i]))
			check_not_null(settings[i].name, fcinfo, 1 + i);
		appendStringInfo(&columns, ", %s", settings[i].name);
		appendStringInfo(&parameters, ", $%d", 2 + i);
	}
	apply_settings(&queue, &fcinfo->args[1]);

	/* Two sessions that create queues at the same time see each other's. */
	LockRelationOid(queue_relid(), ShareRowExclusiveLock);
	existing = queue_find(name);
	if (existing && !existing->is_built_in)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_QUEUE_EXISTS),
				 errmsg("queue \"%s\" exists already", name)));
	settings_parameters(&queue, &fcinfo->args[1], types, values, nulls);
	(void) outbox_execute(&plan,
						  psprintf("INSERT INTO taskoutbox.queue (name%s) VALUES ($1%s)",
								   columns.data, parameters.data),
						  lengthof(values), types, values, nulls, true, NULL);
	PG_RETURN_VOID();
}

/* The queue "default" gets its row when it is changed. */
static void
store_default(const char *name)
{
	static SPIPlanPtr plan = NULL;

	if (queue_settings(name)->is_built_in)
		(void) outbox_execute(&plan,
							  "INSERT INTO taskoutbox.queue (name) VALUES ('default') "
							  "ON CONFLICT (name) DO NOTHING",
							  0, NULL, NULL, NULL, true, NULL);
}

Datum
taskoutbox_alter_queue(PG_FUNCTION_ARGS)
{
	char	   *name = check_name("name", fcinfo, 0);
	QueueSettings before;
	QueueSettings queue;
	static SPIPlanPtr update = NULL;
	static SPIPlanPtr unblock = NULL;
	Oid			types[1 + lengthof(settings)];
	Datum		values[lengthof(types)];
	char		nulls[lengthof(types)];
	NullableDatum arguments[lengthof(settings)];
	StringInfoData assignments;

	PreventCommandIfReadOnly("taskoutbox.alter_queue()");
	/* Nobody else changes what we compare with. */
	LockRelationOid(queue_relid(), ShareRowExclusiveLock);
	store_default(name);
	before = *queue_settings(name);
	before.name = name;
	/* The cache can be read again. */
	for (int i = 0; i < lengthof(settings); i++)
	{
		if (is_text(&settings[i]) && *text_of(&before, &settings[i]))
			*text_of(&before, &settings[i]) = pstrdup(*text_of(&before, &settings[i]));
	}
	queue = before;
	arguments[0] = fcinfo->args[lengthof(settings)];
	memcpy(&arguments[1], &fcinfo->args[1], (lengthof(settings) - 1) * sizeof(NullableDatum));
	apply_settings(&queue, arguments);

	/* What may have arrived in one place must not be sent to another. */
	if ((!same_text(before.backend, queue.backend) || !same_text(before.url, queue.url) ||
		 !same_text(before.region, queue.region) || !same_text(before.endpoint, queue.endpoint)) &&
		shared && !close_queue(queue.key))
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_IN_FLIGHT),
				 errmsg("queue \"%s\" has messages in flight", name),
				 errdetail("They may have been received, or sent, so backend, url, region and endpoint cannot be changed now."),
				 errhint("Pause the queue, wait until queue_metrics shows nothing in flight, and try again.")));

	initStringInfo(&assignments);
	for (int i = 0; i < lengthof(settings); i++)
		appendStringInfo(&assignments, is_text(&settings[i]) ? "%s%s = $%d" : "%s%s = COALESCE($%d, %s)",
						 i == 0 ? "" : ", ", settings[i].name, 2 + i, settings[i].name);
	settings_parameters(&queue, arguments, types, values, nulls);
	(void) outbox_execute(&update,
						  psprintf("UPDATE taskoutbox.queue SET %s WHERE name OPERATOR(pg_catalog.=) $1",
								   assignments.data),
						  lengthof(values), types, values, nulls, true, NULL);

	/* Groups that wait for a dead letter go on. */
	if (queue.on_dead_letter == ON_DEAD_LETTER_SKIP)
		(void) outbox_execute(&unblock,
							  "UPDATE taskoutbox.dead_letter SET blocks = false "
							  "WHERE queue OPERATOR(pg_catalog.=) $1 AND blocks",
							  1, types, values, NULL, true, NULL);
	PG_RETURN_VOID();
}

static void
set_paused(const char *name, bool paused)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID, BOOLOID};
	Datum		values[] = {CStringGetTextDatum(name), BoolGetDatum(paused)};

	store_default(name);
	if (outbox_execute(&plan,
					   "UPDATE taskoutbox.queue SET paused = $2 WHERE name OPERATOR(pg_catalog.=) $1",
					   lengthof(values), types, values, NULL, true, NULL) == 0)
		unknown_queue(name);	/* dropped just now */
}

Datum
taskoutbox_pause_queue(PG_FUNCTION_ARGS)
{
	PreventCommandIfReadOnly("taskoutbox.pause_queue()");
	set_paused(check_name("name", fcinfo, 0), true);
	PG_RETURN_VOID();
}

Datum
taskoutbox_resume_queue(PG_FUNCTION_ARGS)
{
	PreventCommandIfReadOnly("taskoutbox.resume_queue()");
	set_paused(check_name("name", fcinfo, 0), false);
	PG_RETURN_VOID();
}

Datum
taskoutbox_drop_queue(PG_FUNCTION_ARGS)
{
	char	   *name = check_name("name", fcinfo, 0);
	bool		force = !PG_ARGISNULL(1) && PG_GETARG_BOOL(1);
	static SPIPlanPtr plans[6] = {NULL};
	static const Oid types[] = {TEXTOID};
	static const char *const deletes[] = {
		"DELETE FROM taskoutbox.task_outbox WHERE queue OPERATOR(pg_catalog.=) $1",
		"DELETE FROM taskoutbox.dead_letter WHERE queue OPERATOR(pg_catalog.=) $1",
		"DELETE FROM taskoutbox.deduplication WHERE queue OPERATOR(pg_catalog.=) $1",
		"DELETE FROM taskoutbox.controller WHERE queue OPERATOR(pg_catalog.=) $1",
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
		outbox_execute(&plans[lengthof(deletes)],
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
