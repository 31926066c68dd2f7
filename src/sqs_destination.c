/*
 * sqs_destination.c
 *	  A queue in SQS, as the relay sees it: where it is, and whether it takes
 *	  messages now.
 *
 * What goes wrong is the message's fault, transient, or the destination's
 * (network, credentials, permissions, KMS, quotas, a missing queue). For the
 * latter the queue's circuit opens: its messages wait, untouched and uncounted,
 * and nothing is sent but one request from time to time, after a random pause
 * that doubles each time. The first message that is accepted closes it. A code
 * that blames messages of three groups one after the other opens it, too: a
 * misconfiguration must not make dead letters of a backlog. Before anything is
 * sent to a queue for the first time, and every few minutes, its attributes are
 * read: it must be a FIFO queue with dead letters, and its size limit holds.
 */
#include "taskoutbox.h"
#include "sqs_destination.h"

#include "storage/lwlock.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "json_answer.h"
#include "sqs_protocol.h"

#define CONNECT_TIMEOUT_MS 5000L

/* Read the attributes again after this. */
#define LOOK_INTERVAL (3 * 60 * USECS_PER_SEC)

/* So many requests in a row without an answer are no accident. */
#define UNANSWERED_MAX 5

/* Messages of so many groups refused for the same reason are no accident, either. */
#define FAULTS_MAX 3

/* Throttling that passes sooner is not reported. */
#define QUIET_FAILURES 3

/* AWS refuses signatures when clocks differ by more than 5 minutes. */
#define CLOCK_TOLERANCE_SECONDS 240

enum
{
	LOOK_NONE,
	LOOK_QUEUE,
	LOOK_URL_OF_DEAD_LETTERS,
	LOOK_DEAD_LETTERS,
	LOOK_MOVE					/* no look: redrive */
};

static const char *const look_operations[] = {
	"", "GetQueueAttributes", "GetQueueUrl", "GetQueueAttributes", "StartMessageMoveTask"
};

/*
 * Settings
 */

static const char *
variable(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

/* Where requests go to, in malloc's memory; NULL and *wrong when that is not good. */
static char *
endpoint_of(const QueueSettings *settings, const char **setting, const char **wrong)
{
	const char *ignore = variable("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
	const char *endpoint = settings->endpoint;

	*setting = "url";
	*wrong = sqs_check_queue_url(settings->url, settings->allow_http);
	if (*wrong)
		return NULL;
	*setting = "endpoint";
	if (endpoint == NULL && *taskoutbox_aws_endpoint_url)
	{
		endpoint = taskoutbox_aws_endpoint_url;
		*setting = "taskoutbox.aws_endpoint_url";
	}
	if (endpoint == NULL && !(ignore && pg_strcasecmp(ignore, "true") == 0))
	{
		*setting = variable("AWS_ENDPOINT_URL_SQS") ? "AWS_ENDPOINT_URL_SQS" : "AWS_ENDPOINT_URL";
		endpoint = variable(*setting);
	}
	if (endpoint == NULL)
		return sqs_origin(settings->url);
	*wrong = sqs_check_endpoint(endpoint, settings->allow_http);
	return *wrong ? NULL : sqs_origin(endpoint);
}

/* The region to sign for, in the current memory context; NULL: nobody says it. */
static char *
region_of(const QueueSettings *settings)
{
	char	   *found;
	char	   *result;

	if (settings->region)
		return pstrdup(settings->region);
	/* The name of one of AWS's hosts says where the queue is, whatever the default. */
	found = sqs_region_of_url(settings->url);
	if (found == NULL)
		return aws_region() && sqs_is_region(aws_region()) ? pstrdup(aws_region()) : NULL;
	result = pstrdup(found);
	free(found);
	return result;
}

void
destination_check_settings(const QueueSettings *settings)
{
	if (!http_can_sign())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("backend \"sqs\" needs libcurl 7.86.0 or later"),
				 errdetail("The library that is loaded is %s.", curl_version_info(CURLVERSION_NOW)->version)));
	if (region_of(settings) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_MISSING),
				 errmsg("region must be given"),
				 errdetail("Neither the url nor taskoutbox.aws_region, AWS_REGION or AWS_DEFAULT_REGION says which one it is."),
				 errhint("Pass region => '...'.")));
}

static void
circuit_open(Destination *destination, TimestampTz next_try, const char *remedy, const char *reason)
{
	destination->is_open = true;
	destination->is_quiet = destination->opened_by_look = false;
	destination->failures++;
	destination->next_try = next_try;
	strlcpy(destination->reason, reason, sizeof(destination->reason));
	strlcpy(destination->remedy, remedy, sizeof(destination->remedy));
}

static void
circuit_close(Destination *destination)
{
	destination->is_open = false;
	destination->failures = 0;
	destination->nfaults = 0;
}

static void
circuit_back_off(Destination *destination, TimestampTz now, int64 at_least, const char *remedy, const char *reason)
{
	/* Others were on their way when the first one failed: that is one failure. */
	if (destination->is_open && destination->next_try > now)
		destination->next_try = Max(destination->next_try, now + at_least);
	else
		circuit_open(destination, now + Max(at_least, queue_retry_delay(&destination->queue->settings, destination->failures)),
					 remedy, reason);
}

Destination *
destination_of(const Queue *queue)
{
	return queue->own;
}

void
destination_configure(Queue *queue, const QueueSettings *settings)
{
	Destination *destination = queue->own;
	MemoryContext old;
	const char *setting;
	const char *wrong;
	char	   *origin = endpoint_of(settings, &setting, &wrong);
	char	   *region = region_of(settings);
	char	   *sigv4 = region ? psprintf("aws:amz:%s:sqs", region) : NULL;

	if (destination == NULL)
	{
		queue->own = destination = MemoryContextAllocZero(TopMemoryContext, sizeof(Destination));
		destination->queue = queue;
		dlist_init(&destination->to_send);
		destination->context = AllocSetContextCreate(TopMemoryContext, "taskoutbox destination",
													 ALLOCSET_SMALL_SIZES);
	}
	else if (same_text(destination->url, settings->url) && same_text(destination->endpoint, origin) &&
			 same_text(destination->sigv4, sigv4))
	{
		/* Something else was changed: perhaps what it takes to be all right. */
		free(origin);
		destination->next_look = destination->next_try = DT_NOBEGIN;
		return;
	}

	destination_end_request(&destination->look);
	destination->look_step = LOOK_NONE;
	destination->next_look = DT_NOBEGIN;
	destination->is_known = false;
	circuit_close(destination);
	destination->unanswered = destination->rejections = 0;

	MemoryContextReset(destination->context);
	old = MemoryContextSwitchTo(destination->context);
	destination->url = pstrdup(settings->url);
	destination->endpoint = origin ? pstrdup(origin) : NULL;
	destination->sigv4 = sigv4 ? pstrdup(sigv4) : NULL;
	destination->arn_of_dead_letters = destination->url_of_dead_letters = NULL;
	MemoryContextSwitchTo(old);
	free(origin);

	if (!http_can_sign())
		circuit_open(destination, DT_NOEND, "Update libcurl, and restart the server.",
					 "libcurl is older than 7.86.0, and cannot sign requests");
	else if (wrong)
		circuit_open(destination, DT_NOEND, "Correct it.", psprintf("%s %s", setting, wrong));
	else if (sigv4 == NULL)
		circuit_open(destination, DT_NOEND, "Set region with alter_queue, or taskoutbox.aws_region.",
					 "the region of the queue is not known");
}

/*
 * Requests
 */

const AwsCredentials *
destination_credentials(Destination *destination, TimestampTz now)
{
	const char *problem;
	TimestampTz next;
	const AwsCredentials *credentials = aws_credentials(now, &problem, &next);

	if (problem)
		circuit_open(destination, next,
					 "Set taskoutbox.aws_credentials_file, or give the server's process another of AWS's sources of credentials.",
					 problem);
	return credentials;
}

void
destination_prepare(Destination *destination, HttpRequest *request, const char *operation,
					char *body, size_t len, const AwsCredentials *credentials)
{
	char	   *target = psprintf("X-Amz-Target: AmazonSQS.%s", operation);

	if (body == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	memset(request, 0, sizeof(HttpRequest));
	request->url = destination->endpoint;
	request->body = body;
	request->body_len = len;
	request->connect_timeout_ms = Min(CONNECT_TIMEOUT_MS, taskoutbox_request_timeout);
	request->timeout_ms = taskoutbox_request_timeout;
	request->sigv4 = destination->sigv4;
	request->access_key_id = credentials->keys.access_key_id;
	request->secret_access_key = credentials->keys.secret_access_key;
	/* Nothing else, and nothing empty: libcurl 7.88 signs such headers and does not send them. */
	request->headers = curl_slist_append(NULL, "Content-Type: application/x-amz-json-1.0");
	request->headers = curl_slist_append(request->headers, target);
	request->headers = curl_slist_append(request->headers, "X-Amzn-Query-Mode: true");
	if (*credentials->keys.session_token)
	{
		char	   *token = psprintf("X-Amz-Security-Token: %s", credentials->keys.session_token);

		request->headers = curl_slist_append(request->headers, token);
		pfree(token);
	}
	pfree(target);
}

void
destination_end_request(HttpRequest *request)
{
	http_free(request);
	free((char *) request->body);
	memset(request, 0, sizeof(HttpRequest));
}

char *
printable(char *to, size_t size, const char *text)
{
	size_t		n = 0;

	for (; text && *text && n < size - 1; text++)
		to[n++] = *text >= ' ' && *text <= '~' ? *text : '?';
	to[n] = '\0';
	return to;
}

/*
 * Answers
 */

static void
credentials_refused(Destination *destination, uint64 generation, const char *code, const char *operation,
					TimestampTz now)
{
	/* Other requests with the same ones may still come back. */
	if (generation == destination->rejected)
		return;
	destination->rejected = generation;
	aws_credentials_reject(generation);
	if (destination->rejections++ > 0)
		circuit_back_off(destination, now, 0, sqs_remedy(code),
						 psprintf("%s: SQS refuses the credentials of %s", code, operation));
}

static bool
is_denied(const char *code)
{
	return strncmp(code, "AccessDenied", 12) == 0 || strncmp(code, "NotAuthorized", 13) == 0;
}

void
destination_fault(Destination *destination, const char *code, const char *message, const char *operation,
				  int64 retry_after, TimestampTz now)
{
	const char *remedy = sqs_remedy(code);
	char	   *reason = psprintf("%s: SQS refuses %s", code, operation);

	if (is_denied(code))
		remedy = psprintf("Allow the relay's identity the action sqs:%.*s on the queue, in its IAM policy or in the queue's.",
						  sqs_action_length(operation), operation);
	if (*message && sqs_is_known(code))
		reason = psprintf("%s: %s", reason, message);
	circuit_back_off(destination, now, retry_after, remedy, reason);
	if (sqs_fault(code) == SQS_FAULT_THROTTLED)
		destination->is_quiet = destination->failures < QUIET_FAILURES;
}

void
destination_failed(Destination *destination, const char *operation, const char *why, int64 retry_after,
				   TimestampTz now)
{
	if (++destination->unanswered >= UNANSWERED_MAX || retry_after > 0)
		circuit_back_off(destination, now, retry_after,
						 "Check whether SQS works, and what stands between it and this host.",
						 psprintf("%s fails: %s", operation, why));
}

int
answer_entry(JsonbContainer *item, int n)
{
	char	   *id = json_text(item, "Id");

	return id && id[0] >= '0' && id[0] <= '9' && id[1] == '\0' && id[0] - '0' < n ? id[0] - '0' : -1;
}

static void
put_code(Answer *answer, HttpRequest *request)
{
	JsonbContainer *object = json_answer(request->answer, request->answer_len);
	const char *type = json_text(object, "__type");
	const char *message = json_text(object, "message");

	/* The header has the older name, which policies and documents use, too. */
	printable(answer->code, sizeof(answer->code),
			  type ? sqs_bare_code(type) : request->error_code);
	if (*request->error_code && type && !sqs_is_known(type))
		printable(answer->code, sizeof(answer->code), request->error_code);
	/* One name for each error, in whatever protocol. */
	answer->code[sqs_code_length(answer->code)] = '\0';
	printable(answer->message, sizeof(answer->message),
			  message ? message : json_text(object, "Message"));
}

Answer
destination_answer(Destination *destination, HttpRequest *request, const char *operation,
				   uint64 generation, TimestampTz now)
{
	Answer		answer = {.kind = ANSWER_REFUSED};
	int64		off = request->date == 0 ? 0 : (int64) time(NULL) - request->date;

	if (request->status == 200)
	{
		answer.kind = ANSWER_GOOD;
		return answer;
	}

	if (request->status == 0)
	{
		printable(answer.message, sizeof(answer.message), request->error);
		if (!request->may_have_arrived)
			circuit_back_off(destination, now, 0,
							 "Check the network, the name service, certificates, and the queue's url and endpoint.",
							 psprintf("no connection: %s", answer.message));
		else
		{
			answer.kind = ANSWER_UNKNOWN;
			destination_failed(destination, operation, answer.message, 0, now);
		}
		return answer;
	}

	put_code(&answer, request);
	if (*answer.code == '\0')
	{
		/* Not from SQS, then. */
		answer.kind = ANSWER_UNKNOWN;
		destination_failed(destination, operation,
						   psprintf("HTTP status %ld without an error code of SQS", request->status),
						   request->retry_after, now);
		return answer;
	}

	switch (sqs_fault(answer.code))
	{
		case SQS_FAULT_MESSAGE:
			answer.kind = ANSWER_MESSAGE;
			break;
		case SQS_FAULT_TRANSIENT:
			answer.kind = ANSWER_UNKNOWN;
			destination_failed(destination, operation, answer.code, request->retry_after, now);
			break;
		case SQS_FAULT_SIGNATURE:
			if (off > CLOCK_TOLERANCE_SECONDS || off < -CLOCK_TOLERANCE_SECONDS)
			{
				circuit_back_off(destination, now, 0, "Set the clock, and keep it right (NTP).",
								 psprintf("%s: clock of this host is off by " INT64_FORMAT " s", answer.code, off));
				break;
			}
			/* FALLTHROUGH */
		case SQS_FAULT_CREDENTIALS:
			credentials_refused(destination, generation, answer.code, operation, now);
			break;
		case SQS_FAULT_THROTTLED:
		case SQS_FAULT_DESTINATION:
			destination_fault(destination, answer.code, answer.message, operation, request->retry_after, now);
			break;
	}
	return answer;
}

void
destination_success(Destination *destination, TimestampTz started_at)
{
	destination->unanswered = destination->rejections = 0;
	/* What was on its way before it opened says nothing about it. */
	if (!destination->is_open)
		destination->nfaults = 0;
	else if (started_at >= destination->next_try)
		circuit_close(destination);
}

bool
destination_blames_message(Destination *destination, uint64 group, const char *code, TimestampTz now)
{
	bool		is_other = destination->nfaults == 0 || group == 0 || group != destination->fault_group;

	if (strcmp(destination->fault, code) != 0)
		destination->nfaults = 0;
	strlcpy(destination->fault, code, sizeof(destination->fault));
	destination->nfaults += is_other;
	destination->fault_group = group;
	if (destination->nfaults < FAULTS_MAX)
		return true;
	circuit_back_off(destination, now, 0,
					 "If the queue's settings in SQS are right, purge or cancel these tasks; they are kept until then.",
					 psprintf("%s: messages of %d groups in a row were refused, so it is hardly their fault",
							  code, FAULTS_MAX));
	return false;
}

/*
 * Looking at the attributes
 */

static int64
figure(JsonbContainer *attributes, const char *name)
{
	char	   *text = json_text(attributes, name);

	return text ? strtoll(text, NULL, 10) : -1;
}

static void
put_figures(Destination *destination, JsonbContainer *attributes)
{
	QueueSlot  *slot = destination->queue->slot;
	int64		limit = figure(attributes, "MaximumMessageSize");

	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	slot->max_message_bytes = limit > 0 && limit <= SQS_BATCH_BYTES ? limit : 0;
	slot->sqs_visible = figure(attributes, "ApproximateNumberOfMessages");
	slot->sqs_in_flight = figure(attributes, "ApproximateNumberOfMessagesNotVisible");
	slot->sqs_looked_at = GetCurrentTimestamp();
	if (destination->url_of_dead_letters == NULL)
		slot->sqs_dead_letters = -1;
	LWLockRelease(shared->lease_lock);
}

static void
start_look(Destination *destination, int step, TimestampTz now)
{
	bool		was_closed = !destination->is_open || destination->opened_by_look;
	const AwsCredentials *credentials = destination_credentials(destination, now);
	char	   *body;
	size_t		len;

	if (credentials == NULL)
	{
		destination->opened_by_look = was_closed && destination->is_open;
		return;
	}
	if (step == LOOK_URL_OF_DEAD_LETTERS)
		body = sqs_get_queue_url(destination->arn_of_dead_letters, &len);
	else if (step == LOOK_MOVE)
		body = sqs_start_message_move_task(destination->arn_of_dead_letters, &len);
	else
		body = sqs_get_queue_attributes(step == LOOK_QUEUE ? destination->url : destination->url_of_dead_letters, &len);
	destination_prepare(destination, &destination->look, look_operations[step], body, len, credentials);
	destination->look_step = step;
	destination->look_generation = credentials->generation;
	destination->look_started = now;
	http_start(&destination->look);
}

/* Is it a queue that we can publish to? */
static void
look_at_queue(Destination *destination, TimestampTz now)
{
	bool		require_dlq = destination->queue->settings.require_dlq;
	bool		was_closed = !destination->is_open || destination->opened_by_look;
	Answer		answer = destination_answer(destination, &destination->look, "GetQueueAttributes",
											destination->look_generation, now);
	JsonbContainer *attributes = NULL;
	char	   *redrive;
	char	   *arn;

	destination->next_look = now + LOOK_INTERVAL;
	if (answer.kind == ANSWER_GOOD)
	{
		JsonbContainer *object = json_answer(destination->look.answer, destination->look.answer_len);

		attributes = json_member(object, "Attributes");
	}
	if (attributes == NULL)
	{
		/* All that we do without, if need be, is the limit and some figures. */
		if (is_denied(answer.code) && !require_dlq)
		{
			if (!destination->is_known)
				ereport(LOG,
						(errmsg("taskoutbox queue \"%s\": the relay may not read the attributes of the queue in SQS",
								destination->queue->name),
						 errhint("Allow its identity the action sqs:GetQueueAttributes.")));
			destination->is_known = true;
			circuit_close(destination);
		}
		else if (answer.kind == ANSWER_GOOD)
			circuit_back_off(destination, now, 0, "Check the endpoint, and what stands between this host and SQS.",
							 "the answer to GetQueueAttributes cannot be read");
		else if (!destination->is_known && !destination->is_open)
			circuit_back_off(destination, now, 0, "Check the network, and whether SQS works.",
							 psprintf("GetQueueAttributes failed: %s", *answer.code ? answer.code : answer.message));
		destination->opened_by_look = was_closed && destination->is_open;
		return;
	}

	if (!same_text(json_text(attributes, "FifoQueue"), "true"))
	{
		destination->is_known = false;
		circuit_back_off(destination, now, 0, "Pass the url of a FIFO queue to alter_queue.",
						 "the queue in SQS is not a FIFO queue");
		return;
	}
	redrive = json_text(attributes, "RedrivePolicy");
	arn = redrive ? json_text(json_answer(redrive, strlen(redrive)), "deadLetterTargetArn") : NULL;
	if (arn == NULL && require_dlq)
	{
		destination->is_known = false;
		circuit_back_off(destination, now, 0,
						 "Give it a dead-letter queue (RedrivePolicy), or accept that with alter_queue(require_dlq => false).",
						 "the queue in SQS has no dead-letter queue");
		return;
	}

	put_figures(destination, attributes);
	if (!destination->is_known || destination->opened_by_look)
	{
		destination->is_known = true;
		circuit_close(destination);
	}
	if (!same_text(arn, destination->arn_of_dead_letters))
	{
		destination->arn_of_dead_letters = arn ? MemoryContextStrdup(destination->context, arn) : NULL;
		destination->url_of_dead_letters = NULL;
	}
}

/* What became of a redrive, for queue_metrics and the log. */
static void
report_redrive(Destination *destination, const char *what, const char *hint)
{
	ereport(LOG,
			(errmsg("taskoutbox queue \"%s\": redrive of its dead letters in SQS %s", destination->queue->name, what),
			 hint ? errhint("%s", hint) : 0));
	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	snprintf(destination->queue->slot->sqs_redrive, sizeof(destination->queue->slot->sqs_redrive), "%s: %s",
			 timestamptz_to_str(GetCurrentTimestamp()), what);
	LWLockRelease(shared->lease_lock);
}

static void
redrive_done(Destination *destination)
{
	HttpRequest *request = &destination->look;
	Answer		answer = {0};

	if (request->status == 200)
		report_redrive(destination, "has begun", NULL);
	else if (request->status == 0)
		report_redrive(destination, "failed: there was no answer", "Ask for it again.");
	else
	{
		put_code(&answer, request);
		report_redrive(destination, psprintf("failed: %s", answer.code), is_denied(answer.code) ?
					   "Allow the relay's identity the actions sqs:StartMessageMoveTask, sqs:ReceiveMessage and sqs:DeleteMessage on the dead-letter queue, and sqs:SendMessage on the queue." :
					   NULL);
	}
}

/* A request ended; returns what to ask next. */
static int
look_done(Destination *destination, TimestampTz now)
{
	HttpRequest *look = &destination->look;
	JsonbContainer *object;

	if (destination->look_step == LOOK_MOVE)
	{
		redrive_done(destination);
		return LOOK_NONE;
	}
	if (destination->look_step == LOOK_QUEUE)
	{
		look_at_queue(destination, now);
		if (!destination->is_known || destination->arn_of_dead_letters == NULL)
			return LOOK_NONE;
		return destination->url_of_dead_letters ? LOOK_DEAD_LETTERS : LOOK_URL_OF_DEAD_LETTERS;
	}

	/* Figures of the dead letters are not worth a word when there are none. */
	object = look->status == 200 ? json_answer(look->answer, look->answer_len) : NULL;
	if (destination->look_step == LOOK_URL_OF_DEAD_LETTERS)
	{
		char	   *url = json_text(object, "QueueUrl");

		if (url == NULL)
			return LOOK_NONE;
		destination->url_of_dead_letters = MemoryContextStrdup(destination->context, url);
		return LOOK_DEAD_LETTERS;
	}
	LWLockAcquire(shared->lease_lock, LW_EXCLUSIVE);
	destination->queue->slot->sqs_dead_letters =
		figure(json_member(object, "Attributes"), "ApproximateNumberOfMessages");
	LWLockRelease(shared->lease_lock);
	return LOOK_NONE;
}

/* The configuration is good enough to ask somebody. */
static bool
can_look(const Destination *destination)
{
	return destination->endpoint && destination->sigv4 && http_can_sign();
}

/* A look is what can close the circuit, if it is open. */
static bool
look_is_probe(const Destination *destination)
{
	return destination->is_open && (!destination->is_known || destination->opened_by_look);
}

static bool
look_is_due(const Destination *destination, TimestampTz now)
{
	return (look_is_probe(destination) ? destination->next_try : destination->next_look) <= now;
}

static bool
redrive_is_due(const Destination *destination)
{
	return destination->is_known && destination->queue->slot->requested[QUEUE_REDRIVE];
}

/* What to ask now. */
static int
next_step(Destination *destination, TimestampTz now)
{
	if (destination->nrequests >= destination->queue->settings.max_connections)
		return LOOK_NONE;
	if (look_is_due(destination, now))
		return LOOK_QUEUE;
	if (redrive_is_due(destination) && queue_slot_requested(destination->queue->slot, QUEUE_REDRIVE))
	{
		if (destination->arn_of_dead_letters)
			return LOOK_MOVE;
		report_redrive(destination, "is not possible: it has none", NULL);
	}
	return LOOK_NONE;
}

void
destination_settle(Destination *destination, TimestampTz now)
{
	int			step = LOOK_NONE;

	if (!can_look(destination))
		return;
	if (destination->look_step != LOOK_NONE)
	{
		if (!destination->look.is_done)
			return;
		step = look_done(destination, now);
		destination_end_request(&destination->look);
		destination->look_step = LOOK_NONE;
	}
	if (step == LOOK_NONE)
		step = next_step(destination, now);
	if (step != LOOK_NONE)
		start_look(destination, step, now);
}

TimestampTz
destination_next(const Destination *destination, TimestampTz now)
{
	TimestampTz next = DT_NOEND;

	if (!can_look(destination))
		return DT_NOEND;
	/* What is past waits for something else: an answer, credentials, a message. */
	if (destination->is_open && destination->next_try > now)
		next = destination->next_try;
	if (destination->next_look > now)
		next = Min(next, destination->next_look);
	return next;
}

int
destination_slots(const Destination *destination, TimestampTz now)
{
	int			busy;

	if (!destination->is_known)
		return 0;
	if (destination->is_open)
		return destination->nrequests == 0 && destination->next_try <= now ? 1 : 0;
	busy = destination->nrequests;
	/* What is asked besides takes a connection, too. */
	if (destination->look_step != LOOK_NONE || look_is_due(destination, now) || redrive_is_due(destination))
		busy++;
	return Max(0, destination->queue->settings.max_connections - busy);
}

void
destination_problem(const Destination *destination, Problem *problem)
{
	if (destination->is_open && !destination->is_quiet)
	{
		problem->what = destination->reason;
		problem->remedy = destination->remedy;
		problem->next_try = destination->next_try;
	}
	/* Before the first look nobody knows. */
	else if (!destination->is_known && !destination->is_open)
		problem->what = NULL;
}
