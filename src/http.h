/*
 * http.h
 *	  Many HTTP requests at a time, none of them waited for.
 */
#ifndef TASKOUTBOX_HTTP_H
#define TASKOUTBOX_HTTP_H

#include "taskoutbox.h"

#include <curl/curl.h>
#include <time.h>

#include "datatype/timestamp.h"

/* No answer that we ask for is longer, if its request does not say so. */
#define HTTP_ANSWER_MAX (1024 * 1024)

typedef struct HttpRequest
{
	/*
	 * What to ask. Strings must live until done. Without a body it is a GET.
	 */
	const char *url;
	const char *method;			/* NULL: as the body says */
	const char *body;
	size_t		body_len;
	struct curl_slist *headers; /* freed with the request */
	const char *sigv4;			/* "aws:amz:REGION:SERVICE", or NULL: not signed */
	const char *access_key_id;
	const char *secret_access_key;
	long		connect_timeout_ms;
	long		timeout_ms;
	bool		is_local;		/* a metadata service of this host: no proxy */
	size_t		answer_max;		/* in bytes; 0: HTTP_ANSWER_MAX */

	/* It ended: with a status, or without an answer (status 0). */
	bool		is_done;
	long		status;
	char		error[CURL_ERROR_SIZE]; /* why there is none; of libcurl, no secrets */
	bool		may_have_arrived;	/* something of the request was sent */
	char	   *answer;			/* of answer_len bytes, and one zero byte */
	size_t		answer_len;
	char		request_id[64];
	char		error_code[128];	/* x-amzn-query-error, up to the semicolon */
	time_t		date;			/* the server's clock; 0: it said nothing */
	int64		retry_after;	/* in microseconds; 0: it said nothing */

	/* http.c's own */
	CURL	   *curl;
	bool		is_too_long;
} HttpRequest;

/* The version of libcurl that runs is one that signs rightly. */
extern bool http_can_sign(void);

/* Start a request. Never waits. */
extern void http_start(HttpRequest *request);

/* Forget a request, finished or not, and what it allocated. */
extern void http_free(HttpRequest *request);

/* Sleep until our latch is set (and reset it), a request has ended, or time is up. */
extern void http_sleep(TimestampTz until, uint32 wait_event);

/* Do what there is to do; returns whether a request ended. */
extern bool http_work(void);

#endif							/* TASKOUTBOX_HTTP_H */
