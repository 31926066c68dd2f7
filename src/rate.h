/*
 * rate.h
 *	  How many per second: counted by minute, shown as a sliding minute.
 */
#ifndef TASKOUTBOX_RATE_H
#define TASKOUTBOX_RATE_H

#include "taskoutbox.h"

#include "datatype/timestamp.h"

#define RATE_SPAN USECS_PER_MINUTE

typedef struct Rate
{
	int64		minute;
	int64		current;		/* in that minute */
	int64		before;			/* in the one before */
} Rate;

static inline void
rate_add(Rate *rate, int64 n, TimestampTz now)
{
	int64		minute = now / RATE_SPAN;

	if (rate->minute != minute)
	{
		rate->before = rate->minute == minute - 1 ? rate->current : 0;
		rate->current = 0;
		rate->minute = minute;
	}
	rate->current += n;
}

/* The share of the minute before that is less than a minute ago, and this one. */
static inline double
rate_per_second(Rate rate, TimestampTz now)
{
	double		passed = (double) (now % RATE_SPAN) / RATE_SPAN;

	rate_add(&rate, 0, now);
	return (rate.current + rate.before * (1 - passed)) / (RATE_SPAN / USECS_PER_SEC);
}

#endif							/* TASKOUTBOX_RATE_H */
