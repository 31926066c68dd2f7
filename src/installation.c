/*
 * installation.c
 *	  Which installation this database is, and whether it is the one that its tasks
 *	  belong to.
 *
 * A restored dump, a copy by CREATE DATABASE ... TEMPLATE or a cluster after
 * pg_upgrade has the tasks of another database, which may still be at work on
 * them. So an installation is pinned to its cluster (system identifier) and
 * database (oid), by a row that goes along with the tasks into every copy: by the
 * first enqueue, not by the script, which runs at a restore as well. (Several that
 * are first at the same time write a row each; none waits for another.) With a
 * foreign pin nothing leaves the database by itself, and no consumer worker runs,
 * until confirm(). Of the uuids that scripts made, the oldest stays that of the
 * installation: with it tasks are told from those of all others.
 */
#include "taskoutbox.h"
#include "installation.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

#include "outbox.h"
#include "shared.h"
#include "small_table.h"

/* Columns of the tables. */
enum
{
	INSTALLATION_ID = 1,
	INSTALLATION_CREATED_AT
};

enum
{
	PIN_SYSTEM_IDENTIFIER = 1,
	PIN_DATABASE_OID
};

/* The pin of the extension with this outbox is committed. */
static Oid	pinned_outbox = InvalidOid;

PG_FUNCTION_INFO_V1(taskoutbox_confirm);

static char *
system_identifier(void)
{
	return psprintf(UINT64_FORMAT, GetSystemIdentifier());
}

InstallationPin
installation_read_pin(void)
{
	SmallTable	table = small_table_begin("installation_pin");
	const Datum *values = table.slot->tts_values;
	const char *own = system_identifier();
	InstallationPin pin = PIN_NONE;

	while (small_table_next(&table))
	{
		if (strcmp(TextDatumGetCString(values[PIN_SYSTEM_IDENTIFIER - 1]), own) != 0 ||
			DatumGetObjectId(values[PIN_DATABASE_OID - 1]) != MyDatabaseId)
			pin = PIN_FOREIGN;
		else if (pin == PIN_NONE)
			pin = PIN_OWN;
	}
	small_table_end(&table);

	return pin;
}

InstallationId
installation_read_id(void)
{
	SmallTable	table = small_table_begin("installation");
	const Datum *values = table.slot->tts_values;
	TimestampTz oldest = DT_NOEND;
	InstallationId id = {"00000000-0000-0000-0000-000000000000"};

	while (small_table_next(&table))
	{
		TimestampTz created_at = DatumGetTimestampTz(values[INSTALLATION_CREATED_AT - 1]);

		if (created_at >= oldest)
			continue;
		oldest = created_at;
		strlcpy(id.text, DatumGetCString(DirectFunctionCall1(uuid_out, values[INSTALLATION_ID - 1])), sizeof(id.text));
	}
	small_table_end(&table);

	return id;
}

static void
insert_pin(void)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID, OIDOID};
	Datum		values[] = {CStringGetTextDatum(system_identifier()), ObjectIdGetDatum(MyDatabaseId)};

	(void) outbox_execute(&plan,
						  "INSERT INTO taskoutbox.installation_pin (system_identifier, database_oid) VALUES ($1, $2)",
						  lengthof(values), types, values, NULL, true, NULL);
}

void
installation_pin(Oid outbox)
{
	static LocalTransactionId inserted = InvalidLocalTransactionId;

	if (pinned_outbox == outbox)
		return;
	if (installation_read_pin() == PIN_NONE)
	{
		insert_pin();
		inserted = MY_LXID;
	}
	/* Our own row can still be rolled back. */
	else if (inserted != MY_LXID)
		pinned_outbox = outbox;
}

Datum
taskoutbox_confirm(PG_FUNCTION_ARGS)
{
	static SPIPlanPtr plan = NULL;

	PreventCommandIfReadOnly("taskoutbox.confirm()");
	(void) outbox_execute(&plan, "DELETE FROM taskoutbox.installation_pin", 0, NULL, NULL, NULL, true, NULL);
	insert_pin();
	PG_RETURN_VOID();
}

char *
installation_task_uid(const InstallationId *id, int64 first_id, TimestampTz enqueued_at)
{
	const int	id_len = sizeof(id->text) - 1;
	char	   *uid = palloc(id_len + 2 * (1 + MAXINT8LEN) + 1);
	char	   *at = uid;

	memcpy(at, id->text, id_len);
	at += id_len;
	*at++ = ':';
	at += pg_lltoa(first_id, at);
	*at++ = ':';
	(void) pg_lltoa(enqueued_at + (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY, at);
	return uid;
}
