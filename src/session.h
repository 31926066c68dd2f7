/*
 * session.h
 *	  A controller finds a fresh session, whatever the one before it left behind.
 */
#ifndef TASKOUTBOX_SESSION_H
#define TASKOUTBOX_SESSION_H

#include "taskoutbox.h"

#include "fmgr.h"

/* Call a function, and take back the settings that it changes. */
extern void session_call(FunctionCallInfo fcinfo);

/* Between two tasks of one transaction, and before its commit. */
extern void session_reset(void);

/* This transaction has used temporary tables: it must end before the next task. */
extern bool session_has_temporary(void);

/* Between two transactions, outside of both. */
extern void session_reset_rest(Oid role, bool has_temporary);

#endif							/* TASKOUTBOX_SESSION_H */
