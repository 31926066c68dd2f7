/*
 * insert.h
 *	  Rows of the extension's tables that are inserted without a statement.
 */
#ifndef TASKOUTBOX_INSERT_H
#define TASKOUTBOX_INSERT_H

#include "taskoutbox.h"

#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "utils/relcache.h"

/* A table, and what is kept about it. Static, with the first two set. */
typedef struct InsertTarget
{
	const char *table;
	int			ncolumns;		/* that we know; what somebody adds gets its default */
	Oid			relid;
	bool		is_open;		/* and locked by this transaction */
	bool		is_valid;		/* what follows */
	EState	   *estate;			/* all below is in its memory */
	ResultRelInfo *info;
	Oid		   *indexes;
	TupleDesc	desc;			/* of the columns that we know */
	TupleDesc	short_desc;		/* of the first of them */
	TupleTableSlot *slot;
	struct InsertTarget *next;
} InsertTarget;

/* Registers the transaction callbacks and the utility hook; from _PG_init. */
extern void insert_init(void);

/*
 * Lock a table for inserts until the transaction ends. Returns false when this
 * transaction did so before, and the table is certainly still the same.
 */
extern bool insert_lock(InsertTarget *target);

/* Insert a row, without triggers and privileges; error if it is there already. */
extern void insert_row(InsertTarget *target, const Datum *values, const bool *nulls);

/*
 * The same, but returns false, without a row, if one with the same key is there, or
 * may be. Looks first, and waits for a transaction that inserts one.
 */
extern bool insert_new_row(InsertTarget *target, const Datum *values, const bool *nulls);

/* The same for keys that are hardly ever there: does not look first, nor wait. */
extern bool insert_probably_new_row(InsertTarget *target, const Datum *values, const bool *nulls);

#endif							/* TASKOUTBOX_INSERT_H */
