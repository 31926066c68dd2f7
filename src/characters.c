/*
 * characters.c
 *	  Which characters a message may contain.
 *
 * The limits are those of SQS, and hold for every queue: a queue can be moved
 * to SQS later, with what waits in it. This file knows nothing of the server,
 * so that it can be tested and fuzzed alone.
 */
#include "characters.h"

#include <strings.h>

long
first_bad_character(const char *utf8, size_t len)
{
	const unsigned char *at = (const unsigned char *) utf8;

	for (size_t i = 0; i < len; i++)
	{
		if (at[i] < 0x20 && at[i] != '\t' && at[i] != '\n' && at[i] != '\r')
			return (long) i;
		/* U+FFFE and U+FFFF */
		if (at[i] == 0xEF && i + 2 < len && at[i + 1] == 0xBF && at[i + 2] >= 0xBE)
			return (long) i;
	}
	return -1;
}

long
first_bad_id_byte(const char *id, size_t len)
{
	for (size_t i = 0; i < len; i++)
	{
		if (id[i] <= ' ' || id[i] > '~')
			return (long) i;
	}
	return -1;
}

static bool
starts_with(const char *name, size_t len, const char *prefix, size_t prefix_len)
{
	return len >= prefix_len && strncasecmp(name, prefix, prefix_len) == 0;
}

bool
is_attribute_name(const char *name, size_t len)
{
	if (len < 1 || len > 256 || name[0] == '.' || name[len - 1] == '.' ||
		starts_with(name, len, "aws.", 4) || starts_with(name, len, "amazon.", 7))
		return false;
	for (size_t i = 0; i < len; i++)
	{
		char		c = name[i];

		if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
			  c == '_' || c == '-' || c == '.'))
			return false;
		if (c == '.' && name[i + 1] == '.')	/* the last one is no dot */
			return false;
	}
	return true;
}
