/*
 * launcher.c
 *	  One launcher for the cluster keeps one relay per database that has the
 *	  extension.
 *
 * Only a connection to a database can tell whether the extension is there. So
 * the launcher, which sees shared catalogs alone, starts a relay in each
 * database once; a relay that finds no extension frees its slot and exits, and
 * is not started again until CREATE EXTENSION or CREATE DATABASE commits there:
 * a hook notes those, and the commit sets the launcher's latch. A relay that
 * ends is started again at once, after errors with a growing delay. It leaves for
 * commands that need its database alone, and is held off until they are done. The
 * slots are in shared memory: a new launcher finds the relays that run, and theirs.
 */
#include "taskoutbox.h"
#include "launcher.h"

#include <signal.h>

#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "lease.h"
#include "pool.h"

/* Delays after errors: 1 s, doubled each time, up to 60 s. */
#define DELAY_MAX_SECONDS 60

/* A process without an error for this long has recovered. */
#define HEALTHY_AFTER (5 * 60 * USECS_PER_SEC)

/* So many relays may be starting at the same time. */
#define STARTING_MAX 4

/* A command that needs a database alone looks for connections this long at most. */
#define HOLD (10 * USECS_PER_SEC)

static object_access_hook_type prev_object_access_hook = NULL;
static ProcessUtility_hook_type next_ProcessUtility = NULL;

/*
 * Hooks, in backends: what may need a relay, or need it no longer
 */

static Oid	probe_at_commit = InvalidOid;
static bool check_extension_at_commit = false;

/*
 * A command needs the database without connections: its relay is to leave, and
 * not to come back for that long (microseconds). The command itself waits 5 s
 * for connections to end.
 */
static void
stop_relay(Oid dboid, int64 hold)
{
	DatabaseSlot *db = database_slot(dboid);
	int			pid = 0;

	if (db)
	{
		SpinLockAcquire(&db->mutex);
		pid = db->relay_pid;
		db->hold_until = GetCurrentTimestamp() + hold;
		SpinLockRelease(&db->mutex);
	}
	if (pid != 0)
		kill(pid, SIGTERM);
	pool_stop(dboid);
}

static void
let_relay_return(Oid dboid)
{
	DatabaseSlot *db = database_slot(dboid);

	if (db)
	{
		SpinLockAcquire(&db->mutex);
		db->hold_until = 0;
		SpinLockRelease(&db->mutex);
	}
	wake_launcher();
}

static char *
string_option(List *options, const char *name)
{
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, name) == 0 && option->arg != NULL)
			return defGetString(option);
	}
	return NULL;
}

/*
 * The database that a command is about to copy, rename or move, or InvalidOid;
 * also when its user may not do that, so that he stops nothing.
 */
static Oid
database_needed_alone(Node *stmt)
{
	const char *name = NULL;
	Oid			dboid;

	if (IsA(stmt, CreatedbStmt))
		name = string_option(((CreatedbStmt *) stmt)->options, "template");
	else if (IsA(stmt, AlterDatabaseStmt) &&
			 string_option(((AlterDatabaseStmt *) stmt)->options, "tablespace"))
		name = ((AlterDatabaseStmt *) stmt)->dbname;
	else if (IsA(stmt, RenameStmt) && ((RenameStmt *) stmt)->renameType == OBJECT_DATABASE)
		name = ((RenameStmt *) stmt)->subname;

	dboid = name ? get_database_oid(name, true) : InvalidOid;
	if (!OidIsValid(dboid) || !compat_database_ownercheck(dboid, GetUserId()))
		return InvalidOid;
	return dboid;
}

static void
launcher_ProcessUtility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
						ProcessUtilityContext context, ParamListInfo params,
						QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *stmt = pstmt->utilityStmt;
	Oid			dboid = InvalidOid;

	if (IsA(stmt, CreatedbStmt) || IsA(stmt, AlterDatabaseStmt) || IsA(stmt, RenameStmt))
		dboid = database_needed_alone(stmt);
	if (!OidIsValid(dboid))
	{
		next_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
		return;
	}
	stop_relay(dboid, HOLD);
	PG_TRY();
	{
		next_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	}
	PG_FINALLY();
	{
		let_relay_return(dboid);
	}
	PG_END_TRY();
}

static void
launcher_object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (prev_object_access_hook)
		prev_object_access_hook(access, classId, objectId, subId, arg);

	if (access == OAT_POST_CREATE && classId == ExtensionRelationId)
		probe_at_commit = MyDatabaseId;
	else if (access == OAT_POST_CREATE && classId == DatabaseRelationId)
		probe_at_commit = objectId;
	else if (access == OAT_DROP && classId == ExtensionRelationId)
		check_extension_at_commit = true;
	else if (access == OAT_DROP && classId == DatabaseRelationId)
	/* It is locked already: a relay that comes back waits, and finds it gone. */
		stop_relay(objectId, 0);
}

static void
launcher_xact_callback(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT)
		return;

	if (event == XACT_EVENT_COMMIT && OidIsValid(probe_at_commit))
	{
		SpinLockAcquire(&shared->mutex);
		if (shared->nprobes < PROBES_MAX)
			shared->probes[shared->nprobes] = probe_at_commit;
		shared->nprobes++;
		SpinLockRelease(&shared->mutex);
		wake_launcher();
	}
	if (event == XACT_EVENT_COMMIT && check_extension_at_commit)
	{
		DatabaseSlot *db = database_slot(MyDatabaseId);

		if (db)
		{
			SpinLockAcquire(&db->mutex);
			db->check_extension = true;
			SpinLockRelease(&db->mutex);
			wake_relay(db);
		}
	}
	probe_at_commit = InvalidOid;
	check_extension_at_commit = false;
}

void
launcher_init(void)
{
	BackgroundWorker worker = {0};

	prev_object_access_hook = object_access_hook;
	object_access_hook = launcher_object_access;
	next_ProcessUtility = ProcessUtility_hook ? ProcessUtility_hook : standard_ProcessUtility;
	ProcessUtility_hook = launcher_ProcessUtility;
	RegisterXactCallback(launcher_xact_callback, NULL);

	/* pg_upgrade runs both clusters in this mode: nothing may happen there. */
	if (IsBinaryUpgrade)
		return;

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 1;
	strlcpy(worker.bgw_library_name, "taskoutbox", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "taskoutbox_launcher_main", sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "taskoutbox launcher", sizeof(worker.bgw_name));
	strlcpy(worker.bgw_type, "taskoutbox launcher", sizeof(worker.bgw_type));
	RegisterBackgroundWorker(&worker);
}

/*
 * The slot, as its relay sees it
 */

static DatabaseSlot *claimed = NULL;
static bool claimed_failed = false;

/* In before_shmem_exit, so that the latch is never one of a process that ended. */
static void
relay_slot_leave(int code, Datum arg)
{
	DatabaseSlot *db = claimed;
	TimestampTz now = GetCurrentTimestamp();
	int64		ran_for;

	SpinLockAcquire(&db->mutex);
	ran_for = db->state == RELAY_RUNNING ? now - db->since : 0;
	db->relay_latch = NULL;
	db->relay_pid = 0;
	db->since = db->restart_at = now;
	if (OidIsValid(db->dboid))
	{
		/* One that could not even connect failed, too. */
		if (claimed_failed || db->state == RELAY_STARTING)
			db->restart_at += launcher_count_failure(&db->failures, ran_for);
		db->state = RELAY_STOPPED;
	}
	SpinLockRelease(&db->mutex);

	wake_launcher();
}

DatabaseSlot *
relay_slot_claim(int index)
{
	DatabaseSlot *db = &shared->databases[index];
	bool		is_mine = false;
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&db->mutex);
	if (db->state == RELAY_STARTING && db->relay_pid == 0)
	{
		if (db->hold_until > now)
			db->state = RELAY_STOPPED;
		else
		{
			db->relay_pid = MyProcPid;
			is_mine = true;
		}
	}
	SpinLockRelease(&db->mutex);

	if (!is_mine)
		return NULL;
	claimed = db;
	before_shmem_exit(relay_slot_leave, (Datum) 0);
	return db;
}

void
relay_slot_free(DatabaseSlot *db)
{
	SpinLockAcquire(&db->mutex);
	if (db->probe_again)
		db->state = RELAY_RUNNING;	/* for a moment; ending is no failure */
	else
	{
		db->dboid = InvalidOid;
		db->state = RELAY_NONE;
	}
	db->probe_again = false;
	SpinLockRelease(&db->mutex);
}

void
relay_slot_ready(DatabaseSlot *db)
{
	SpinLockAcquire(&db->mutex);
	db->state = RELAY_RUNNING;
	db->since = GetCurrentTimestamp();
	db->relay_latch = MyLatch;
	SpinLockRelease(&db->mutex);

	wake_launcher();			/* for others that wait for their start */
}

void
relay_slot_failed(void)
{
	claimed_failed = true;
}

/*
 * The launcher
 */

/* Databases where a relay should look for the extension. */
static List *to_probe = NIL;
static bool no_worker_reported = false;
static bool no_slot_reported = false;

static void
launcher_leave(int code, Datum arg)
{
	SpinLockAcquire(&shared->mutex);
	shared->launcher_latch = NULL;
	shared->launcher_pid = 0;
	SpinLockRelease(&shared->mutex);
}

static void
add_probe(Oid dboid)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	to_probe = list_append_unique_oid(to_probe, dboid);
	MemoryContextSwitchTo(old);
}

/*
 * Read pg_database: with the oid of one, whether it takes connections and is no
 * template; with InvalidOid, remember all such databases for probing.
 */
static bool
scan_databases(Oid wanted)
{
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);

		if (!database->datallowconn || database->datistemplate)
			continue;
		if (database->oid == wanted)
			found = true;
		if (!OidIsValid(wanted))
			add_probe(database->oid);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();

	return found;
}

static void
collect_probes(void)
{
	Oid			probes[PROBES_MAX];
	int			n;

	SpinLockAcquire(&shared->mutex);
	n = shared->nprobes;
	memcpy(probes, shared->probes, sizeof(probes));
	shared->nprobes = 0;
	SpinLockRelease(&shared->mutex);

	if (n > PROBES_MAX)
		scan_databases(InvalidOid);
	for (int i = 0; i < Min(n, PROBES_MAX); i++)
		add_probe(probes[i]);
}

bool
launcher_start(const char *kind, const char *function, int index, Oid dboid, bool *is_reported)
{
	BackgroundWorker worker = {0};

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = Int32GetDatum(index);
	strlcpy(worker.bgw_library_name, "taskoutbox", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, function, sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, sizeof(worker.bgw_name), "taskoutbox %s of database %u", kind, dboid);
	snprintf(worker.bgw_type, sizeof(worker.bgw_type), "taskoutbox %s", kind);

	if (RegisterDynamicBackgroundWorker(&worker, NULL))
	{
		*is_reported = false;
		return true;
	}
	if (!*is_reported)
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("taskoutbox launcher: no free background worker slot for a %s of database %u",
						kind, dboid),
				 errhint("Raise max_worker_processes; it takes effect at a server restart.")));
	*is_reported = true;
	return false;
}

void
launcher_take_signals(void)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	/* StartBackgroundWorker() ignores SIGHUP: a reload since the fork is lost. */
	ConfigReloadPending = true;
	BackgroundWorkerUnblockSignals();
}

int64
launcher_count_failure(int *failures, int64 ran_for)
{
	*failures = ran_for > HEALTHY_AFTER ? 1 : *failures + 1;
	return USECS_PER_SEC * Min(DELAY_MAX_SECONDS, 1 << Min(*failures - 1, 10));
}

/* Make a slot be about a database, as good as new. */
static void
slot_assign(DatabaseSlot *db, Oid dboid)
{
	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	memset(db->queues, 0, taskoutbox_max_queues * sizeof(QueueSlot));
	db->next_expiry = DT_NOEND;
	db->outbox = InvalidOid;
	db->pin = PIN_NONE;
	LWLockRelease(shared->lease_lock);

	SpinLockAcquire(&db->mutex);
	db->failures = 0;
	db->hold_until = 0;
	db->restarts = -1;			/* the first start is none */
	db->probe_again = false;
	db->check_extension = false;
	db->start_anew = false;
	db->committed.popped = db->committed.pushed;
	db->ended.popped = db->ended.pushed;
	db->state = RELAY_STOPPED;
	db->since = db->restart_at = GetCurrentTimestamp();
	db->dboid = dboid;
	SpinLockRelease(&db->mutex);
}

/* Give databases that wait for a probe a slot. */
static void
assign_slots(void)
{
	while (to_probe != NIL)
	{
		Oid			dboid = linitial_oid(to_probe);
		DatabaseSlot *db = database_slot(dboid);

		if (db != NULL)
		{
			/* If its relay is just about to leave, it is to come back. */
			SpinLockAcquire(&db->mutex);
			db->probe_again = true;
			SpinLockRelease(&db->mutex);
		}
		for (int i = 0; db == NULL && i < taskoutbox_max_databases; i++)
		{
			/* One that was freed a moment ago may still have its process. */
			if (shared->databases[i].state == RELAY_NONE &&
				shared->databases[i].relay_pid == 0)
			{
				db = &shared->databases[i];
				slot_assign(db, dboid);
			}
		}
		if (db == NULL)
		{
			/* A probe that finds nothing will make room. */
			if (!no_slot_reported)
				ereport(LOG,
						(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						 errmsg("taskoutbox launcher: all %d database slots are in use",
								taskoutbox_max_databases),
						 errhint("Raise taskoutbox.max_databases if more databases have the extension; it takes effect at a server restart.")));
			no_slot_reported = true;
			return;
		}
		to_probe = list_delete_first(to_probe);
	}
	no_slot_reported = false;
}

/* Start the relays that are due. */
static void
start_relays(void)
{
	int			starting = 0;

	for (int i = 0; i < taskoutbox_max_databases; i++)
	{
		DatabaseSlot *db = &shared->databases[i];
		TimestampTz now = GetCurrentTimestamp();
		bool		is_due;

		SpinLockAcquire(&db->mutex);
		/* A worker that ended before it claimed the slot leaves no trace. */
		if (db->state == RELAY_STARTING && db->relay_pid == 0 &&
			now - db->since > START_TIMEOUT)
			db->state = RELAY_STOPPED;
		is_due = db->state == RELAY_STOPPED && Max(db->restart_at, db->hold_until) <= now;
		starting += db->state == RELAY_STARTING;
		SpinLockRelease(&db->mutex);

		/* Few at a time: a cluster can have hundreds of databases. */
		if (!is_due || starting >= STARTING_MAX)
			continue;

		if (!scan_databases(db->dboid))
		{
			relay_slot_free(db);
			continue;
		}
		SpinLockAcquire(&db->mutex);
		db->state = RELAY_STARTING;
		db->no_worker = false;
		db->since = now;
		db->restarts++;
		SpinLockRelease(&db->mutex);
		starting++;

		if (!launcher_start("relay", "taskoutbox_relay_main", i, db->dboid, &no_worker_reported))
		{
			SpinLockAcquire(&db->mutex);
			db->state = RELAY_STOPPED;
			db->no_worker = true;
			db->restart_at = now + NO_WORKER_RETRY;
			db->restarts--;
			SpinLockRelease(&db->mutex);
			starting--;
		}
	}
}

/* How long nothing will be due, in milliseconds; -1: for ever. */
static long
idle_time(void)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next = DT_NOEND;
	int			starting = 0;
	bool		has_probes;

	SpinLockAcquire(&shared->mutex);
	has_probes = shared->nprobes > 0;
	SpinLockRelease(&shared->mutex);
	if (has_probes)
		return 0;

	for (int i = 0; i < taskoutbox_max_databases; i++)
		starting += shared->databases[i].state == RELAY_STARTING;
	for (int i = 0; i < taskoutbox_max_databases; i++)
	{
		DatabaseSlot *db = &shared->databases[i];

		if (db->state == RELAY_STARTING)
			next = Min(next, db->since + START_TIMEOUT);
		/* With many starting, the end of a start wakes us. */
		else if (db->state == RELAY_STOPPED && starting < STARTING_MAX)
			next = Min(next, Max(db->restart_at, db->hold_until));
	}
	next = Min(next, pool_next_start());
	return next == DT_NOEND ? -1 : TimestampDifferenceMilliseconds(now, next);
}

void
taskoutbox_launcher_main(Datum arg)
{
	uint32		wait_event;

	launcher_take_signals();

	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	before_shmem_exit(launcher_leave, (Datum) 0);
	SpinLockAcquire(&shared->mutex);
	shared->launcher_pid = MyProcPid;
	shared->launcher_latch = MyLatch;
	SpinLockRelease(&shared->mutex);

	wait_event = COMPAT_WAIT_EVENT("TaskoutboxLauncherMain");
	pgstat_report_appname("taskoutbox launcher");
	scan_databases(InvalidOid);

	for (;;)
	{
		long		timeout;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}

		collect_probes();
		assign_slots();
		start_relays();
		pool_start_workers();

		/* Looked at last: a lock that we waited for may have used up our latch. */
		timeout = idle_time();

		pgstat_report_activity(STATE_IDLE, NULL);
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | (timeout >= 0 ? WL_TIMEOUT : 0),
						 timeout, wait_event);
		ResetLatch(MyLatch);
	}
}
