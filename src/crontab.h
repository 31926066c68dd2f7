/*
 * crontab.h
 *	  When an entry of pg_cron is due.
 */
#ifndef TASKOUTBOX_CRONTAB_H
#define TASKOUTBOX_CRONTAB_H

#include "taskoutbox.h"

#include "pgtime.h"

/* Bit n stands for the number n. */
typedef struct Crontab
{
	uint64		minutes;
	uint64		hours;
	uint64		days;
	uint64		months;
	uint64		weekdays;		/* 0 to 6, from Sunday on */
	bool		is_last_day;	/* the last one of the month, too */
	bool		either_day;		/* day of the month or day of the week, not both */
} Crontab;

/* Returns false when pg_cron would not understand it either. */
extern bool crontab_parse(const char *schedule, Crontab *crontab);

/* Whether it is due on every day of the year. */
extern bool crontab_is_daily(const Crontab *crontab);

/* The first full minute in [from, until) in which it is due, or -1. */
extern pg_time_t crontab_next(const Crontab *crontab, const pg_tz *zone, pg_time_t from, pg_time_t until);

#endif							/* TASKOUTBOX_CRONTAB_H */
