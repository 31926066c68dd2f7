/*
 * aws_credentials.c
 *	  Who the relay is to AWS: credentials, fetched and kept fresh.
 *
 * The sources are asked in the order of AWS's own tools, after what our settings
 * name: environment, web identity, shared files, container, instance. One that is
 * configured and fails is reported, and not passed over: going on as somebody
 * else would hide the mistake. Files and environment are read again every
 * minute, and tokens each time, since they are rotated. Credentials that expire
 * are replaced long before, while the old ones are still in use. Requests go
 * through http.c, so nothing here waits; what came is looked at when somebody
 * asks for credentials the next time. The secrets stand in this process's memory
 * and nowhere else.
 */
#include "taskoutbox.h"
#include "aws_credentials.h"

#include <pwd.h>
#include <unistd.h>

#include "utils/datetime.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "http.h"
#include "json_answer.h"
#include "sqs_protocol.h"

/* Files and environment are read again after this. */
#define REREAD_AFTER (60 * USECS_PER_SEC)

/* What expires is replaced so long before, or earlier if it is short-lived. */
#define REFRESH_BEFORE (15 * 60 * USECS_PER_SEC)

/* Out of date, but all that the instance has: ask again after this. */
#define STALE_RETRY (20 * 60 * USECS_PER_SEC)

/* After a failure: 1 s, doubled each time, up to this. */
#define RETRY_MAX (60 * USECS_PER_SEC)

#define SERVICE_TIMEOUT_MS 2000L	/* of a service on this host or link */
#define STS_TIMEOUT_MS 10000L

typedef enum Step
{
	STEP_NONE,
	STEP_WEB_IDENTITY,
	STEP_CONTAINER,
	STEP_INSTANCE_TOKEN,
	STEP_INSTANCE_ROLE,
	STEP_INSTANCE_KEYS
} Step;

static AwsCredentials current;
static bool is_valid = false;
static TimestampTz expires_at = DT_NOEND;
static TimestampTz refresh_at = DT_NOBEGIN;
static int	failures = 0;
static char problem_text[512] = "";

/* The settings with which the current ones were fetched. */
static char *used_settings = NULL;

/* A request that runs; its strings are in fetch_context. */
static Step step = STEP_NONE;
static HttpRequest request;
static MemoryContext fetch_context = NULL;
static char *instance_token;
static char *instance_url;

static const char *
environment(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

const char *
aws_region(void)
{
	if (*taskoutbox_aws_region)
		return taskoutbox_aws_region;
	return environment("AWS_REGION") ? environment("AWS_REGION") : environment("AWS_DEFAULT_REGION");
}

/*
 * Results
 */

pg_attribute_printf(2, 3)
static void
failed(TimestampTz now, const char *format,...)
{
	va_list		args;

	va_start(args, format);
	vsnprintf(problem_text, sizeof(problem_text), format, args);
	va_end(args);
	step = STEP_NONE;
	refresh_at = now + Min(RETRY_MAX, USECS_PER_SEC << Min(failures, 10));
	failures++;
}

/* expires: DT_NOEND for what does not say. */
static void
got(const AwsProfile *keys, TimestampTz expires, TimestampTz now)
{
	current.keys = *keys;
	current.generation++;
	is_valid = true;
	step = STEP_NONE;
	failures = 0;
	problem_text[0] = '\0';
	expires_at = expires;
	if (expires == DT_NOEND)
		refresh_at = now + REREAD_AFTER;
	else
		refresh_at = expires - Min(REFRESH_BEFORE, (expires - now) / 4);
}

/* "2026-01-31T12:34:56Z"; DT_NOBEGIN when it is not like that. */
static TimestampTz
parse_time(const char *text)
{
	int			year,
				month,
				day,
				hour,
				minute,
				second;

	if (text == NULL ||
		sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d", &year, &month, &day, &hour, &minute, &second) != 6)
		return DT_NOBEGIN;
	return ((int64) (date2j(year, month, day) - POSTGRES_EPOCH_JDATE) * SECS_PER_DAY +
			hour * SECS_PER_HOUR + minute * SECS_PER_MINUTE + second) * USECS_PER_SEC;
}

/* Take over what a service gave; source: to follow "credentials of". */
static void
got_from_service(const char *source, const char *key, const char *secret, const char *token,
				 const char *expiration, TimestampTz now)
{
	AwsProfile	keys = {0};
	TimestampTz expires = parse_time(expiration);

	/* They become headers. */
	if ((token && strpbrk(token, "\r\n")) ||
		key == NULL || *key == '\0' || secret == NULL || *secret == '\0' || expires == DT_NOBEGIN ||
		strlcpy(keys.access_key_id, key, sizeof(keys.access_key_id)) >= sizeof(keys.access_key_id) ||
		strlcpy(keys.secret_access_key, secret, sizeof(keys.secret_access_key)) >= sizeof(keys.secret_access_key) ||
		strlcpy(keys.session_token, token ? token : "", sizeof(keys.session_token)) >= sizeof(keys.session_token))
		failed(now, "%s gave no AWS credentials", source);
	else if (expires <= now && step != STEP_INSTANCE_KEYS)
		failed(now, "%s gave AWS credentials that have expired", source);
	else
	{
		bool		is_stale = expires <= now;

		got(&keys, is_stale ? DT_NOEND : expires, now);
		/* An instance whose metadata service lags: SQS may well take them. */
		if (is_stale)
			refresh_at = now + STALE_RETRY;
	}
	explicit_bzero(&keys, sizeof(keys));
}

/*
 * Requests
 */

static void
start(Step next, const char *url, long timeout_ms)
{
	step = next;
	request.url = url;
	request.connect_timeout_ms = request.timeout_ms = timeout_ms;
	request.is_local = next != STEP_WEB_IDENTITY;
	http_start(&request);
}

static void
add_header(const char *name, const char *value)
{
	request.headers = curl_slist_append(request.headers, psprintf("%s: %s", name, value));
}

/* Forget the last request, and make room for the next one. */
static void
clear_request(void)
{
	http_free(&request);
	memset(&request, 0, sizeof(request));
}

static char *
url_encoded(const char *text)
{
	char	   *encoded = curl_easy_escape(NULL, text, 0);
	char	   *result = pstrdup(encoded ? encoded : "");

	curl_free(encoded);
	return result;
}

static void
start_web_identity(TimestampTz now)
{
	char	   *token = palloc(AWS_VALUE_MAX * 4);
	const char *session = environment("AWS_ROLE_SESSION_NAME");
	const char *role = environment("AWS_ROLE_ARN");
	const char *endpoint = environment("AWS_ENDPOINT_URL_STS");
	const char *region = aws_region();
	char	   *url;

	if (role == NULL)
	{
		failed(now, "AWS_WEB_IDENTITY_TOKEN_FILE is set, but not AWS_ROLE_ARN");
		return;
	}
	if (!aws_token_read(environment("AWS_WEB_IDENTITY_TOKEN_FILE"), token, AWS_VALUE_MAX * 4))
	{
		failed(now, "could not read a token from the file that AWS_WEB_IDENTITY_TOKEN_FILE names");
		return;
	}
	if (endpoint)
	{
		char	   *origin;

		if (sqs_check_endpoint(endpoint, false) != NULL)
		{
			failed(now, "AWS_ENDPOINT_URL_STS %s", sqs_check_endpoint(endpoint, false));
			return;
		}
		origin = sqs_origin(endpoint);
		url = pstrdup(origin ? origin : "");
		free(origin);
	}
	else if (region && sqs_is_region(region))
		url = psprintf("https://sts.%s.amazonaws.com%s/", region, strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
	else
		url = pstrdup("https://sts.amazonaws.com/");

	request.body = psprintf("Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=%s&RoleSessionName=%s&WebIdentityToken=%s",
							url_encoded(role), url_encoded(session ? session : "taskoutbox"),
							url_encoded(token));
	request.body_len = strlen(request.body);
	start(STEP_WEB_IDENTITY, url, STS_TIMEOUT_MS);
}

/* Where a container may send what it knows. */
static bool
is_container_host(const char *url)
{
	static const char *const hosts[] = {"169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};

	if (sqs_is_private_url(url))
		return true;
	for (int i = 0; i < lengthof(hosts); i++)
	{
		size_t		len = strlen(hosts[i]);

		if (strncmp(url, "http://", 7) == 0 && strncmp(url + 7, hosts[i], len) == 0 &&
			strchr(":/", url[7 + len]))
			return true;
	}
	return false;
}

static void
start_container(TimestampTz now)
{
	const char *relative = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *full = environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
	const char *token_file = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
	const char *token = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");

	if (relative == NULL && !is_container_host(full))
	{
		failed(now, "AWS_CONTAINER_CREDENTIALS_FULL_URI must be https, or on this host or one of AWS's container hosts");
		return;
	}
	if (token_file)
	{
		char	   *read = palloc(AWS_VALUE_MAX * 4);

		if (!aws_token_read(token_file, read, AWS_VALUE_MAX * 4))
		{
			failed(now, "could not read a token from the file that AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE names");
			return;
		}
		token = read;
	}
	if (token && strpbrk(token, "\r\n"))
	{
		failed(now, "AWS_CONTAINER_AUTHORIZATION_TOKEN must not contain line breaks");
		return;
	}
	if (token)
		add_header("Authorization", token);
	add_header("Accept", "application/json");
	start(STEP_CONTAINER, relative ? psprintf("http://169.254.170.2%s", relative) : pstrdup(full),
		  SERVICE_TIMEOUT_MS);
}

static void
start_instance(void)
{
	const char *base = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");

	instance_url = pstrdup(base ? base : "http://169.254.169.254");
	if (instance_url[strlen(instance_url) - 1] == '/')
		instance_url[strlen(instance_url) - 1] = '\0';
	request.method = "PUT";
	add_header("x-aws-ec2-metadata-token-ttl-seconds", "21600");
	start(STEP_INSTANCE_TOKEN, psprintf("%s/latest/api/token", instance_url), SERVICE_TIMEOUT_MS);
}

/* The text between <tag> and </tag>; NULL when it is not there. */
static char *
xml_text(const char *xml, const char *tag)
{
	char	   *open = psprintf("<%s>", tag);
	const char *from = strstr(xml, open);
	const char *to;

	if (from == NULL)
		return NULL;
	from += strlen(open);
	to = strchr(from, '<');
	return to ? pnstrdup(from, to - from) : NULL;
}

static void
got_json(const char *source, TimestampTz now)
{
	JsonbContainer *answer = json_answer(request.answer, request.answer_len);

	got_from_service(source, json_text(answer, "AccessKeyId"), json_text(answer, "SecretAccessKey"),
					 json_text(answer, "Token"), json_text(answer, "Expiration"), now);
}

/* A request ended: use what came, or go on. */
static void
use_answer(TimestampTz now)
{
	const char *source = step == STEP_WEB_IDENTITY ? "AWS STS" :
		step == STEP_CONTAINER ? "the container's credentials endpoint" : "the instance metadata service";
	char	   *text = request.answer;

	/* Whoever has credentials nowhere ends up with the instance's. */
	if (step == STEP_INSTANCE_TOKEN && request.status != 200)
		failed(now, "no AWS credentials found in settings, environment, files, container or instance");
	else if (step == STEP_WEB_IDENTITY && request.status > 0 && request.status != 200)
	{
		char	   *code = xml_text(text, "Code");

		failed(now, "AWS STS refused the web identity: %s", code ? code : "it did not say why");
	}
	else if (request.status == 0)
		failed(now, "could not ask %s: %s", source, request.error);
	else if (request.status != 200)
		failed(now, "%s answered with HTTP status %ld", source, request.status);
	else if (step == STEP_WEB_IDENTITY)
		got_from_service(source, xml_text(text, "AccessKeyId"), xml_text(text, "SecretAccessKey"),
						 xml_text(text, "SessionToken"), xml_text(text, "Expiration"), now);
	else if (step == STEP_CONTAINER || step == STEP_INSTANCE_KEYS)
		got_json(source, now);
	else
	{
		Step		next = step == STEP_INSTANCE_TOKEN ? STEP_INSTANCE_ROLE : STEP_INSTANCE_KEYS;
		char	   *path = "/latest/meta-data/iam/security-credentials/";
		char	   *role = "";

		text[strcspn(text, "\r\n")] = '\0';
		if (step == STEP_INSTANCE_TOKEN)
			instance_token = pstrdup(text);
		else
			role = url_encoded(text);
		clear_request();
		add_header("x-aws-ec2-metadata-token", instance_token);
		start(next, psprintf("%s%s%s", instance_url, path, role), SERVICE_TIMEOUT_MS);
		return;
	}
	clear_request();
}

/*
 * Sources
 */

/* A file of ours in the home directory, when no variable names another. */
static const char *
shared_file(const char *variable, const char *name)
{
	const char *home = environment("HOME");
	struct passwd *user = home ? NULL : getpwuid(geteuid());

	if (environment(variable))
		return environment(variable);
	if (user)
		home = user->pw_dir;
	return psprintf("%s/.aws/%s", home ? home : "", name);
}

static const char *
profile_name(void)
{
	if (*taskoutbox_aws_profile)
		return taskoutbox_aws_profile;
	return environment("AWS_PROFILE") ? environment("AWS_PROFILE") : "default";
}

static bool
read_shared_files(AwsProfile *keys)
{
	return aws_profile_read(shared_file("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
							profile_name(), keys) == AWS_PROFILE_OK ||
		aws_profile_read(shared_file("AWS_CONFIG_FILE", "config"),
						 profile_name(), keys) == AWS_PROFILE_OK;
}

/* What our settings name, and nothing else will do. */
static void
read_settings(TimestampTz now)
{
	AwsProfile	keys;

	if (*taskoutbox_aws_credentials_file == '\0')
	{
		if (read_shared_files(&keys))
			got(&keys, DT_NOEND, now);
		else
			failed(now, "profile \"%s\" of taskoutbox.aws_profile has no keys in AWS's shared files, or they cannot be read",
				   profile_name());
	}
	else
		switch (aws_profile_read(taskoutbox_aws_credentials_file, profile_name(), &keys))
		{
			case AWS_PROFILE_OK:
				got(&keys, DT_NOEND, now);
				break;
			case AWS_PROFILE_NO_FILE:
				failed(now, "could not read the file of taskoutbox.aws_credentials_file: %s", strerror(errno));
				break;
			case AWS_PROFILE_NO_SECTION:
				failed(now, "the file of taskoutbox.aws_credentials_file has no profile \"%s\"", profile_name());
				break;
			case AWS_PROFILE_NO_KEYS:
				failed(now, "profile \"%s\" in the file of taskoutbox.aws_credentials_file lacks aws_access_key_id or aws_secret_access_key",
					   profile_name());
				break;
			case AWS_PROFILE_BAD:
				failed(now, "the file of taskoutbox.aws_credentials_file has a line that is too long");
				break;
		}
	explicit_bzero(&keys, sizeof(keys));
}

static bool
read_environment(TimestampTz now)
{
	AwsProfile	keys = {0};
	const char *key = environment("AWS_ACCESS_KEY_ID");
	const char *secret = environment("AWS_SECRET_ACCESS_KEY");
	const char *token = environment("AWS_SESSION_TOKEN");

	if (key == NULL && secret == NULL)
		return false;
	if (token && strpbrk(token, "\r\n"))
		failed(now, "AWS_SESSION_TOKEN must not contain line breaks");
	else if (key == NULL || secret == NULL)
		failed(now, "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set");
	else if (strlcpy(keys.access_key_id, key, sizeof(keys.access_key_id)) >= sizeof(keys.access_key_id) ||
			 strlcpy(keys.secret_access_key, secret, sizeof(keys.secret_access_key)) >= sizeof(keys.secret_access_key) ||
			 strlcpy(keys.session_token, token ? token : "", sizeof(keys.session_token)) >= sizeof(keys.session_token))
		failed(now, "AWS credentials in the environment are too long");
	else
		got(&keys, DT_NOEND, now);
	explicit_bzero(&keys, sizeof(keys));
	return true;
}

static void
fetch(TimestampTz now)
{
	AwsProfile	keys;

	MemoryContextReset(fetch_context);
	if (*taskoutbox_aws_credentials_file || *taskoutbox_aws_profile)
		read_settings(now);
	else if (read_environment(now))
		 /* done */ ;
	else if (environment("AWS_WEB_IDENTITY_TOKEN_FILE"))
		start_web_identity(now);
	else if (read_shared_files(&keys))
	{
		got(&keys, DT_NOEND, now);
		explicit_bzero(&keys, sizeof(keys));
	}
	else if (environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") ||
			 environment("AWS_CONTAINER_CREDENTIALS_FULL_URI"))
		start_container(now);
	else if (environment("AWS_EC2_METADATA_DISABLED") &&
			 pg_strcasecmp(environment("AWS_EC2_METADATA_DISABLED"), "true") == 0)
		failed(now, "no AWS credentials found in settings, environment, files or container, and AWS_EC2_METADATA_DISABLED is true");
	else
		start_instance();
}

const AwsCredentials *
aws_credentials(TimestampTz now, const char **problem, TimestampTz *next)
{
	MemoryContext old;
	char	   *settings;

	if (fetch_context == NULL)
		fetch_context = AllocSetContextCreate(TopMemoryContext, "taskoutbox credentials",
											  ALLOCSET_SMALL_SIZES);
	settings = psprintf("%s\n%s\n%s", taskoutbox_aws_credentials_file, taskoutbox_aws_profile,
						taskoutbox_aws_region);
	if (used_settings == NULL || strcmp(settings, used_settings) != 0)
	{
		if (used_settings)
			pfree(used_settings);
		used_settings = MemoryContextStrdup(TopMemoryContext, settings);
		clear_request();
		step = STEP_NONE;
		failures = 0;
		is_valid = false;
		refresh_at = DT_NOBEGIN;
	}

	old = MemoryContextSwitchTo(fetch_context);
	if (step != STEP_NONE && request.is_done)
		use_answer(now);
	if (step == STEP_NONE && now >= refresh_at)
		fetch(now);
	MemoryContextSwitchTo(old);

	if (expires_at <= now)
		is_valid = false;
	*problem = !is_valid && step == STEP_NONE ? problem_text : NULL;
	*next = step == STEP_NONE ? refresh_at : DT_NOEND;
	return is_valid ? &current : NULL;
}

void
aws_credentials_reject(uint64 generation)
{
	if (is_valid && generation == current.generation)
	{
		is_valid = false;
		refresh_at = DT_NOBEGIN;
	}
}
