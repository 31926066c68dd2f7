/*
 * period.c
 *	  Periods of the calendar in a time zone: their ids, and when they begin.
 *
 * A day, and what is made of days, is what the calendar of the zone says: it
 * begins at the first moment at which clocks there show it, and has one id
 * whatever is done to the clocks meanwhile. Hours and quarter-hours are pieces
 * of time: an hour that the clocks show twice is two hours. So their ids carry
 * the offset from UTC, and a change of the offset ends them. Nothing here
 * depends on the settings of the session.
 */
#include "taskoutbox.h"
#include "period.h"

#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/timestamp.h"

#include "check.h"

PG_FUNCTION_INFO_V1(taskoutbox_period_id);
PG_FUNCTION_INFO_V1(taskoutbox_period_start);

#define NEVER PG_INT64_MAX

static const char *const kind_names[] = {
	[PERIOD_QUARTER_HOUR] = "quarter-hour",
	[PERIOD_HOUR] = "hour",
	[PERIOD_DAY] = "day",
	[PERIOD_WEEK] = "week",
	[PERIOD_MONTH] = "month",
	[PERIOD_QUARTER] = "quarter",
	[PERIOD_YEAR] = "year"
};

/*
 * What looks like a POSIX rule is not a name: "UTC+2" would be two hours west of
 * UTC, and a name with a slip and a digit in it would be accepted as UTC.
 */
static pg_tz *
find_zone(const char *name)
{
	pg_tz	   *zone;

	if (strpbrk(name, "0123456789,<") && pg_strncasecmp(name, "Etc/GMT", 7) != 0)
		return NULL;
	zone = pg_tzset(name);
	return zone && pg_tz_acceptable(zone) ? zone : NULL;
}

const char *
period_rule_find(const char *period, const char *timezone, PeriodRule *rule)
{
	for (rule->kind = 0; rule->kind < lengthof(kind_names); rule->kind++)
		if (strcmp(kind_names[rule->kind], period) == 0)
			break;
	if (rule->kind == lengthof(kind_names))
		return "period";
	rule->zone = find_zone(timezone);
	return rule->zone ? NULL : "timezone";
}

PeriodRule
period_rule_argument(FunctionCallInfo fcinfo, int n_period, int n_timezone)
{
	const char *period = check_name("period", fcinfo, n_period);
	const char *timezone = check_name("timezone", fcinfo, n_timezone);
	PeriodRule	rule;
	const char *unknown = period_rule_find(period, timezone, &rule);

	if (unknown)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("%s \"%s\" is not known", unknown, *unknown == 'p' ? period : timezone),
				 *unknown == 'p' ?
				 errhint("Pass quarter-hour, hour, day, week, month, quarter or year.") :
				 errhint("Pass a name of the view pg_timezone_names, such as UTC or Europe/Berlin. Abbreviations and POSIX rules such as UTC+2 are not accepted.")));
	return rule;
}

const char *
period_kind_name(const PeriodRule *rule)
{
	return kind_names[rule->kind];
}

static int64
local_seconds(int year, int month, int day)
{
	return ((int64) date2j(year, month, day) - UNIX_EPOCH_JDATE) * SECS_PER_DAY;
}

static int64
floor_to(int64 value, int64 unit)
{
	int64		rest = value % unit;

	return value - (rest < 0 ? rest + unit : rest);
}

/* Seconds since 1970, rounded down. */
static pg_time_t
to_seconds(TimestampTz t)
{
	return floor_to(t, USECS_PER_SEC) / USECS_PER_SEC +
		((pg_time_t) POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY;
}

TimestampTz
period_time_argument(const char *argument, FunctionCallInfo fcinfo, int n)
{
	TimestampTz t;

	check_not_null(argument, fcinfo, n);
	t = PG_GETARG_TIMESTAMPTZ(n);
	/* Two days less, so that it is within these years everywhere. */
	if (TIMESTAMP_NOT_FINITE(t) ||
		to_seconds(t) < local_seconds(1, 1, 3) || to_seconds(t) >= local_seconds(9999, 12, 30))
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("%s is out of range", argument),
				 errdetail("It must be in the years 1 to 9999.")));
	return t;
}

/*
 * The next time after t at which the zone's offset from UTC changes; the offset
 * at t goes to *offset.
 */
static pg_time_t
next_change(const pg_tz *zone, pg_time_t t, long *offset)
{
	for (bool is_first = true;; is_first = false)
	{
		pg_time_t	change;
		long		before;
		long		after;
		int			is_dst;
		int			found = pg_next_dst_boundary(&t, &before, &is_dst, &change, &after, &is_dst, zone);

		if (is_first)
			*offset = before;
		if (found <= 0)
			return NEVER;
		if (before != after)
			return change;
		t = change;
	}
}

/* The first time at which clocks of the zone show a local time, or a later one. */
static pg_time_t
first_shown(const pg_tz *zone, int64 local)
{
	pg_time_t	from = local - 2 * SECS_PER_DAY;

	for (;;)
	{
		long		offset;
		pg_time_t	change = next_change(zone, from, &offset);
		pg_time_t	shown = Max(from, local - offset);

		if (shown < change)
			return shown;
		from = change;
	}
}

/* As in ISO 8601: Z, +01, +05:45. */
static void
append_offset(char *buffer, size_t size, long offset)
{
	char	   *p = buffer + strlen(buffer);
	long		rest = labs(offset);

	size -= p - buffer;
	if (offset == 0)
		strlcpy(p, "Z", size);
	else if (rest % SECS_PER_HOUR == 0)
		snprintf(p, size, "%c%02ld", offset < 0 ? '-' : '+', rest / SECS_PER_HOUR);
	else if (rest % SECS_PER_MINUTE == 0)
		snprintf(p, size, "%c%02ld:%02ld", offset < 0 ? '-' : '+', rest / SECS_PER_HOUR,
				 rest % SECS_PER_HOUR / SECS_PER_MINUTE);
	else						/* local mean time, long ago */
		snprintf(p, size, "%c%02ld:%02ld:%02ld", offset < 0 ? '-' : '+', rest / SECS_PER_HOUR,
				 rest % SECS_PER_HOUR / SECS_PER_MINUTE, rest % SECS_PER_MINUTE);
}

static Period
piece_of_time(const pg_tz *zone, pg_time_t t, const struct pg_tm *tm, int minutes)
{
	Period		period;
	long		offset;
	pg_time_t	full = floor_to(t + tm->tm_gmtoff, minutes * SECS_PER_MINUTE) - tm->tm_gmtoff;
	pg_time_t	start = full;
	pg_time_t	change;

	while ((change = next_change(zone, start, &offset)) <= t)
		start = change;
	period.start = time_t_to_timestamptz(start);
	period.end = time_t_to_timestamptz(Min(full + minutes * SECS_PER_MINUTE, change));

	snprintf(period.label, sizeof(period.label), "%04d-%02d-%02dT%02d",
			 tm->tm_year + 1900, tm->tm_mon + 1, tm->tm_mday, tm->tm_hour);
	if (minutes < MINS_PER_HOUR)
		snprintf(period.label + strlen(period.label), sizeof(period.label) - strlen(period.label),
				 ":%02d", tm->tm_min / minutes * minutes);
	append_offset(period.label, sizeof(period.label), tm->tm_gmtoff);
	return period;
}

Period
period_at(const PeriodRule *rule, TimestampTz at)
{
	pg_time_t	t = to_seconds(at);
	const struct pg_tm tm = *pg_localtime(&t, rule->zone);
	int			year = tm.tm_year + 1900;
	int			month = tm.tm_mon + 1;
	int64		first = 0;		/* local time */
	int64		next = 0;
	Period		period;

	switch (rule->kind)
	{
		case PERIOD_QUARTER_HOUR:
			return piece_of_time(rule->zone, t, &tm, 15);

		case PERIOD_HOUR:
			return piece_of_time(rule->zone, t, &tm, MINS_PER_HOUR);

		case PERIOD_DAY:
			first = local_seconds(year, month, tm.tm_mday);
			next = first + SECS_PER_DAY;
			snprintf(period.label, sizeof(period.label), "%04d-%02d-%02d", year, month, tm.tm_mday);
			break;

		case PERIOD_WEEK:
			first = local_seconds(year, month, tm.tm_mday) - (tm.tm_wday + 6) % 7 * SECS_PER_DAY;
			next = first + 7 * SECS_PER_DAY;
			snprintf(period.label, sizeof(period.label), "%04d-W%02d",
					 date2isoyear(year, month, tm.tm_mday), date2isoweek(year, month, tm.tm_mday));
			break;

		case PERIOD_MONTH:
			first = local_seconds(year, month, 1);
			next = local_seconds(year + month / 12, month % 12 + 1, 1);
			snprintf(period.label, sizeof(period.label), "%04d-%02d", year, month);
			break;

		case PERIOD_QUARTER:
			month -= (month - 1) % 3;
			first = local_seconds(year, month, 1);
			next = local_seconds(year + (month + 2) / 12, (month + 2) % 12 + 1, 1);
			snprintf(period.label, sizeof(period.label), "%04d-Q%d", year, month / 3 + 1);
			break;

		case PERIOD_YEAR:
			first = local_seconds(year, 1, 1);
			next = local_seconds(year + 1, 1, 1);
			snprintf(period.label, sizeof(period.label), "%04d", year);
			break;
	}
	period.start = time_t_to_timestamptz(first_shown(rule->zone, first));
	period.end = time_t_to_timestamptz(first_shown(rule->zone, next));
	return period;
}

char *
period_local_start(const PeriodRule *rule, const Period *period)
{
	pg_time_t	t = to_seconds(period->start);
	const struct pg_tm *tm = pg_localtime(&t, rule->zone);
	char		text[64];

	snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02d",
			 tm->tm_year + 1900, tm->tm_mon + 1, tm->tm_mday, tm->tm_hour, tm->tm_min, tm->tm_sec);
	append_offset(text, sizeof(text), tm->tm_gmtoff);
	return pstrdup(text);
}

char *
period_id(const char *prefix, const Period *period)
{
	return psprintf("%s-%s", prefix, period->label);
}

char *
period_checked_id(const char *argument, const char *prefix, const Period *period)
{
	char	   *id = period_id(prefix, period);

	check_deduplication_id(psprintf("%s with the period behind it", argument), id);
	return id;
}

Datum
taskoutbox_period_id(PG_FUNCTION_ARGS)
{
	char	   *prefix = check_name("prefix", fcinfo, 0);
	PeriodRule	rule = period_rule_argument(fcinfo, 1, 2);
	Period		period = period_at(&rule, period_time_argument("at", fcinfo, 3));

	PG_RETURN_TEXT_P(cstring_to_text(period_checked_id("prefix", prefix, &period)));
}

Datum
taskoutbox_period_start(PG_FUNCTION_ARGS)
{
	PeriodRule	rule = period_rule_argument(fcinfo, 0, 1);

	PG_RETURN_TIMESTAMPTZ(period_at(&rule, period_time_argument("at", fcinfo, 2)).start);
}
