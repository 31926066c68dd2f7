/*
 * session.c
 *	  A controller finds a fresh session, whatever the one before it left behind.
 *
 * What DISCARD ALL does, in the two places where it is possible. Roles, settings,
 * cursors, prepared statements and listens are reset after each task, in its
 * transaction: so the next task of the same transaction, and deferred triggers at
 * its commit, run as the session's own role with its own settings. Advisory locks
 * of the session are released after the transaction, since until then they guard
 * what it did; temporary tables are dropped after it, since they may have triggers
 * pending. Cached plans are kept: nobody can see them.
 */
#include "taskoutbox.h"
#include "session.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/async.h"
#include "commands/prepare.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/guc.h"
#include "utils/portal.h"

void
session_reset(Oid role)
{
	PortalHashTableDeleteAll();
	if (GetUserId() != role || GetSessionUserId() != role)
	{
		SetPGVariable("role", NIL, false);
		SetPGVariable("session_authorization", NIL, false);
	}
	ResetAllOptions();
	DropAllPreparedStatements();
	Async_UnlistenAll();
	ResetSequenceCaches();
}

bool
session_has_temporary(void)
{
	return (MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE) != 0;
}

void
session_reset_rest(bool has_temporary)
{
	LockReleaseAll(USER_LOCKMETHOD, true);
	if (has_temporary)
	{
		StartTransactionCommand();
		ResetTempTableNamespace();
		CommitTransactionCommand();
	}
}
