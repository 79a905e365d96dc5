/*
 * What pgrx cannot do for us.
 *
 * 1. A SQLSTATE of our own. PgSqlErrorCode is a closed enum, so an error travels as a Rust value to the edge
 *    of the function, is copied here, every Rust destructor runs, and only then is it thrown.
 * 2. Calls on the path of an id. Every call through pgrx's bindings costs a sigsetjmp; the functions below
 *    cannot raise an error, so they need none.
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/timeout.h"

typedef struct PendingError
{
	char		sqlstate[6];
	char		message[512];
	char		detail[1024];
	char		hint[1024];
} PendingError;

static PendingError pending;

static void
copy_text(char *to, size_t size, const char *from, size_t length)
{
	size_t		copied = length < size - 1 ? length : size - 1;

	/* Never cut a UTF-8 character in half: step back over continuation bytes. */
	while (copied < length && copied > 0 && ((unsigned char) from[copied] & 0xC0) == 0x80)
		copied--;
	if (copied > 0)
		memcpy(to, from, copied);
	to[copied] = '\0';
}

void
idgen_error_store(const char *sqlstate, const char *message, size_t message_length,
				  const char *detail, size_t detail_length, const char *hint, size_t hint_length)
{
	memcpy(pending.sqlstate, sqlstate, 5);
	pending.sqlstate[5] = '\0';
	copy_text(pending.message, sizeof pending.message, message, message_length);
	copy_text(pending.detail, sizeof pending.detail, detail, detail_length);
	copy_text(pending.hint, sizeof pending.hint, hint, hint_length);
}

void
idgen_error_throw(void)
{
	ereport(ERROR,
			(errcode(MAKE_SQLSTATE(pending.sqlstate[0], pending.sqlstate[1], pending.sqlstate[2],
								   pending.sqlstate[3], pending.sqlstate[4])),
			 errmsg_internal("%s", pending.message),
			 pending.detail[0] ? errdetail_internal("%s", pending.detail) : 0,
			 pending.hint[0] ? errhint("%s", pending.hint) : 0));
}

/* The role whose rights count now. Reads a variable. */
Oid
idgen_user_id(void)
{
	return GetUserId();
}

/* 16 bytes in the current memory context, or NULL: never an error. */
void *
idgen_alloc_uuid(void)
{
	return MemoryContextAllocExtended(CurrentMemoryContext, 16, MCXT_ALLOC_NO_OOM);
}

/*
 * SIGINT is how Postgres tells a process that its lock_timeout is over; only then it is obeyed. A cancel from
 * outside would end a wait for the synchronous standby and leave a grant that may not survive a failover.
 */
static void
lock_timeout_only(SIGNAL_ARGS)
{
	if (get_timeout_indicator(LOCK_TIMEOUT, false))
		StatementCancelHandler(postgres_signal_arg);
}

/* Signals of our background workers. (pqsignal has another name in later majors.) */
void
idgen_worker_signals(void)
{
	pqsignal(SIGTERM, die);
	pqsignal(SIGINT, lock_timeout_only);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
}
