/*
 * aws_profile.h
 *	  The files of AWS's tools: profiles with keys and settings. No server code:
 *	  see aws_profile.c.
 */
#ifndef TASKOUTBOX_AWS_PROFILE_H
#define TASKOUTBOX_AWS_PROFILE_H

#include <stdbool.h>
#include <stddef.h>

#define AWS_VALUE_MAX 4096

/* What we read of a profile; empty: it is not there. */
typedef struct AwsProfile
{
	char		access_key_id[256];
	char		secret_access_key[256];
	char		session_token[AWS_VALUE_MAX];
} AwsProfile;

typedef enum AwsProfileResult
{
	AWS_PROFILE_OK,
	AWS_PROFILE_NO_FILE,		/* it cannot be read: errno says why */
	AWS_PROFILE_NO_SECTION,
	AWS_PROFILE_NO_KEYS,
	AWS_PROFILE_BAD				/* a value is too long */
} AwsProfileResult;

/* Read [name] or [profile name]. */
extern AwsProfileResult aws_profile_read(const char *path, const char *name, AwsProfile *profile);

/*
 * Read a file with one token, without the white space around it. False: it
 * cannot be read, is empty, too long, or contains control characters.
 */
extern bool aws_token_read(const char *path, char *token, size_t size);

#endif							/* TASKOUTBOX_AWS_PROFILE_H */
