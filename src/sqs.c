/*
 * sqs.c
 *	  The backend that publishes to AWS SQS FIFO queues.
 *
 * To deliver a lane is to send its first message (with group_batching, its first
 * few) in a batch with those of other lanes, and to delete the row when SQS has
 * acknowledged it. In a round: settle reads what answers came, deletes the rows
 * of what was acknowledged, and reads the rows of what was delivered since; when
 * that has committed, the requests are started. So no transaction is open while
 * an answer is awaited. A message on its way has a lease, which outlives the
 * relay: nobody cancels it, and the next relay knows that SQS may have it. With
 * an unknown outcome (no answer, a failure of the service, an answer that does
 * not name it) the lease stays, and the message with its id is sent again before
 * anything else of its lane.
 *
 * SQS drops what it has accepted before under the same deduplication id. So a
 * caller's id that a new task may use again must not be one under which
 * something was sent lately: its entry is prolonged before the message is sent.
 */
#include "taskoutbox.h"
#include "backend.h"

#include "common/md5.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "blocked.h"
#include "check.h"
#include "deduplication.h"
#include "id_array.h"
#include "installation.h"
#include "json_answer.h"
#include "lane.h"
#include "lease.h"
#include "outbox.h"
#include "sqs_destination.h"
#include "sqs_in_flight.h"
#include "sqs_protocol.h"

/* How often to look at a row that somebody changes, or for a free lease. */
#define BUSY_RETRY (500 * INT64CONST(1000))

#define SQS_DEDUPLICATION_WINDOW (5 * 60 * USECS_PER_SEC)

#define MD5_HEX 33

typedef enum Outcome
{
	OUTCOME_UNKNOWN,
	OUTCOME_ACCEPTED,
	OUTCOME_FAILED,				/* not accepted; the same again will do */
	OUTCOME_WAITS,				/* not accepted; the destination says when again */
	OUTCOME_ALONE,				/* not accepted; perhaps another one's fault */
	OUTCOME_REFUSED				/* not accepted, for its own sake */
} Outcome;

typedef struct BatchEntry
{
	Message    *message;
	int64		first_id;		/* of its row */
	Outcome		outcome;
	char		md5[MD5_HEX];	/* of the body; empty: MD5 is not to be had here */
	char		code[64];
	char		error[256];
} BatchEntry;

/* A SendMessageBatch, from the reading of its rows to the end of its answer. */
typedef struct Batch
{
	dlist_node	in_list;
	Destination *destination;
	MemoryContext context;
	HttpRequest http;
	TimestampTz started_at;
	uint64		generation;		/* of the credentials */
	bool		has_accepted;	/* some of it */
	int			nentries;
	size_t		bytes;
	BatchEntry	entries[SQS_BATCH_ENTRIES];
	SqsEntry	sqs[SQS_BATCH_ENTRIES];
} Batch;

/* All that are being read, or are on their way. */
static dlist_head batches = DLIST_STATIC_INIT(batches);
static bool is_adopted = false;

/* Nothing is sent: its tasks are those of another database, or the server is told so. */
static bool is_copy = false;
static bool is_silent = false;

/* Lanes that are out: to be sent now, and waiting for their next try. */
static dlist_head waiting = DLIST_STATIC_INIT(waiting);

/* Messages that are done: their leases end when that is committed. */
static IdArray done = {0};

/*
 * Lanes
 */

/* The lane stays out, and is ready again then. */
static void
lane_wait(Lane *lane, TimestampTz until)
{
	lane->nout = Max(lane->nout, 1);
	lane->retry_at = until;
	dlist_push_tail(&waiting, &lane->in_backend);
	destination_of(lane->queue)->nwaiting++;
}

/* Its first messages that SQS may have, or none. */
static int
lane_uncertain(Lane *lane)
{
	int			n = 0;
	dlist_iter	iter;

	dlist_foreach(iter, &lane->messages)
	{
		if (n == SQS_BATCH_ENTRIES || !dlist_container(Message, in_lane, iter.cur)->may_be_sent)
			break;
		n++;
	}
	return n;
}

/*
 * Nothing of it is on its way. What SQS may have is sent again at once, not when its
 * turn comes: its queue may be paused until that is settled.
 */
static void
lane_return(Lane *lane)
{
	int			uncertain = blocked_group(lane->key) ? 0 : lane_uncertain(lane);

	if (uncertain == 0)
	{
		lanes_return(lane);
		return;
	}
	lane->nout = uncertain;
	dlist_push_tail(&destination_of(lane->queue)->to_send, &lane->in_backend);
	destination_of(lane->queue)->nto_send++;
}

static void
lane_back_off(Lane *lane, TimestampTz now)
{
	lane->queue->slot->retried++;
	lane_wait(lane, now + queue_retry_delay(&lane->queue->settings, lane->attempts));
	lane->attempts = Min(lane->attempts + 1, 30);
}

/* Not on its way any more, as far as SQS is known not to have it. */
static void
message_release(DatabaseSlot *db, Message *message)
{
	if (!message->may_be_sent)
		lease_drop(db, message->id);
}

static void
count_published(Queue *queue, TimestampTz now)
{
	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	queue->slot->delivered++;
	rate_add(&queue->slot->delivered_rate, 1, now);
	LWLockRelease(shared->lease_lock);
}

/* Its row is gone. */
static void
message_done(Message *message)
{
	id_array_add(&done, message->id);
	message->lane->nout--;
	lanes_remove(message);
}

/*
 * A message is refused for its own sake: to the dead letters, unless others are,
 * too. When others of its request are fine, it is this one. Returns whether it is
 * gone.
 */
static bool
message_refused(Message *message, const char *code, const char *error, bool others_are_fine,
				bool *again, TimestampTz now)
{
	Lane	   *lane = message->lane;
	Queue	   *queue = lane->queue;
	bool		blocks = queue->settings.on_dead_letter == ON_DEAD_LETTER_BLOCK && lane->key != 0;

	*again = others_are_fine || destination_blames_message(destination_of(queue), lane->key, code, now);
	if (!*again ||
		!outbox_count_or_bury(message->id, 0, "relay",
							  psprintf("SQS refuses it: %s%s%s", code, *error ? ": " : "", error), blocks))
		return false;
	queue->slot->dead_lettered++;
	if (blocks)
		blocked_add(queue->settings.key, lane->key);
	message_done(message);
	return true;
}

/*
 * Answers
 */

static BatchEntry *
entry_of(Batch *batch, JsonbContainer *item)
{
	int			i = answer_entry(item, batch->nentries);

	return i < 0 ? NULL : &batch->entries[i];
}

static void
read_good_answer(Batch *batch, TimestampTz now)
{
	JsonbContainer *object = json_answer(batch->http.answer, batch->http.answer_len);
	JsonbContainer *list = json_list(object, "Successful");
	const char *failure = NULL;

	for (int i = 0; i < json_list_length(list); i++)
	{
		BatchEntry *entry = entry_of(batch, json_list_item(list, i));
		char	   *md5 = json_text(json_list_item(list, i), "MD5OfMessageBody");

		/* Something on the way has changed it: it is not clear what was accepted. */
		if (entry && *entry->md5 && (md5 == NULL || strcmp(md5, entry->md5) != 0))
			failure = "the MD5 of a body is not that of what was sent";
		else if (entry)
		{
			entry->outcome = OUTCOME_ACCEPTED;
			batch->has_accepted = true;
		}
	}

	list = json_list(object, "Failed");
	for (int i = 0; i < json_list_length(list); i++)
	{
		JsonbContainer *item = json_list_item(list, i);
		BatchEntry *entry = entry_of(batch, item);
		char	   *code = json_text(item, "Code");

		if (entry == NULL || code == NULL || entry->outcome == OUTCOME_ACCEPTED)
			continue;
		printable(entry->code, sizeof(entry->code), sqs_bare_code(code));
		printable(entry->error, sizeof(entry->error), json_text(item, "Message"));
		switch (sqs_fault(code))
		{
			case SQS_FAULT_MESSAGE:
				entry->outcome = OUTCOME_REFUSED;
				break;
			case SQS_FAULT_TRANSIENT:
				entry->outcome = OUTCOME_FAILED;
				break;
			default:
				entry->outcome = OUTCOME_WAITS;
				destination_fault(batch->destination, entry->code, entry->error, "SendMessageBatch", 0, now);
		}
	}

	for (int i = 0; i < batch->nentries && failure == NULL; i++)
	{
		if (batch->entries[i].outcome == OUTCOME_UNKNOWN)
			failure = "the answer does not name a message";
		else if (batch->entries[i].outcome == OUTCOME_FAILED)
			failure = pstrdup(batch->entries[i].code);
	}
	if (batch->has_accepted)
		destination_success(batch->destination, batch->started_at);
	else if (failure)
		destination_failed(batch->destination, "SendMessageBatch", failure, 0, now);
}

/* What became of the messages of a batch; in the order of the entries. */
static void
read_answer(Batch *batch, TimestampTz now)
{
	Answer		answer = destination_answer(batch->destination, &batch->http, "SendMessageBatch",
											batch->generation, now);
	Outcome		outcome = OUTCOME_UNKNOWN;

	batch->destination->nrequests--;
	switch (answer.kind)
	{
		case ANSWER_GOOD:
			read_good_answer(batch, now);
			return;
		case ANSWER_UNKNOWN:
			break;
		case ANSWER_REFUSED:
			outcome = strcmp(answer.code, "BatchRequestTooLong") == 0 && batch->nentries > 1 ?
				OUTCOME_ALONE : OUTCOME_WAITS;
			break;
		case ANSWER_MESSAGE:
			outcome = batch->nentries > 1 ? OUTCOME_ALONE : OUTCOME_REFUSED;
			break;
	}
	for (int i = 0; i < batch->nentries; i++)
	{
		batch->entries[i].outcome = outcome;
		strlcpy(batch->entries[i].code, answer.code, sizeof(batch->entries[i].code));
		strlcpy(batch->entries[i].error, answer.message, sizeof(batch->entries[i].error));
	}
}

static void
batch_free(Batch *batch)
{
	dlist_delete(&batch->in_list);
	destination_end_request(&batch->http);
	MemoryContextDelete(batch->context);
}

/*
 * Rows of what was accepted have been deleted, where that was possible: now see
 * to the lanes. The entries of a lane stand together.
 */
static void
finish_batch(DatabaseSlot *db, Batch *batch, OutboxReader *dirty, TimestampTz now)
{
	for (int i = 0; i < batch->nentries;)
	{
		Lane	   *lane = batch->entries[i].message->lane;
		bool		is_busy = false;
		bool		has_failed = false;
		bool		is_alone = false;
		bool		waits = false;

		for (; i < batch->nentries; i++)
		{
			BatchEntry *entry = &batch->entries[i];
			Message    *message = entry->message;
			bool		again;

			if (message->lane != lane)
				break;
			switch (entry->outcome)
			{
				case OUTCOME_ACCEPTED:
					if (!message->is_accepted)
						count_published(lane->queue, now);
					message->is_accepted = message->may_be_sent = true;
					if (outbox_look_at(dirty, message->id, &message->place) == OUTBOX_GONE)
						message_done(message);
					else
						is_busy = true;
					break;
				case OUTCOME_UNKNOWN:
					message->may_be_sent = true;
					/* Nothing of its lane passes it, whatever becomes of the lane. */
					message->precedence = entry->first_id;
					has_failed = true;
					break;
				case OUTCOME_FAILED:
					has_failed = true;
					message_release(db, message);
					break;
				case OUTCOME_WAITS:
					waits = true;
					/* What it had is gone with it. */
					if (sqs_queue_is_gone(entry->code))
						message->may_be_sent = false;
					message_release(db, message);
					break;
				case OUTCOME_ALONE:
					is_alone = true;
					message_release(db, message);
					break;
				case OUTCOME_REFUSED:
					if (message_refused(message, entry->code, entry->error, batch->has_accepted, &again, now))
						break;
					is_busy |= again;
					waits |= !again;
					message_release(db, message);
					break;
			}
		}

		if (has_failed)
			lane_back_off(lane, now);
		else if (is_busy)
			lane_wait(lane, now + BUSY_RETRY);
		else
		{
			lane->is_alone |= is_alone;
			if (!is_alone && !waits)
			{
				lane->attempts = 0;
				lane->is_alone = false;
			}
			lane_return(lane);
		}
	}
	batch_free(batch);
}

/*
 * Batches
 */

static Batch *
batch_begin(Destination *destination)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "taskoutbox batch",
												  ALLOCSET_DEFAULT_SIZES);
	Batch	   *batch = MemoryContextAllocZero(context, sizeof(Batch));

	batch->context = context;
	batch->destination = destination;
	dlist_push_tail(&batches, &batch->in_list);
	return batch;
}

static char *
column_text(OutboxReader *reader, int column)
{
	char	   *value;

	if (reader->slot->tts_isnull[column - 1])
		return NULL;
	value = TextDatumGetCString(reader->slot->tts_values[column - 1]);
	return pg_server_to_any(value, strlen(value), PG_UTF8);
}

/* As it is counted at enqueue: 27 characters, in UTC. */
static char *
utc_text(TimestampTz time)
{
	struct pg_tm tm;
	fsec_t		fsec;

	if (timestamp2tm(time, NULL, &tm, &fsec, NULL, NULL) != 0)
		return pstrdup("-infinity");
	return psprintf("%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", tm.tm_year, tm.tm_mon, tm.tm_mday,
					tm.tm_hour, tm.tm_min, tm.tm_sec, (int) fsec);
}

static void
read_headers(SqsEntry *entry, Jsonb *headers)
{
	JsonbIterator *it = JsonbIteratorInit(&headers->root);
	JsonbIteratorToken token;
	JsonbValue	value;
	SqsHeader  *list = palloc(JB_ROOT_COUNT(headers) * sizeof(SqsHeader));

	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		char	   *text;

		if (token != WJB_KEY && token != WJB_VALUE)
			continue;
		text = pnstrdup(value.val.string.val, value.val.string.len);
		text = pg_server_to_any(text, value.val.string.len, PG_UTF8);
		if (token == WJB_KEY)
			list[entry->nheaders].name = text;
		else
			list[entry->nheaders++].value = text;
	}
	entry->headers = list;
}

/* The message as SQS gets it, from the row that the reader has. */
static void
read_entry(DatabaseSlot *db, SqsEntry *entry, OutboxReader *reader)
{
	TupleTableSlot *slot = reader->slot;
	OutboxRow	row = outbox_row(reader);
	TimestampTz enqueued_at;
	Jsonb	   *payload;
	char	   *body;
	char	   *own_id;

	memset(entry, 0, sizeof(SqsEntry));
	slot_getsomeattrs(slot, OUTBOX_COLUMNS);
	enqueued_at = DatumGetTimestampTz(slot->tts_values[OUTBOX_ENQUEUED_AT - 1]);
	payload = DatumGetJsonbP(slot->tts_values[OUTBOX_PAYLOAD - 1]);
	body = JsonbToCString(NULL, &payload->root, VARSIZE(payload));
	entry->body = pg_server_to_any(body, strlen(body), PG_UTF8);
	entry->task_type = column_text(reader, OUTBOX_TASK_TYPE);
	entry->task_uid = installation_task_uid(&db->installation, row.first_id, enqueued_at);
	entry->enqueued_at = utc_text(enqueued_at);
	if (!slot->tts_isnull[OUTBOX_HEADERS - 1])
		read_headers(entry, DatumGetJsonbP(slot->tts_values[OUTBOX_HEADERS - 1]));

	/*
	 * Of the row, not of the task: a redriven task would be dropped under an id
	 * that was sent before.
	 */
	own_id = psprintf(RESERVED_PREFIX "%s", installation_task_uid(&db->installation, row.id, enqueued_at));
	entry->group_id = column_text(reader, OUTBOX_GROUP_ID);
	if (entry->group_id == NULL)
		entry->group_id = own_id;
	if (row.first_id == row.id)
		entry->deduplication_id = column_text(reader, OUTBOX_DEDUPLICATION_ID);
	if (entry->deduplication_id == NULL)
		entry->deduplication_id = own_id;
}

static int64
message_limit(const Queue *queue)
{
	return queue->slot->max_message_bytes > 0 ? queue->slot->max_message_bytes : SQS_BATCH_BYTES;
}

typedef enum Added
{
	ADDED,
	ADDED_NOTHING,				/* the lane is returned, or waits */
	ADDED_LATER					/* it goes into another batch */
} Added;

/* Put the first messages of a lane into a batch. */
static Added
add_lane(DatabaseSlot *db, Batch *batch, Lane *lane, OutboxReader *dirty, TimestampTz now)
{
	Queue	   *queue = lane->queue;
	int			most = lane->is_alone || !queue->settings.group_batching ? 1 : SQS_BATCH_ENTRIES;
	bool		is_stopped = lanes_are_stopped(queue);
	int			nadded = 0;
	TimestampTz wait_until = DT_NOBEGIN;
	dlist_mutable_iter iter;

	if (lane->is_alone && batch->nentries > 0)
		return ADDED_LATER;
	dlist_foreach_modify(iter, &lane->messages)
	{
		Message    *message = dlist_container(Message, in_lane, iter.cur);
		MemoryContext old;
		SqsEntry	entry;
		OutboxFate	fate;
		size_t		bytes;
		const char *errstr;
		bool		again;

		if (nadded == most || (is_stopped && !message->may_be_sent))
			break;
		if (batch->nentries == SQS_BATCH_ENTRIES)
		{
			if (nadded == 0)
				return ADDED_LATER;
			break;
		}
		/* The lease first, the row second: see cancel. */
		if (!lease_hold(db, message->id, queue->slot))
		{
			wait_until = now + BUSY_RETRY;
			break;
		}
		fate = outbox_look_at(dirty, message->id, &message->place);
		if (message->is_accepted && fate == OUTBOX_HERE && outbox_delete_published(&message->id, 1))
			fate = OUTBOX_GONE;
		if (fate == OUTBOX_GONE)
		{
			message_done(message);
			continue;
		}
		if (fate == OUTBOX_BUSY || message->is_accepted)
		{
			message_release(db, message);
			wait_until = now + BUSY_RETRY;
			break;
		}
		if (outbox_row(dirty).queue != queue->settings.key)
		{
			OutboxRow	row = outbox_row(dirty);

			/* Its owner has moved it. */
			message_done(message);
			lanes_accept(&row, ROW_NAMED);
			continue;
		}

		old = MemoryContextSwitchTo(batch->context);
		read_entry(db, &entry, dirty);
		MemoryContextSwitchTo(old);
		bytes = sqs_entry_bytes(&entry);
		if (bytes > message_limit(queue))
		{
			if (nadded > 0)
			{
				message_release(db, message);
				break;
			}
			if (message_refused(message, "MessageTooLong",
								psprintf("it has %zu bytes, and the queue in SQS allows " INT64_FORMAT,
										 bytes, message_limit(queue)), false, &again, now))
			{
				/* With on_dead_letter = block, the lane goes no further. */
				if (blocked_group(lane->key))
					break;
				continue;
			}
			message_release(db, message);
			if (again)
				wait_until = now + BUSY_RETRY;
			break;
		}
		if (batch->bytes + bytes > SQS_BATCH_BYTES)
		{
			message_release(db, message);
			if (nadded == 0)
				return ADDED_LATER;
			break;
		}

		batch->sqs[batch->nentries] = entry;
		batch->entries[batch->nentries].message = message;
		batch->entries[batch->nentries].first_id = outbox_row(dirty).first_id;
		if (!pg_md5_hash(entry.body, strlen(entry.body), batch->entries[batch->nentries].md5, &errstr))
			batch->entries[batch->nentries].md5[0] = '\0';
		batch->bytes += bytes;
		batch->nentries++;
		nadded++;
	}

	dlist_delete(&lane->in_backend);
	if (nadded > 0)
	{
		lane->nout = nadded;
		return ADDED;
	}
	if (wait_until != DT_NOBEGIN)
		lane_wait(lane, wait_until);
	else
		lanes_return(lane);
	return ADDED_NOTHING;
}

/*
 * What the batch's entries are called in SQS must not be called so again by new
 * tasks for a while, whatever becomes of these.
 */
static void
keep_deduplication_ids(Batch *batch, TimestampTz now)
{
	Queue	   *queue = batch->destination->queue;
	const char *ids[SQS_BATCH_ENTRIES];
	int			n = 0;

	for (int i = 0; i < batch->nentries; i++)
	{
		if (strncmp(batch->sqs[i].deduplication_id, RESERVED_PREFIX, strlen(RESERVED_PREFIX)) != 0)
			ids[n++] = batch->sqs[i].deduplication_id;
	}
	if (n > 0)
		deduplication_keep(queue->name, ids, n, now + taskoutbox_request_timeout * INT64CONST(1000) +
						   queue->settings.deduplication_window);
}

/*
 * Read the rows of lanes that are to be sent, as far as requests may be started:
 * batches that committed() is to start.
 */
static void
fill_batches(DatabaseSlot *db, Destination *destination, OutboxReader *dirty, TimestampTz now)
{
	int			slots = destination_slots(destination, now);
	bool		is_stopped = lanes_are_stopped(destination->queue);
	const AwsCredentials *credentials;
	dlist_mutable_iter iter;
	Batch	   *batch = NULL;

	if (slots == 0 || destination->nto_send == 0 || is_silent)
		return;
	credentials = destination_credentials(destination, now);
	if (credentials == NULL)
		return;

	dlist_foreach_modify(iter, &destination->to_send)
	{
		Lane	   *lane = dlist_container(Lane, in_backend, iter.cur);
		Added		added = ADDED_LATER;

		if (is_stopped && lane_uncertain(lane) == 0)
			continue;
		if (batch)
			added = add_lane(db, batch, lane, dirty, now);
		if (added == ADDED_LATER)
		{
			if (slots == 0)
				break;
			slots--;
			batch = batch_begin(destination);
			(void) add_lane(db, batch, lane, dirty, now);
		}
		destination->nto_send--;
	}

	dlist_foreach_modify(iter, &batches)
	{
		char	   *body;
		size_t		len;

		batch = dlist_container(Batch, in_list, iter.cur);
		if (batch->destination != destination || batch->started_at != 0)
			continue;
		if (batch->nentries == 0)
		{
			batch_free(batch);
			continue;
		}
		body = sqs_send_message_batch(destination->url, batch->sqs, batch->nentries, &len);
		destination_prepare(destination, &batch->http, "SendMessageBatch", body, len, credentials);
		batch->generation = credentials->generation;
		keep_deduplication_ids(batch, now);
	}
}

/*
 * The backend
 */

/* What the last relay had on its way may have arrived. */
static void
adopt(Queue *queue)
{
	dlist_mutable_iter out;

	dlist_foreach_modify(out, &queue->out)
	{
		Lane	   *lane = dlist_container(Lane, in_queue, out.cur);
		int			nout = lane->nout;
		dlist_iter	iter;

		dlist_foreach(iter, &lane->messages)
		{
			if (nout-- == 0)
				break;
			dlist_container(Message, in_lane, iter.cur)->may_be_sent = true;
		}
		lane_return(lane);
	}
}

static void
retry_now(Queue *queue, TimestampTz now)
{
	dlist_iter	iter;

	destination_of(queue)->next_try = now;
	dlist_foreach(iter, &waiting)
	{
		Lane	   *lane = dlist_container(Lane, in_backend, iter.cur);

		if (lane->queue == queue)
			lane->retry_at = now;
	}
}

static TimestampTz
sqs_settle(DatabaseSlot *db)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next = DT_NOEND;
	OutboxReader *dirty = NULL;
	bool		has_work = false;
	IdArray		accepted = {0};
	dlist_mutable_iter iter;

	is_copy = db->pin == PIN_FOREIGN;
	is_silent = is_copy || !taskoutbox_publish;
	for (int i = 0; i < lane_nqueues; i++)
	{
		Destination *destination = destination_of(&lane_queues[i]);

		if (lane_queues[i].backend != &sqs_backend)
			continue;
		if (!is_adopted)
			adopt(&lane_queues[i]);
		if (queue_slot_requested(lane_queues[i].slot, QUEUE_RETRY_NOW))
			retry_now(&lane_queues[i], now);
		has_work |= destination->nto_send > 0;
	}
	is_adopted = true;

	dlist_foreach_modify(iter, &waiting)
	{
		Lane	   *lane = dlist_container(Lane, in_backend, iter.cur);

		if (lane->retry_at > now)
			continue;
		destination_of(lane->queue)->nwaiting--;
		dlist_delete(&lane->in_backend);
		lane_return(lane);
		has_work = true;
	}

	dlist_foreach_modify(iter, &batches)
	{
		Batch	   *batch = dlist_container(Batch, in_list, iter.cur);

		if (!batch->http.is_done)
			continue;
		read_answer(batch, now);
		for (int i = 0; i < batch->nentries; i++)
		{
			if (batch->entries[i].outcome == OUTCOME_ACCEPTED)
				id_array_add(&accepted, batch->entries[i].message->id);
		}
		has_work = true;
	}
	if (accepted.n > 0)
	{
		(void) outbox_delete_published(accepted.ids, accepted.n);
		pfree(accepted.ids);
	}
	if (has_work)
		dirty = outbox_begin_dirty();
	dlist_foreach_modify(iter, &batches)
	{
		Batch	   *batch = dlist_container(Batch, in_list, iter.cur);

		if (batch->http.is_done)
			finish_batch(db, batch, dirty, now);
	}

	for (int i = 0; i < lane_nqueues; i++)
	{
		if (lane_queues[i].backend != &sqs_backend)
			continue;
		if (!is_silent)
			destination_settle(destination_of(&lane_queues[i]), now);
		if (dirty)
			fill_batches(db, destination_of(&lane_queues[i]), dirty, now);
	}
	if (dirty)
		outbox_end(dirty);

	for (int i = 0; i < lane_nqueues; i++)
	{
		Destination *destination = destination_of(&lane_queues[i]);

		if (lane_queues[i].backend != &sqs_backend)
			continue;
		lane_queues[i].slot->sqs_retrying = destination->nwaiting;
		next = Min(next, destination_next(destination, now));
	}
	dlist_foreach_modify(iter, &waiting)
		next = Min(next, dlist_container(Lane, in_backend, iter.cur)->retry_at);
	return Min(next, sqs_in_flight_settle(db, now));
}

static void
sqs_committed(DatabaseSlot *db)
{
	dlist_iter	iter;

	for (int i = 0; i < done.n; i++)
		lease_drop(db, done.ids[i]);
	done.n = 0;

	dlist_foreach(iter, &batches)
	{
		Batch	   *batch = dlist_container(Batch, in_list, iter.cur);

		if (batch->started_at != 0)
			continue;
		batch->started_at = GetCurrentTimestamp();
		batch->destination->nrequests++;
		http_start(&batch->http);
	}
}

static void
bad_setting(const char *setting, const char *wrong)
{
	if (wrong)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RANGE),
				 errmsg("%s %s", setting, wrong)));
}

static void
sqs_check(const QueueSettings *settings)
{
	if (settings->url == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_MISSING),
				 errmsg("url must be given"),
				 errdetail("A queue with backend \"sqs\" needs the url of a FIFO queue in SQS."),
				 errhint("Pass url => 'https://sqs.REGION.amazonaws.com/ACCOUNT/NAME.fifo'.")));
	bad_setting("url", sqs_check_queue_url(settings->url, settings->allow_http));
	if (settings->endpoint)
		bad_setting("endpoint", sqs_check_endpoint(settings->endpoint, settings->allow_http));
	if (settings->region && !sqs_is_region(settings->region))
		bad_setting("region", "must be the name of a region, like eu-central-1");
	if (settings->deduplication_window < SQS_DEDUPLICATION_WINDOW)
		bad_setting("deduplication_window", "must be at least 5 minutes, for so long SQS tells duplicates");
	destination_check_settings(settings);
}

static int
sqs_room(Queue *queue)
{
	Destination *destination = destination_of(queue);

	if (is_silent)
		return 0;
	return destination_slots(destination, GetCurrentTimestamp()) * SQS_BATCH_ENTRIES - destination->nto_send;
}

static void
sqs_deliver(Queue *queue, Lane *lane, int room)
{
	Destination *destination = destination_of(queue);

	lane->nout = queue->settings.group_batching ? Min(lane->nmessages, Min(room, SQS_BATCH_ENTRIES)) : 1;
	dlist_push_tail(&destination->to_send, &lane->in_backend);
	destination->nto_send++;
	/* The rows are read in the next round. */
	SetLatch(MyLatch);
}

static bool
sqs_wants_news(Queue *queue)
{
	return !lanes_are_stopped(queue) && sqs_room(queue) > 0;
}

static void
sqs_problem(Queue *queue, Problem *problem)
{
	if (is_copy)
	{
		problem->what = "the database is a copy, and its tasks are those of another one";
		problem->remedy = "If they are to be published from here, run SELECT taskoutbox.confirm().";
	}
	else if (is_silent)
	{
		problem->what = "taskoutbox.publish is off on this server";
		problem->remedy = "If this is the server that publishes, set it to on, and reload the configuration.";
	}
	else
		destination_problem(destination_of(queue), problem);
}

const Backend sqs_backend = {
	.name = "sqs",
	.check = sqs_check,
	.configure = destination_configure,
	.settle = sqs_settle,
	.committed = sqs_committed,
	.room = sqs_room,
	.deliver = sqs_deliver,
	.wants_news = sqs_wants_news,
	.problem = sqs_problem
};
