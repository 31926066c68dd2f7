/*
 * worker.c
 *	  A consumer worker: calls the controllers of one role, for one queue.
 *
 * The session is connected as that role, so nothing that a controller leaves
 * behind, nor what runs at a commit, has more rights than its owner. A worker
 * takes messages as receive does, and handles several in one transaction: ledger,
 * controller and delete of each. When one fails, all before it are rolled back with
 * it and run again, each in a subtransaction of its own from then on, until a batch
 * goes well; when the commit fails, one by one: so that only the culprit counts, and
 * is not run again. Alone from the start runs what came back before, and what is
 * slow: before that, the worker gives away what else it has, so that nothing waits
 * for a slow task but its own group.
 *
 * Where the tasks are from is a source (source.h): the embedded queue, which is
 * here, or SQS.
 *
 * A lease of a worker has no end in time. It lasts as long as the process: an exit
 * callback gives the messages back, and a process that dies without one takes the
 * leases along, with all shared memory. So a slow controller needs nothing to be
 * renewed, and max_run_time bounds it.
 */
#include "taskoutbox.h"
#include "worker.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

#include "ask.h"
#include "consumer.h"
#include "controller.h"
#include "in_hand.h"
#include "launcher.h"
#include "lease.h"
#include "ledger.h"
#include "outbox.h"
#include "pool.h"
#include "queue.h"
#include "session.h"
#include "shared.h"
#include "source.h"

/* Controllers that take longer, on average, run alone; in microseconds. */
#define SLOW 10000

/* What to take at once, and to do in one transaction, is what that time is enough for. */
#define BATCH_TIME (50 * INT64CONST(1000))

/* More subtransactions than 64 overflow what a backend can show of them. */
#define SUBTRANSACTIONS_MAX 50

/* Wait that long, at most, before asking the relay again. */
#define WAIT (60 * USECS_PER_SEC)

/* After batches with nothing to do for us, doubled each time. */
#define PAUSE_MIN (20 * INT64CONST(1000))
#define PAUSE_MAX (1 * USECS_PER_SEC)

/* While so many of its messages wait for their retry, a worker takes no more. */
#define RETRIES_MAX 500

/* max_run_time is insisted on this often, in milliseconds. */
#define INSIST_MS 1000

static WorkerSlot *slot;
static int	place;
static DatabaseSlot *db;
static Oid	outbox;
static QueueSettings settings;
static bool is_queue;			/* it is there, and these are its settings */
static uint64 settings_seen = 0;	/* as the database counts them */
static const Source *source = NULL;
static bool is_full_up;			/* all leases of the server are in use */
static TupleDesc message_desc = NULL;
static MemoryContext batch_context;

/* What we have; how many to take the next time, and how long to pause. */
static Task tasks[IN_HAND_MAX];
static int	ntasks = 0;
static int	take_next = 1;
static int64 pause_next = PAUSE_MIN;

/* The task that runs; NULL: none. */
static Task *running = NULL;

/* A task failed in this batch, or in the one before: subtransactions, please. */
static bool is_careful = false;

/* What deletes rows in this transaction, but for subtransactions; NULL: nothing yet. */
static OutboxReader *deleter = NULL;

/* When the last failed ones come back. */
static TimestampTz retries[RETRIES_MAX];
static int	nretries = 0;

static TimeoutId run_timeout;
static volatile sig_atomic_t run_timed_out = false;

/*
 * max_run_time, by a timer of our own: workers have no statement_timeout. What
 * catches the error is cancelled again.
 */
static void
handle_run_timeout(void)
{
	run_timed_out = true;
	InterruptPending = true;
	QueryCancelPending = true;
	SetLatch(MyLatch);
}

static void
start_timer(void)
{
	run_timed_out = false;
	enable_timeout_every(run_timeout,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), settings.max_run_time / 1000),
						 INSIST_MS);
}

static void
stop_timer(void)
{
	disable_timeout(run_timeout, false);
	if (run_timed_out)
		QueryCancelPending = false;
}

/* Copies the error that was caught, and says it better if it was the timer. */
static ErrorData *
take_error(void)
{
	ErrorData  *error;
	bool		timed_out = run_timed_out;

	stop_timer();
	MemoryContextSwitchTo(batch_context);
	error = CopyErrorData();
	FlushErrorState();
	if (timed_out && error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		error->message = psprintf("its controller ran longer than max_run_time, " INT64_FORMAT " ms",
								  settings.max_run_time / 1000);
	return error;
}

static void
give_back(Task *task)
{
	source->give_back(task);
	task->state = TASK_AWAY;
}

/*
 * At exit, after the transaction was aborted. What runs failed, unless we were
 * made to leave.
 */
static void
worker_leave(int code, Datum arg)
{
	in_hand_clear(place);
	for (int i = 0; i < ntasks; i++)
	{
		if (tasks[i].state != TASK_AWAY && tasks[i].state != TASK_DONE && source->leave)
			source->leave(&tasks[i], &tasks[i] == running && !pool_must_leave());
	}
	ntasks = 0;
}

/* Another process crashed: that is not our task's fault. */
static void
handle_quit(SIGNAL_ARGS)
{
	in_hand_survive(place);
	SignalHandlerForCrashExit(postgres_signal_arg);
}

/*
 * Transactions
 */

static void
begin(void)
{
	if (!IsTransactionState())
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
	}
	MemoryContextSwitchTo(batch_context);
}

/* The messages from one task to another that this transaction has run. */
static int
run_ids(int from, int to, int64 *ids)
{
	int			n = 0;

	for (int i = from; i < to; i++)
	{
		if (tasks[i].state == TASK_RUN)
			ids[n++] = tasks[i].receipt.id;
	}
	return n;
}

/* NULL when it went well. Deferred triggers run here, so it takes time and can fail. */
static ErrorData *
commit(int from, int to)
{
	ErrorData  *volatile error = NULL;
	int64		ids[IN_HAND_MAX];
	int			n = run_ids(from, to, ids);
	bool		has_temporary;

	if (!IsTransactionState())
		return NULL;
	has_temporary = session_has_temporary();
	if (deleter)
		outbox_end(deleter);
	deleter = NULL;
	if (n > 0 && !source->counts_receives)
		in_hand_put(place, outbox, ids, n);
	PG_TRY();
	{
		start_timer();
		CommitTransactionCommand();
		stop_timer();
	}
	PG_CATCH();
	{
		error = take_error();
		AbortCurrentTransaction();
	}
	PG_END_TRY();
	in_hand_clear(place);
	session_reset_rest(slot->role, has_temporary);
	MemoryContextSwitchTo(batch_context);
	pgstat_report_stat(false);
	return error;
}

/*
 * Failures
 */

/* Say and write down why a task failed, and when it comes back; in no transaction. */
static void
record_failure(Task *task)
{
	ErrorData  *error = task->error;

	ereport(LOG,
			(errcode(error->sqlerrcode),
			 task->problem ? errmsg("message %s of SQS failed: %s", task->message_id, error->message) :
			 errmsg("task " INT64_FORMAT " of type \"%s\" failed: %s",
					task->receipt.id, task->task_type, error->message),
			 source->counts_receives ? errdetail("It was received %d times.", task->receive_count + 1) :
			 errdetail("It was received %d times; queue \"%s\" has max_receive_count = %d.",
					   task->receive_count + 1, settings.name, (int) settings.max_receive_count)));
	source->fail(task);
	task->state = TASK_AWAY;
}

static void
record_failures(void)
{
	for (int i = 0; i < ntasks; i++)
	{
		if (tasks[i].state == TASK_FAILED)
			record_failure(&tasks[i]);
	}
}

/*
 * One task
 */

static void
call(Task *task, Controller *controller)
{
	LOCAL_FCINFO(fcinfo, 1);
	bool		isnull;

	controller_check(controller);
	InitFunctionCallInfoData(*fcinfo, &controller->function, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = controller->takes_message ? heap_copy_tuple_as_datum(task->message, message_desc) :
		heap_getattr(task->message, MESSAGE_PAYLOAD, message_desc, &isnull);
	fcinfo->args[0].isnull = false;
	session_call(fcinfo);
}

/* Ledger, controller and delete: what stays together. */
static void
handle(Task *task, Controller *controller, bool is_isolated)
{
	if (task->problem)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_NO_CONTROLLER),
				 errmsg("%s", task->problem)));
	if (controller == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_NO_CONTROLLER),
				 errmsg("its type has no controller in queue \"%s\"", settings.name)));
	if (controller->problem)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_NO_CONTROLLER),
				 errmsg("controller %s cannot be called: %s", controller->name, controller->problem)));

	PushActiveSnapshot(GetTransactionSnapshot());
	if (!controller->is_atomic || ledger_enter(task->uid))
		call(task, controller);
	PopActiveSnapshot();

	if (source->finish)
		source->finish(task, is_isolated);
}

/*
 * Take back what this transaction did: those that went well are to be run again.
 */
static void
undo_all(void)
{
	AbortCurrentTransaction();
	deleter = NULL;
	for (int i = 0; i < ntasks; i++)
	{
		if (tasks[i].state == TASK_RUN)
			tasks[i].state = TASK_TAKEN;
	}
	is_careful = true;
	begin();
}

/*
 * How it went is in the task's state. Isolated, in a subtransaction, is what may have
 * effects that a rollback does not undo, and what is likely to fail.
 */
static void
run(Task *task, Controller *controller)
{
	bool		is_isolated = is_careful || controller == NULL || controller->problem || !controller->is_atomic;
	ResourceOwner owner = CurrentResourceOwner;
	TimestampTz start = GetCurrentTimestamp();

	running = task;
	pool_set_task(task->receipt.id);
	if (!source->counts_receives)
		in_hand_put(place, outbox, &task->receipt.id, 1);
	pgstat_report_activity(STATE_RUNNING, task->task_type);

	if (is_isolated)
		BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		start_timer();
		handle(task, controller, is_isolated);
		stop_timer();
		if (is_isolated)
			ReleaseCurrentSubTransaction();
		task->state = TASK_RUN;
	}
	PG_CATCH();
	{
		task->error = take_error();
		if (is_isolated)
			RollbackAndReleaseCurrentSubTransaction();
		else
			undo_all();
		task->state = TASK_FAILED;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(batch_context);
	if (is_isolated)
		CurrentResourceOwner = owner;
	session_reset();

	in_hand_clear(place);
	pool_set_task(0);
	running = NULL;
	if (controller)
	{
		double		time = GetCurrentTimestamp() - start;

		controller->average = controller->average < 0 ? time : (controller->average * 7 + time) / 8;
	}
}

/*
 * A batch
 */

/* Its group cannot go on: give back what comes after it. */
static void
give_back_group(const Task *task)
{
	for (int i = task - tasks + 1; i < ntasks && task->group != 0; i++)
	{
		if (tasks[i].group == task->group && tasks[i].state == TASK_TAKEN)
			give_back(&tasks[i]);
	}
}

static bool
is_slow(const Controller *controller)
{
	return controller && controller->problem == NULL &&
		(controller->average < 0 || controller->average > SLOW);
}

/* No more in this transaction? */
static bool
is_full(TimestampTz since)
{
	return MyProc->subxidStatus.overflowed ||
		MyProc->subxidStatus.count >= SUBTRANSACTIONS_MAX ||
		session_has_temporary() || GetCurrentTimestamp() - since > BATCH_TIME;
}

/* One task in a transaction of its own. */
static void
run_alone(Task *task)
{
	ErrorData  *error;
	int			i = task - tasks;

	begin();
	run(task, controller_find(task->task_type));
	error = commit(i, i + 1);
	if (error)
	{
		task->error = error;
		task->state = TASK_FAILED;
	}
	if (task->state == TASK_FAILED)
		give_back_group(task);
	else
		task->state = TASK_DONE;
}

/* Commit what was run from one task to another; if that fails, run each alone. */
static void
commit_or_repeat(int from, int to)
{
	bool		failed = commit(from, to) != NULL;

	for (int i = from; i < to; i++)
	{
		if (tasks[i].state != TASK_RUN)
			continue;
		tasks[i].state = failed ? TASK_TAKEN : TASK_DONE;
	}
	for (int i = from; i < to && failed; i++)
	{
		if (tasks[i].state == TASK_TAKEN)
			run_alone(&tasks[i]);
	}
}

/*
 * As much the next time as is done in a short time: so that there is something
 * left for others. Returns whether there was anything for us.
 */
static bool
run_batch(void)
{
	int			from = 0;
	bool		did_something = false;
	bool		has_failed = false;
	TimestampTz start = GetCurrentTimestamp();
	TimestampTz since = start;
	int64		time;

	for (int i = 0; i < ntasks; i++)
	{
		Task	   *task = &tasks[i];
		Controller *controller = controller_find(task->task_type);

		if (task->state != TASK_TAKEN)
			continue;
		did_something = true;
		if (source->is_ours && !source->is_ours(task))
		{
			task->state = TASK_AWAY;
			continue;
		}
		if (!is_slow(controller) && task->receive_count == 0)
		{
			begin();
			run(task, controller);
			if (task->state == TASK_FAILED)
			{
				has_failed = true;
				give_back_group(task);
				/* Again from where its transaction began, as far as that is needed. */
				i = from - 1;
				continue;
			}
			if (!is_full(since))
				continue;
			commit_or_repeat(from, i + 1);
		}
		else
		{
			commit_or_repeat(from, i);
			if (task->state == TASK_TAKEN && is_slow(controller) && i + 1 < ntasks && !source->counts_receives)
			{
				for (int j = i + 1; j < ntasks; j++)
				{
					if (tasks[j].state == TASK_TAKEN)
						give_back(&tasks[j]);
				}
			}
			if (task->state == TASK_TAKEN)
				run_alone(task);
		}
		from = i + 1;
		since = GetCurrentTimestamp();
	}
	commit_or_repeat(from, ntasks);
	record_failures();
	is_careful = has_failed;

	time = GetCurrentTimestamp() - start;
	if (time > BATCH_TIME)
		take_next = Max(1, take_next / 2);
	else if (ntasks >= take_next && time < BATCH_TIME / 2)
		take_next = Min(take_next * 2, IN_HAND_MAX);
	return did_something;
}

/* Nothing of its group is before it, and still in our hands. */
static bool
is_head(const Task *task)
{
	for (const Task *elder = tasks; elder < task && task->group != 0; elder++)
	{
		if (elder->group == task->group && elder->state == TASK_TAKEN)
			return false;
	}
	return true;
}

/* The role that a task is for, InvalidOid: nobody's, so anyone finds out. */
static Oid
role_of(const Task *task)
{
	Controller *controller = controller_find(task->task_type);

	return controller && controller->problem == NULL ? controller->role : InvalidOid;
}

/*
 * A task of another role goes there, with those of its group that follow and are for
 * that role, too. What follows then, and what comes after tasks of ours, has to wait:
 * it is given back.
 */
static void
pass_on(void)
{
	for (int i = 0; i < ntasks; i++)
	{
		Oid			role = role_of(&tasks[i]);
		Task	   *theirs[IN_HAND_MAX];
		Receipt		receipts[IN_HAND_MAX];
		int			n = 0;
		int			passed = 0;

		if (tasks[i].state != TASK_TAKEN || !OidIsValid(role) || role == slot->role)
			continue;
		for (int j = i; j < ntasks && is_head(&tasks[i]); j++)
		{
			if (j > i && (tasks[i].group == 0 || tasks[j].group != tasks[i].group))
				continue;
			if (role_of(&tasks[j]) != role)
				break;
			theirs[n] = &tasks[j];
			receipts[n++] = tasks[j].receipt;
		}
		if (n > 0 && !source->counts_receives)
			passed = pool_hand_over(role, receipts, n);
		for (int j = 0; j < n && j < passed; j++)
			theirs[j]->state = TASK_AWAY;
		if (passed == 0)
			give_back(&tasks[i]);
		give_back_group(&tasks[i]);
	}
}

/*
 * The embedded queue
 */

static int
embedded_take(const QueueSettings *from, TupleDesc desc, Task *into, int max)
{
	Receipt		receipts[Max(IN_HAND_MAX, HANDED_MAX)];
	OutboxReader *reader;
	QueueSlot  *queue = queue_slot(db, from->key);
	int			n;

	is_full_up = false;
	if (retries[nretries % RETRIES_MAX] > GetCurrentTimestamp())
		return 0;
	n = pool_take_handed(receipts);
	if (n > 0)
		lease_adopt(outbox, receipts, n);
	else if (queue)
		n = lease_take(db, outbox, queue, max, LEASE_WHILE_ALIVE, receipts, &is_full_up);
	for (int i = 0; i < n; i++)
	{
		memset(&into[i], 0, sizeof(Task));
		into[i].receipt = receipts[i];
	}
	/* An error from here on gives them back. */
	ntasks = n;
	if (n == 0)
		return 0;

	PushActiveSnapshot(GetTransactionSnapshot());
	reader = outbox_begin_dirty();
	for (int i = 0; i < n; i++)
	{
		Task	   *task = &into[i];
		Datum		values[MESSAGE_COLUMNS];
		bool		nulls[MESSAGE_COLUMNS];

		if (!message_look(reader, &task->receipt, from->name))
		{
			/* The relay finds out what became of it. */
			give_back(task);
			continue;
		}
		message_values(reader->slot, NULL, values, nulls);
		task->group = outbox_row(reader).group;
		task->receive_count = DatumGetInt32(values[MESSAGE_RECEIVE_COUNT - 1]) - 1;
		task->task_type = TextDatumGetCString(values[MESSAGE_TASK_TYPE - 1]);
		task->uid = TextDatumGetCString(values[MESSAGE_UID - 1]);
		task->message = heap_form_tuple(desc, values, nulls);
	}
	outbox_end(reader);
	PopActiveSnapshot();
	return n;
}

static void
embedded_finish(Task *task, bool is_isolated)
{
	OutboxReader *reader = is_isolated || deleter == NULL ? outbox_begin_delete() : deleter;
	LeaseResult result;

	if (!is_isolated)
		deleter = reader;
	lease_mark_deleting(outbox, &task->receipt, 1, &result);
	if (result != LEASE_OK ||
		outbox_delete_leased(reader, task->receipt.id, &task->receipt.place) != OUTBOX_HERE)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_STALE_HANDLE),
				 errmsg("it was deleted or purged while its controller ran")));
	if (is_isolated)
		outbox_end(reader);
}

static void
embedded_give_back(Task *task)
{
	lease_give_back(outbox, &task->receipt, 1);
}

static void
embedded_fail(Task *task)
{
	TimestampTz retry_at;

	begin();
	(void) outbox_set_error(task->receipt.id, task->error->message);
	CommitTransactionCommand();
	MemoryContextSwitchTo(batch_context);

	retry_at = GetCurrentTimestamp();
	/* The last receive needs no wait. */
	if (task->receive_count + 1 < settings.max_receive_count)
		retry_at += queue_retry_delay(&settings, task->receive_count);
	(void) lease_change(outbox, &task->receipt, retry_at, true);
	retries[nretries++ % RETRIES_MAX] = retry_at;
}

static void
embedded_leave(Task *task, bool is_running)
{
	if (is_running)
		(void) lease_change(outbox, &task->receipt, GetCurrentTimestamp(), false);
	else
		embedded_give_back(task);
}

/* What we know of ourselves or of the queue has changed. */
static bool
is_stale(void)
{
	return pool_must_leave() || settings_seen != db->settings_changes;
}

static bool
is_called(void)
{
	return is_stale() || pool_is_handed();
}

static void
embedded_wait(void)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz oldest_retry = retries[nretries % RETRIES_MAX];

	if (oldest_retry > now)
		(void) ask_relay(NULL, 0, true, oldest_retry, is_stale);
	else if (is_full_up)
		(void) ask_relay(NULL, 0, true, now + FULL_RETRY, is_stale);
	else if (ntasks > 0)
	{
		/* All of them were for others, who are not there or have too much to do. */
		(void) ask_relay(NULL, 0, true, now + pause_next, is_stale);
		pause_next = Min(pause_next * 2, PAUSE_MAX);
	}
	else
		(void) ask_relay(is_queue ? db : NULL, settings.key, true, now + WAIT, is_called);
}

static const Source embedded_source = {
	.take = embedded_take,
	.finish = embedded_finish,
	.give_back = embedded_give_back,
	.fail = embedded_fail,
	.wait = embedded_wait,
	.leave = embedded_leave
};

/*
 * The process
 */

/*
 * Lock the table for this transaction, if it is still there: the extension may have
 * been dropped, or created anew, and others are to be started for that.
 */
static bool
is_there(void)
{
	LockRelationOid(outbox, AccessShareLock);
	return get_relname_relid("task_outbox", get_namespace_oid(TASKOUTBOX_SCHEMA, true)) == outbox;
}

/* False when the queue is no more, or not for our role or server: the relay is about to tell us. */
static bool
read_settings(void)
{
	const QueueSettings *found = queue_find(slot->queue_name);

	if (found == NULL)
		return false;
	settings = *found;
	settings.name = slot->queue_name;
	return queue_is_served(found) && queue_admits_consumer(found, slot->role);
}

/* What the last one has, or is about to get, is not for the next one: that is for a new process. */
static void
choose_source(void)
{
	const Source *last = source;

	if (is_queue)
		source = queue_is_embedded(&settings) ? &embedded_source : &sqs_source;
	else if (source == NULL)
		source = &embedded_source;
	if (last && source != last)
		proc_exit(0);
}

static void
read_message_type(void)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	message_desc = BlessTupleDesc(lookup_rowtype_tupdesc_copy(message_type(), -1));
	MemoryContextSwitchTo(old);
}

static void
worker_loop(void)
{
	for (;;)
	{
		bool		did_something = false;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			queue_read_again();
		}
		/* The relay has woken us for that, perhaps before the invalidation came. */
		if (settings_seen != db->settings_changes)
		{
			settings_seen = db->settings_changes;
			queue_read_again();
		}
		if (pool_must_leave())
			proc_exit(0);

		MemoryContextReset(batch_context);
		begin();
		if (!is_there())
			proc_exit(0);
		is_queue = read_settings() && db->pin != PIN_FOREIGN;
		choose_source();
		controllers_read(slot->queue_name);
		ntasks = 0;
		if (is_queue)
			ntasks = source->take(&settings, message_desc, tasks, take_next);
		if (ntasks > 0)
		{
			pass_on();
			did_something = run_batch();
		}
		if (IsTransactionState())
			CommitTransactionCommand();
		if (ntasks > 0 && source->settle)
		{
			MemoryContextSwitchTo(batch_context);
			source->settle(tasks, ntasks);
		}
		if (did_something)
			pause_next = PAUSE_MIN;
		else
		{
			pgstat_report_stat(true);
			pgstat_report_activity(STATE_IDLE, NULL);
			source->wait();
		}
		ntasks = 0;
	}
}

void
taskoutbox_worker_main(Datum arg)
{
	slot = pool_claim(DatumGetInt32(arg));
	if (slot == NULL)
		proc_exit(0);
	place = pool_index(slot);
	in_hand_clear(place);
	before_shmem_exit(worker_leave, (Datum) 0);

	pqsignal(SIGQUIT, handle_quit);
	launcher_take_signals();

	BackgroundWorkerInitializeConnectionByOid(slot->dboid, slot->role, COMPAT_BYPASS_ROLELOGINCHECK);
	pgstat_report_appname("taskoutbox consumer");
	/* max_run_time is the limit. */
	compat_disable_transaction_timeout();
	run_timeout = RegisterTimeout(USER_TIMEOUT, handle_run_timeout);
	batch_context = AllocSetContextCreate(TopMemoryContext, "taskoutbox consumer batch",
										  ALLOCSET_DEFAULT_SIZES);
	db = database_slot(MyDatabaseId);
	if (db == NULL)
		proc_exit(0);

	PG_TRY();
	{
		StartTransactionCommand();
		outbox = outbox_relid();
		read_message_type();
		CommitTransactionCommand();
		pool_ready(outbox);
		worker_loop();
	}
	PG_CATCH();
	{
		pool_failed();
		PG_RE_THROW();
	}
	PG_END_TRY();
}
