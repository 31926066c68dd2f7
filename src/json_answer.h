/*
 * json_answer.h
 *	  JSON that a peer sent, by the server's own parser.
 */
#ifndef TASKOUTBOX_JSON_ANSWER_H
#define TASKOUTBOX_JSON_ANSWER_H

#include "taskoutbox.h"

#include "utils/jsonb.h"

/*
 * The object in a text in UTF-8, or NULL when it is none: never an error. In the
 * current memory context.
 */
extern JsonbContainer *json_answer(const char *utf8, size_t len);

/* The JSON in a text in the server's encoding, or NULL when it is none: never an error. */
extern Jsonb *json_parse(const char *text);

/* A member of an object: a string (or a number, as text), or NULL. */
extern char *json_text(JsonbContainer *object, const char *name);

/* A member that is an object, or NULL. */
extern JsonbContainer *json_member(JsonbContainer *object, const char *name);

/* A member that is an array of objects, NULL: none; how many there are; and one of them, or NULL. */
extern JsonbContainer *json_list(JsonbContainer *object, const char *name);
extern int	json_list_length(JsonbContainer *list);
extern JsonbContainer *json_list_item(JsonbContainer *list, int i);

#endif							/* TASKOUTBOX_JSON_ANSWER_H */
