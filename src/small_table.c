/*
 * small_table.c
 *	  Small tables of the extension, read whole.
 *
 * As they are at this moment, whatever the isolation level, and without a
 * statement: it would cost an idle relay more than the reading.
 */
#include "taskoutbox.h"
#include "small_table.h"

#include "access/table.h"
#include "utils/snapmgr.h"

#include "outbox.h"

SmallTable
small_table_begin(const char *name)
{
	SmallTable	table;

	table.rel = table_open(outbox_sibling_relid(name), AccessShareLock);
	table.snapshot = RegisterSnapshot(GetLatestSnapshot());
	table.scan = table_beginscan(table.rel, table.snapshot, 0, NULL);
	table.slot = table_slot_create(table.rel, NULL);
	return table;
}

bool
small_table_next(SmallTable *table)
{
	if (!table_scan_getnextslot(table->scan, ForwardScanDirection, table->slot))
		return false;
	slot_getallattrs(table->slot);
	return true;
}

void
small_table_end(SmallTable *table)
{
	table_endscan(table->scan);
	ExecDropSingleTupleTableSlot(table->slot);
	UnregisterSnapshot(table->snapshot);
	table_close(table->rel, AccessShareLock);
}
