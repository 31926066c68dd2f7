/*
 * small_table.h
 *	  Small tables of the extension, read whole.
 */
#ifndef TASKOUTBOX_SMALL_TABLE_H
#define TASKOUTBOX_SMALL_TABLE_H

#include "taskoutbox.h"

#include "access/tableam.h"

typedef struct SmallTable
{
	Relation	rel;
	Snapshot	snapshot;
	TableScanDesc scan;
	TupleTableSlot *slot;
} SmallTable;

/* Open a table, by its name. Error 42P01 when there is none. */
extern SmallTable small_table_begin(const char *name);

/* Read the next row: all its columns are in the slot. False: there is none. */
extern bool small_table_next(SmallTable *table);

extern void small_table_end(SmallTable *table);

#endif							/* TASKOUTBOX_SMALL_TABLE_H */
