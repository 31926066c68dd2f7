/*
 * schedule.c
 *	  Which periods of a schedule had their task, and which had none.
 *
 * A period had its task exactly if its deduplication id is taken, so nothing
 * else is recorded: we list the periods in question, and look their ids up.
 * missed_periods does so for a schedule that the caller names. schedule_status
 * names them itself: it reads pg_cron's entries and its log of runs, with the
 * caller's rights, finds in the commands what they enqueue, and misses a task in
 * those periods only in which an entry was due.
 */
#include "taskoutbox.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "check.h"
#include "command.h"
#include "crontab.h"
#include "deduplication.h"
#include "outbox.h"
#include "period.h"
#include "queue.h"

PG_FUNCTION_INFO_V1(taskoutbox_missed_periods);
PG_FUNCTION_INFO_V1(taskoutbox_get_schedule_status);

/* An entry that was due so short a time ago may be about to run. */
#define GRACE USECS_PER_MINUTE

/* All periods of a schedule whose ids we can know, up to a time. */
typedef struct History
{
	int			n;
	Period	   *periods;
	Datum	   *ids;			/* texts, without a scope */
	int64	   *tasks;			/* 0: none */
	TimestampTz *expires_at;
	int			first;			/* with a task; n: none has */
	int			last;			/* -1: none has */
} History;

static History
read_history(const char *queue, const char *prefix, const PeriodRule *rule, TimestampTz until)
{
	History		history = {0};
	Period		period = period_at(rule, GetCurrentTimestamp() - PERIOD_KEPT);
	int			size = 1024;
	Datum	   *scoped;

	history.periods = palloc(size * sizeof(Period));
	for (period = period_at(rule, period.end); period.start <= until; period = period_at(rule, period.end))
	{
		if (history.n == size)
			history.periods = repalloc_huge(history.periods, (size *= 2) * sizeof(Period));
		history.periods[history.n++] = period;
	}

	history.ids = palloc(history.n * sizeof(Datum));
	history.tasks = palloc(history.n * sizeof(int64));
	history.expires_at = palloc(history.n * sizeof(TimestampTz));
	scoped = palloc(history.n * sizeof(Datum));
	for (int i = 0; i < history.n; i++)
	{
		char	   *id = period_id(prefix, &history.periods[i]);

		history.ids[i] = CStringGetTextDatum(id);
		scoped[i] = CStringGetTextDatum(psprintf("%s%s", taskoutbox_deduplication_scope, id));
	}
	deduplication_find(queue, history.n, scoped, history.tasks, history.expires_at);

	history.first = history.n;
	history.last = -1;
	for (int i = 0; i < history.n; i++)
		if (history.tasks[i] != 0)
		{
			history.first = Min(history.first, i);
			history.last = i;
		}
	return history;
}

/* A day less: the id may have been taken a little before its period began. */
static bool
is_kept_long_enough(const History *history)
{
	return history->last < 0 ||
		history->expires_at[history->last] - history->periods[history->last].start >= PERIOD_KEPT - USECS_PER_DAY;
}

Datum
taskoutbox_missed_periods(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	char	   *task_type = check_name("task_type", fcinfo, 0);
	PeriodRule	rule = period_rule_argument(fcinfo, 1, 2);
	TimestampTz since = PG_ARGISNULL(3) ? DT_NOBEGIN : period_time_argument("since", fcinfo, 3);
	char	   *queue = check_name("queue", fcinfo, 4);
	TimestampTz now = GetCurrentTimestamp();
	Period		current = period_at(&rule, now);
	History		history;

	(void) deduplication_scoped(cstring_to_text(period_checked_id("task_type", task_type, &current)));
	(void) queue_settings(queue);
	if (since != DT_NOBEGIN && since < now - PERIOD_KEPT)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("since is out of range"),
				 errdetail("It must be less than %d days ago: which periods before had their task is not known any more.",
						   PERIOD_KEPT_DAYS)));

	InitMaterializedSRF(fcinfo, 0);
	history = read_history(queue, task_type, &rule, now);
	if (!is_kept_long_enough(&history))
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("deduplication ids of this schedule are not kept for %d days", PERIOD_KEPT_DAYS),
				 errdetail("So which periods had their task is not known."),
				 errhint("Use enqueue_period, or pass deduplication_window => '%d days' to enqueue.", PERIOD_KEPT_DAYS)));

	for (int i = since == DT_NOBEGIN ? history.first : 0; i < history.n; i++)
	{
		Datum		values[] = {history.ids[i], TimestampTzGetDatum(history.periods[i].start)};
		bool		nulls[] = {false, false};

		if (history.tasks[i] == 0 && history.periods[i].end <= now && history.periods[i].start >= since)
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	PG_RETURN_NULL();
}

/*
 * schedule_status
 */

/* Columns of its result. */
enum
{
	COLUMN_JOBID,
	COLUMN_JOBNAME,
	COLUMN_SCHEDULE,
	COLUMN_DATABASE,
	COLUMN_USERNAME,
	COLUMN_ACTIVE,
	COLUMN_LAST_RUN,
	COLUMN_STATUS,
	COLUMN_DURATION,
	COLUMN_LAST_FAILURE,
	COLUMN_ERROR,
	COLUMN_TASK_TYPE,
	COLUMN_QUEUE,
	COLUMN_ID_PREFIX,
	COLUMN_PERIOD,
	COLUMN_TIMEZONE,
	COLUMN_LAST_PERIOD,
	COLUMN_LAST_TASK,
	COLUMN_MISSED_PERIODS,
	COLUMN_MISSED_STARTS,
	COLUMN_HINT,
	COLUMNS
};

/* What JOBS_QUERY gives beyond the columns up to COLUMN_ERROR. */
enum
{
	JOB_COMMAND = COLUMN_ERROR + 1,
	JOB_FIRST_RUN,
	JOB_CAN_LOGIN,
	JOB_IS_OURS,				/* runs in this database */
	JOB_COLUMNS
};

/*
 * The tables that are pg_cron's, or foreign tables for them that a superuser has
 * made: anybody else's would make us evaluate what he likes, with the caller's
 * rights.
 */
#define TABLES_QUERY \
	"SELECT pg_catalog.count(*), " \
	"coalesce(pg_catalog.bool_and(pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT')), false), " \
	"coalesce(pg_catalog.bool_or(c.relkind OPERATOR(pg_catalog.=) 'f'), false) " \
	"FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace " \
	"WHERE n.nspname OPERATOR(pg_catalog.=) 'cron' AND c.relname OPERATOR(pg_catalog.=) ANY (ARRAY['job', 'job_run_details']::pg_catalog.name[]) " \
	"AND CASE WHEN c.relkind OPERATOR(pg_catalog.=) 'r' THEN EXISTS (SELECT FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e " \
	"ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.refobjid OPERATOR(pg_catalog.=) e.oid " \
	"WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid OPERATOR(pg_catalog.=) c.oid " \
	"AND d.deptype OPERATOR(pg_catalog.=) 'e' AND e.extname OPERATOR(pg_catalog.=) 'pg_cron') " \
	"WHEN c.relkind OPERATOR(pg_catalog.=) 'f' THEN (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.oid OPERATOR(pg_catalog.=) c.relowner) " \
	"ELSE false END"

/* With casts, since foreign tables have the types that somebody gave them. */
#define JOBS_QUERY \
	"SELECT j.jobid::pg_catalog.int8, j.jobname::pg_catalog.text, coalesce(j.schedule::pg_catalog.text, ''), " \
	"j.database::pg_catalog.text, j.username::pg_catalog.text, j.active::pg_catalog.bool, " \
	"r.start_time::pg_catalog.timestamptz, r.status::pg_catalog.text, (r.end_time OPERATOR(pg_catalog.-) r.start_time)::pg_catalog.interval, " \
	"coalesce(f.start_time, f.end_time)::pg_catalog.timestamptz, f.return_message::pg_catalog.text, " \
	"j.command::pg_catalog.text, l.first_run::pg_catalog.timestamptz, " \
	"coalesce((SELECT o.rolcanlogin FROM pg_catalog.pg_roles o WHERE o.rolname::pg_catalog.text OPERATOR(pg_catalog.=) j.username), false), " \
	"j.database OPERATOR(pg_catalog.=) pg_catalog.current_database()::pg_catalog.text " \
	"FROM cron.job j LEFT JOIN (SELECT d.jobid, pg_catalog.max(d.runid) AS last, " \
	"pg_catalog.max(d.runid) FILTER (WHERE d.status OPERATOR(pg_catalog.=) 'failed') AS failed, pg_catalog.min(d.start_time) AS first_run " \
	"FROM cron.job_run_details d GROUP BY d.jobid) l ON l.jobid OPERATOR(pg_catalog.=) j.jobid " \
	"LEFT JOIN cron.job_run_details r ON r.runid OPERATOR(pg_catalog.=) l.last " \
	"LEFT JOIN cron.job_run_details f ON f.runid OPERATOR(pg_catalog.=) l.failed " \
	"WHERE pg_catalog.strpos(pg_catalog.lower(j.command), 'taskoutbox.enqueue') OPERATOR(pg_catalog.>) 0 " \
	"ORDER BY j.jobid"

/* With such an entry pg_cron's launcher fails when it reads its entries, up to 1.6 at least. */
#define ORPHAN_QUERY \
	"SELECT 1::pg_catalog.int8 FROM cron.job j WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles o " \
	"WHERE o.rolname::pg_catalog.text OPERATOR(pg_catalog.=) j.username)"

#define SCHEDULER_QUERY \
	"SELECT 1::pg_catalog.int8 FROM pg_catalog.pg_stat_activity WHERE backend_type OPERATOR(pg_catalog.=) 'pg_cron launcher'"

/* Where pg_cron's tables are. */
typedef struct CronTables
{
	bool		are_foreign;	/* in another database */
	const char *hint;			/* what is wrong with all entries */
} CronTables;

static bool
select_boolean(HeapTuple row, int column)
{
	bool		isnull;
	Datum		value = SPI_getbinval(row, SPI_tuptable->tupdesc, column, &isnull);

	return !isnull && DatumGetBool(value);
}

static const char *
setting(const char *name, const char *undefined)
{
	const char *value = GetConfigOption(name, true, false);

	return value && *value ? value : undefined;
}

/* What is wrong with pg_cron as a whole. The caller may not see it; we look as the owner. */
static const char *
scheduler_hint(void)
{
	static SPIPlanPtr orphan = NULL;
	static SPIPlanPtr scheduler = NULL;

	if (superuser_arg(outbox_owner()))
	{
		if (outbox_for_each(&orphan, ORPHAN_QUERY, 0, NULL, NULL, NULL, false, NULL, NULL) > 0)
			return "An entry in cron.job belongs to a role that does not exist: pg_cron then stops running all entries. Delete that entry.";
		if (outbox_for_each(&scheduler, SCHEDULER_QUERY, 0, NULL, NULL, NULL, false, NULL, NULL) == 0)
			return "pg_cron does not run: look into the server log, and restart the server.";
	}
	if (strcmp(setting("cron.log_run", "on"), "off") == 0)
		return "Runs are not known: set cron.log_run = on.";
	return NULL;
}

static bool
find_tables(CronTables *tables)
{
	bool		isnull;
	HeapTuple	row;
	const char *database = setting("cron.database_name", NULL);

	if (SPI_execute(TABLES_QUERY, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not look for the tables of pg_cron");
	row = SPI_tuptable->vals[0];
	if (DatumGetInt64(SPI_getbinval(row, SPI_tuptable->tupdesc, 1, &isnull)) < 2)
	{
		ereport(NOTICE,
				(errmsg("schedules are not known: pg_cron is not installed in this database"),
				 database ?
				 errhint("Look into database \"%s\", which cron.database_name names, or make foreign tables here: see doc/schedules.md.", database) :
				 errhint("Add pg_cron to shared_preload_libraries, and run CREATE EXTENSION pg_cron in the database that cron.database_name names.")));
		return false;
	}
	if (!select_boolean(row, 2))
	{
		ereport(NOTICE,
				(errmsg("schedules are not known: permission denied for the tables of pg_cron"),
				 errhint("Grant USAGE on the schema cron, and SELECT on cron.job and cron.job_run_details.")));
		return false;
	}
	tables->are_foreign = select_boolean(row, 3);
	tables->hint = tables->are_foreign ? NULL : scheduler_hint();
	return true;
}

static TimestampTz
ahead_of(TimestampTz t, const Interval *ahead)
{
	return DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval, TimestampTzGetDatum(t),
												   IntervalPGetDatum(ahead)));
}

/*
 * Marks the periods that an entry is for: those that it was due in, from the
 * first one that had a task or from its first run on. An entry that is due on
 * every day is also for a day that it did not meet since clocks were changed.
 */
static void
mark_expected(const History *history, const PeriodRule *rule, const Crontab *crontab,
			  const Interval *ahead, TimestampTz first_run, TimestampTz now, bool *expected)
{
	pg_tz	   *cron_zone = pg_tzset(setting("cron.timezone", "GMT"));
	pg_time_t	until = timestamptz_to_time_t(now - GRACE);
	pg_time_t	t;
	int			previous = -1;
	int			i = 0;

	first_run -= first_run % USECS_PER_MINUTE;
	t = timestamptz_to_time_t(Min(first_run, now));
	if (history->first < history->n)
	{
		Datum		due = DirectFunctionCall2(timestamptz_mi_interval,
											  TimestampTzGetDatum(history->periods[history->first].start),
											  IntervalPGetDatum(ahead));

		t = Min(t, timestamptz_to_time_t(DatumGetTimestampTz(due)));
	}
	while ((t = crontab_next(crontab, cron_zone, t, until)) >= 0)
	{
		TimestampTz due = time_t_to_timestamptz(t);
		TimestampTz at = ahead_of(due, ahead);

		CHECK_FOR_INTERRUPTS();
		t += SECS_PER_MINUTE;
		while (i < history->n && history->periods[i].end <= at)
			i++;
		if (i == history->n || at < history->periods[i].start)
			continue;
		if (i >= history->first || due >= first_run)
		{
			if (previous >= 0 && rule->kind >= PERIOD_DAY && crontab_is_daily(crontab))
				memset(expected + previous, true, i - previous);
			expected[i] = true;
			previous = i;
		}
		/* What is due before that is for the same period. */
		if (ahead->month == 0 && ahead->day == 0)
			t = Max(t, timestamptz_to_time_t(due + (history->periods[i].end - at)));
	}
}

/* Without a schedule that we could read, every period that is over counts. */
static void
mark_over(const History *history, TimestampTz now, bool *expected)
{
	for (int i = history->first; i < history->n; i++)
		expected[i] = history->periods[i].end <= now;
}

static void
put_missed(const History *history, const bool *expected, Datum *values, bool *nulls)
{
	Datum	   *ids = palloc(history->n * sizeof(Datum));
	Datum	   *starts = palloc(history->n * sizeof(Datum));
	int			n = 0;

	for (int i = 0; i < history->n; i++)
		if (expected[i] && history->tasks[i] == 0)
		{
			ids[n] = history->ids[i];
			starts[n++] = TimestampTzGetDatum(history->periods[i].start);
		}
	values[COLUMN_MISSED_PERIODS] = PointerGetDatum(construct_array(ids, n, TEXTOID, -1, false, TYPALIGN_INT));
	values[COLUMN_MISSED_STARTS] = PointerGetDatum(construct_array(starts, n, TIMESTAMPTZOID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	nulls[COLUMN_MISSED_PERIODS] = nulls[COLUMN_MISSED_STARTS] = false;
}

static void
put_text(int column, const char *text, Datum *values, bool *nulls)
{
	nulls[column] = text == NULL;
	if (text)
		values[column] = CStringGetTextDatum(text);
}

/* What is known of a call's periods; returns a hint when that is not all. */
static const char *
put_periods(const EnqueueCall *call, const char *schedule, TimestampTz first_run, Datum *values, bool *nulls)
{
	TimestampTz now = GetCurrentTimestamp();
	PeriodRule	rule;
	Crontab		crontab;
	History		history;
	bool	   *expected;

	if (!call->prefix || !call->queue || !call->period || !call->timezone)
		return call->hint;
	if (period_rule_find(call->period, call->timezone, &rule))
		return "Its period or timezone is not known: enqueue refuses that.";

	history = read_history(call->queue, call->prefix, &rule, call->ahead ? Max(now, ahead_of(now, call->ahead)) : now);
	if (history.last >= 0)
	{
		values[COLUMN_LAST_PERIOD] = history.ids[history.last];
		values[COLUMN_LAST_TASK] = Int64GetDatum(history.tasks[history.last]);
		nulls[COLUMN_LAST_PERIOD] = nulls[COLUMN_LAST_TASK] = false;
	}
	if (call->hint)
		return call->hint;
	if (!is_kept_long_enough(&history))
		return "Missed periods are not known yet: the last deduplication id was not taken for 400 days.";

	expected = palloc0(history.n);
	if (call->ahead && crontab_parse(schedule, &crontab))
		mark_expected(&history, &rule, &crontab, call->ahead, first_run, now, expected);
	else
		mark_over(&history, now, expected);
	put_missed(&history, expected, values, nulls);
	return strcmp(call->prefix, call->task_type ? call->task_type : "") == 0 ? NULL :
		"enqueue_period does not fill its gaps: it would not make the same ids. Use enqueue with period_id.";
}

/* A row for each call of enqueue in the command of a job, or one for a job that shows none. */
static void
put_job(ReturnSetInfo *rsinfo, HeapTuple job, TupleDesc desc, const CronTables *tables)
{
	Datum		values[Max((int) JOB_COLUMNS, (int) COLUMNS)];
	bool		nulls[Max((int) JOB_COLUMNS, (int) COLUMNS)];
	bool		is_ours;
	bool		is_active;
	bool		can_login;
	TimestampTz first_run;
	const char *schedule;
	List	   *calls;
	ListCell   *cell;

	heap_deform_tuple(job, desc, values, nulls);
	schedule = TextDatumGetCString(values[COLUMN_SCHEDULE]);
	calls = command_calls(TextDatumGetCString(values[JOB_COMMAND]));
	first_run = nulls[JOB_FIRST_RUN] ? DT_NOEND : DatumGetTimestampTz(values[JOB_FIRST_RUN]);
	can_login = DatumGetBool(values[JOB_CAN_LOGIN]);
	is_active = DatumGetBool(values[COLUMN_ACTIVE]);
	is_ours = DatumGetBool(values[JOB_IS_OURS]);
	if (calls == NIL)
		calls = list_make1(palloc0(sizeof(EnqueueCall)));

	foreach(cell, calls)
	{
		const EnqueueCall *call = lfirst(cell);
		const char *hint;

		for (int i = COLUMN_TASK_TYPE; i < COLUMNS; i++)
			nulls[i] = true;
		put_text(COLUMN_TASK_TYPE, call->task_type, values, nulls);
		put_text(COLUMN_QUEUE, call->queue, values, nulls);
		put_text(COLUMN_ID_PREFIX, call->prefix, values, nulls);
		put_text(COLUMN_PERIOD, call->period, values, nulls);
		put_text(COLUMN_TIMEZONE, call->timezone, values, nulls);

		if (!is_ours)
			hint = "Its tasks are in another database: which periods had one is shown there.";
		else
			hint = put_periods(call, schedule, first_run, values, nulls);
		if (!call->queue && !hint)
			hint = "What it enqueues cannot be seen: no statement of its command calls enqueue itself.";
		if (!is_active)
			hint = "It is not active.";
		if (!can_login && !tables->are_foreign)
			hint = "Its role does not exist, or may not log in.";
		put_text(COLUMN_HINT, tables->hint ? tables->hint : hint, values, nulls);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
}

Datum
taskoutbox_get_schedule_status(PG_FUNCTION_ARGS)
{
	CronTables	tables;

	InitMaterializedSRF(fcinfo, 0);
	SPI_connect();
	if (find_tables(&tables))
	{
		SPITupleTable *jobs;

		if (SPI_execute(JOBS_QUERY, true, 0) != SPI_OK_SELECT)
			elog(ERROR, "could not read the tables of pg_cron");
		jobs = SPI_tuptable;
		for (uint64 i = 0; i < jobs->numvals; i++)
			put_job((ReturnSetInfo *) fcinfo->resultinfo, jobs->vals[i], jobs->tupdesc, &tables);
	}
	SPI_finish();
	PG_RETURN_NULL();
}
