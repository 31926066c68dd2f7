/*
 * characters.h
 *	  Which characters a message may contain. No server code: see characters.c.
 */
#ifndef TASKOUTBOX_CHARACTERS_H
#define TASKOUTBOX_CHARACTERS_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Offset in bytes of the first character of valid UTF-8 that SQS refuses in a
 * message body or attribute, or -1. Allowed: U+0009, U+000A, U+000D, U+0020 to
 * U+D7FF, U+E000 to U+FFFD, U+10000 to U+10FFFF (SendMessage, API reference).
 */
extern long first_bad_character(const char *utf8, size_t len);

/*
 * Offset of the first byte that SQS refuses in a MessageGroupId or
 * MessageDeduplicationId, or -1. Allowed: ASCII letters, digits, punctuation.
 */
extern long first_bad_id_byte(const char *id, size_t len);

/*
 * Whether a message attribute may have this name: 1 to 256 letters, digits,
 * underscores, hyphens, dots; no dot first, last or twice in a row; not
 * starting with "AWS." or "Amazon." in any case.
 */
extern bool is_attribute_name(const char *name, size_t len);

#endif							/* TASKOUTBOX_CHARACTERS_H */
