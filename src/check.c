/*
 * check.c
 *	  Arguments of SQL functions, refused in the caller's hand.
 *
 * What the queue service would refuse later is refused here, where the caller
 * can still do something about it: sizes in bytes as they are sent (UTF-8),
 * with all attributes, and characters. The limits are SQS's, see characters.c.
 */
#include "taskoutbox.h"
#include "check.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/numeric.h"

#include "characters.h"
#include "outbox.h"
#include "shared.h"

#define NAME_CHARACTERS 128		/* task_type, queue */
#define HEADERS_MAX 7			/* of SQS's 10 attributes 3 are ours */
#define RESERVED_LENGTH ((int) sizeof(RESERVED_PREFIX) - 1)

/* A number in text: sign, digits before and after the point (numeric's limits). */
#define NUMBER_BYTES (1 + 131072 + 1 + 16383)

/* What our own three attributes take: names, types, values but the task type. */
#define OWN_ATTRIBUTE_BYTES (9 + 6 + 8 + 6 + 73 + 11 + 6 + 27)

static void
missing(const char *argument, const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_TASKOUTBOX_MISSING),
			 errmsg("%s must not be %s", argument, what),
			 errhint("Pass a value for %s.", argument)));
}

void
check_not_null(const char *argument, FunctionCallInfo fcinfo, int n)
{
	if (PG_ARGISNULL(n))
		missing(argument, "null");
}

/* Text in UTF-8, as it is sent; the same pointer when it is that already. Sets the length. */
static const char *
to_utf8(const char *string, int *length)
{
	const char *utf8 = pg_server_to_any(string, *length, PG_UTF8);

	if (utf8 != string)
		*length = strlen(utf8);
	return utf8;
}

static void
check_characters(const char *argument, const char *utf8, int length)
{
	long		bad = first_bad_character(utf8, length);

	if (bad >= 0)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_CHARACTER),
				 errmsg("%s contains a character that a message cannot carry", argument),
				 errdetail("The character at byte %ld is a control character, U+FFFE or U+FFFF.",
						   bad + 1),
				 errhint("Remove it, or encode the text.")));
}

void
check_name_text(const char *argument, const text *name)
{
	const char *string = VARDATA_ANY(name);
	int			length = VARSIZE_ANY_EXHDR(name);
	int			characters;

	/* Nearly all names are short and plain. */
	if (length > 0 && length <= NAME_CHARACTERS && first_bad_id_byte(string, length) < 0)
		return;

	characters = pg_mbstrlen_with_len(string, length);
	if (characters == 0)
		missing(argument, "empty");
	if (characters > NAME_CHARACTERS)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_TOO_LONG),
				 errmsg("%s is too long", argument),
				 errdetail("It has %d characters; the limit is %d.", characters, NAME_CHARACTERS),
				 errhint("Use a shorter name, and put what varies into the payload.")));
	string = to_utf8(string, &length);
	check_characters(argument, string, length);
}

text *
check_name_argument(const char *argument, FunctionCallInfo fcinfo, int n)
{
	text	   *name;

	check_not_null(argument, fcinfo, n);
	name = PG_GETARG_TEXT_PP(n);
	check_name_text(argument, name);
	return name;
}

char *
check_name(const char *argument, FunctionCallInfo fcinfo, int n)
{
	return text_to_cstring(check_name_argument(argument, fcinfo, n));
}

static void
check_id(const char *argument, const char *id, int length)
{
	long		bad;

	if (length == 0)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_MISSING),
				 errmsg("%s must not be empty", argument),
				 errhint("Pass NULL to leave it out.")));
	bad = first_bad_id_byte(id, length);
	if (bad >= 0)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_CHARACTER),
				 errmsg("%s contains a character that is not allowed", argument),
				 errdetail("The character at byte %ld is not an ASCII letter, digit or punctuation mark.",
						   bad + 1),
				 errhint("Hash ids that come from users' data, for example with md5().")));
	if (length > ID_CHARACTERS)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_TOO_LONG),
				 errmsg("%s is too long", argument),
				 errdetail("It has %d characters; the limit is %d.", length, ID_CHARACTERS),
				 errhint("Hash long ids, for example with md5().")));
	if (length >= RESERVED_LENGTH && memcmp(id, RESERVED_PREFIX, RESERVED_LENGTH) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_RESERVED),
				 errmsg("%s must not start with \"%s\"", argument, RESERVED_PREFIX),
				 errhint("The prefix is reserved for ids that taskoutbox makes.")));
}

void
check_deduplication_id(const char *argument, const char *id)
{
	check_id(argument, id, strlen(id));
}

bool
check_id_setting(char **value, void **extra, GucSource source)
{
	size_t		length = strlen(*value);

	if (length < ID_CHARACTERS && first_bad_id_byte(*value, length) < 0)
		return true;
	GUC_check_errdetail("It must have fewer than %d characters, all of them ASCII letters, digits or punctuation marks.",
						ID_CHARACTERS);
	return false;
}

static void
bad_headers(const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_TASKOUTBOX_HEADERS),
			 errmsg("headers must be an object of at most %d string attributes", HEADERS_MAX),
			 errdetail("%s", detail),
			 errhint("Pass an object like {\"traceparent\": \"00-...\"}, and put other data into the payload.")));
}

/* Bytes that headers take as message attributes. */
static int64
check_headers(Jsonb *headers)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;
	int64		bytes = 0;
	int			n = 0;

	if (headers == NULL)
		return 0;
	if (!JB_ROOT_IS_OBJECT(headers))
		bad_headers("It is not an object.");

	it = JsonbIteratorInit(&headers->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		const char *utf8;
		int			length;

		if (token != WJB_KEY && token != WJB_VALUE)
			continue;
		if (token == WJB_VALUE && value.type != jbvString)
			bad_headers("A value is not a string.");

		length = value.val.string.len;
		utf8 = to_utf8(pnstrdup(value.val.string.val, length), &length);
		if (token == WJB_KEY)
		{
			if (++n > HEADERS_MAX)
				bad_headers("It has more attributes.");
			if (!is_attribute_name(utf8, length))
				bad_headers("A name is not one of 1 to 256 letters, digits, underscores, hyphens and single dots, or starts with \"AWS.\" or \"Amazon.\".");
			if (strcmp(utf8, "task_type") == 0 || strcmp(utf8, "task_uid") == 0 ||
				strcmp(utf8, "enqueued_at") == 0)
				bad_headers("The names \"task_type\", \"task_uid\" and \"enqueued_at\" are taken.");
			bytes += strlen("String");
		}
		else
		{
			if (*utf8 == '\0')
				bad_headers("A value is empty.");
			check_characters("headers", utf8, length);
		}
		bytes += length;
	}
	return bytes;
}

/*
 * At most so many bytes does a container take as text. Nothing but a number can
 * become more than 6 times as long as it is in binary (\u001f for a byte; what
 * stands around a value takes less than its entry). Numbers are printed, or taken
 * for as long as one can be.
 */
static int64
most_bytes(JsonbContainer *container, int64 size, bool print_numbers)
{
	int			n = JsonContainerSize(container) * (JsonContainerIsObject(container) ? 2 : 1);
	char	   *base = (char *) &container->children[n];
	uint32		offset = 0;
	int64		bytes = 6 * size;

	check_stack_depth();
	for (int i = 0; i < n; i++)
	{
		JEntry		entry = container->children[i];
		char	   *value = base + INTALIGN(offset);

		if (JBE_ISNUMERIC(entry) && !print_numbers)
			bytes += NUMBER_BYTES;
		else if (JBE_ISNUMERIC(entry))
			bytes += strlen(DatumGetCString(DirectFunctionCall1(numeric_out, PointerGetDatum(value))));
		else if (JBE_ISCONTAINER(entry))
			bytes += most_bytes((JsonbContainer *) value, 0, print_numbers);
		JBE_ADVANCE_OFFSET(offset, entry);
	}
	return bytes;
}

/*
 * Is it in any case small enough as text, and without bad characters? It saves
 * printing nearly every payload.
 */
static bool
is_surely_good(Jsonb *payload, int64 limit)
{
	/* U+FFFE and U+FFFF begin with this byte; control characters are printed as escapes. */
	return 6 * (int64) VARSIZE(payload) <= limit && GetDatabaseEncoding() == PG_UTF8 &&
		memchr(payload, 0xEF, VARSIZE(payload)) == NULL &&
		/* Printing is what takes time; one number, or on a larger limit a few, need none. */
		(most_bytes(&payload->root, VARSIZE(payload), false) <= limit ||
		 most_bytes(&payload->root, VARSIZE(payload), true) <= limit);
}

void
check_task(const text *task_type, const text *queue, Jsonb *payload,
		   const text *group_id, const text *deduplication_id, Jsonb *headers)
{
	const char *body;
	int			length = VARSIZE_ANY_EXHDR(task_type);
	int64		bytes;
	int64		limit = queue_slot_message_limit(MyDatabaseId, queue_key(VARDATA_ANY(queue), VARSIZE_ANY_EXHDR(queue)));
	bool		is_sqs_limit = limit > 0 && limit < taskoutbox_max_message_bytes;

	if (!is_sqs_limit)
		limit = taskoutbox_max_message_bytes;

	if (group_id)
		check_id("group_id", VARDATA_ANY(group_id), VARSIZE_ANY_EXHDR(group_id));
	if (deduplication_id)
		check_id("deduplication_id", VARDATA_ANY(deduplication_id), VARSIZE_ANY_EXHDR(deduplication_id));

	(void) to_utf8(VARDATA_ANY(task_type), &length);
	bytes = OWN_ATTRIBUTE_BYTES + length + check_headers(headers);
	if (is_surely_good(payload, limit - bytes))
		return;

	body = JsonbToCString(NULL, &payload->root, VARSIZE(payload));
	length = strlen(body);
	body = to_utf8(body, &length);
	bytes += length;
	if (bytes > limit)
		ereport(ERROR,
				(errcode(ERRCODE_TASKOUTBOX_TOO_LARGE),
				 errmsg("message is too large"),
				 errdetail("Payload and attributes have " INT64_FORMAT " bytes; the limit is " INT64_FORMAT " (%s).",
						   bytes, limit, is_sqs_limit ? "MaximumMessageSize of the queue in SQS" :
						   "taskoutbox.max_message_bytes"),
				 errhint("Keep large data elsewhere, for example in object storage, and send its key.")));
	check_characters("payload", body, length);
}
