/*
 * aws_profile.c
 *	  The files of AWS's tools: profiles with keys and settings.
 *
 * Lines are "[section]", "name = value", or comments that start with '#' or
 * ';'. Indented lines belong to a nested setting, which none of ours is. A
 * section that comes twice is read twice; the later value wins, as in AWS's own
 * tools. This file knows nothing of the server, so that it can be tested alone.
 */
#include "aws_profile.h"

#include <stdio.h>
#include <string.h>

#define LINE_MAX_BYTES (AWS_VALUE_MAX + 256)

static char *
trim(char *text)
{
	char	   *end;

	text += strspn(text, " \t\r\n");
	end = text + strlen(text);
	while (end > text && strchr(" \t\r\n", end[-1]))
		*--end = '\0';
	return text;
}

/* Whether a line, "[...]", opens the section of the profile. */
static bool
opens_profile(char *line, const char *name)
{
	char	   *end = strchr(line, ']');
	char	   *section;

	if (end == NULL)
		return false;
	*end = '\0';
	section = trim(line + 1);
	if (strncmp(section, "profile", 7) == 0 && (section[7] == ' ' || section[7] == '\t'))
		section = trim(section + 7);
	return strcmp(section, name) == 0;
}

static bool
put(char *to, size_t size, const char *value)
{
	size_t		len = strlen(value);

	if (len >= size)
		return false;
	memcpy(to, value, len + 1);
	return true;
}

AwsProfileResult
aws_profile_read(const char *path, const char *name, AwsProfile *profile)
{
	FILE	   *file = fopen(path, "r");
	char		line[LINE_MAX_BYTES];
	bool		is_ours = false;
	bool		found = false;
	bool		good = true;

	memset(profile, 0, sizeof(*profile));
	if (file == NULL)
		return AWS_PROFILE_NO_FILE;
	while (good && fgets(line, sizeof(line), file))
	{
		char	   *key = line;
		char	   *value = strchr(line, '=');

		if (strchr(line, '\n') == NULL && !feof(file))
			good = false;		/* longer than anything that we could use */
		else if (*line == '[')
		{
			is_ours = opens_profile(line, name);
			found |= is_ours;
		}
		else if (is_ours && value && strchr(" \t#;", *line) == NULL)
		{
			*value++ = '\0';
			key = trim(key);
			value = trim(value);
			if (strcmp(key, "aws_access_key_id") == 0)
				good = put(profile->access_key_id, sizeof(profile->access_key_id), value);
			else if (strcmp(key, "aws_secret_access_key") == 0)
				good = put(profile->secret_access_key, sizeof(profile->secret_access_key), value);
			else if (strcmp(key, "aws_session_token") == 0)
				good = put(profile->session_token, sizeof(profile->session_token), value);
		}
	}
	good &= !ferror(file);
	fclose(file);
	memset(line, 0, sizeof(line));

	if (!good)
		return AWS_PROFILE_BAD;
	if (!found)
		return AWS_PROFILE_NO_SECTION;
	if (*profile->access_key_id == '\0' || *profile->secret_access_key == '\0')
		return AWS_PROFILE_NO_KEYS;
	return AWS_PROFILE_OK;
}

bool
aws_token_read(const char *path, char *token, size_t size)
{
	FILE	   *file = fopen(path, "r");
	size_t		len;
	char	   *start;

	if (file == NULL)
		return false;
	len = fread(token, 1, size - 1, file);
	token[len] = '\0';
	if (ferror(file) || !feof(file) || strlen(token) != len)
		len = 0;
	fclose(file);
	if (len == 0)
		return false;
	start = trim(token);
	memmove(token, start, strlen(start) + 1);
	for (const char *at = token; *at; at++)
	{
		if ((unsigned char) *at < ' ' || *at == 0x7F)
			return false;
	}
	return *token != '\0';
}
