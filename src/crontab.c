/*
 * crontab.c
 *	  When an entry of pg_cron is due.
 *
 * pg_cron knows when to run an entry, and forgets it when it could not. To say
 * what it missed, its schedules are read here as it reads them: five fields of
 * numbers, names, ranges, lists and steps, each one a set of bits; a name such
 * as @daily; or a number of seconds, which for us is every minute. When days of
 * the month and days of the week are both given, either of them will do.
 */
#include "taskoutbox.h"
#include "crontab.h"

#include <ctype.h>

#include "datatype/timestamp.h"

static const char *const month_names[] = {
	"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec", NULL
};
static const char *const weekday_names[] = {
	"sun", "mon", "tue", "wed", "thu", "fri", "sat", NULL
};

static const struct
{
	const char *name;
	const char *fields;
}			specials[] = {
	{"@yearly", "0 0 1 1 *"},
	{"@annually", "0 0 1 1 *"},
	{"@monthly", "0 0 1 * *"},
	{"@weekly", "0 0 * * 0"},
	{"@daily", "0 0 * * *"},
	{"@midnight", "0 0 * * *"},
	{"@hourly", "0 * * * *"}
};

static bool
is_set(uint64 bits, int n)
{
	return (bits >> n) & 1;
}

/* A number, or a name: the first one stands for low. Moves *p behind it. */
static bool
parse_number(const char **p, int low, const char *const *names, int *number)
{
	const char *start = *p;
	int			length;

	while (isalnum((unsigned char) **p))
		(*p)++;
	length = *p - start;
	for (int i = 0; names && names[i]; i++)
		if (length == 3 && pg_strncasecmp(names[i], start, 3) == 0)
		{
			*number = low + i;
			return true;
		}
	if (length == 0 || length > 4 || strspn(start, "0123456789") < length)
		return false;
	*number = atoi(start);
	return true;
}

/* One field and the blanks behind it. */
static bool
parse_field(const char **p, int low, int high, const char *const *names, uint64 *bits)
{
	*bits = 0;
	do
	{
		int			first = low;
		int			last = high;
		int			step = 1;

		if (**p == ',')
			(*p)++;
		if (**p == '*')
			(*p)++;
		else
		{
			if (!parse_number(p, low, names, &first))
				return false;
			last = first;
			if (**p == '-')
			{
				(*p)++;
				if (!parse_number(p, low, names, &last))
					return false;
			}
			else if (**p == '/')
				return false;
		}
		if (**p == '/')
		{
			(*p)++;
			if (!parse_number(p, 0, NULL, &step) || step == 0)
				return false;
		}
		if (first < low || first > high || last < low || last > high)
			return false;
		for (int i = first; i <= last; i += step)
			*bits |= UINT64CONST(1) << i;
	} while (**p == ',');

	if (**p != '\0' && !isspace((unsigned char) **p))
		return false;
	while (isspace((unsigned char) **p))
		(*p)++;
	return true;
}

bool
crontab_parse(const char *schedule, Crontab *crontab)
{
	const char *p = schedule;
	bool		any_day;
	int			seconds;
	char		unit[8];
	int			read;

	memset(crontab, 0, sizeof(*crontab));
	while (isspace((unsigned char) *p))
		p++;
	if (strcmp(p, "@reboot") == 0 || strcmp(p, "@restart") == 0)
		return true;			/* at no time that we know of */
	if (sscanf(p, "%d %7[a-zA-Z] %n", &seconds, unit, &read) == 2 &&
		pg_strncasecmp(unit, "second", 6) == 0 && p[read] == '\0')
		p = "* * * * *";
	for (int i = 0; i < lengthof(specials); i++)
		if (strcmp(p, specials[i].name) == 0)
			p = specials[i].fields;

	if (!parse_field(&p, 0, 59, NULL, &crontab->minutes) ||
		!parse_field(&p, 0, 23, NULL, &crontab->hours))
		return false;
	any_day = *p == '*';
	if (*p == '$')
	{
		crontab->is_last_day = true;
		p++;
		while (isspace((unsigned char) *p))
			p++;
	}
	else if (!parse_field(&p, 1, 31, NULL, &crontab->days))
		return false;
	if (!parse_field(&p, 1, 12, month_names, &crontab->months))
		return false;
	any_day |= *p == '*';
	if (!parse_field(&p, 0, 7, weekday_names, &crontab->weekdays))
		return false;
	if (is_set(crontab->weekdays, 7))
		crontab->weekdays |= 1;
	crontab->either_day = !any_day;
	return true;
}

bool
crontab_is_daily(const Crontab *crontab)
{
	const uint64 all_days = UINT64CONST(0xfffffffe);
	const uint64 all_weekdays = 0x7f;
	bool		days = (crontab->days & all_days) == all_days;
	bool		weekdays = (crontab->weekdays & all_weekdays) == all_weekdays;

	return crontab->minutes && crontab->hours && (crontab->months & 0x1ffe) == 0x1ffe &&
		(crontab->either_day ? days || weekdays : days && weekdays);
}

static bool
is_day_due(const Crontab *crontab, const pg_tz *zone, pg_time_t t, const struct pg_tm *tm)
{
	bool		day = is_set(crontab->days, tm->tm_mday);
	bool		weekday = is_set(crontab->weekdays, tm->tm_wday);

	if (!is_set(crontab->months, tm->tm_mon + 1))
		return false;
	if (crontab->is_last_day)
	{
		pg_time_t	tomorrow = t + SECS_PER_DAY;

		day = pg_localtime(&tomorrow, zone)->tm_mday == 1;
	}
	return crontab->either_day ? day || weekday : day && weekday;
}

pg_time_t
crontab_next(const Crontab *crontab, const pg_tz *zone, pg_time_t from, pg_time_t until)
{
	pg_time_t	t = from + SECS_PER_MINUTE - 1;

	t -= t % SECS_PER_MINUTE;
	while (t < until)
	{
		const struct pg_tm tm = *pg_localtime(&t, zone);

		if (!is_set(crontab->hours, tm.tm_hour) || !is_day_due(crontab, zone, t, &tm))
			t += (MINS_PER_HOUR - tm.tm_min) * SECS_PER_MINUTE;
		else if (!is_set(crontab->minutes, tm.tm_min))
			t += SECS_PER_MINUTE;
		else
			return t;
	}
	return -1;
}
