/*
 * command.c
 *	  What the command of a pg_cron entry enqueues.
 *
 * The server's own parser reads the command, and nothing of it is executed: in
 * the tree we look for calls of our functions, and take from their arguments
 * what is said in constants. A call of enqueue has a period when its
 * deduplication id is a call of period_id. What is computed some other way, or
 * enqueued by a function that the command calls, cannot be seen from here.
 */
#include "taskoutbox.h"
#include "command.h"

#include "access/xact.h"
#include "nodes/nodeFuncs.h"
#include "parser/parser.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "period.h"
#include "queue.h"

/* The arguments of our functions, in their order. */
static const char *const enqueue_arguments[] = {
	"task_type", "payload", "group_id", "deduplication_id", "queue", "deliver_at", "headers", "deduplication_window", NULL
};
static const char *const enqueue_period_arguments[] = {
	"task_type", "period", "payload", "group_id", "timezone", "at", "queue", NULL
};
static const char *const period_id_arguments[] = {
	"prefix", "period", "timezone", "at", NULL
};

static bool
is_call(Node *node, const char *schema, const char *name)
{
	List	   *names;
	int			n;

	if (node == NULL || !IsA(node, FuncCall))
		return false;
	names = ((FuncCall *) node)->funcname;
	n = list_length(names);
	if (strcmp(strVal(llast(names)), name) != 0)
		return false;
	if (n == 1)
		return strcmp(schema, "pg_catalog") == 0;
	return strcmp(strVal(list_nth(names, n - 2)), schema) == 0;
}

static Node *
argument(Node *call, const char *const *names, const char *name)
{
	int			position = 0;
	ListCell   *cell;

	foreach(cell, ((FuncCall *) call)->args)
	{
		Node	   *node = lfirst(cell);

		if (IsA(node, NamedArgExpr))
		{
			if (strcmp(((NamedArgExpr *) node)->name, name) == 0)
				return (Node *) ((NamedArgExpr *) node)->arg;
		}
		else if (names[position])
		{
			if (strcmp(names[position], name) == 0)
				return node;
			position++;
		}
	}
	return NULL;
}

/* The text of a constant, whatever type it is cast to, or NULL. */
static char *
constant(Node *node)
{
	while (node && IsA(node, TypeCast) && ((TypeCast *) node)->typeName->typmods == NIL)
		node = ((TypeCast *) node)->arg;
	if (node && IsA(node, A_Const) && !((A_Const *) node)->isnull &&
		nodeTag(&((A_Const *) node)->val) == T_String)
		return strVal(&((A_Const *) node)->val);
	return NULL;
}

static char *
constant_or(Node *node, const char *omitted)
{
	return node ? constant(node) : pstrdup(omitted);
}

static Interval *
interval_constant(Node *node)
{
	char	   *text = constant(node);

	if (text == NULL)
		return NULL;
	return DatumGetIntervalP(DirectFunctionCall3(interval_in, CStringGetDatum(text),
												 ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
}

static bool
is_now(Node *node)
{
	return is_call(node, "pg_catalog", "now") ||
		(node && IsA(node, SQLValueFunction) && ((SQLValueFunction *) node)->op == SVFOP_CURRENT_TIMESTAMP);
}

/* How far "at" is from now(), when it says now() or now() +- a constant, or nothing. */
static Interval *
ahead_of_now(Node *at)
{
	Interval   *none = palloc0(sizeof(Interval));
	A_Expr	   *expression = (A_Expr *) at;
	Interval   *ahead;
	const char *operator;

	if (at == NULL || is_now(at))
		return none;
	if (!IsA(at, A_Expr) || expression->kind != AEXPR_OP || !is_now(expression->lexpr))
		return NULL;
	operator = strVal(llast(expression->name));
	ahead = interval_constant(expression->rexpr);
	if (ahead && strcmp(operator, "-") == 0)
		return DatumGetIntervalP(DirectFunctionCall2(interval_mi, IntervalPGetDatum(none), IntervalPGetDatum(ahead)));
	return strcmp(operator, "+") == 0 ? ahead : NULL;
}

static bool
is_kept_long_enough(Node *window)
{
	Interval   *interval = interval_constant(window);

	return interval && interval_microseconds(interval) >= PERIOD_KEPT;
}

static EnqueueCall *
read_call(Node *node)
{
	EnqueueCall *call = palloc0(sizeof(EnqueueCall));
	bool		has_period = is_call(node, TASKOUTBOX_SCHEMA, "enqueue_period");
	const char *const *names = has_period ? enqueue_period_arguments : enqueue_arguments;
	Node	   *id = argument(node, names, "deduplication_id");
	Node	   *at;

	call->task_type = constant(argument(node, names, "task_type"));
	call->queue = constant_or(argument(node, names, "queue"), TASKOUTBOX_DEFAULT_QUEUE);
	if (has_period)
	{
		call->prefix = call->task_type;
		id = node;
	}
	else if (is_call(id, TASKOUTBOX_SCHEMA, "period_id"))
	{
		names = period_id_arguments;
		call->prefix = constant(argument(id, names, "prefix"));
		if (!is_kept_long_enough(argument(node, enqueue_arguments, "deduplication_window")))
			call->hint = "Missed periods are not known: pass deduplication_window => '400 days'.";
	}
	else
	{
		call->hint = "Missed periods are not known: use enqueue_period, or make the deduplication_id with period_id.";
		return call;
	}
	call->period = constant(argument(id, names, "period"));
	call->timezone = constant_or(argument(id, names, "timezone"), "UTC");
	at = argument(id, names, "at");
	call->ahead = ahead_of_now(at);
	if (!call->hint && (!call->prefix || !call->queue || !call->period || !call->timezone || !call->ahead))
		call->hint = "Missed periods are not known: not all arguments are constants (and at is not now() plus or minus one).";
	return call;
}

static bool
walk(Node *node, void *calls)
{
	if (node == NULL)
		return false;
	if (is_call(node, TASKOUTBOX_SCHEMA, "enqueue") || is_call(node, TASKOUTBOX_SCHEMA, "enqueue_period"))
		*(List **) calls = lappend(*(List **) calls, read_call(node));
	return raw_expression_tree_walker(node, walk, calls);
}

static List *
parse(const char *command)
{
	List	   *calls = NIL;
	ListCell   *cell;

	foreach(cell, raw_parser(command, RAW_PARSE_DEFAULT))
	{
		Node	   *statement = lfirst_node(RawStmt, cell)->stmt;

		/* Other statements have no expressions that the walker would know. */
		if (IsA(statement, SelectStmt) || IsA(statement, InsertStmt) ||
			IsA(statement, UpdateStmt) || IsA(statement, DeleteStmt))
			(void) walk(statement, &calls);
	}
	return calls;
}

List *
command_calls(const char *command)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	List	   *calls = NIL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		calls = parse(command);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		/* A command with an error in it fails when pg_cron runs it, and says so then. */
		MemoryContextSwitchTo(context);
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		calls = NIL;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return calls;
}
