/*
 * sqs_destination.h
 *	  A queue in SQS, as the relay sees it: where it is, and whether it takes
 *	  messages now.
 */
#ifndef TASKOUTBOX_SQS_DESTINATION_H
#define TASKOUTBOX_SQS_DESTINATION_H

#include "taskoutbox.h"

#include "utils/jsonb.h"

#include "aws_credentials.h"
#include "backend.h"
#include "http.h"
#include "lane.h"
#include "queue.h"

typedef struct Destination
{
	Queue	   *queue;
	MemoryContext context;		/* of the texts */
	char	   *url;
	char	   *endpoint;
	char	   *sigv4;
	char	   *arn_of_dead_letters;
	char	   *url_of_dead_letters;

	/* the circuit: open, nothing is sent, but for a probe when it is time */
	bool		is_open;
	bool		is_quiet;		/* not worth a word yet */
	bool		opened_by_look;	/* so a look can close it */
	TimestampTz next_try;
	int			failures;		/* to get it closed, in a row */
	char		reason[256];
	char		remedy[256];

	/* what may open it */
	int			unanswered;		/* requests in a row */
	uint64		rejected;		/* generation of credentials that were no good */
	int			rejections;		/* in a row */
	char		fault[64];		/* why messages were refused in a row, and how many */
	int			nfaults;
	uint64		fault_group;

	/* lanes whose first messages are to be sent, and requests that do it */
	dlist_head	to_send;
	int			nto_send;
	int			nwaiting;		/* lanes that wait for their next try */
	int			nrequests;

	/* looking at its attributes */
	HttpRequest look;
	int			look_step;
	uint64		look_generation;
	TimestampTz look_started;
	TimestampTz next_look;
	bool		is_known;		/* it has been looked at, and is all right */
} Destination;

/* The settings are those of its row in the table queue. */
extern void destination_configure(Queue *queue, const QueueSettings *settings);
extern Destination *destination_of(const Queue *queue);

/* Look at the queue's attributes now and then; and when is there something to do? */
extern void destination_settle(Destination *destination, TimestampTz now);
extern TimestampTz destination_next(const Destination *destination, TimestampTz now);

/* How many requests with messages may be started now: max_connections are open at most. */
extern int	destination_slots(const Destination *destination, TimestampTz now);

/* What keeps it from taking messages, as in Backend. */
extern void destination_problem(const Destination *destination, Problem *problem);

/*
 * Credentials, or NULL: not now; then the destination knows why, and when. To be
 * called in a transaction.
 */
extern const AwsCredentials *destination_credentials(Destination *destination, TimestampTz now);

/*
 * Make a request of an operation and a body from malloc (NULL: memory is out),
 * to be started by http_start, and freed by destination_end_request.
 */
extern void destination_prepare(Destination *destination, HttpRequest *request, const char *operation,
								char *body, size_t len, const AwsCredentials *credentials);
extern void destination_end_request(HttpRequest *request);

/* What an answer means for the whole request. */
typedef enum AnswerKind
{
	ANSWER_GOOD,				/* HTTP status 200: to be read */
	ANSWER_UNKNOWN,				/* it may have been carried out, or not */
	ANSWER_REFUSED,				/* not carried out; the destination has taken note */
	ANSWER_MESSAGE				/* not carried out, because of what was in it */
} AnswerKind;

typedef struct Answer
{
	AnswerKind	kind;
	char		code[64];
	char		message[256];	/* printable ASCII */
} Answer;

/*
 * Find that out, and draw the conclusions for the destination: credentials are
 * fetched again, the circuit opens. generation: of the credentials.
 */
extern Answer destination_answer(Destination *destination, HttpRequest *request, const char *operation,
								 uint64 generation, TimestampTz now);

/* An error is the destination's fault, of a request or of one entry of a batch. */
extern void destination_fault(Destination *destination, const char *code, const char *message,
							  const char *operation, int64 retry_after, TimestampTz now);

/*
 * A request failed, and the same again may do better. When that comes too often in
 * a row, or SQS says when to come again (microseconds), the circuit opens.
 */
extern void destination_failed(Destination *destination, const char *operation, const char *why,
							   int64 retry_after, TimestampTz now);

/* A message was accepted, in a request that was started then. */
extern void destination_success(Destination *destination, TimestampTz started_at);

/*
 * A message was refused for its own sake. True: give it up. False: the same
 * happened to messages of other groups, so it is not the message's fault; the
 * circuit is open.
 */
extern bool destination_blames_message(Destination *destination, uint64 group, const char *code,
									   TimestampTz now);

/* Which of a batch's n entries an item of the answer is about; -1: none of them. */
extern int	answer_entry(JsonbContainer *item, int n);

/* Printable ASCII of a peer's text; the result is to. */
extern char *printable(char *to, size_t size, const char *text);

/*
 * Where the queue is: error TO010 when its settings leave the region open, or
 * libcurl is too old. For those who change settings.
 */
extern void destination_check_settings(const QueueSettings *settings);

#endif							/* TASKOUTBOX_SQS_DESTINATION_H */
