/*
 * sqs_protocol.h
 *	  What is said to SQS, and what its errors mean. No server code: see
 *	  sqs_protocol.c.
 */
#ifndef TASKOUTBOX_SQS_PROTOCOL_H
#define TASKOUTBOX_SQS_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>

/* Limits of SendMessageBatch: entries, and bytes of all of them. */
#define SQS_BATCH_ENTRIES 10
#define SQS_BATCH_BYTES 1048576

/* Header that travels as the system attribute AWSTraceHeader, in any case. */
#define SQS_TRACE_HEADER "X-Amzn-Trace-Id"

typedef struct SqsHeader
{
	const char *name;
	const char *value;
} SqsHeader;

/* One message. All texts are UTF-8. The Id of an entry is its place in the batch. */
typedef struct SqsEntry
{
	const char *body;
	const char *group_id;
	const char *deduplication_id;
	const char *task_type;
	const char *task_uid;
	const char *enqueued_at;
	const SqsHeader *headers;
	int			nheaders;
} SqsEntry;

/* Bytes that count against the limits: body and attributes, not the JSON around. */
extern size_t sqs_entry_bytes(const SqsEntry *entry);

/* Bodies of requests, to be freed by free(); NULL when memory is out. */
extern char *sqs_send_message_batch(const char *queue_url, const SqsEntry *entries, int n, size_t *len);
extern char *sqs_get_queue_attributes(const char *queue_url, size_t *len);
extern char *sqs_get_queue_url(const char *arn, size_t *len);	/* NULL also for a bad arn */
extern char *sqs_start_message_move_task(const char *source_arn, size_t *len);

/* attempt_id: the same again brings what an answer that was lost has brought. */
extern char *sqs_receive_message(const char *queue_url, int max, int wait_seconds, int visibility_seconds,
								 const char *attempt_id, size_t *len);

/* Messages that were received; visibility_seconds is for ChangeMessageVisibilityBatch. */
typedef struct SqsReceipt
{
	const char *handle;
	int			visibility_seconds;
} SqsReceipt;

extern char *sqs_delete_message_batch(const char *queue_url, const SqsReceipt *receipts, int n, size_t *len);
extern char *sqs_change_message_visibility_batch(const char *queue_url, const SqsReceipt *receipts, int n,
												 size_t *len);

/* What an error is about. */
typedef enum SqsFault
{
	SQS_FAULT_MESSAGE,			/* this message will never be accepted, or is not ours any more */
	SQS_FAULT_TRANSIENT,		/* the same again will do */
	SQS_FAULT_THROTTLED,		/* too fast */
	SQS_FAULT_CREDENTIALS,		/* fetch them again */
	SQS_FAULT_SIGNATURE,		/* wrong secret, or a wrong clock */
	SQS_FAULT_DESTINATION		/* all else: it has to be mended, wherever */
} SqsFault;

/* By the code alone, in either protocol's spelling, with or without a prefix. */
extern SqsFault sqs_fault(const char *code);

/* Whether we know the code at all. */
extern bool sqs_is_known(const char *code);

/* The code says that there is no such queue. */
extern bool sqs_queue_is_gone(const char *code);

/* The code without what stands before the last '#'. */
extern const char *sqs_bare_code(const char *code);

/* The length of a bare code without a final "Exception", which one protocol adds. */
extern size_t sqs_code_length(const char *code);

/* The length of the action that IAM knows for an operation: the same for batches. */
extern int	sqs_action_length(const char *operation);

/* What to do about an error of the destination or the credentials; never NULL. */
extern const char *sqs_remedy(const char *code);

/*
 * Urls. Returns NULL, or what is wrong, to follow the name of the setting: "must
 * be ...". Http is allowed to this host alone, unless allow_http.
 */
extern const char *sqs_check_queue_url(const char *url, bool allow_http);
extern const char *sqs_check_endpoint(const char *url, bool allow_http);

/* Https, or http on this host: nobody else can listen. */
extern bool sqs_is_private_url(const char *url);

/* "https://host:port/" of a valid url, to be freed by free(). */
extern char *sqs_origin(const char *url);

/*
 * The region in the name of one of AWS's own hosts, to be freed by free(); NULL
 * when it is not one of those.
 */
extern char *sqs_region_of_url(const char *url);

/* A name that can be a region. */
extern bool sqs_is_region(const char *region);

#endif							/* TASKOUTBOX_SQS_PROTOCOL_H */
