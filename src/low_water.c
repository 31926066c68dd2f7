/*
 * low_water.c
 *	  From which id on there are rows in the outbox.
 *
 * Rows that are gone stay in table and index until vacuum may remove them, which
 * it may not while a transaction older than them is open. So that a starting relay
 * need not read them all before the first delivery, the table low_water_mark says
 * where to begin. The relay looks for the first row that is left, a bit in each
 * round, and when that has moved on far enough, it replaces the mark. A transaction
 * that inserts a row with an id of its own choice adds a mark with that id: the
 * smallest one counts. What was added since the last time lets the relay look again
 * from there, and what it cannot see yet stays beside its own mark. So no row is ever
 * below the smallest one. If there is one all the same, because the sequence was set
 * back, it comes late: after its start the relay looks from 1 on, and meets it.
 */
#include "taskoutbox.h"
#include "low_water.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/timestamp.h"

#include "insert.h"
#include "shared.h"
#include "small_table.h"

/* Entries of the index to look at in one round: half a millisecond, if all are of dead rows. */
#define LOOK_AT 1024

/* What a new mark saves: 50 milliseconds. */
#define RAISE_BY 100000

#define LOOK_INTERVAL (1 * USECS_PER_SEC)

static InsertTarget target = {"low_water_mark", 1};

/* The relay's: the mark; no row is left below that; when to look on. */
static int64 mark = 1;
static int64 looked_to = 1;
static TimestampTz next_look = 0;

static void
insert_mark(int64 id)
{
	Datum		value = Int64GetDatum(id);
	bool		isnull = false;

	insert_row(&target, &value, &isnull);
}

void
low_water_lower(int64 id)
{
	static LocalTransactionId xact = InvalidLocalTransactionId;
	static SubTransactionId subxact;
	static int64 lowest;

	/* One that a savepoint's rollback takes back is of another subtransaction. */
	if (xact == MY_LXID && subxact == GetCurrentSubTransactionId() && id >= lowest)
		return;
	insert_mark(id);
	xact = MY_LXID;
	subxact = GetCurrentSubTransactionId();
	lowest = id;
}

int64
low_water_read(void)
{
	SmallTable	table = small_table_begin("low_water_mark");
	int64		lowest = PG_INT64_MAX;

	while (small_table_next(&table))
		lowest = Min(lowest, DatumGetInt64(table.slot->tts_values[0]));
	small_table_end(&table);

	mark = lowest == PG_INT64_MAX ? 1 : lowest;
	return mark;
}

static void
replace_marks(void)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(mark)};
	int64		lowest;

	if (outbox_execute(&plan,
					   "WITH gone AS (DELETE FROM taskoutbox.low_water_mark RETURNING id) "
					   "SELECT pg_catalog.min(id) FROM (SELECT id FROM gone EXCEPT ALL SELECT $1) added "
					   "HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 0",
					   lengthof(values), types, values, NULL, true, &lowest) > 0)
		looked_to = Min(looked_to, lowest);
	insert_mark(looked_to);
	mark = looked_to;
}

bool
low_water_look(OutboxReader *reader, int64 settled, TimestampTz now, int64 *missed)
{
	bool		found;
	bool		more;

	*missed = NO_SWEEP;
	if (now < next_look || looked_to > settled)
		return false;

	more = outbox_search_from(reader, &looked_to, settled, LOOK_AT, &found);
	if (!more)
		next_look = now + LOOK_INTERVAL;
	if (found && looked_to < mark)
		*missed = looked_to;
	if (*missed != NO_SWEEP || looked_to - mark >= RAISE_BY)
		replace_marks();
	return more;
}
