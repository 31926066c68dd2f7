/*
 * sqs_consumer.c
 *	  Where a worker has the tasks of a queue in SQS from: SQS itself.
 *
 * A worker always has one ReceiveMessage out, a long poll, and sleeps beside it in
 * no transaction: so whatever comes, an answer or a signal, is seen at once. What
 * came is run like tasks of the embedded queue (worker.c). Then, when that has
 * committed and cannot be lost any more, what is done is deleted, and the rest
 * becomes visible again: what failed after its back-off, and what comes after it
 * in its group at once, which no one gets before that, since SQS gives out no
 * message of a group while an earlier one is hidden. A message that is not ours
 * any more, because its visibility timeout has ended, comes again: the ledger
 * knows what is done.
 *
 * SQS counts each receive, and after maxReceiveCount of them makes a dead letter:
 * it needs no file to know what a crash has interrupted (in_hand.c). But it counts
 * those, too, that were taken along with one of their group that failed. So after
 * that, workers take one message at a time for a while, and several only when
 * receives come back full.
 */
#include "taskoutbox.h"
#include "source.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "common/hashfn.h"
#include "common/md5.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "check.h"
#include "consumer.h"
#include "json_answer.h"
#include "pool.h"
#include "queue.h"
#include "sqs_destination.h"
#include "sqs_in_flight.h"

/* SQS's longest. */
#define POLL_SECONDS 20

/* Ten of the largest messages, with a backslash before each character. */
#define ANSWER_MAX (2 * SQS_BATCH_ENTRIES * SQS_BATCH_BYTES)

/* Without news, look around. */
#define WAIT (60 * USECS_PER_SEC)

/* What has been given back to others is not ours again at once. */
#define OTHERS_PAUSE (1 * USECS_PER_SEC)

/* Workers are careful for so long after the failed message is visible again. */
#define CAREFUL (5 * USECS_PER_SEC)

/* A worker ends its controllers at max_run_time, and then has this much to clean up. */
#define RUN_TIME_GRACE (10 * USECS_PER_SEC)

typedef enum Operation
{
	RECEIVE,
	DELETE,
	CHANGE
} Operation;

static const char *const operations[] = {
	"ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"
};

static int	place = -1;
static DatabaseSlot *db;
static Queue queue;				/* no more of it than a Destination needs */
static uint64 settings_known = 0;
static bool is_paused;

/* The receive that is out, with what it asked for. */
static HttpRequest poll;
static bool is_polling = false;
static TimestampTz poll_started;
static uint64 poll_generation;	/* of the credentials */
static int	poll_max;
static int	poll_visibility;	/* seconds */
static char attempt_id[33] = "";	/* empty: a new one is due */

/* How many to ask for the next time, and when. */
static int	ask_for = 1;
static TimestampTz next_try = DT_NOBEGIN;
static bool is_fetching_credentials = false;

/* What opened the circuit, and has to work again; and whether that was said. */
static Operation broken;
static bool is_reported = false;

/*
 * The destination
 */

static Destination *
destination(void)
{
	return destination_of(&queue);
}

static void
in_flight_end(int code, Datum arg)
{
	sqs_in_flight_clear(place);
}

static void
init(void)
{
	place = pool_my_index();
	db = database_slot(MyDatabaseId);
	before_shmem_exit(in_flight_end, (Datum) 0);
}

/* Where requests go to, to see whether it has changed. */
static char *
address(void)
{
	const Destination *to = destination();

	return to == NULL ? pstrdup("") :
		psprintf("%s %s %s", to->url, to->endpoint ? to->endpoint : "", to->sigv4 ? to->sigv4 : "");
}

static void
configure(const QueueSettings *settings)
{
	char	   *before = address();

	if (queue.name == NULL)
		queue.name = MemoryContextStrdup(TopMemoryContext, settings->name);
	queue.settings = *settings;
	queue.slot = queue_slot(db, settings->key);
	destination_configure(&queue, settings);
	is_paused = settings->is_paused;
	if (is_polling && !poll.is_done && (is_paused || strcmp(before, address()) != 0))
	{
		/* What it may have been about to bring is visible again after a while. */
		destination_end_request(&poll);
		is_polling = false;
	}
	pfree(before);
}

/* Say once what is wrong, to the log and to controller_status, and once that it is over. */
static void
report(void)
{
	const Destination *to = destination();
	bool		is_wrong = to->is_open && !to->is_quiet;

	if (is_wrong)
		pool_set_problem(psprintf("%s. %s%s%s", to->reason, to->remedy,
								  to->next_try == DT_NOEND ? "" : " Next try at ",
								  to->next_try == DT_NOEND ? "" : timestamptz_to_str(to->next_try)));
	if (is_wrong && !is_reported)
		ereport(LOG,
				(errmsg("taskoutbox queue \"%s\": a consumer gets nothing from SQS: %s", queue.name, to->reason),
				 errhint("%s", to->remedy)));
	else if (!to->is_open && is_reported)
	{
		pool_set_problem("");
		ereport(LOG,
				(errmsg("taskoutbox queue \"%s\": the consumer gets messages from SQS again", queue.name)));
	}
	is_reported = to->is_open && (is_wrong || is_reported);
}

/* What an answer means for the circuit. Only what broke it can mend it. */
static Answer
take_answer(Operation operation, HttpRequest *request, TimestampTz started_at, uint64 generation)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		was_open = destination()->is_open;
	Answer		answer = destination_answer(destination(), request, operations[operation], generation, now);

	if (answer.kind == ANSWER_GOOD && (!was_open || operation == broken))
		destination_success(destination(), started_at);
	else if (answer.kind == ANSWER_MESSAGE && operation == RECEIVE)
		destination_fault(destination(), answer.code, answer.message, operations[operation], 0, now);
	if (!was_open && destination()->is_open)
		broken = operation;
	return answer;
}

static const AwsCredentials *
credentials(void)
{
	bool		was_open = destination()->is_open;
	const AwsCredentials *found = destination_credentials(destination(), GetCurrentTimestamp());

	if (!was_open && destination()->is_open)
		broken = RECEIVE;
	is_fetching_credentials = found == NULL && !destination()->is_open;
	return found;
}

static bool
may_try(TimestampTz now)
{
	const Destination *to = destination();

	return to->endpoint && to->sigv4 && (!to->is_open || to->next_try <= now);
}

/*
 * Receiving
 */

static bool
is_careful(TimestampTz now)
{
	TimestampTz until;

	if (queue.slot == NULL)
		return false;
	LWLockAcquire(shared->lease_lock, LW_SHARED);
	until = queue.slot->sqs_careful_until;
	LWLockRelease(shared->lease_lock);
	return now < until;
}

static void
be_careful(TimestampTz until)
{
	if (queue.slot == NULL)
		return;
	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	queue.slot->sqs_careful_until = Max(queue.slot->sqs_careful_until, until);
	LWLockRelease(shared->lease_lock);
}

static void
start_poll(int max, TimestampTz now)
{
	const AwsCredentials *keys = credentials();
	int			wait_seconds;
	char	   *body;
	size_t		len;

	if (keys == NULL)
		return;
	/* With the same one SQS repeats an answer that was lost. */
	if (*attempt_id == '\0')
	{
		uint64		random[2];

		if (!pg_strong_random(random, sizeof(random)))
			elog(ERROR, "could not generate a random id");
		snprintf(attempt_id, sizeof(attempt_id), "%016llx%016llx",
				 (unsigned long long) random[0], (unsigned long long) random[1]);
	}
	/* One whose visibility a fraction of a second would do for has a whole one. */
	poll_visibility = Max(1, (queue.settings.visibility_timeout + USECS_PER_SEC - 1) / USECS_PER_SEC);
	poll_max = is_careful(now) || destination()->is_open ? 1 : Min(max, ask_for);
	/* A probe is to tell soon. */
	wait_seconds = destination()->is_open ? 0 : POLL_SECONDS;
	body = sqs_receive_message(destination()->url, poll_max, wait_seconds, poll_visibility, attempt_id, &len);
	destination_prepare(destination(), &poll, operations[RECEIVE], body, len, keys);
	poll.timeout_ms += wait_seconds * 1000;
	poll.answer_max = ANSWER_MAX;
	poll_started = now;
	poll_generation = keys->generation;
	is_polling = true;
	http_start(&poll);
}

static char *
attribute(JsonbContainer *attributes, const char *name)
{
	return json_text(json_member(attributes, name), "StringValue");
}

/* The id of its row and the time of its enqueue are in the uid of a task. */
static bool
parse_uid(const char *uid, int64 *id, TimestampTz *enqueued_at)
{
	const char *colon = strchr(uid, ':');
	char	   *end;

	if (colon == NULL)
		return false;
	*id = strtoll(colon + 1, &end, 10);
	if (*end != ':')
		return false;
	*enqueued_at = strtoll(end + 1, &end, 10) - (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;
	return *end == '\0' && *id > 0 && IS_VALID_TIMESTAMP(*enqueued_at);
}

static void
put_header(StringInfo json, const char *name, const char *value)
{
	appendStringInfoChar(json, json->len == 0 ? '{' : ',');
	escape_json(json, name);
	appendStringInfoChar(json, ':');
	escape_json(json, value);
}

/* What was sent as headers, as jsonb; NULL: none. */
static Jsonb *
headers(JsonbContainer *attributes, const char *trace)
{
	JsonbIterator *it = JsonbIteratorInit(attributes);
	JsonbIteratorToken token;
	JsonbValue	value;
	StringInfoData json;

	initStringInfo(&json);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		char	   *name;
		char	   *text;

		if (token != WJB_KEY)
			continue;
		name = pnstrdup(value.val.string.val, value.val.string.len);
		text = attribute(attributes, name);
		if (text && strcmp(name, "task_type") != 0 && strcmp(name, "task_uid") != 0 &&
			strcmp(name, "enqueued_at") != 0)
			put_header(&json, name, text);
	}
	if (trace)
		put_header(&json, SQS_TRACE_HEADER, trace);
	if (json.len == 0)
		return NULL;
	appendStringInfoChar(&json, '}');
	return json_parse(json.data);
}

/* An id that the relay made up, for want of one, is none for a controller. */
static void
put_id(const char *id, int column, Datum *values, bool *nulls)
{
	nulls[column - 1] = id == NULL || strncmp(id, RESERVED_PREFIX, strlen(RESERVED_PREFIX)) == 0;
	values[column - 1] = nulls[column - 1] ? (Datum) 0 : CStringGetTextDatum(id);
}

/* As a controller gets it; sets the task's problem when that is not possible. */
static void
read_message(Task *task, const char *body, JsonbContainer *system, JsonbContainer *attributes, TupleDesc desc)
{
	Datum		values[MESSAGE_COLUMNS];
	bool		nulls[MESSAGE_COLUMNS] = {false};
	Jsonb	   *payload = json_parse(body);
	Jsonb	   *sent = NULL;
	TimestampTz enqueued_at;

	task->task_type = attribute(attributes, "task_type");
	task->uid = attribute(attributes, "task_uid");
	if (task->task_type == NULL || task->uid == NULL || !parse_uid(task->uid, &task->receipt.id, &enqueued_at))
		task->problem = "it was not sent by taskoutbox: it has no attributes task_type and task_uid";
	else if (payload == NULL)
		task->problem = "its body is not JSON";
	if (task->problem)
	{
		task->task_type = "";
		return;
	}

	sent = headers(attributes, json_text(system, "AWSTraceHeader"));
	put_id(json_text(system, "MessageGroupId"), MESSAGE_GROUP_ID, values, nulls);
	put_id(json_text(system, "MessageDeduplicationId"), MESSAGE_DEDUPLICATION_ID, values, nulls);
	nulls[MESSAGE_RECEIPT_HANDLE - 1] = nulls[MESSAGE_LAST_ERROR - 1] = true;
	nulls[MESSAGE_HEADERS - 1] = sent == NULL;
	values[MESSAGE_ID - 1] = Int64GetDatum(task->receipt.id);
	values[MESSAGE_QUEUE - 1] = CStringGetTextDatum(queue.name);
	values[MESSAGE_TASK_TYPE - 1] = CStringGetTextDatum(task->task_type);
	values[MESSAGE_PAYLOAD - 1] = JsonbPGetDatum(payload);
	values[MESSAGE_HEADERS - 1] = sent ? JsonbPGetDatum(sent) : (Datum) 0;
	values[MESSAGE_ENQUEUED_AT - 1] = TimestampTzGetDatum(enqueued_at);
	values[MESSAGE_RECEIVE_COUNT - 1] = Int32GetDatum(task->receive_count + 1);
	values[MESSAGE_UID - 1] = CStringGetTextDatum(task->uid);
	task->message = heap_form_tuple(desc, values, nulls);
}

/* NULL when it went well. */
static const char *
read_task(Task *task, JsonbContainer *item, TupleDesc desc)
{
	JsonbContainer *system = json_member(item, "Attributes");
	char	   *body = json_text(item, "Body");
	char	   *md5 = json_text(item, "MD5OfBody");
	char	   *count = json_text(system, "ApproximateReceiveCount");
	char	   *group = json_text(system, "MessageGroupId");
	char		own_md5[33];
	char	   *utf8;
	const char *errstr;

	memset(task, 0, sizeof(Task));
	task->handle = json_text(item, "ReceiptHandle");
	task->message_id = json_text(item, "MessageId");
	if (task->handle == NULL || task->message_id == NULL || body == NULL || count == NULL || group == NULL)
		return "the answer lacks a part of a message";
	utf8 = pg_server_to_any(body, strlen(body), PG_UTF8);
	/* Without MD5 here, as FIPS wants it, nobody knows. */
	if (md5 && pg_md5_hash(utf8, strlen(utf8), own_md5, &errstr) && strcmp(md5, own_md5) != 0)
		return "the MD5 of a body is not that of what was received";
	task->receive_count = Max(atoi(count), 1) - 1;
	task->group = strncmp(group, RESERVED_PREFIX, strlen(RESERVED_PREFIX)) == 0 ? 0 :
		hash_bytes_extended((const unsigned char *) group, strlen(group), 0) | 1;
	read_message(task, body, system, json_member(item, "MessageAttributes"), desc);
	return NULL;
}

/* What came, if anything did. */
static int
read_poll(Task *tasks, TupleDesc desc)
{
	TimestampTz now = GetCurrentTimestamp();
	Answer		answer = take_answer(RECEIVE, &poll, poll_started, poll_generation);
	JsonbContainer *object = answer.kind == ANSWER_GOOD ? json_answer(poll.answer, poll.answer_len) : NULL;
	JsonbContainer *list = json_list(object, "Messages");
	int			n = Min(json_list_length(list), poll_max);
	int64		visibility = poll_visibility * USECS_PER_SEC;
	SqsReceipt	receipts[SQS_BATCH_ENTRIES];
	const char *wrong = answer.kind == ANSWER_GOOD && object == NULL ? "the answer is not JSON" : NULL;

	if (answer.kind != ANSWER_UNKNOWN)
		*attempt_id = '\0';
	for (int i = 0; i < n && wrong == NULL; i++)
	{
		wrong = read_task(&tasks[i], json_list_item(list, i), desc);
		receipts[i].handle = tasks[i].handle;
	}
	destination_end_request(&poll);
	is_polling = false;
	ask_for = n < poll_max || wrong ? Max(n, 1) : Min(poll_max * 2, SQS_BATCH_ENTRIES);
	if (wrong)
	{
		/* Nothing of it is to be trusted; it comes again after its visibility timeout. */
		ask_for = 1;
		destination_failed(destination(), operations[RECEIVE], wrong, 0, now);
		return 0;
	}
	if (n > 0)
		sqs_in_flight_put(place, db, queue.settings.key, receipts, n, now + visibility, visibility,
						  now + n * (queue.settings.max_run_time + RUN_TIME_GRACE));
	return n;
}

static int
sqs_take(const QueueSettings *settings, TupleDesc message_desc, Task *tasks, int max)
{
	TimestampTz now = GetCurrentTimestamp();
	int			n = 0;

	if (place < 0)
		init();
	/* Their texts are only good for now. */
	if (settings_known != queue_generation())
		configure(settings);
	settings_known = queue_generation();
	if (is_polling && poll.is_done)
		n = read_poll(tasks, message_desc);
	if (n == 0 && !is_polling && !is_paused && next_try <= now && may_try(now))
		start_poll(max, now);
	report();
	return n;
}

static void
sqs_wait(void)
{
	static uint32 wait_event = 0;
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz until = now + WAIT;

	if (wait_event == 0)
		wait_event = COMPAT_WAIT_EVENT("TaskoutboxReceive");
	if (!is_polling && !is_paused && !is_fetching_credentials)
		until = Min(until, Max(next_try, destination()->is_open ? destination()->next_try : DT_NOBEGIN));
	if (until > now && !pool_must_leave())
		http_sleep(until, wait_event);
}

/*
 * Afterwards
 */

static bool
sqs_is_ours(const Task *task)
{
	return GetCurrentTimestamp() < sqs_in_flight_until(place);
}

static void
sqs_give_back(Task *task)
{
	task->hide_seconds = 0;
}

static void
sqs_fail(Task *task)
{
	int64		delay = queue_retry_delay(&queue.settings, task->receive_count);

	/* 12 hours are to be counted from the receive. */
	task->hide_seconds = Min((delay + USECS_PER_SEC / 2) / USECS_PER_SEC, VISIBILITY_MAX / USECS_PER_SEC / 2);
}

/* A batch of messages on its way to be deleted, or to become visible again. */
typedef struct Batch
{
	Operation	operation;
	int			n;
	SqsReceipt	receipts[SQS_BATCH_ENTRIES];
	HttpRequest http;
	bool		is_out;
	TimestampTz started_at;
	uint64		generation;
} Batch;

static void
start_batch(Batch *batch, const AwsCredentials *keys, TimestampTz now)
{
	char	   *body;
	size_t		len;

	body = batch->operation == DELETE ?
		sqs_delete_message_batch(destination()->url, batch->receipts, batch->n, &len) :
		sqs_change_message_visibility_batch(destination()->url, batch->receipts, batch->n, &len);
	destination_prepare(destination(), &batch->http, operations[batch->operation], body, len, keys);
	batch->started_at = now;
	batch->generation = keys->generation;
	batch->is_out = true;
	http_start(&batch->http);
}

static SqsReceipt *
entry_of(Batch *batch, JsonbContainer *item)
{
	int			i = answer_entry(item, batch->n);

	return i < 0 ? NULL : &batch->receipts[i];
}

/* Keep what has to be done again. */
static void
read_batch(Batch *batch)
{
	TimestampTz now = GetCurrentTimestamp();
	Answer		answer = take_answer(batch->operation, &batch->http, batch->started_at, batch->generation);
	JsonbContainer *object = answer.kind == ANSWER_GOOD ? json_answer(batch->http.answer, batch->http.answer_len) : NULL;
	JsonbContainer *list = json_list(object, "Successful");
	int			kept = 0;

	for (int i = 0; i < json_list_length(list); i++)
	{
		SqsReceipt *receipt = entry_of(batch, json_list_item(list, i));

		if (receipt)
			receipt->handle = NULL;
	}
	list = json_list(object, "Failed");
	for (int i = 0; i < json_list_length(list); i++)
	{
		JsonbContainer *item = json_list_item(list, i);
		SqsReceipt *receipt = entry_of(batch, item);
		char	   *code = json_text(item, "Code");

		if (receipt == NULL || code == NULL)
			continue;
		switch (sqs_fault(code))
		{
			case SQS_FAULT_MESSAGE:
				/* Its visibility timeout has ended: it is not ours any more. */
				receipt->handle = NULL;
				break;
			case SQS_FAULT_TRANSIENT:
				break;
			default:
				destination_fault(destination(), sqs_bare_code(code), "", operations[batch->operation], 0, now);
				broken = batch->operation;
		}
	}
	if (answer.kind == ANSWER_GOOD && object == NULL)
		destination_failed(destination(), operations[batch->operation], "the answer is not JSON", 0, now);

	for (int i = 0; i < batch->n; i++)
	{
		/* All of one that was refused for what is in it, too. */
		if (batch->receipts[i].handle && answer.kind != ANSWER_MESSAGE)
			batch->receipts[kept++] = batch->receipts[i];
	}
	batch->n = kept;
	destination_end_request(&batch->http);
	batch->is_out = false;
}

/* Again and again, as long as the messages are ours, or until we have to leave. */
static void
carry_out(Batch *batches, int n, TimestampTz until)
{
	static uint32 wait_event = 0;
	MemoryContext context = CurrentMemoryContext;
	TimestampTz retry_at = DT_NOBEGIN;

	if (wait_event == 0)
		wait_event = COMPAT_WAIT_EVENT("TaskoutboxSettle");
	for (int failures = 0;; failures++)
	{
		TimestampTz now = GetCurrentTimestamp();
		bool		is_any_left = false;
		bool		is_any_out = false;

		StartTransactionCommand();
		MemoryContextSwitchTo(context);
		for (int i = 0; i < n; i++)
		{
			Batch	   *batch = &batches[i];

			if (batch->is_out && batch->http.is_done)
				read_batch(batch);
			if (batch->n > 0 && !batch->is_out && retry_at <= now && may_try(now))
			{
				const AwsCredentials *keys = credentials();

				if (keys)
					start_batch(batch, keys, now);
			}
			is_any_left |= batch->n > 0;
			is_any_out |= batch->is_out;
		}
		report();
		CommitTransactionCommand();
		MemoryContextSwitchTo(context);

		now = GetCurrentTimestamp();
		if (!is_any_left || pool_must_leave() || (now >= until && !is_any_out))
			break;
		if (!is_any_out && retry_at <= now)
			retry_at = now + queue_retry_delay(&queue.settings, failures);
		http_sleep(is_any_out ? now + WAIT : Min(until, Max(retry_at, destination()->is_open ? destination()->next_try : retry_at)),
				   wait_event);
		CHECK_FOR_INTERRUPTS();
	}
	for (int i = 0; i < n; i++)
		destination_end_request(&batches[i].http);
}

static void
sqs_settle(Task *tasks, int n)
{
	Batch	   *batches = palloc0(2 * sizeof(Batch));
	TimestampTz until = sqs_in_flight_until(place);
	TimestampTz now = GetCurrentTimestamp();
	int			longest = -1;
	bool		is_any_failed = false;
	bool		is_any_away = false;

	/* With synchronous_commit = off, what is not on disk could be lost, and its message with it. */
	XLogFlush(XactLastCommitEnd);
	sqs_in_flight_clear(place);
	batches[0].operation = DELETE;
	batches[1].operation = CHANGE;
	for (int i = 0; i < n; i++)
	{
		Batch	   *batch = &batches[tasks[i].state == TASK_DONE ? 0 : 1];

		batch->receipts[batch->n].handle = tasks[i].handle;
		batch->receipts[batch->n++].visibility_seconds = tasks[i].hide_seconds;
		if (tasks[i].state == TASK_DONE)
			continue;
		is_any_failed |= tasks[i].error != NULL;
		is_any_away |= tasks[i].error == NULL;
		if (tasks[i].group != 0)
			longest = Max(longest, tasks[i].hide_seconds);
	}
	if (is_any_failed && longest >= 0 && (is_any_away || is_careful(now)))
		be_careful(now + longest * USECS_PER_SEC + CAREFUL);
	/* They are for others, who have to have a chance. */
	if (is_any_away && !is_any_failed)
		next_try = now + OTHERS_PAUSE;
	carry_out(batches, 2, until);
	pfree(batches);
}

const Source sqs_source = {
	.counts_receives = true,
	.take = sqs_take,
	.is_ours = sqs_is_ours,
	.give_back = sqs_give_back,
	.fail = sqs_fail,
	.settle = sqs_settle,
	.wait = sqs_wait
};
