/*
 * slow_commit.c
 *	  Makes commits dawdle where it hurts.
 *
 * A transaction is visible to others a little before its commit callbacks run.
 * This library, preloaded after taskoutbox, so that its callback runs first,
 * makes that little long: up to slow_commit.max_us microseconds, by chance. So
 * the relay meets rows that it can see and that nobody has pushed yet.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;

static int	max_us;

void		_PG_init(void);

static void
dawdle(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT && max_us > 0)
		pg_usleep(pg_prng_uint64_range(&pg_global_prng_state, 0, max_us));
}

void
_PG_init(void)
{
	DefineCustomIntVariable("slow_commit.max_us",
							"Longest time between a commit and its callbacks, in microseconds.",
							NULL, &max_us, 0, 0, 1000000, PGC_SUSET, 0, NULL, NULL, NULL);
	MarkGUCPrefixReserved("slow_commit");
	RegisterXactCallback(dawdle, NULL);
}
