/*
 * id_array.h
 *	  An array of task ids that grows, for as long as the process lives.
 */
#ifndef TASKOUTBOX_ID_ARRAY_H
#define TASKOUTBOX_ID_ARRAY_H

#include "taskoutbox.h"

#include "utils/memutils.h"

typedef struct IdArray
{
	int64	   *ids;
	int			n;
	int			size;
} IdArray;

static inline void
id_array_add(IdArray *array, int64 id)
{
	if (array->n == array->size)
	{
		array->size = Max(256, array->size * 2);
		array->ids = array->ids == NULL ?
			MemoryContextAlloc(TopMemoryContext, array->size * sizeof(int64)) :
			repalloc_huge(array->ids, array->size * sizeof(int64));
	}
	array->ids[array->n++] = id;
}

#endif							/* TASKOUTBOX_ID_ARRAY_H */
