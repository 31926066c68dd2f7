/*
 * period.h
 *	  Periods of the calendar in a time zone: their ids, and when they begin.
 */
#ifndef TASKOUTBOX_PERIOD_H
#define TASKOUTBOX_PERIOD_H

#include "taskoutbox.h"

#include "datatype/timestamp.h"
#include "fmgr.h"
#include "pgtime.h"

/* For how long the deduplication id of a period is taken. */
#define PERIOD_KEPT_DAYS 400
#define PERIOD_KEPT (PERIOD_KEPT_DAYS * USECS_PER_DAY)

typedef enum PeriodKind
{
	PERIOD_QUARTER_HOUR,
	PERIOD_HOUR,
	PERIOD_DAY,
	PERIOD_WEEK,
	PERIOD_MONTH,
	PERIOD_QUARTER,
	PERIOD_YEAR
} PeriodKind;

/* Which periods: of what kind, on whose clocks. */
typedef struct PeriodRule
{
	PeriodKind	kind;
	pg_tz	   *zone;
} PeriodRule;

typedef struct Period
{
	TimestampTz start;
	TimestampTz end;			/* the start of the next one */
	char		label[32];		/* such as 2026-11-29 */
} Period;

/* A rule by its names; the name of the argument that is not known, or NULL. */
extern const char *period_rule_find(const char *period, const char *timezone, PeriodRule *rule);

/*
 * The same for arguments of a SQL function, and a time within the years 1 to
 * 9999. Errors TO001 to TO003, TO010.
 */
extern PeriodRule period_rule_argument(FunctionCallInfo fcinfo, int n_period, int n_timezone);
extern TimestampTz period_time_argument(const char *argument, FunctionCallInfo fcinfo, int n);

extern const char *period_kind_name(const PeriodRule *rule);

/* The period that a time is in. */
extern Period period_at(const PeriodRule *rule, TimestampTz at);

/* When it begins, as ISO 8601 has it, on the clocks of its zone. */
extern char *period_local_start(const PeriodRule *rule, const Period *period);

/* prefix-label; the second one errs when it cannot be a deduplication id (TO001 to TO003, TO008). */
extern char *period_id(const char *prefix, const Period *period);
extern char *period_checked_id(const char *argument, const char *prefix, const Period *period);

#endif							/* TASKOUTBOX_PERIOD_H */
