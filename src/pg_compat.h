/*
 * pg_compat.h
 *	  Differences between the PostgreSQL majors that we build with (15 and
 *	  later). Each one names the upstream change; no other file looks at
 *	  PG_VERSION_NUM.
 */
#ifndef PG_COMPAT_H
#define PG_COMPAT_H

#include "postgres.h"

#include "access/genam.h"
#include "executor/executor.h"
#include "pgstat.h"
#include "storage/proc.h"
#include "utils/guc.h"

#if PG_VERSION_NUM < 150000
#error "taskoutbox needs PostgreSQL 15 or later"
#endif

/* 18: PG_MODULE_MAGIC_EXT shows name and version in pg_get_loaded_modules() */
#if PG_VERSION_NUM >= 180000
#define TASKOUTBOX_MODULE_MAGIC PG_MODULE_MAGIC_EXT(.name = "taskoutbox", .version = TASKOUTBOX_VERSION)
#else
#define TASKOUTBOX_MODULE_MAGIC PG_MODULE_MAGIC
#endif

/* 18: pg_noreturn, which stands first, replaced pg_attribute_noreturn() */
#if PG_VERSION_NUM < 180000
#define pg_noreturn pg_attribute_noreturn()
#endif

/* 17: ProcNumber replaced backend ids; both index the PGPROC array */
#if PG_VERSION_NUM >= 170000
#define MY_PROC_NUMBER MyProcNumber
#else
#define MY_PROC_NUMBER (MyProc->pgprocno)
#endif

/* 17: the local transaction id moved */
#if PG_VERSION_NUM >= 170000
#define MY_LXID (MyProc->vxid.lxid)
#else
#define MY_LXID (MyProc->lxid)
#endif

/* 17: an extension can name its wait events */
#if PG_VERSION_NUM >= 170000
#include "utils/wait_event.h"
#define COMPAT_WAIT_EVENT(name) WaitEventExtensionNew(name)
#else
#define COMPAT_WAIT_EVENT(name) PG_WAIT_EXTENSION
#endif

/* 16: ExecInsertIndexTuples learnt onlySummarizing */
#if PG_VERSION_NUM >= 160000
#define compat_ExecInsertIndexTuples(rri, slot, estate, no_error, conflict) \
	ExecInsertIndexTuples(rri, slot, estate, false, no_error, conflict, NIL, false)
#else
#define compat_ExecInsertIndexTuples(rri, slot, estate, no_error, conflict) \
	ExecInsertIndexTuples(rri, slot, estate, false, no_error, conflict, NIL)
#endif

/* 18: ExecCheckIndexConstraints can leave out a tuple */
#if PG_VERSION_NUM >= 180000
#define compat_ExecCheckIndexConstraints(rri, slot, estate, other) \
	ExecCheckIndexConstraints(rri, slot, estate, other, &(slot)->tts_tid, NIL)
#else
#define compat_ExecCheckIndexConstraints(rri, slot, estate, other) \
	ExecCheckIndexConstraints(rri, slot, estate, other, NIL)
#endif

/* 17: access methods can keep something between the inserts of a statement */
#if PG_VERSION_NUM >= 170000
#define compat_index_insert_cleanup(index, info) index_insert_cleanup(index, info)
#else
#define compat_index_insert_cleanup(index, info) ((void) 0)
#endif

/* 18: index_beginscan takes an instrumentation argument */
#if PG_VERSION_NUM >= 180000
#define compat_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0)
#else
#define compat_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, nkeys, 0)
#endif

/* 18: ExecutorRun lost execute_once */
#if PG_VERSION_NUM >= 180000
#define COMPAT_EXECUTE_ONCE_PARAMETER
#define COMPAT_EXECUTE_ONCE
#else
#define COMPAT_EXECUTE_ONCE_PARAMETER , bool execute_once
#define COMPAT_EXECUTE_ONCE , execute_once
#endif

/* 18: RelationGetPrimaryKeyIndex takes deferrable_ok */
#if PG_VERSION_NUM >= 180000
#define compat_RelationGetPrimaryKeyIndex(rel) RelationGetPrimaryKeyIndex(rel, false)
#else
#define compat_RelationGetPrimaryKeyIndex(rel) RelationGetPrimaryKeyIndex(rel)
#endif

/* 17: transaction_timeout is armed in every process, workers too */
#if PG_VERSION_NUM >= 170000
#define compat_disable_transaction_timeout() \
	SetConfigOption("transaction_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE)
#else
#define compat_disable_transaction_timeout() ((void) 0)
#endif

/* 17: a worker can connect as a role that may not log in */
#if PG_VERSION_NUM >= 170000
#define COMPAT_ROLE_NEEDS_LOGIN false
#define COMPAT_BYPASS_ROLELOGINCHECK BGWORKER_BYPASS_ROLELOGINCHECK
#else
#define COMPAT_ROLE_NEEDS_LOGIN true
#define COMPAT_BYPASS_ROLELOGINCHECK 0
#endif

/* 16: one function each for all kinds of objects */
#if PG_VERSION_NUM >= 160000
#define compat_function_aclcheck(oid, role) \
	object_aclcheck(ProcedureRelationId, oid, role, ACL_EXECUTE)
#define compat_function_ownercheck(oid, role) object_ownercheck(ProcedureRelationId, oid, role)
#define compat_database_ownercheck(oid, role) object_ownercheck(DatabaseRelationId, oid, role)
#define compat_database_aclcheck(oid, role, mode) object_aclcheck(DatabaseRelationId, oid, role, mode)
#else
#define compat_function_aclcheck(oid, role) pg_proc_aclcheck(oid, role, ACL_EXECUTE)
#define compat_function_ownercheck(oid, role) pg_proc_ownercheck(oid, role)
#define compat_database_ownercheck(oid, role) pg_database_ownercheck(oid, role)
#define compat_database_aclcheck(oid, role, mode) pg_database_aclcheck(oid, role, mode)
#endif

#endif							/* PG_COMPAT_H */
