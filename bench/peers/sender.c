/*
 * sender.c
 *	  The least that sends messages to an SQS FIFO queue over many connections.
 *
 *	  sender ENDPOINT URL CONNECTIONS MESSAGES
 *
 * Batches of 10 bodies of 199 bytes, of 1,000 groups, with the attributes that
 * the relay sends, signed by libcurl, as fast as the other side takes them. Keeps
 * nothing, and looks at the answers only for failures. Prints messages a second.
 */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCH 10
#define CONNECTIONS_MAX 100

typedef struct Sender
{
	CURL	   *easy;
	char		request[BATCH * 1024];
	char		answer[BATCH * 1024];
	size_t		answered;
} Sender;

static Sender senders[CONNECTIONS_MAX];
static char body[3 * 199];
static const char *url;
static int	sent = 0;

static void
fail(const char *what, const char *why)
{
	fprintf(stderr, "sender: %s: %s\n", what, why);
	exit(1);
}

static size_t
receive(char *data, size_t size, size_t n, void *arg)
{
	Sender	   *sender = arg;

	n *= size;
	if (sender->answered + n >= sizeof(sender->answer))
		return 0;
	memcpy(sender->answer + sender->answered, data, n);
	sender->answered += n;
	sender->answer[sender->answered] = '\0';
	return n;
}

static void
send_next(CURLM *multi, Sender *sender)
{
	char	   *end = sender->request;

	end += sprintf(end, "{\"QueueUrl\":\"%s\",\"Entries\":[", url);
	for (int i = 0; i < BATCH; i++, sent++)
		end += sprintf(end, "%s{\"Id\":\"%d\",\"MessageBody\":\"%s\",\"MessageGroupId\":\"g%d\",\"MessageDeduplicationId\":\"d%d\","
					   "\"MessageAttributes\":{\"task_type\":{\"DataType\":\"String\",\"StringValue\":\"bench\"},"
					   "\"task_uid\":{\"DataType\":\"String\",\"StringValue\":\"01234567-89ab-cdef-0123-456789abcdef:%d:1700000000000000\"},"
					   "\"enqueued_at\":{\"DataType\":\"String\",\"StringValue\":\"2026-01-31T12:34:56.789012Z\"}}}",
					   i ? "," : "", i, body, sent % 1000, sent, sent);
	end += sprintf(end, "]}");
	sender->answered = 0;
	curl_easy_setopt(sender->easy, CURLOPT_POSTFIELDS, sender->request);
	curl_easy_setopt(sender->easy, CURLOPT_POSTFIELDSIZE, (long) (end - sender->request));
	curl_multi_add_handle(multi, sender->easy);
}

int
main(int argc, char **argv)
{
	CURLM	   *multi;
	struct curl_slist *headers = NULL;
	int			connections;
	int			messages;
	int			running = 0;
	struct timespec start;
	struct timespec end;

	if (argc != 5 || atoi(argv[3]) > CONNECTIONS_MAX)
		fail("usage", "sender ENDPOINT URL CONNECTIONS MESSAGES, with up to 100 connections");
	url = argv[2];
	connections = atoi(argv[3]);
	messages = atoi(argv[4]);

	/* As payloads are: JSON inside of JSON. */
	sprintf(body, "{\\\"order\\\": 1234567, \\\"note\\\": \\\"%0169d\\\"}", 0);

	curl_global_init(CURL_GLOBAL_ALL);
	multi = curl_multi_init();
	headers = curl_slist_append(headers, "Content-Type: application/x-amz-json-1.0");
	headers = curl_slist_append(headers, "X-Amz-Target: AmazonSQS.SendMessageBatch");
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (int i = 0; i < connections; i++)
	{
		senders[i].easy = curl_easy_init();
		curl_easy_setopt(senders[i].easy, CURLOPT_URL, argv[1]);
		curl_easy_setopt(senders[i].easy, CURLOPT_HTTPHEADER, headers);
		curl_easy_setopt(senders[i].easy, CURLOPT_AWS_SIGV4, "aws:amz:eu-central-1:sqs");
		curl_easy_setopt(senders[i].easy, CURLOPT_USERPWD, "key:secret");
		curl_easy_setopt(senders[i].easy, CURLOPT_PROXY, "");
		curl_easy_setopt(senders[i].easy, CURLOPT_WRITEFUNCTION, receive);
		curl_easy_setopt(senders[i].easy, CURLOPT_WRITEDATA, &senders[i]);
		curl_easy_setopt(senders[i].easy, CURLOPT_PRIVATE, &senders[i]);
		send_next(multi, &senders[i]);
		running++;
	}
	while (running > 0)
	{
		CURLMsg    *message;
		int			n;

		curl_multi_perform(multi, &n);
		while ((message = curl_multi_info_read(multi, &n)))
		{
			Sender	   *sender;
			long		status;

			curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &sender);
			curl_easy_getinfo(message->easy_handle, CURLINFO_RESPONSE_CODE, &status);
			if (message->data.result != CURLE_OK)
				fail("curl", curl_easy_strerror(message->data.result));
			if (status != 200 || strstr(sender->answer, "\"Failed\":[{"))
				fail("refused", sender->answer);
			curl_multi_remove_handle(multi, message->easy_handle);
			if (sent < messages)
				send_next(multi, sender);
			else
				running--;
		}
		if (running > 0)
			curl_multi_poll(multi, NULL, 0, 1000, NULL);
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("%.1f\n", sent / (end.tv_sec - start.tv_sec + (end.tv_nsec - start.tv_nsec) / 1e9));
	return 0;
}
