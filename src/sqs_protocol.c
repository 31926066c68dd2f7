/*
 * sqs_protocol.c
 *	  What is said to SQS (its JSON protocol), and what its errors mean.
 *
 * Every error has a code, and the code alone tells what to do: HTTP statuses do
 * not (throttling comes with 400, 403 and 503). A code that is not known here is
 * the destination's fault: the queue then waits and says so, which loses nothing
 * and can be mended, while a message that was given up wrongly is work for a
 * human. This file knows nothing of the server, so that it can be tested alone.
 */
#define _POSIX_C_SOURCE 200809L /* open_memstream, strndup */

#include "sqs_protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <curl/curl.h>

/* 1 to 64 letters, digits, hyphens: also libcurl's limit in a signature. */
#define REGION_MAX 64

/* Something stands before the end, too. */
static bool
ends_with(const char *text, const char *end)
{
	size_t		len = strlen(text);

	return len > strlen(end) && strcmp(text + len - strlen(end), end) == 0;
}

/*
 * Requests
 */

static void
put_string(FILE *out, const char *utf8)
{
	fputc('"', out);
	for (const char *at = utf8; *at; at++)
	{
		if (*at == '"' || *at == '\\')
			fprintf(out, "\\%c", *at);
		else if ((unsigned char) *at < 0x20)
			fprintf(out, "\\u%04x", (unsigned char) *at);
		else
			fputc(*at, out);
	}
	fputc('"', out);
}

static void
put_field(FILE *out, const char *before, const char *name, const char *value)
{
	fprintf(out, "%s\"%s\":", before, name);
	put_string(out, value);
}

static void
put_attribute(FILE *out, const char *before, const char *name, const char *value)
{
	fputs(before, out);
	put_string(out, name);
	put_field(out, ":{", "DataType", "String");
	put_field(out, ",", "StringValue", value);
	fputc('}', out);
}

static bool
is_trace_header(const SqsHeader *header)
{
	return strcasecmp(header->name, SQS_TRACE_HEADER) == 0;
}

/* A request begins with one of its fields; NULL when there is no memory. */
static FILE *
begin(const char *name, const char *value, char **text, size_t *len)
{
	FILE	   *out = open_memstream(text, len);

	if (out)
		put_field(out, "{", name, value);
	return out;
}

/* Close what begin has opened; NULL when something failed. */
static char *
finish(FILE *out, char **text, size_t *len)
{
	bool		failed = ferror(out);

	if (fclose(out) != 0 || failed)
	{
		free(*text);
		return NULL;
	}
	*len = strlen(*text);
	return *text;
}

static size_t
attribute_bytes(const char *name, const char *value)
{
	return strlen(name) + strlen("String") + strlen(value);
}

size_t
sqs_entry_bytes(const SqsEntry *entry)
{
	size_t		bytes = strlen(entry->body) +
		attribute_bytes("task_type", entry->task_type) +
		attribute_bytes("task_uid", entry->task_uid) +
		attribute_bytes("enqueued_at", entry->enqueued_at);

	for (int i = 0; i < entry->nheaders; i++)
	{
		if (!is_trace_header(&entry->headers[i]))
			bytes += attribute_bytes(entry->headers[i].name, entry->headers[i].value);
	}
	return bytes;
}

char *
sqs_send_message_batch(const char *queue_url, const SqsEntry *entries, int n, size_t *len)
{
	char	   *text = NULL;
	FILE	   *out = begin("QueueUrl", queue_url, &text, len);

	if (out == NULL)
		return NULL;
	fputs(",\"Entries\":", out);
	for (int i = 0; i < n; i++)
	{
		const SqsEntry *entry = &entries[i];
		const char *trace = NULL;

		fprintf(out, "%s{\"Id\":\"%d\"", i == 0 ? "[" : ",", i);
		put_field(out, ",", "MessageBody", entry->body);
		put_field(out, ",", "MessageGroupId", entry->group_id);
		put_field(out, ",", "MessageDeduplicationId", entry->deduplication_id);
		fputs(",\"MessageAttributes\":", out);
		put_attribute(out, "{", "task_type", entry->task_type);
		put_attribute(out, ",", "task_uid", entry->task_uid);
		put_attribute(out, ",", "enqueued_at", entry->enqueued_at);
		for (int j = 0; j < entry->nheaders; j++)
		{
			if (is_trace_header(&entry->headers[j]))
				trace = entry->headers[j].value;
			else
				put_attribute(out, ",", entry->headers[j].name, entry->headers[j].value);
		}
		fputc('}', out);
		if (trace)
		{
			fputs(",\"MessageSystemAttributes\":", out);
			put_attribute(out, "{", "AWSTraceHeader", trace);
			fputc('}', out);
		}
		fputc('}', out);
	}
	fputs("]}", out);
	return finish(out, &text, len);
}

char *
sqs_get_queue_attributes(const char *queue_url, size_t *len)
{
	char	   *text = NULL;
	FILE	   *out = begin("QueueUrl", queue_url, &text, len);

	if (out == NULL)
		return NULL;
	fputs(",\"AttributeNames\":[\"All\"]}", out);
	return finish(out, &text, len);
}

/* arn:PARTITION:sqs:REGION:ACCOUNT:NAME */
char *
sqs_get_queue_url(const char *arn, size_t *len)
{
	char	   *text = NULL;
	FILE	   *out;
	const char *part = arn;
	const char *account = NULL;
	char		owner[32];

	for (int i = 0; i < 5; i++)
	{
		account = part;
		part = strchr(part, ':');
		if (part++ == NULL)
			return NULL;
	}
	if (part - account - 1 <= 0 || part - account > (ptrdiff_t) sizeof(owner) || *part == '\0')
		return NULL;
	memcpy(owner, account, part - account - 1);
	owner[part - account - 1] = '\0';

	out = begin("QueueName", part, &text, len);
	if (out == NULL)
		return NULL;
	put_field(out, ",", "QueueOwnerAWSAccountId", owner);
	fputc('}', out);
	return finish(out, &text, len);
}

char *
sqs_start_message_move_task(const char *source_arn, size_t *len)
{
	char	   *text = NULL;
	FILE	   *out = begin("SourceArn", source_arn, &text, len);

	if (out == NULL)
		return NULL;
	fputc('}', out);
	return finish(out, &text, len);
}

char *
sqs_receive_message(const char *queue_url, int max, int wait_seconds, int visibility_seconds,
					const char *attempt_id, size_t *len)
{
	char	   *text = NULL;
	FILE	   *out = begin("QueueUrl", queue_url, &text, len);

	if (out == NULL)
		return NULL;
	fprintf(out, ",\"MaxNumberOfMessages\":%d,\"WaitTimeSeconds\":%d,\"VisibilityTimeout\":%d",
			max, wait_seconds, visibility_seconds);
	put_field(out, ",", "ReceiveRequestAttemptId", attempt_id);
	/* What came later has a new name for the old one, and each knows only its own. */
	fputs(",\"AttributeNames\":[\"All\"],\"MessageSystemAttributeNames\":[\"All\"],"
		  "\"MessageAttributeNames\":[\"All\"]}", out);
	return finish(out, &text, len);
}

static char *
batch_of_receipts(const char *queue_url, const SqsReceipt *receipts, int n, bool has_visibility, size_t *len)
{
	char	   *text = NULL;
	FILE	   *out = begin("QueueUrl", queue_url, &text, len);

	if (out == NULL)
		return NULL;
	fputs(",\"Entries\":", out);
	for (int i = 0; i < n; i++)
	{
		fprintf(out, "%s{\"Id\":\"%d\"", i == 0 ? "[" : ",", i);
		put_field(out, ",", "ReceiptHandle", receipts[i].handle);
		if (has_visibility)
			fprintf(out, ",\"VisibilityTimeout\":%d", receipts[i].visibility_seconds);
		fputc('}', out);
	}
	fputs("]}", out);
	return finish(out, &text, len);
}

char *
sqs_delete_message_batch(const char *queue_url, const SqsReceipt *receipts, int n, size_t *len)
{
	return batch_of_receipts(queue_url, receipts, n, false, len);
}

char *
sqs_change_message_visibility_batch(const char *queue_url, const SqsReceipt *receipts, int n, size_t *len)
{
	return batch_of_receipts(queue_url, receipts, n, true, len);
}

/*
 * Errors
 */

static const struct
{
	const char *code;			/* without a final "Exception" */
	SqsFault	fault;
	const char *remedy;			/* NULL: the one for all that is not known */
}			faults[] =
{
	{"InvalidMessageContents", SQS_FAULT_MESSAGE, NULL},
	{"InvalidParameterValue", SQS_FAULT_MESSAGE, NULL},
	{"MissingParameter", SQS_FAULT_MESSAGE, NULL},
	{"MissingRequiredParameter", SQS_FAULT_MESSAGE, NULL},
	{"ReceiptHandleIsInvalid", SQS_FAULT_MESSAGE, NULL},
	{"MessageNotInflight", SQS_FAULT_MESSAGE, NULL},
	{"AWS.SimpleQueueService.MessageNotInflight", SQS_FAULT_MESSAGE, NULL},

	{"InternalFailure", SQS_FAULT_TRANSIENT, NULL},
	{"InternalError", SQS_FAULT_TRANSIENT, NULL},
	{"InternalServerError", SQS_FAULT_TRANSIENT, NULL},
	{"ServiceUnavailable", SQS_FAULT_TRANSIENT, NULL},
	{"RequestTimeout", SQS_FAULT_TRANSIENT, NULL},
	{"PriorRequestNotComplete", SQS_FAULT_TRANSIENT, NULL},

#define SLOW "SQS asks for a lower rate; nothing needs to be done if it passes."
	{"Throttling", SQS_FAULT_THROTTLED, SLOW},
	{"Throttled", SQS_FAULT_THROTTLED, SLOW},
	{"RequestThrottled", SQS_FAULT_THROTTLED, SLOW},
	{"TooManyRequests", SQS_FAULT_THROTTLED, SLOW},
	{"RequestLimitExceeded", SQS_FAULT_THROTTLED, SLOW},
	{"BandwidthLimitExceeded", SQS_FAULT_THROTTLED, SLOW},
	{"LimitExceeded", SQS_FAULT_THROTTLED, SLOW},
	{"SlowDown", SQS_FAULT_THROTTLED, SLOW},
	{"OverLimit", SQS_FAULT_THROTTLED, SLOW},
	{"KmsThrottled", SQS_FAULT_THROTTLED, "KMS asks for a lower rate; raise its request quota, or the queue's KmsDataKeyReusePeriodSeconds, if it does not pass."},

	{"ExpiredToken", SQS_FAULT_CREDENTIALS, "The temporary AWS credentials have expired, and fetching them again gave no newer ones."},
	{"UnrecognizedClient", SQS_FAULT_CREDENTIALS, "AWS does not know the access key: check the credentials that the relay uses."},
	{"InvalidClientTokenId", SQS_FAULT_CREDENTIALS, "AWS does not know the access key: check the credentials that the relay uses."},
	{"MissingAuthenticationToken", SQS_FAULT_CREDENTIALS, "Check the credentials that the relay uses."},
	{"IncompleteSignature", SQS_FAULT_CREDENTIALS, "Check the credentials that the relay uses, and whether a proxy changes requests."},

#define SIGNATURE "Check the secret access key and the region."
	{"InvalidSignature", SQS_FAULT_SIGNATURE, SIGNATURE},
	{"SignatureDoesNotMatch", SQS_FAULT_SIGNATURE, SIGNATURE},
	{"RequestTimeTooSkewed", SQS_FAULT_SIGNATURE, SIGNATURE},
	{"RequestInTheFuture", SQS_FAULT_SIGNATURE, SIGNATURE},
	{"RequestExpired", SQS_FAULT_SIGNATURE, SIGNATURE},
	{"AuthFailure", SQS_FAULT_SIGNATURE, SIGNATURE},

#define QUEUE "Check the queue's url and region, or create the queue in SQS."
	{"QueueDoesNotExist", SQS_FAULT_DESTINATION, QUEUE},
	{"AWS.SimpleQueueService.NonExistentQueue", SQS_FAULT_DESTINATION, QUEUE},
	{"NonExistentQueue", SQS_FAULT_DESTINATION, QUEUE},
	{"QueueDeletedRecently", SQS_FAULT_DESTINATION, QUEUE},
	{"InvalidAddress", SQS_FAULT_DESTINATION, QUEUE},

#define ACCESS "Allow the relay's identity the actions sqs:SendMessage and sqs:GetQueueAttributes on the queue, in its IAM policy or the queue's."
	{"AccessDenied", SQS_FAULT_DESTINATION, ACCESS},
	{"NotAuthorized", SQS_FAULT_DESTINATION, ACCESS},
	{"AWS.SimpleQueueService.UnsupportedOperation", SQS_FAULT_DESTINATION, NULL},
	{"InvalidSecurity", SQS_FAULT_DESTINATION, "Use an https url: SQS refuses requests that are not encrypted."},
	{"OptInRequired", SQS_FAULT_DESTINATION, "Enable the service or the region for the AWS account."},

#define KMS "Check the queue's KMS key, and allow the relay's identity kms:GenerateDataKey and kms:Decrypt on it."
	{"KmsAccessDenied", SQS_FAULT_DESTINATION, KMS},
	{"KmsDisabled", SQS_FAULT_DESTINATION, KMS},
	{"KmsNotFound", SQS_FAULT_DESTINATION, KMS},
	{"KmsInvalidState", SQS_FAULT_DESTINATION, KMS},
	{"KmsInvalidKeyUsage", SQS_FAULT_DESTINATION, KMS},
	{"KmsOptInRequired", SQS_FAULT_DESTINATION, KMS},
};

#define REMEDY_UNKNOWN "See the code in the documentation of SQS; tasks are kept until it passes."

const char *
sqs_bare_code(const char *code)
{
	const char *hash = strrchr(code, '#');

	return hash ? hash + 1 : code;
}

size_t
sqs_code_length(const char *code)
{
	return strlen(code) - (ends_with(code, "Exception") ? strlen("Exception") : 0);
}

int
sqs_action_length(const char *operation)
{
	return (int) (strlen(operation) - (ends_with(operation, "Batch") ? strlen("Batch") : 0));
}

static int
find_code(const char *code)
{
	size_t		len;

	code = sqs_bare_code(code);
	len = sqs_code_length(code);
	/* Query names of KMS errors, and some others, have this before them. */
	if (len > 4 && strncmp(code, "KMS.", 4) == 0)
		code += 4, len -= 4;
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
	{
		if (strlen(faults[i].code) == len && strncmp(faults[i].code, code, len) == 0)
			return (int) i;
	}
	return -1;
}

bool
sqs_queue_is_gone(const char *code)
{
	return strcmp(sqs_bare_code(code), "QueueDoesNotExist") == 0 || strstr(code, "NonExistentQueue");
}

bool
sqs_is_known(const char *code)
{
	return find_code(code) >= 0;
}

SqsFault
sqs_fault(const char *code)
{
	int			i = find_code(code);

	return i < 0 ? SQS_FAULT_DESTINATION : faults[i].fault;
}

const char *
sqs_remedy(const char *code)
{
	int			i = find_code(code);

	return i < 0 || faults[i].remedy == NULL ? REMEDY_UNKNOWN : faults[i].remedy;
}

/*
 * Urls
 */

static bool
is_loopback(const char *host)
{
	return strcmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
		(strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == strlen(host));
}

/* Https, or http on this host. */
static bool
is_private(const char *scheme, const char *host)
{
	return strcmp(scheme, "https") == 0 || (strcmp(scheme, "http") == 0 && is_loopback(host));
}

static char *
url_part(CURLU *url, CURLUPart part)
{
	char	   *value = NULL;

	return curl_url_get(url, part, &value, 0) == CURLUE_OK ? value : NULL;
}

/* What is wrong with a url of ours; *path is for the caller to curl_free. */
static const char *
check_url(const char *text, bool allow_http, char **path)
{
	const char *wrong = NULL;
	CURLU	   *url = curl_url();
	char	   *scheme = NULL;
	char	   *host = NULL;

	*path = NULL;
	for (const char *at = text; *at; at++)
	{
		if (*at <= ' ' || *at > '~')
			wrong = "must be a url of printable ASCII characters";
	}
	if (wrong == NULL && (url == NULL || curl_url_set(url, CURLUPART_URL, text, 0) != CURLUE_OK))
		wrong = "must be a url, like https://sqs.eu-central-1.amazonaws.com/123456789012/name.fifo";
	if (wrong == NULL)
	{
		char	   *extra[4] = {url_part(url, CURLUPART_USER), url_part(url, CURLUPART_PASSWORD),
		url_part(url, CURLUPART_QUERY), url_part(url, CURLUPART_FRAGMENT)};

		scheme = url_part(url, CURLUPART_SCHEME);
		host = url_part(url, CURLUPART_HOST);
		*path = url_part(url, CURLUPART_PATH);
		for (int i = 0; i < 4; i++)
		{
			if (extra[i])
				wrong = "must not contain a user, password, query or fragment";
			curl_free(extra[i]);
		}
		if (scheme == NULL || host == NULL || *path == NULL ||
			(strcmp(scheme, "https") != 0 && strcmp(scheme, "http") != 0))
			wrong = "must start with https://";
		else if (wrong == NULL && !allow_http && !is_private(scheme, host))
			wrong = "must start with https://, or be on this host, or be allowed by allow_http";
	}
	curl_free(scheme);
	curl_free(host);
	curl_url_cleanup(url);
	return wrong;
}

const char *
sqs_check_queue_url(const char *url, bool allow_http)
{
	char	   *path;
	const char *wrong = check_url(url, allow_http, &path);

	if (wrong == NULL && !ends_with(strrchr(path, '/') + 1, ".fifo"))
		wrong = "must be that of a FIFO queue, whose name ends in .fifo";
	curl_free(path);
	return wrong;
}

const char *
sqs_check_endpoint(const char *url, bool allow_http)
{
	char	   *path;
	const char *wrong = check_url(url, allow_http, &path);

	if (wrong == NULL && strcmp(path, "/") != 0)
		wrong = "must not contain a path";
	curl_free(path);
	return wrong;
}

bool
sqs_is_private_url(const char *text)
{
	CURLU	   *url = curl_url();
	char	   *scheme = NULL;
	char	   *host = NULL;
	bool		result;

	if (url && curl_url_set(url, CURLUPART_URL, text, 0) == CURLUE_OK)
	{
		scheme = url_part(url, CURLUPART_SCHEME);
		host = url_part(url, CURLUPART_HOST);
	}
	result = scheme && host && is_private(scheme, host);
	curl_free(scheme);
	curl_free(host);
	curl_url_cleanup(url);
	return result;
}

char *
sqs_origin(const char *text)
{
	const char *host = strstr(text, "://");
	size_t		len;
	char	   *origin;

	if (host == NULL)
		return NULL;
	len = (host - text) + 3 + strcspn(host + 3, "/");
	origin = malloc(len + 2);
	if (origin)
	{
		memcpy(origin, text, len);
		memcpy(origin + len, "/", 2);
	}
	return origin;
}

bool
sqs_is_region(const char *region)
{
	size_t		len = strlen(region);

	return len >= 1 && len <= REGION_MAX &&
		strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

/* The part of the host between a beginning and an end. */
static char *
between(const char *host, const char *beginning, const char *end)
{
	size_t		len = strlen(host);
	size_t		from = strlen(beginning);
	char	   *part;

	if (len <= from + strlen(end) || strncmp(host, beginning, from) != 0 || !ends_with(host, end))
		return NULL;
	part = strndup(host + from, len - from - strlen(end));
	if (part && !sqs_is_region(part))
	{
		free(part);
		part = NULL;
	}
	return part;
}

char *
sqs_region_of_url(const char *text)
{
	static const char *const patterns[][2] = {
		{"sqs.", ".amazonaws.com"},
		{"sqs.", ".amazonaws.com.cn"},
		{"sqs.", ".amazonaws.eu"},
		{"sqs.", ".api.aws"},
		{"sqs-fips.", ".amazonaws.com"},
		{"sqs-fips.", ".api.aws"},
		{"", ".queue.amazonaws.com"},
		{"", ".queue.amazonaws.com.cn"}
	};
	CURLU	   *url = curl_url();
	char	   *region = NULL;
	char	   *host = NULL;

	if (url && curl_url_set(url, CURLUPART_URL, text, 0) == CURLUE_OK)
		host = url_part(url, CURLUPART_HOST);
	for (size_t i = 0; host && region == NULL && i < sizeof(patterns) / sizeof(patterns[0]); i++)
		region = between(host, patterns[i][0], patterns[i][1]);
	/* vpce-ID.sqs.REGION.vpce.amazonaws.com */
	if (host && region == NULL && strncmp(host, "vpce-", 5) == 0 && strchr(host, '.'))
		region = between(strchr(host, '.') + 1, "sqs.", ".vpce.amazonaws.com");
	curl_free(host);
	curl_url_cleanup(url);
	return region;
}
