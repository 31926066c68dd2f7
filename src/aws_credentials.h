/*
 * aws_credentials.h
 *	  Who the relay is to AWS.
 */
#ifndef TASKOUTBOX_AWS_CREDENTIALS_H
#define TASKOUTBOX_AWS_CREDENTIALS_H

#include "taskoutbox.h"

#include "datatype/timestamp.h"

#include "aws_profile.h"

typedef struct AwsCredentials
{
	AwsProfile	keys;
	uint64		generation;		/* differs for each time that they were fetched */
} AwsCredentials;

/*
 * Credentials that are good now, or NULL: then they are being fetched, and
 * http_work will say when something happened, or *problem (not NULL) says what
 * is wrong and *next when it is tried again. To be called in a transaction, in
 * the process that has the requests; never waits.
 */
extern const AwsCredentials *aws_credentials(TimestampTz now, const char **problem,
											 TimestampTz *next);

/* AWS refused credentials of that generation: fetch them again. */
extern void aws_credentials_reject(uint64 generation);

/* The region of settings and environment, or NULL. */
extern const char *aws_region(void);

#endif							/* TASKOUTBOX_AWS_CREDENTIALS_H */
