/*
 * low_water.h
 *	  From which id on there are rows in the outbox.
 */
#ifndef TASKOUTBOX_LOW_WATER_H
#define TASKOUTBOX_LOW_WATER_H

#include "taskoutbox.h"

#include "outbox.h"

/*
 * A row comes in with an id that enqueue did not draw just now. To be called in its
 * transaction, which inserts a row, too.
 */
extern void low_water_lower(int64 id);

/*
 * The relay, at its start: no row with a smaller id than this is visible to a
 * snapshot taken before.
 */
extern int64 low_water_read(void);

/*
 * The relay: look a bit further for the first row that is left. No row with an id up
 * to settled can appear by enqueue any more, and the reader's snapshot shows those
 * that did. Returns whether there is more to look at now, and in *missed the id of a
 * row that was met where none can be, or NO_SWEEP.
 */
extern bool low_water_look(OutboxReader *reader, int64 settled, TimestampTz now, int64 *missed);

#endif							/* TASKOUTBOX_LOW_WATER_H */
