/*
 * unit.c
 *	  Tests of the files that know nothing of the server. Speaks TAP; arguments: a
 *	  folder for files.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aws_profile.h"
#include "characters.h"
#include "sqs_protocol.h"

static int	tests = 0;

static void
ok(bool good, const char *what)
{
	printf("%sok %d - %s\n", good ? "" : "not ", ++tests, what);
}

static void
is(const char *got, const char *expected, const char *what)
{
	bool		good = got && expected ? strcmp(got, expected) == 0 : got == expected;

	ok(good, what);
	if (!good)
		printf("#      got: %s\n# expected: %s\n", got ? got : "NULL", expected ? expected : "NULL");
}

static void
test_characters(void)
{
	char		longest[258];

	ok(first_bad_character("a\t\n\r\xC3\xA9\xF0\x9F\x98\x80", 10) == -1, "characters that a message can carry");
	ok(first_bad_character("ab\a", 3) == 2, "a control character");
	ok(first_bad_character("\xEF\xBF\xBD", 3) == -1, "U+FFFD is good");
	ok(first_bad_character("x\xEF\xBF\xBE", 4) == 1, "U+FFFE is not");
	ok(first_bad_character("\xEF\xBF\xBF", 3) == 0, "U+FFFF is not");
	ok(first_bad_id_byte("aZ09!~", 6) == -1, "an id");
	ok(first_bad_id_byte("a b", 3) == 1, "a space in an id");
	ok(first_bad_id_byte("\xC3\xA9", 2) == 0, "no ASCII in an id");
	memset(longest, 'x', 257);
	ok(is_attribute_name(longest, 256) && !is_attribute_name(longest, 257), "length of an attribute's name");
	ok(!is_attribute_name("AWS.x", 5) && !is_attribute_name("aMaZon.x", 8) && is_attribute_name("awsx", 4),
	   "reserved names of attributes");
	ok(!is_attribute_name("a..b", 4) && !is_attribute_name(".a", 2) && !is_attribute_name("a.", 2), "dots in them");
}

static void
test_requests(void)
{
	SqsHeader	headers[] = {{"traceparent", "00-\"1\""}, {"x-AMZN-trace-ID", "Root=1"}};
	SqsEntry	entries[] = {
		{.body = "{\"a\": \"\xC3\xA9\\n\"}",.group_id = "g",.deduplication_id = "d",.task_type = "t",
		.task_uid = "u",.enqueued_at = "now",.headers = headers,.nheaders = 2},
		{.body = "1\t\x01",.group_id = "h",.deduplication_id = "e",.task_type = "\"",.task_uid = "v",.enqueued_at = "later"}
	};
	size_t		len;
	char	   *text = sqs_send_message_batch("https://x/1/q.fifo", entries, 2, &len);

#define STRING(value) "{\"DataType\":\"String\",\"StringValue\":\"" value "\"}"
	is(text, "{\"QueueUrl\":\"https://x/1/q.fifo\",\"Entries\":["
	   "{\"Id\":\"0\",\"MessageBody\":\"{\\\"a\\\": \\\"\xC3\xA9\\\\n\\\"}\",\"MessageGroupId\":\"g\","
	   "\"MessageDeduplicationId\":\"d\",\"MessageAttributes\":{\"task_type\":" STRING("t") ",\"task_uid\":" STRING("u")
	   ",\"enqueued_at\":" STRING("now") ",\"traceparent\":" STRING("00-\\\"1\\\"") "},"
	   "\"MessageSystemAttributes\":{\"AWSTraceHeader\":" STRING("Root=1") "}},"
	   "{\"Id\":\"1\",\"MessageBody\":\"1\\u0009\\u0001\",\"MessageGroupId\":\"h\",\"MessageDeduplicationId\":\"e\","
	   "\"MessageAttributes\":{\"task_type\":" STRING("\\\"") ",\"task_uid\":" STRING("v") ",\"enqueued_at\":" STRING("later")
	   "}}]}", "SendMessageBatch");
	ok(text && len == strlen(text), "and its length");
	free(text);

	ok(sqs_entry_bytes(&entries[0]) == 13 + (9 + 6 + 1) + (8 + 6 + 1) + (11 + 6 + 3) + (11 + 6 + 6),
	   "bytes of a message: body and attributes, without the trace header");

	text = sqs_receive_message("https://x/1/q.fifo", 10, 20, 30, "id", &len);
	ok(strcmp(text, "{\"QueueUrl\":\"https://x/1/q.fifo\",\"MaxNumberOfMessages\":10,\"WaitTimeSeconds\":20,"
			  "\"VisibilityTimeout\":30,\"ReceiveRequestAttemptId\":\"id\",\"AttributeNames\":[\"All\"],"
			  "\"MessageSystemAttributeNames\":[\"All\"],\"MessageAttributeNames\":[\"All\"]}") == 0 &&
	   strlen(text) == len, "ReceiveMessage");
	free(text);
	text = sqs_change_message_visibility_batch("q", (SqsReceipt[]) {{"a\"", 0}, {"b", 7}}, 2, &len);
	ok(strcmp(text, "{\"QueueUrl\":\"q\",\"Entries\":[{\"Id\":\"0\",\"ReceiptHandle\":\"a\\\"\",\"VisibilityTimeout\":0},"
			  "{\"Id\":\"1\",\"ReceiptHandle\":\"b\",\"VisibilityTimeout\":7}]}") == 0, "ChangeMessageVisibilityBatch");
	free(text);
	text = sqs_delete_message_batch("q", (SqsReceipt[]) {{"a", 0}}, 1, &len);
	ok(strcmp(text, "{\"QueueUrl\":\"q\",\"Entries\":[{\"Id\":\"0\",\"ReceiptHandle\":\"a\"}]}") == 0, "DeleteMessageBatch");
	free(text);
	ok(sqs_action_length("DeleteMessageBatch") == 13 && sqs_action_length("ReceiveMessage") == 14, "actions of IAM");
	text = sqs_get_queue_url("arn:aws:sqs:eu-central-1:123456789012:dead.fifo", &len);
	is(text, "{\"QueueName\":\"dead.fifo\",\"QueueOwnerAWSAccountId\":\"123456789012\"}", "GetQueueUrl");
	free(text);
	ok(sqs_get_queue_url("arn:aws:sqs:eu-central-1", &len) == NULL && sqs_get_queue_url("", &len) == NULL &&
	   sqs_get_queue_url("a:b:c:d::f", &len) == NULL && sqs_get_queue_url("a:b:c:d:e:", &len) == NULL, "no ARN");
}

static void
test_errors(void)
{
	static const struct
	{
		const char *code;
		SqsFault	fault;
	}			cases[] =
	{
		{"InvalidMessageContents", SQS_FAULT_MESSAGE},
		{"InvalidParameterValue", SQS_FAULT_MESSAGE},
		{"com.amazonaws.sqs#InvalidParameterValueException", SQS_FAULT_MESSAGE},
		{"MissingRequiredParameterException", SQS_FAULT_MESSAGE},
		{"InternalFailure", SQS_FAULT_TRANSIENT},
		{"InternalError", SQS_FAULT_TRANSIENT},
		{"ServiceUnavailableException", SQS_FAULT_TRANSIENT},
		{"RequestTimeout", SQS_FAULT_TRANSIENT},
		{"RequestTimeoutException", SQS_FAULT_TRANSIENT},
		{"PriorRequestNotComplete", SQS_FAULT_TRANSIENT},
		{"Throttling", SQS_FAULT_THROTTLED},
		{"ThrottlingException", SQS_FAULT_THROTTLED},
		{"ThrottledException", SQS_FAULT_THROTTLED},
		{"RequestThrottled", SQS_FAULT_THROTTLED},
		{"RequestThrottledException", SQS_FAULT_THROTTLED},
		{"TooManyRequestsException", SQS_FAULT_THROTTLED},
		{"RequestLimitExceeded", SQS_FAULT_THROTTLED},
		{"SlowDown", SQS_FAULT_THROTTLED},
		{"LimitExceededException", SQS_FAULT_THROTTLED},
		{"KmsThrottled", SQS_FAULT_THROTTLED},
		{"OverLimit", SQS_FAULT_THROTTLED},
		{"ExpiredToken", SQS_FAULT_CREDENTIALS},
		{"ExpiredTokenException", SQS_FAULT_CREDENTIALS},
		{"UnrecognizedClientException", SQS_FAULT_CREDENTIALS},
		{"InvalidClientTokenId", SQS_FAULT_CREDENTIALS},
		{"MissingAuthenticationToken", SQS_FAULT_CREDENTIALS},
		{"IncompleteSignature", SQS_FAULT_CREDENTIALS},
		{"InvalidSignatureException", SQS_FAULT_SIGNATURE},
		{"SignatureDoesNotMatch", SQS_FAULT_SIGNATURE},
		{"RequestTimeTooSkewed", SQS_FAULT_SIGNATURE},
		{"RequestExpired", SQS_FAULT_SIGNATURE},
		{"QueueDoesNotExist", SQS_FAULT_DESTINATION},
		{"AWS.SimpleQueueService.NonExistentQueue", SQS_FAULT_DESTINATION},
		{"AccessDenied", SQS_FAULT_DESTINATION},
		{"AccessDeniedException", SQS_FAULT_DESTINATION},
		{"KmsDisabled", SQS_FAULT_DESTINATION},
		{"KMS.DisabledException", SQS_FAULT_DESTINATION},
		{"InvalidSecurity", SQS_FAULT_DESTINATION},
		{"BatchRequestTooLong", SQS_FAULT_DESTINATION},
		{"", SQS_FAULT_DESTINATION},
		{"Exception", SQS_FAULT_DESTINATION},
		{"WhoKnows", SQS_FAULT_DESTINATION}
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		char		what[200];

		snprintf(what, sizeof(what), "whose fault: %s", cases[i].code);
		ok(sqs_fault(cases[i].code) == cases[i].fault && *sqs_remedy(cases[i].code), what);
	}
	is(sqs_bare_code("com.amazonaws.sqs#QueueDoesNotExist"), "QueueDoesNotExist", "a code without its prefix");
	is(sqs_bare_code("QueueDoesNotExist"), "QueueDoesNotExist", "a code that has none");
	ok(sqs_is_known("AccessDeniedException") && !sqs_is_known("WhoKnows"), "known codes");
	ok(sqs_queue_is_gone("QueueDoesNotExist") && sqs_queue_is_gone("AWS.SimpleQueueService.NonExistentQueue") &&
	   !sqs_queue_is_gone("AccessDenied"), "the queue is gone");
}

static void
region_is(const char *url, const char *expected)
{
	char	   *region = sqs_region_of_url(url);

	is(region, expected, url);
	free(region);
}

static void
test_urls(void)
{
	static const char *const good[] = {
		"https://sqs.eu-central-1.amazonaws.com/123456789012/name.fifo",
		"https://example.com:8443/a/b/c.fifo",
		"http://localhost:4566/000000000000/name.fifo",
		"http://127.0.0.1/1/n.fifo",
		"http://[::1]:9324/1/n.fifo"
	};
	static const char *const bad[] = {
		"", "name.fifo", "/1/name.fifo", "ftp://127.0.0.1/1/name.fifo", "file:///1/name.fifo",
		"https://sqs.eu-central-1.amazonaws.com/123456789012/name", "https://example.com/1/.fifo",
		"https://example.com/", "https://example.com/1/name.fifo/", "https://example.com/1/name.fifo?x",
		"https://example.com/1/name.fifo#x", "https://a:b@example.com/1/name.fifo", "https://exa mple.com/1/name.fifo",
		"https://example.com/1/n\xC3\xA9.fifo", "https://example.com/1/name.fifo\n",
		"http://example.com/1/name.fifo", "http://127.0.0.1.example.com/1/name.fifo", "http://localhost.example.com/1/n.fifo"
	};
	char	   *origin;

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		is(sqs_check_queue_url(good[i], false), NULL, good[i]);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
	{
		char		what[100];

		snprintf(what, sizeof(what), "refused: %.60s", bad[i]);
		what[strcspn(what, "\n")] = '\0';
		for (char *at = what; *at; at++)
			*at = *at == '#' ? '_' : *at;
		ok(sqs_check_queue_url(bad[i], false) != NULL, what);
	}
	is(sqs_check_queue_url("http://example.com/1/name.fifo", true), NULL, "http, if it is allowed");
	is(sqs_check_endpoint("https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com", false), NULL, "an endpoint");
	is(sqs_check_endpoint("http://127.0.0.1:80/", false), NULL, "an endpoint with a slash");
	ok(sqs_check_endpoint("https://example.com/path", false) != NULL, "an endpoint with a path");
	ok(sqs_is_private_url("https://example.com/x?y") && sqs_is_private_url("http://localhost/x") &&
	   !sqs_is_private_url("http://example.com") && !sqs_is_private_url("x"), "what nobody else can hear");

	origin = sqs_origin("https://example.com:8443/a/b/c.fifo");
	is(origin, "https://example.com:8443/", "the origin of a url");
	free(origin);

	region_is("https://sqs.eu-central-1.amazonaws.com/1/n.fifo", "eu-central-1");
	region_is("https://sqs.cn-north-1.amazonaws.com.cn/1/n.fifo", "cn-north-1");
	region_is("https://sqs-fips.us-gov-west-1.amazonaws.com/1/n.fifo", "us-gov-west-1");
	region_is("https://sqs.us-west-2.api.aws/1/n.fifo", "us-west-2");
	region_is("https://us-west-2.queue.amazonaws.com/1/n.fifo", "us-west-2");
	region_is("https://vpce-0a-1b.sqs.eu-west-1.vpce.amazonaws.com/1/n.fifo", "eu-west-1");
	region_is("https://sqs.eu-central-1.amazonaws.com.example.com/1/n.fifo", NULL);
	region_is("https://sqs.a.b.amazonaws.com/1/n.fifo", NULL);
	region_is("http://localhost:4566/1/n.fifo", NULL);
	ok(sqs_is_region("eu-central-1") && !sqs_is_region("") && !sqs_is_region("EU") && !sqs_is_region("a:b"), "regions");
}

static const char *
file(const char *folder, const char *content)
{
	static char path[1000];
	FILE	   *out;

	snprintf(path, sizeof(path), "%s/file", folder);
	out = fopen(path, "w");
	if (out == NULL)
	{
		perror(path);
		exit(1);
	}
	fputs(content, out);
	fclose(out);
	return path;
}

static void
test_profiles(const char *folder)
{
	static char longest[AWS_VALUE_MAX + 1000];
	AwsProfile	profile;
	char		token[20];

	ok(aws_profile_read("/nowhere", "default", &profile) == AWS_PROFILE_NO_FILE, "no file");
	ok(aws_profile_read(file(folder, "[default]\naws_access_key_id=A\naws_secret_access_key=S\n"), "default", &profile) == AWS_PROFILE_OK,
	   "a profile");
	is(profile.access_key_id, "A", "its key");
	is(profile.secret_access_key, "S", "its secret");
	is(profile.session_token, "", "no token");
	ok(aws_profile_read(file(folder, "# [default]\r\n[ other ]\r\naws_access_key_id = X\r\n\r\n[profile  work]\r\n"
							 "region = y\r\n aws_access_key_id = indented\r\n; c\r\naws_access_key_id = A/=b\r\n"
							 "aws_secret_access_key =  a b=c \r\naws_session_token=t==\r\ns3 =\r\n  x = y\r\n"), "work", &profile) == AWS_PROFILE_OK,
	   "with comments, CR LF and nested settings");
	is(profile.access_key_id, "A/=b", "a key with =");
	is(profile.secret_access_key, "a b=c", "white space around it");
	is(profile.session_token, "t==", "a token");
	ok(aws_profile_read(file(folder, "[default]\naws_access_key_id=A\naws_secret_access_key=S"), "other", &profile) == AWS_PROFILE_NO_SECTION,
	   "another profile");
	ok(aws_profile_read(file(folder, "[default]\naws_access_key_id=A\n"), "default", &profile) == AWS_PROFILE_NO_KEYS, "half of one");
	ok(aws_profile_read(file(folder, ""), "default", &profile) == AWS_PROFILE_NO_SECTION, "an empty file");
	ok(aws_profile_read(file(folder, "[default\naws_access_key_id=A\n"), "default", &profile) == AWS_PROFILE_NO_SECTION, "a broken section");
	strcpy(longest, "[default]\naws_access_key_id=");
	memset(longest + strlen(longest), 'x', AWS_VALUE_MAX + 900);
	ok(aws_profile_read(file(folder, longest), "default", &profile) == AWS_PROFILE_BAD, "a line that is too long");
	longest[700] = '\0';
	ok(aws_profile_read(file(folder, longest), "default", &profile) == AWS_PROFILE_BAD, "a key that is too long");

	ok(aws_token_read(file(folder, " \nabc.def\r\n"), token, sizeof(token)), "a token in a file");
	is(token, "abc.def", "without the white space");
	ok(!aws_token_read(file(folder, ""), token, sizeof(token)), "no token");
	ok(!aws_token_read(file(folder, "a\nb"), token, sizeof(token)), "two lines");
	ok(!aws_token_read(file(folder, "12345678901234567890"), token, sizeof(token)), "too long");
	ok(!aws_token_read("/nowhere", token, sizeof(token)), "no file");
}

int
main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	test_characters();
	test_requests();
	test_errors();
	test_urls();
	test_profiles(argv[1]);
	printf("1..%d\n", tests);
	return 0;
}
