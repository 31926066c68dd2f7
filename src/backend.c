/*
 * backend.c
 *	  The list of backends: a new one is a file of its own, and a line here.
 */
#include "taskoutbox.h"
#include "backend.h"

const Backend *const backends[] = {&embedded_backend, &sqs_backend, NULL};

const Backend *
backend_by_name(const char *name)
{
	for (const Backend *const *backend = backends; *backend; backend++)
	{
		if (strcmp((*backend)->name, name) == 0)
			return *backend;
	}
	return NULL;
}
