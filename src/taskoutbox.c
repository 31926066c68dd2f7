/*
 * taskoutbox.c
 *	  The library's entry point: defines settings, registers everything else.
 */
#include "taskoutbox.h"

#include <curl/curl.h>

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "announce.h"
#include "blocked.h"
#include "check.h"
#include "deduplication.h"
#include "insert.h"
#include "launcher.h"
#include "lease.h"
#include "pool.h"
#include "queue.h"
#include "shared.h"
#include "sqs_in_flight.h"

/* Older ones leave headers unsigned that SQS needs signed. */
#if LIBCURL_VERSION_NUM < 0x075600
#error "taskoutbox needs libcurl 7.86.0 or later"
#endif

TASKOUTBOX_MODULE_MAGIC;

/* Without preloading, these defaults are all there is. */
int			taskoutbox_max_databases;
int			taskoutbox_max_queues = 64;
int			taskoutbox_max_in_flight;
int			taskoutbox_relay_memory;
int			taskoutbox_max_message_bytes;
char	   *taskoutbox_deduplication_scope;
char	   *taskoutbox_aws_credentials_file;
char	   *taskoutbox_aws_profile;
char	   *taskoutbox_aws_region;
char	   *taskoutbox_aws_endpoint_url;
int			taskoutbox_request_timeout;
bool		taskoutbox_publish;
int			taskoutbox_ring_size;
int			taskoutbox_announce_size;

void		_PG_init(void);

/* A size of shared memory: fixed when the server starts. */
static void
define_size(const char *name, const char *description, int *value,
			int boot, int min, int max, int flags)
{
	DefineCustomIntVariable(name, description, NULL, value, boot, min, max,
							PGC_POSTMASTER, flags, NULL, NULL, NULL);
}

/* Where AWS is, and who we are to it: the server's business. */
static void
define_aws(const char *name, const char *description, char **value, int flags)
{
	DefineCustomStringVariable(name, description, NULL, value, "", PGC_SIGHUP, flags, NULL, NULL, NULL);
}

static void
define_settings(void)
{
	/* Sizes can only be set while the server starts; later they mean nothing. */
	if (process_shared_preload_libraries_in_progress)
	{
		define_size("taskoutbox.max_databases",
					"Databases that can have the extension.",
					&taskoutbox_max_databases, 64, 1, 1024, 0);
		define_size("taskoutbox.max_queues",
					"Queues that one database can have.",
					&taskoutbox_max_queues, 64, 1, 1024, 0);
		define_size("taskoutbox.max_in_flight",
					"Messages that can be in flight in all queues of all databases.",
					&taskoutbox_max_in_flight, 20000, 100, 10000000, 0);
		define_size("taskoutbox.relay_memory",
					"Memory that the relay of one database uses for messages that wait.",
					&taskoutbox_relay_memory, 12288, 64, MAX_KILOBYTES, GUC_UNIT_KB);
		define_size("taskoutbox.ring_size",
					"Runs of ids that fit between commits and the relay of one database.",
					&taskoutbox_ring_size, 4096, 1, 1048576, GUC_NOT_IN_SAMPLE);
		define_size("taskoutbox.announce_size",
					"Runs of ids that one transaction can announce before it commits.",
					&taskoutbox_announce_size, 8, 1, 1024, GUC_NOT_IN_SAMPLE);
	}
	DefineCustomIntVariable("taskoutbox.max_message_bytes",
							"Largest message: payload and attributes, in bytes of UTF-8.",
							NULL, &taskoutbox_max_message_bytes,
							262144, 1024, 1048576,
							PGC_SIGHUP, GUC_UNIT_BYTE, NULL, NULL, NULL);
	DefineCustomStringVariable("taskoutbox.deduplication_scope",
							   "Put before every deduplication id, for tests that call one producer repeatedly.",
							   NULL, &taskoutbox_deduplication_scope,
							   "", PGC_USERSET, 0, check_id_setting, NULL, NULL);

	define_aws("taskoutbox.aws_credentials_file",
			   "File with AWS credentials, in the format of AWS's tools.",
			   &taskoutbox_aws_credentials_file, GUC_SUPERUSER_ONLY);
	define_aws("taskoutbox.aws_profile",
			   "Profile in the file with AWS credentials.",
			   &taskoutbox_aws_profile, 0);
	define_aws("taskoutbox.aws_region",
			   "Region of queues in SQS that have none of their own.",
			   &taskoutbox_aws_region, 0);
	define_aws("taskoutbox.aws_endpoint_url",
			   "Where requests to SQS go, instead of to the host of the queue's url.",
			   &taskoutbox_aws_endpoint_url, 0);
	DefineCustomIntVariable("taskoutbox.request_timeout",
							"After this a request to SQS without an answer is given up, and sent again.",
							NULL, &taskoutbox_request_timeout,
							20000, 100, 300000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);

	/* Of a server, not of a database or a role: these are in what was cloned. */
	DefineCustomBoolVariable("taskoutbox.publish",
							 "Whether this server sends anything to queues in SQS, or receives from them; off for clones of another one.",
							 NULL, &taskoutbox_publish, true,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);

	/* Last: it throws away what is in the file and not defined. */
	if (process_shared_preload_libraries_in_progress)
		MarkGUCPrefixReserved("taskoutbox");
}

PG_FUNCTION_INFO_V1(taskoutbox_library_version);

Datum
taskoutbox_library_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(TASKOUTBOX_VERSION));
}

void
_PG_init(void)
{
	define_settings();
	deduplication_init();
	insert_init();

	/* Without it functions can be created and restored, and enqueue works. */
	if (!process_shared_preload_libraries_in_progress)
		return;

	shared_init();
	announce_init();
	lease_init();
	blocked_init();
	queue_init();
	pool_init();
	sqs_in_flight_init();
	launcher_init();
}
