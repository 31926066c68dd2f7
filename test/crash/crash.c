/*
 * crash.c
 *	  A function that crashes the server, as a bug in some extension would.
 */
#include "postgres.h"

#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(crash);

Datum
crash(PG_FUNCTION_ARGS)
{
	abort();
}
