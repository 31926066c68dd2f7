/*
 * http.c
 *	  Many HTTP requests at a time, none of them waited for.
 *
 * One curl multi handle does all of them. Its sockets are in an epoll set, which
 * is itself a descriptor that can be waited for together with the latch; its
 * timer is a deadline. So the process that owns the requests sleeps in one
 * place, and reacts to a shutdown or a dropped database at once, whatever the
 * peers do. libcurl resolves names in a thread, so signals are blocked around
 * calls that can start one: the server's handlers must not run there. Callbacks
 * neither raise errors nor allocate in the server's memory: an error would jump
 * over libcurl's frames.
 */
#include "taskoutbox.h"
#include "http.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "utils/timestamp.h"

#define EVENTS_PER_CALL 64

/* Idle connections are closed after this many seconds: peers do it, too. */
#define IDLE_CONNECTION_SECONDS 55L

#define CA_CACHE_SECONDS 60L

static CURLM *multi = NULL;
static int	epoll_fd = -1;
static int64 timer = -1;			/* of monotonic_ms(); -1: none */

#define CURL_CALL(statement) \
	do { \
		sigprocmask(SIG_SETMASK, &BlockSig, NULL); \
		statement; \
		sigprocmask(SIG_SETMASK, &UnBlockSig, NULL); \
	} while (0)

/* Nobody sets this clock. */
static int64
monotonic_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64CONST(1000) + now.tv_nsec / 1000000;
}

bool
http_can_sign(void)
{
	/* Before 7.86.0 headers are left unsigned that must be signed. */
	return curl_version_info(CURLVERSION_NOW)->version_num >= 0x075600;
}

/*
 * Callbacks of libcurl
 */

static int
on_socket(CURL *curl, curl_socket_t fd, int what, void *arg, void *known)
{
	struct epoll_event event = {.data.fd = fd};

	if (what == CURL_POLL_REMOVE)
	{
		/* It may be closed already, and out of the set by that. */
		(void) epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, NULL);
		return 0;
	}
	event.events = (what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0);
	if (epoll_ctl(epoll_fd, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) < 0)
		return -1;
	curl_multi_assign(multi, fd, &epoll_fd);
	return 0;
}

static int
on_timer(CURLM *m, long timeout_ms, void *arg)
{
	timer = timeout_ms < 0 ? -1 : monotonic_ms() + timeout_ms;
	return 0;
}

/* The server counts descriptors, to leave enough for its files. */
static curl_socket_t
on_open(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
	curl_socket_t fd;

	if (!AcquireExternalFD())
		return CURL_SOCKET_BAD;
	fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
	if (fd < 0)
	{
		ReleaseExternalFD();
		return CURL_SOCKET_BAD;
	}
	return fd;
}

static int
on_close(void *arg, curl_socket_t fd)
{
	ReleaseExternalFD();
	return close(fd);
}

static size_t
answer_max(const HttpRequest *request)
{
	return request->answer_max > 0 ? request->answer_max : HTTP_ANSWER_MAX;
}

static size_t
on_body(char *data, size_t size, size_t n, void *arg)
{
	HttpRequest *request = arg;
	char	   *grown;

	n *= size;
	if (request->answer_len + n > answer_max(request))
	{
		request->is_too_long = true;
		return 0;
	}
	grown = realloc(request->answer, request->answer_len + n + 1);
	if (grown == NULL)
		return 0;
	memcpy(grown + request->answer_len, data, n);
	request->answer = grown;
	request->answer_len += n;
	grown[request->answer_len] = '\0';
	return n;
}

/* The value of a header in a line, if it is that header, as a string. */
static bool
header_value(const char *line, size_t len, const char *name, char *value, size_t size)
{
	size_t		name_len = strlen(name);

	if (len <= name_len || pg_strncasecmp(line, name, name_len) != 0 || line[name_len] != ':')
		return false;
	line += name_len + 1;
	len -= name_len + 1;
	while (len > 0 && (*line == ' ' || *line == '\t'))
		line++, len--;
	while (len > 0 && (line[len - 1] == '\r' || line[len - 1] == '\n' || line[len - 1] == ' '))
		len--;
	len = Min(len, size - 1);
	memcpy(value, line, len);
	value[len] = '\0';
	return true;
}

static size_t
on_header(char *line, size_t size, size_t n, void *arg)
{
	HttpRequest *request = arg;
	char		value[128];

	n *= size;
	if (header_value(line, n, "x-amzn-RequestId", request->request_id, sizeof(request->request_id)))
		 /* done */ ;
	else if (header_value(line, n, "x-amzn-query-error", value, sizeof(value)))
	{
		value[strcspn(value, ";")] = '\0';
		strlcpy(request->error_code, value, sizeof(request->error_code));
	}
	else if (header_value(line, n, "Date", value, sizeof(value)))
		request->date = Max(curl_getdate(value, NULL), 0);
	else if (header_value(line, n, "x-amz-retry-after", value, sizeof(value)))
		request->retry_after = Max(atoi(value), 0) * INT64CONST(1000);
	else if (header_value(line, n, "Retry-After", value, sizeof(value)) && request->retry_after == 0)
	{
		char	   *end;
		long		seconds = strtol(value, &end, 10);

		if (*value != '\0' && *end == '\0')
			request->retry_after = Min(Max(seconds, 0), 24 * 3600) * USECS_PER_SEC;
	}
	return n;
}

/* There is a connection, new or used before, TLS and all, and the request goes over it next. */
static int
on_connected(void *arg, char *remote_ip, char *local_ip, int remote_port, int local_port)
{
	((HttpRequest *) arg)->may_have_arrived = true;
	return CURL_PREREQFUNC_OK;
}

/*
 * Requests
 */

static void
init(void)
{
	if (curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK)
		multi = curl_multi_init();
	if (multi == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not initialize libcurl")));
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (epoll_fd < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not create an epoll descriptor: %m")));
	ReserveExternalFD();
	curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, on_socket);
	curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, on_timer);
	/* Every request is to have its own connection: who starts them bounds them. */
	curl_multi_setopt(multi, CURLMOPT_PIPELINING, (long) CURLPIPE_NOTHING);
}

static void
finish(HttpRequest *request, CURLcode result)
{
	if (result == CURLE_OK)
		curl_easy_getinfo(request->curl, CURLINFO_RESPONSE_CODE, &request->status);
	else if (request->is_too_long)
		snprintf(request->error, sizeof(request->error), "the answer has more than %zu bytes", answer_max(request));
	else if (request->error[0] == '\0')
		strlcpy(request->error, curl_easy_strerror(result), sizeof(request->error));
	if (request->answer == NULL && result == CURLE_OK)
	{
		request->answer = strdup("");
		if (request->answer == NULL)
			request->status = 0;
	}

	CURL_CALL(curl_multi_remove_handle(multi, request->curl);
			  curl_easy_cleanup(request->curl));
	request->curl = NULL;
	request->is_done = true;
}

void
http_start(HttpRequest *request)
{
	CURL	   *curl;
	CURLMcode	code;
	const char *ca_bundle = getenv("AWS_CA_BUNDLE");

	if (multi == NULL)
		init();
	request->curl = curl = curl_easy_init();
	if (curl == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));

	curl_easy_setopt(curl, CURLOPT_PRIVATE, request);
	curl_easy_setopt(curl, CURLOPT_URL, request->url);
	curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, request->error);
	curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
	/* Giving up does not wait for the resolver's thread. */
	curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L);
#endif
	curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
	curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long) CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(curl, CURLOPT_USERAGENT, "taskoutbox");
	curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, request->connect_timeout_ms);
	curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, request->timeout_ms);
	curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(curl, CURLOPT_MAXAGE_CONN, IDLE_CONNECTION_SECONDS);
	curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, on_open);
	curl_easy_setopt(curl, CURLOPT_CLOSESOCKETFUNCTION, on_close);
	curl_easy_setopt(curl, CURLOPT_PREREQFUNCTION, on_connected);
	curl_easy_setopt(curl, CURLOPT_PREREQDATA, request);
	curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
	curl_easy_setopt(curl, CURLOPT_WRITEDATA, request);
	curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
	curl_easy_setopt(curl, CURLOPT_HEADERDATA, request);
	curl_easy_setopt(curl, CURLOPT_HTTPHEADER, request->headers);
	if (request->is_local)
		curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
	if (ca_bundle && *ca_bundle)
		curl_easy_setopt(curl, CURLOPT_CAINFO, ca_bundle);
#if LIBCURL_VERSION_NUM >= 0x075700
	/* A file that was corrected counts soon, and not after a day. */
	curl_easy_setopt(curl, CURLOPT_CA_CACHE_TIMEOUT, CA_CACHE_SECONDS);
#endif
	if (request->sigv4)
	{
		curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, request->sigv4);
		curl_easy_setopt(curl, CURLOPT_USERNAME, request->access_key_id);
		curl_easy_setopt(curl, CURLOPT_PASSWORD, request->secret_access_key);
	}
	if (request->body)
	{
		curl_easy_setopt(curl, CURLOPT_POST, 1L);
		curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t) request->body_len);
		curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request->body);
		/* Long bodies are announced; who does not answer to that gets them all the same. */
		curl_easy_setopt(curl, CURLOPT_EXPECT_100_TIMEOUT_MS, 50L);
	}
	if (request->method)
		curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request->method);

	CURL_CALL(code = curl_multi_add_handle(multi, curl));
	if (code != CURLM_OK)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not start an HTTP request: %s", curl_multi_strerror(code))));
}

void
http_free(HttpRequest *request)
{
	if (request->curl)
		CURL_CALL(curl_multi_remove_handle(multi, request->curl);
				  curl_easy_cleanup(request->curl));
	request->curl = NULL;
	curl_slist_free_all(request->headers);
	request->headers = NULL;
	free(request->answer);
	request->answer = NULL;
}

bool
http_work(void)
{
	struct epoll_event events[EVENTS_PER_CALL];
	CURLMsg    *message;
	int			running;
	int			n;
	bool		any = false;

	if (multi == NULL)
		return false;

	n = epoll_wait(epoll_fd, events, EVENTS_PER_CALL, 0);
	for (int i = 0; i < n; i++)
	{
		int			what = (events[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
			(events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
			(events[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);

		CURL_CALL(curl_multi_socket_action(multi, events[i].data.fd, what, &running));
	}
	if (timer >= 0 && timer <= monotonic_ms())
	{
		timer = -1;
		CURL_CALL(curl_multi_socket_action(multi, CURL_SOCKET_TIMEOUT, 0, &running));
	}

	while ((message = curl_multi_info_read(multi, &n)) != NULL)
	{
		HttpRequest *request;
		CURLcode	result = message->data.result;

		if (message->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **) &request);
		finish(request, result);
		any = true;
	}
	return any;
}

/* In milliseconds there is something to do, anyway; -1: never. */
static long
next_timer(void)
{
	return timer < 0 ? -1 : Max(timer - monotonic_ms(), 0);
}

void
http_sleep(TimestampTz until, uint32 wait_event)
{
	int			events;

	do
	{
		long		timeout = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until);
		long		next = next_timer();

		/* The set of sockets is a descriptor that is readable when one of them is ready. */
		events = WaitLatchOrSocket(MyLatch,
								   WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH |
								   (epoll_fd < 0 ? 0 : WL_SOCKET_READABLE),
								   epoll_fd < 0 ? PGINVALID_SOCKET : epoll_fd,
								   next < 0 ? timeout : Min(timeout, next), wait_event);
		/* Answers come in pieces: none of them is worth waking for. */
	} while (!http_work() && !(events & WL_LATCH_SET) && GetCurrentTimestamp() < until);
	ResetLatch(MyLatch);
}
