/*
 * session.c
 *	  A controller finds a fresh session, whatever the one before it left behind.
 *
 * What DISCARD ALL does, in the places where it is possible. Settings, and with
 * them the role, are taken back when the call returns, as those of a function with
 * SET clauses; cursors and prepared statements go after each task, in its
 * transaction: so the next task of the same transaction, and deferred triggers at
 * its commit, run as the session's own role with its own settings. After the
 * transaction come the settings that such triggers leave, advisory locks of the
 * session, since until then they guard what it did, and temporary tables, since
 * they may have triggers pending. Cached plans are kept: nobody can see them; and
 * the server has no LISTEN in background workers.
 */
#include "taskoutbox.h"
#include "session.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/prepare.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/guc.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

void
session_call(FunctionCallInfo fcinfo)
{
	int			settings = NewGUCNestLevel();

	(void) FunctionCallInvoke(fcinfo);
	AtEOXact_GUC(false, settings);
}

void
session_reset(void)
{
	PortalHashTableDeleteAll();
	DropAllPreparedStatements();
	ResetSequenceCaches();
}

bool
session_has_temporary(void)
{
	return (MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE) != 0;
}

void
session_reset_rest(Oid role, bool has_temporary)
{
	bool		is_other = GetUserId() != role || GetSessionUserId() != role;

	ResetAllOptions();
	LockReleaseAll(USER_LOCKMETHOD, true);
	if (is_other || has_temporary)
	{
		StartTransactionCommand();
		if (is_other)
		{
			SetPGVariable("role", NIL, false);
			SetPGVariable("session_authorization", NIL, false);
		}
		if (has_temporary)
		{
			/* The server wants one where catalogs change. */
			PushActiveSnapshot(GetTransactionSnapshot());
			ResetTempTableNamespace();
			PopActiveSnapshot();
		}
		CommitTransactionCommand();
	}
}
