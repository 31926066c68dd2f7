/*
 * ask.c
 *	  How a backend waits for the relay, and the relay for nobody.
 *
 * A backend that found no message on offer writes its question into its own
 * slot, sets the relay's latch, and sleeps on its own. The relay collects the
 * open questions at the start of a round, so that its answer covers all that
 * was committed before they were asked, and answers at the end by a mark and
 * the asker's latch. The answer says "look again": the message itself is still
 * on offer, so an asker that is cancelled, killed or too slow loses none.
 */
#include "taskoutbox.h"
#include "ask.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/timestamp.h"

static void
withdraw_question(int code, Datum arg)
{
	BackendSlot *slot = my_backend_slot();

	SpinLockAcquire(&slot->mutex);
	slot->ask_state = ASK_NOTHING;
	slot->ask_dboid = InvalidOid;
	SpinLockRelease(&slot->mutex);
}

static bool
is_answered(BackendSlot *slot)
{
	bool		answered;

	SpinLockAcquire(&slot->mutex);
	answered = slot->ask_state == ASK_ANSWERED;
	SpinLockRelease(&slot->mutex);

	return answered;
}

bool
ask_relay(DatabaseSlot *db, uint64 queue, bool wait, TimestampTz deadline,
		  bool (*is_called) (void))
{
	static uint32 wait_event = 0;
	BackendSlot *slot = my_backend_slot();
	bool		answered = false;

	if (wait_event == 0)
		wait_event = COMPAT_WAIT_EVENT("TaskoutboxReceive");

	SpinLockAcquire(&slot->mutex);
	slot->ask_dboid = MyDatabaseId;
	slot->ask_queue = queue;
	slot->ask_wait = wait;
	slot->ask_latch = MyLatch;
	slot->ask_state = ASK_OPEN;
	SpinLockRelease(&slot->mutex);

	PG_ENSURE_ERROR_CLEANUP(withdraw_question, (Datum) 0);
	{
		if (db)
		{
			SpinLockAcquire(&db->mutex);
			db->questions++;
			SpinLockRelease(&db->mutex);
			wake_relay(db);
		}
		while (!(answered = is_answered(slot)))
		{
			long		ms = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);

			if (ms <= 0 || (is_called && is_called()))
				break;
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 ms, wait_event);
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
		}
	}
	PG_END_ENSURE_ERROR_CLEANUP(withdraw_question, (Datum) 0);
	withdraw_question(0, (Datum) 0);

	return answered;
}

int
ask_open_questions(DatabaseSlot *db, Question *questions, uint64 *asked)
{
	Oid			dboid = db->dboid;
	int			n = 0;

	SpinLockAcquire(&db->mutex);
	*asked = db->questions;
	SpinLockRelease(&db->mutex);

	for (int i = 0; i < shared->nbackends; i++)
	{
		BackendSlot *slot = &shared->backends[i];

		if (slot->ask_dboid != dboid)
			continue;
		SpinLockAcquire(&slot->mutex);
		if (slot->ask_dboid == dboid && slot->ask_state == ASK_OPEN)
		{
			questions[n].slot = slot;
			questions[n].queue = slot->ask_queue;
			questions[n].wait = slot->ask_wait;
			n++;
		}
		SpinLockRelease(&slot->mutex);
	}
	return n;
}

void
ask_answer(Oid dboid, const Question *question)
{
	BackendSlot *slot = question->slot;
	Latch	   *latch = NULL;

	SpinLockAcquire(&slot->mutex);
	if (slot->ask_dboid == dboid && slot->ask_state == ASK_OPEN &&
		slot->ask_queue == question->queue)
	{
		slot->ask_state = ASK_ANSWERED;
		latch = slot->ask_latch;
	}
	SpinLockRelease(&slot->mutex);

	if (latch)
		SetLatch(latch);
}
