/*
 * sqs_in_flight.c
 *	  Messages of SQS that consumer workers have in hand: the relay renews their
 *	  visibility timeouts.
 *
 * While a controller runs, its process can do nothing else, and a controller may
 * take longer than a visibility timeout. So a worker writes the receipt handles of
 * what it has into its place in shared memory, and the relay, which never waits
 * for anybody, renews them when half of their time is over. When the worker ends,
 * in whatever way, nobody renews them, and SQS gives the messages out again at the
 * end of their visibility timeout. When renewing fails until then, they are lost
 * to the worker, which sees that: no harm is done but that they come again.
 */
#include "taskoutbox.h"
#include "sqs_in_flight.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "json_answer.h"
#include "lane.h"
#include "sqs_destination.h"

/* AWS says 1024; a longer one is not renewed. */
#define HANDLE_BYTES 2048

/* After a failure, try again. */
#define RETRY (1 * USECS_PER_SEC)

typedef struct InFlight
{
	Oid			dboid;
	uint64		queue;			/* queue_key() */
	uint64		batch;			/* differs for each put */
	TimestampTz until;
	TimestampTz renew_at;
	TimestampTz last;
	int64		visibility;
	int			n;
	char		handles[SQS_BATCH_ENTRIES][HANDLE_BYTES];
} InFlight;

/* A request of the relay for what is in one place. */
typedef struct Renewal
{
	HttpRequest http;
	bool		is_out;
	uint64		batch;
	uint64		generation;		/* of the credentials */
	TimestampTz started_at;
} Renewal;

static LWLock *lock = NULL;
static InFlight *places = NULL;
static Renewal *renewals = NULL;

void
sqs_in_flight_init(void)
{
	shared_array("taskoutbox messages of SQS", sizeof(InFlight), (void **) &places, &lock);
}

/*
 * Workers
 */

void
sqs_in_flight_put(int worker, DatabaseSlot *db, uint64 queue, const SqsReceipt *receipts, int n,
				  TimestampTz until, int64 visibility, TimestampTz last)
{
	InFlight   *place = &places[worker];
	bool		wake;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	place->dboid = MyDatabaseId;
	place->queue = queue;
	place->batch++;
	place->until = until;
	place->renew_at = until - visibility / 2;
	place->last = last;
	place->visibility = visibility;
	place->n = 0;
	for (int i = 0; i < n; i++)
	{
		if (strlcpy(place->handles[place->n], receipts[i].handle, HANDLE_BYTES) < HANDLE_BYTES)
			place->n++;
	}
	/* Mostly it looks earlier than that, for what was taken before. */
	wake = place->renew_at < db->next_renewal;
	if (wake)
		db->next_renewal = place->renew_at;
	LWLockRelease(lock);

	if (wake)
		wake_relay(db);
}

void
sqs_in_flight_clear(int worker)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	places[worker].n = 0;
	LWLockRelease(lock);
}

TimestampTz
sqs_in_flight_until(int worker)
{
	TimestampTz until;

	LWLockAcquire(lock, LW_SHARED);
	until = places[worker].until;
	LWLockRelease(lock);

	return until;
}

/*
 * The relay
 */

/* Say once that it does not work, and once that it does again. */
static void
report(const Queue *queue, const char *reason, const char *remedy)
{
	static bool is_failing = false;

	if (reason && !is_failing)
		ereport(LOG,
				(errmsg("taskoutbox queue \"%s\": cannot renew visibility timeouts: %s", queue->name, reason),
				 errhint("%s", remedy)));
	else if (reason == NULL && is_failing)
		ereport(LOG,
				(errmsg("taskoutbox queue \"%s\": visibility timeouts are renewed again", queue->name)));
	is_failing = reason != NULL;
}

/* What the answer means for publishing is not its business: it is tried on a copy. */
static bool
is_renewed(const Queue *queue, Renewal *renewal, TimestampTz now)
{
	Destination destination = *destination_of(queue);
	Answer		answer;

	destination.is_open = false;
	answer = destination_answer(&destination, &renewal->http, "ChangeMessageVisibilityBatch",
								renewal->generation, now);
	if (answer.kind == ANSWER_GOOD)
		report(queue, NULL, NULL);
	else if (destination.is_open)
		report(queue, destination.reason, destination.remedy);
	if (answer.kind != ANSWER_GOOD)
		return false;
	/* None of them when they have been given out to others, or for 12 hours to us. */
	return json_list_length(json_list(json_answer(renewal->http.answer, renewal->http.answer_len), "Successful")) > 0;
}

static void
start(const Queue *queue, const SqsReceipt *receipts, int n, int64 visibility, Renewal *renewal, TimestampTz now)
{
	Destination *destination = destination_of(queue);
	const char *problem;
	TimestampTz next;
	const AwsCredentials *credentials = aws_credentials(now, &problem, &next);
	char	   *body;
	size_t		len;

	if (credentials == NULL || destination->endpoint == NULL || destination->sigv4 == NULL)
		return;
	body = sqs_change_message_visibility_batch(destination->url, receipts, n, &len);
	destination_prepare(destination, &renewal->http, "ChangeMessageVisibilityBatch", body, len, credentials);
	/* So that there is time for another try. */
	renewal->http.timeout_ms = Min(renewal->http.timeout_ms, visibility / 4000);
	renewal->generation = credentials->generation;
	renewal->started_at = now;
	renewal->is_out = true;
	http_start(&renewal->http);
}

/* Take the answer in, and renew again if it is time. */
static void
settle(int worker, TimestampTz now)
{
	InFlight   *place = &places[worker];
	Renewal    *renewal = &renewals[worker];
	Queue	   *queue = place->n > 0 && place->dboid == MyDatabaseId ? lanes_queue(place->queue) : NULL;
	bool		is_ended = renewal->is_out && renewal->http.is_done;
	bool		is_good = false;
	SqsReceipt	receipts[SQS_BATCH_ENTRIES];
	int64		visibility = 0;
	int			n = 0;

	if (queue && queue->backend != &sqs_backend)
		queue = NULL;
	if (is_ended)
	{
		is_good = queue && is_renewed(queue, renewal, now);
		destination_end_request(&renewal->http);
		renewal->is_out = false;
	}
	if (queue == NULL)
		return;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (is_good && place->batch == renewal->batch)
	{
		place->until = renewal->started_at + place->visibility;
		place->renew_at = place->until - place->visibility / 2;
	}
	if (!renewal->is_out && place->renew_at <= now && now < Min(place->until, place->last))
	{
		for (; n < place->n; n++)
		{
			receipts[n].handle = pstrdup(place->handles[n]);
			receipts[n].visibility_seconds = place->visibility / USECS_PER_SEC;
		}
		visibility = place->visibility;
		place->renew_at = now + RETRY;
		renewal->batch = place->batch;
	}
	LWLockRelease(lock);
	if (n > 0)
		start(queue, receipts, n, visibility, renewal, now);
}

TimestampTz
sqs_in_flight_settle(DatabaseSlot *db, TimestampTz now)
{
	TimestampTz next = DT_NOEND;

	if (renewals == NULL)
		renewals = MemoryContextAllocZero(TopMemoryContext, max_worker_processes * sizeof(Renewal));
	for (int i = 0; i < max_worker_processes; i++)
		settle(i, now);

	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < max_worker_processes; i++)
	{
		if (places[i].n > 0 && places[i].dboid == MyDatabaseId && !renewals[i].is_out &&
			now < Min(places[i].until, places[i].last))
			next = Min(next, Max(places[i].renew_at, now + 1000));
	}
	db->next_renewal = next;
	LWLockRelease(lock);
	return next;
}
