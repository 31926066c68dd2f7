/*
 * controller.c
 *	  Task controllers: which function is called for which task type.
 *
 * A registration is a row: queue, task type, and the function's signature as text
 * (an oid would neither survive a dump nor pg_upgrade), resolved whenever pg_proc
 * or the table has changed. It runs as whoever owns the function by then, in a
 * session of that role: so all that a registration can give is what the owner has.
 * A function with the same signature that another role creates later, when the
 * registered one is gone, is not what was registered: it needs the same oid or
 * the same owner. The relay keeps both up to date, and derives from the rows which
 * workers are wanted.
 */
#include "taskoutbox.h"
#include "controller.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "check.h"
#include "consumer.h"
#include "outbox.h"
#include "pool.h"
#include "queue.h"
#include "shared.h"
#include "small_table.h"

PG_FUNCTION_INFO_V1(taskoutbox_register_controller);
PG_FUNCTION_INFO_V1(taskoutbox_unregister_controller);
PG_FUNCTION_INFO_V1(taskoutbox_get_controller_status);

/*
 * All registrations and what became of their functions, by queue and task type;
 * the problems are for status and last_error.
 */
#define RESOLVED \
	"SELECT c.queue, c.task_type, c.controller, c.idempotency, p.oid, p.proowner, " \
	"p.proargtypes[0] OPERATOR(pg_catalog.<>) 'pg_catalog.jsonb'::pg_catalog.regtype AS takes_message, " \
	"CASE WHEN p.oid IS NULL THEN 'the function does not exist' " \
	"WHEN p.prokind OPERATOR(pg_catalog.<>) 'f' OR p.proretset THEN 'it is not a plain function any more' " \
	"WHEN p.oid OPERATOR(pg_catalog.<>) c.function_oid AND r.rolname OPERATOR(pg_catalog.<>) c.owner " \
	"THEN 'the function is not the one that was registered, and belongs to another role' END AS problem, " \
	"c.owner, p.oid OPERATOR(pg_catalog.<>) c.function_oid OR r.rolname OPERATOR(pg_catalog.<>) c.owner AS is_outdated, " \
	"pg_catalog.min(p.proowner) OVER (PARTITION BY c.queue) OPERATOR(pg_catalog.<>) " \
	"pg_catalog.max(p.proowner) OVER (PARTITION BY c.queue) AS is_mixed " \
	"FROM taskoutbox.controller c LEFT JOIN pg_catalog.pg_proc p " \
	"ON p.oid OPERATOR(pg_catalog.=) pg_catalog.to_regprocedure(c.controller)::pg_catalog.oid " \
	"LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) p.proowner "

enum
{
	RESOLVED_QUEUE = 1,
	RESOLVED_TASK_TYPE,
	RESOLVED_CONTROLLER,
	RESOLVED_IDEMPOTENCY,
	RESOLVED_FUNCTION,
	RESOLVED_ROLE,
	RESOLVED_TAKES_MESSAGE,
	RESOLVED_PROBLEM,
	RESOLVED_OWNER,
	RESOLVED_IS_OUTDATED,
	RESOLVED_IS_MIXED			/* its queue has controllers of several roles */
};

static bool is_stale = true;
static Oid	watched_relid = InvalidOid;

static void
invalidate_relation(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == watched_relid)
		is_stale = true;
}

static void
invalidate_catalog(Datum arg, int cacheid, uint32 hashvalue)
{
	is_stale = true;
}

/* Whether to read the controllers again; from now on changes are noticed. */
static bool
take_stale(void)
{
	static bool is_watching = false;
	bool		result = is_stale;

	if (!is_watching)
	{
		CacheRegisterRelcacheCallback(invalidate_relation, (Datum) 0);
		CacheRegisterSyscacheCallback(PROCOID, invalidate_catalog, (Datum) 0);
		/* Members of a consumer_role. */
		CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, invalidate_catalog, (Datum) 0);
		is_watching = true;
	}
	watched_relid = outbox_sibling_relid("controller");
	is_stale = false;
	return result;
}

static char *
column_text(HeapTuple tuple, TupleDesc desc, int column)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, column, desc, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

/* 0 for null. */
static Oid
column_oid(HeapTuple tuple, TupleDesc desc, int column)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, column, desc, &isnull);

	return isnull ? InvalidOid : DatumGetObjectId(value);
}

static bool
column_bool(HeapTuple tuple, TupleDesc desc, int column)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, column, desc, &isnull);

	return !isnull && DatumGetBool(value);
}

/* What a session of a role needs, for a worker. */
static bool
may_log_in(Oid role)
{
	HeapTuple	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role));
	bool		can_login = HeapTupleIsValid(tuple) && ((Form_pg_authid) GETSTRUCT(tuple))->rolcanlogin;

	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return can_login || !COMPAT_ROLE_NEEDS_LOGIN;
}

static bool
may_connect(Oid role)
{
	return superuser_arg(role) ||
		compat_database_aclcheck(MyDatabaseId, role, ACL_CONNECT) == ACLCHECK_OK;
}

/*
 * Registration
 */

/* Who may take a registration away: the role that it calls, and we ourselves. */
static void
check_may_replace(HeapTuple tuple, TupleDesc desc, void *arg)
{
	Oid			role = column_oid(tuple, desc, RESOLVED_ROLE);

	if (column_text(tuple, desc, RESOLVED_PROBLEM))
		role = get_role_oid(column_text(tuple, desc, RESOLVED_OWNER), true);
	/* Its role is gone: it calls nobody any more. */
	if (!OidIsValid(role))
		return;
	if (!has_privs_of_role(*(Oid *) arg, role) && !has_privs_of_role(*(Oid *) arg, outbox_owner()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("task type \"%s\" has a controller of another role",
						column_text(tuple, desc, RESOLVED_TASK_TYPE)),
				 errdetail("Its controller belongs to \"%s\".", GetUserNameFromId(role, true)),
				 errhint("Let that role unregister it, or use another queue or task type.")));
}

static void
check_replacement(const char *task_type, const char *queue)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID, TEXTOID};
	Datum		values[] = {CStringGetTextDatum(task_type), CStringGetTextDatum(queue)};
	Oid			caller = GetUserId();

	(void) outbox_for_each(&plan, RESOLVED
						   "WHERE c.task_type OPERATOR(pg_catalog.=) $1 AND c.queue OPERATOR(pg_catalog.=) $2",
						   2, types, values, NULL, true, check_may_replace, &caller);
}

/*
 * SQS gives a message to whoever asks, and counts that: so a worker cannot pass it
 * on to one of another role.
 */
static void
check_same_role(HeapTuple tuple, TupleDesc desc, void *arg)
{
	Oid			role = column_oid(tuple, desc, RESOLVED_ROLE);

	if (OidIsValid(role) && role != *(Oid *) arg)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_NOT_HERE),
				 errmsg("queue \"%s\" is in SQS, and has controllers of another role",
						column_text(tuple, desc, RESOLVED_QUEUE)),
				 errdetail("They belong to \"%s\".", GetUserNameFromId(role, true)),
				 errhint("Use a queue of its own for each role.")));
}

static void
check_one_role(const char *queue, const char *task_type, Oid owner)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID, TEXTOID};
	Datum		values[] = {CStringGetTextDatum(queue), CStringGetTextDatum(task_type)};

	if (!queue_is_embedded(queue_settings(queue)))
		(void) outbox_for_each(&plan, RESOLVED "WHERE c.queue OPERATOR(pg_catalog.=) $1 AND c.task_type OPERATOR(pg_catalog.<>) $2",
							   2, types, values, NULL, true, check_same_role, &owner);
}

static void
bad_function(Oid function, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
			 errmsg("function %s cannot be a controller", format_procedure(function)),
			 errdetail("%s", detail),
			 errhint("A controller is a function with one argument, either of type jsonb, for the payload, or of type %s.message.",
					 TASKOUTBOX_SCHEMA)));
}

/* Can this function be called, by a worker of its owner? Returns the owner. */
static Oid
check_function(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc proc;
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function with OID %u does not exist", function)));
	proc = (Form_pg_proc) GETSTRUCT(tuple);
	if (!compat_function_ownercheck(function, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_FUNCTION, NameStr(proc->proname));
	if (proc->prokind != PROKIND_FUNCTION)
		bad_function(function, "It is a procedure, an aggregate or a window function.");
	if (proc->proretset)
		bad_function(function, "It returns a set.");
	if (proc->pronargs != 1 ||
		(proc->proargtypes.values[0] != JSONBOID && proc->proargtypes.values[0] != message_type()))
		bad_function(function, "It has other arguments.");
	if (isAnyTempNamespace(proc->pronamespace))
		bad_function(function, "It is temporary, so no other session has it.");
	owner = proc->proowner;
	ReleaseSysCache(tuple);

	if (!may_log_in(owner))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION),
				 errmsg("role \"%s\" is not permitted to log in", GetUserNameFromId(owner, false)),
				 errdetail("A controller runs in a session of the role that owns it, which before PostgreSQL 17 has to be one that may log in."),
				 errhint("Run ALTER ROLE ... LOGIN, which needs no password, or let another role own the function.")));
	if (!may_connect(owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" is not permitted to connect to this database", GetUserNameFromId(owner, false)),
				 errdetail("A controller runs in a session of the role that owns it."),
				 errhint("Run GRANT CONNECT ON DATABASE ..., or let another role own the function.")));
	return owner;
}

Datum
taskoutbox_register_controller(PG_FUNCTION_ARGS)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID, TEXTOID, TEXTOID, OIDOID, TEXTOID, TEXTOID};
	char	   *task_type = check_name("task_type", fcinfo, 0);
	char	   *idempotency = check_name("idempotency", fcinfo, 2);
	char	   *queue = check_name("queue", fcinfo, 3);
	Oid			function;
	Oid			owner;

	require_preload("register_controller");
	PreventCommandIfReadOnly("taskoutbox.register_controller()");
	check_not_null("controller", fcinfo, 1);
	function = PG_GETARG_OID(1);
	if (strcmp(idempotency, "atomic") != 0 && strcmp(idempotency, "natural") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("idempotency must be \"atomic\" or \"natural\""),
				 errhint("Use \"atomic\" for work in this database, \"natural\" for work that may be repeated.")));
	owner = check_function(function);
	queue_check_consumer(queue_settings(queue), owner);
	check_replacement(task_type, queue);
	check_one_role(queue, task_type, owner);

	(void) outbox_execute(&plan,
						  "INSERT INTO taskoutbox.controller (queue, task_type, controller, function_oid, owner, idempotency) "
						  "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (queue, task_type) DO UPDATE SET "
						  "controller = excluded.controller, function_oid = excluded.function_oid, "
						  "owner = excluded.owner, idempotency = excluded.idempotency",
						  lengthof(types), types,
						  (Datum[]) {CStringGetTextDatum(queue), CStringGetTextDatum(task_type),
							  CStringGetTextDatum(format_procedure_qualified(function)),
							  ObjectIdGetDatum(function),
							  CStringGetTextDatum(GetUserNameFromId(owner, false)),
							  CStringGetTextDatum(idempotency)},
						  NULL, true, NULL);
	PG_RETURN_VOID();
}

Datum
taskoutbox_unregister_controller(PG_FUNCTION_ARGS)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID, TEXTOID};
	char	   *task_type = check_name("task_type", fcinfo, 0);
	char	   *queue = check_name("queue", fcinfo, 1);
	Datum		values[] = {CStringGetTextDatum(task_type), CStringGetTextDatum(queue)};

	PreventCommandIfReadOnly("taskoutbox.unregister_controller()");
	(void) queue_settings(queue);
	check_replacement(task_type, queue);
	PG_RETURN_BOOL(outbox_execute(&plan,
								  "DELETE FROM taskoutbox.controller "
								  "WHERE task_type OPERATOR(pg_catalog.=) $1 AND queue OPERATOR(pg_catalog.=) $2",
								  2, types, values, NULL, true, NULL) > 0);
}

/*
 * Workers
 */

static MemoryContext cache_context = NULL;
static HTAB *cache = NULL;

typedef struct CacheEntry
{
	char		task_type[QUEUE_NAME_BYTES];	/* the same limit */
	Controller	controller;
} CacheEntry;

static void
cache_add(HeapTuple tuple, TupleDesc desc, void *arg)
{
	MemoryContext old = MemoryContextSwitchTo(cache_context);
	CacheEntry *entry = hash_search(cache, column_text(tuple, desc, RESOLVED_TASK_TYPE), HASH_ENTER, NULL);
	Controller *controller = &entry->controller;

	memset(controller, 0, sizeof(Controller));
	controller->task_type = entry->task_type;
	controller->name = column_text(tuple, desc, RESOLVED_CONTROLLER);
	controller->problem = column_text(tuple, desc, RESOLVED_PROBLEM);
	controller->role = column_oid(tuple, desc, RESOLVED_ROLE);
	controller->is_atomic = strcmp(column_text(tuple, desc, RESOLVED_IDEMPOTENCY), "atomic") == 0;
	controller->average = -1;
	if (controller->problem == NULL)
	{
		controller->takes_message = column_bool(tuple, desc, RESOLVED_TAKES_MESSAGE);
		controller->function.fn_oid = column_oid(tuple, desc, RESOLVED_FUNCTION);
	}
	MemoryContextSwitchTo(old);
}

void
controllers_read(const char *queue)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID};
	Datum		values[] = {CStringGetTextDatum(queue)};
	HASHCTL		info = {.keysize = QUEUE_NAME_BYTES,.entrysize = sizeof(CacheEntry)};

	if (!take_stale())
		return;
	if (cache_context == NULL)
		cache_context = AllocSetContextCreate(TopMemoryContext, "taskoutbox controllers",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(cache_context);
	info.hcxt = cache_context;
	cache = hash_create("taskoutbox controllers", 64, &info, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	PG_TRY();
	{
		(void) outbox_for_each(&plan, RESOLVED "WHERE c.queue OPERATOR(pg_catalog.=) $1",
							   1, types, values, NULL, true, cache_add, NULL);
	}
	PG_CATCH();
	{
		is_stale = true;
		PG_RE_THROW();
	}
	PG_END_TRY();
}

Controller *
controller_find(const char *task_type)
{
	CacheEntry *entry = hash_search(cache, task_type, HASH_FIND, NULL);

	return entry ? &entry->controller : NULL;
}

void
controller_check(Controller *controller)
{
	Oid			function = controller->function.fn_oid;
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Oid			owner = InvalidOid;

	if (HeapTupleIsValid(tuple))
	{
		owner = ((Form_pg_proc) GETSTRUCT(tuple))->proowner;
		ReleaseSysCache(tuple);
	}
	if (owner != controller->role)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("controller %s was dropped, or given to another role, just now", controller->name)));
	if (compat_function_aclcheck(function, owner) != ACLCHECK_OK)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for function %s", controller->name)));
	InvokeFunctionExecuteHook(function);
	if (controller->function.fn_addr == NULL)
		fmgr_info_cxt(function, &controller->function, cache_context);
}

/*
 * The relay
 */

typedef struct PoolList
{
	Pool	   *pools;
	int			n;
	bool		is_outdated;	/* some row does not say what its function is now */
	MemoryContext context;
} PoolList;

static void
add_pool(HeapTuple tuple, TupleDesc desc, void *arg)
{
	PoolList   *list = arg;
	char	   *queue = column_text(tuple, desc, RESOLVED_QUEUE);
	const QueueSettings *settings = queue_find(queue);
	Oid			role = column_oid(tuple, desc, RESOLVED_ROLE);
	Pool	   *pool;

	if (column_text(tuple, desc, RESOLVED_PROBLEM))
		return;
	list->is_outdated |= column_bool(tuple, desc, RESOLVED_IS_OUTDATED);
	for (int i = 0; i < list->n; i++)
	{
		if (list->pools[i].role == role && strcmp(list->pools[i].queue, queue) == 0)
			return;
	}
	if (settings == NULL || !queue_is_served(settings) || !queue_admits_consumer(settings, role) ||
		(!queue_is_embedded(settings) && column_bool(tuple, desc, RESOLVED_IS_MIXED)))
		return;
	list->pools = list->pools == NULL ? MemoryContextAlloc(list->context, sizeof(Pool)) :
		repalloc(list->pools, (list->n + 1) * sizeof(Pool));
	pool = &list->pools[list->n++];
	pool->role = role;
	pool->queue = MemoryContextStrdup(list->context, queue);
	pool->nworkers = settings->consumers;
}

/* Without a statement: an idle relay without controllers runs none. */
static bool
is_any_registered(void)
{
	SmallTable	table = small_table_begin("controller");
	bool		found = small_table_next(&table);

	small_table_end(&table);
	return found;
}

/*
 * The function was created again by its owner, or given to another role: from now
 * on that is what was registered.
 */
static void
bring_up_to_date(void)
{
	static SPIPlanPtr plan = NULL;

	(void) outbox_execute(&plan,
						  "UPDATE taskoutbox.controller c SET function_oid = p.oid, owner = r.rolname "
						  "FROM pg_catalog.pg_proc p, pg_catalog.pg_roles r "
						  "WHERE p.oid OPERATOR(pg_catalog.=) pg_catalog.to_regprocedure(c.controller)::pg_catalog.oid "
						  "AND r.oid OPERATOR(pg_catalog.=) p.proowner "
						  "AND (p.oid OPERATOR(pg_catalog.=) c.function_oid OR r.rolname OPERATOR(pg_catalog.=) c.owner) "
						  "AND (p.oid OPERATOR(pg_catalog.<>) c.function_oid OR r.rolname OPERATOR(pg_catalog.<>) c.owner)",
						  0, NULL, NULL, NULL, true, NULL);
}

void
controllers_want_workers(bool has_changed)
{
	static SPIPlanPtr plan = NULL;
	PoolList	list = {.context = CurrentMemoryContext};

	if (!take_stale() && !has_changed)
		return;
	/* A copy of another database does nothing by itself. */
	if (database_slot(MyDatabaseId)->pin != PIN_FOREIGN && is_any_registered())
		(void) outbox_for_each(&plan, RESOLVED, 0, NULL, NULL, NULL, true, add_pool, &list);
	if (list.is_outdated)
		bring_up_to_date();
	pool_want(list.pools, list.n);
}

/*
 * Status
 */

typedef struct StatusState
{
	ReturnSetInfo *rsinfo;
	WorkerSlot *slots;
	int			nslots;
} StatusState;

/* Why a controller that could be called is not, as far as its workers know. */
static const char *
worker_problem(const StatusState *state, Oid role, const char *queue, bool is_mixed, int *running)
{
	DatabaseSlot *db = database_slot(MyDatabaseId);
	int			found = 0;
	const char *problem = NULL;
	const QueueSettings *settings = queue_find(queue);

	*running = 0;
	for (int i = 0; i < state->nslots; i++)
	{
		const WorkerSlot *slot = &state->slots[i];

		if (slot->role != role || strcmp(slot->queue_name, queue) != 0)
			continue;
		found++;
		*running += slot->state == WORKER_RUNNING;
		if (slot->problem[0] != '\0')
			problem = pstrdup(slot->problem);
		if (slot->no_worker)
			problem = "there is no free background worker slot: raise max_worker_processes, and restart the server";
		else if (slot->state == WORKER_STOPPED && slot->failures > 0)
			problem = psprintf("its worker failed, and is started again at %s; the server's log says why",
							   timestamptz_to_str(slot->restart_at));
	}
	if (!may_log_in(role))
		return "the role is not permitted to log in";
	if (!may_connect(role))
		return "the role is not permitted to connect to this database";
	if (settings && !queue_admits_consumer(settings, role))
		return psprintf("the queue is kept for the members of role \"%s\" (consumer_role)", settings->consumer_role);
	if (problem)
		return problem;
	if (*running > 0)
		return NULL;
	if (shared == NULL)
		return "taskoutbox is not in shared_preload_libraries";
	if (db == NULL || db->relay_latch == NULL)
		return "the relay of this database is not running";
	if (db->pin == PIN_FOREIGN)
		return "this database is a copy, and delivers nothing by itself until taskoutbox.confirm()";
	if (settings && !queue_is_served(settings))
		return "its queue is in SQS, and taskoutbox.publish is off on this server";
	if (settings && !queue_is_embedded(settings) && is_mixed)
		return "its queue is in SQS, and has controllers of several roles: use a queue for each";
	if (settings && settings->consumers == 0)
		return "its queue has consumers = 0";
	return found > 0 ? NULL : "there is no free slot for its workers: raise max_worker_processes, and restart the server";
}

static void
put_status(HeapTuple tuple, TupleDesc desc, void *arg)
{
	StatusState *state = arg;
	char	   *queue = column_text(tuple, desc, RESOLVED_QUEUE);
	const char *problem = column_text(tuple, desc, RESOLVED_PROBLEM);
	Oid			role = column_oid(tuple, desc, RESOLVED_ROLE);
	int			running = 0;
	Datum		values[7];
	bool		nulls[7] = {false};

	if (problem == NULL)
		problem = worker_problem(state, role, queue, column_bool(tuple, desc, RESOLVED_IS_MIXED), &running);
	for (int i = 0; i < 4; i++)
		values[i] = heap_getattr(tuple, RESOLVED_QUEUE + i, desc, &nulls[i]);
	nulls[4] = !OidIsValid(role);
	values[4] = OidIsValid(role) ? CStringGetTextDatum(GetUserNameFromId(role, true)) : (Datum) 0;
	values[5] = Int32GetDatum(running);
	nulls[6] = problem == NULL;
	values[6] = problem ? CStringGetTextDatum(problem) : (Datum) 0;
	tuplestore_putvalues(state->rsinfo->setResult, state->rsinfo->setDesc, values, nulls);
}

Datum
taskoutbox_get_controller_status(PG_FUNCTION_ARGS)
{
	static SPIPlanPtr plan = NULL;
	StatusState state = {.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo};

	InitMaterializedSRF(fcinfo, 0);
	if (shared)
		state.nslots = pool_snapshot(&state.slots);
	(void) outbox_for_each(&plan, RESOLVED "ORDER BY c.queue, c.task_type",
						   0, NULL, NULL, NULL, true, put_status, &state);
	return (Datum) 0;
}
