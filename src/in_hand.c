/*
 * in_hand.c
 *	  What consumer workers are at, in a file that outlives a crash of the server.
 *
 * A crash ends all leases, and nobody is left to count a receive. So a controller
 * that crashes the server would be called again for ever. Therefore each worker
 * writes the ids of what it is at into its place of a small file that all
 * processes have mapped: that survives every crash but one of the machine. When a
 * process crashes, the postmaster ends the others by SIGQUIT, and workers note
 * that in their places: only what the crashed one was at counts as a receive, so
 * others lose nothing. The relay counts it before it gives anything out.
 */
#include "taskoutbox.h"
#include "in_hand.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xact.h"
#include "common/file_perm.h"
#include "miscadmin.h"
#include "storage/fd.h"

#include "outbox.h"
#include "queue.h"

/* Base backups leave out files whose names begin like that. */
#define IN_HAND_DIRECTORY "taskoutbox"
#define IN_HAND_FILE IN_HAND_DIRECTORY "/pgsql_tmp.in_hand"

/* Changes with the layout: another one is of no use to us. */
#define IN_HAND_MAGIC 0x54424f31

typedef struct InHand
{
	uint32		magic;
	Oid			dboid;
	Oid			outbox;
	bool		survived;		/* ended by another one's crash */
	bool		is_left;		/* by a crash, and not counted yet */
	int			n;
	int64		ids[IN_HAND_MAX];
} InHand;

static InHand *places = NULL;
static int	nplaces = 0;

static void
cannot(const char *what)
{
	ereport(FATAL,
			(errcode_for_file_access(),
			 errmsg("could not %s file \"%s\": %m", what, IN_HAND_FILE)));
}

/* More places than workers are what an earlier start had; never less. */
static void
map_file(int nworkers)
{
	int			fd;
	struct stat status;
	InHand		empty = {.magic = IN_HAND_MAGIC};

	if (MakePGDirectory(IN_HAND_DIRECTORY) < 0 && errno != EEXIST)
		cannot("create the directory of");
	fd = BasicOpenFile(IN_HAND_FILE, O_RDWR | O_CREAT | PG_BINARY);
	if (fd < 0 || fstat(fd, &status) < 0)
		cannot("open");

	/* Written, not only made longer: a full disk must not show up later. */
	nplaces = status.st_size / sizeof(InHand);
	for (; nplaces < nworkers; nplaces++)
	{
		if (pg_pwrite(fd, &empty, sizeof(empty), nplaces * sizeof(InHand)) != sizeof(empty))
			cannot("write");
	}
	places = mmap(NULL, nplaces * sizeof(InHand), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (places == MAP_FAILED)
		cannot("map");
	close(fd);
}

void
in_hand_startup(int nworkers)
{
	if (places == NULL)
		map_file(nworkers);
	for (int i = 0; i < nplaces; i++)
	{
		InHand	   *place = &places[i];

		if (place->magic != IN_HAND_MAGIC || place->n < 0 || place->n > IN_HAND_MAX || place->survived)
		{
			memset(place, 0, sizeof(InHand));
			place->magic = IN_HAND_MAGIC;
		}
		place->is_left = place->n > 0;
	}
}

void
in_hand_put(int worker, Oid outbox, const int64 *ids, int n)
{
	InHand	   *place = &places[worker];

	place->n = 0;
	pg_compiler_barrier();
	place->dboid = MyDatabaseId;
	place->outbox = outbox;
	memcpy(place->ids, ids, n * sizeof(int64));
	pg_compiler_barrier();
	place->n = n;
}

void
in_hand_clear(int worker)
{
	places[worker].n = 0;
	places[worker].survived = false;
}

void
in_hand_survive(int worker)
{
	places[worker].survived = true;
}

bool
in_hand_is_left(int worker)
{
	return places[worker].is_left;
}

static void
count(OutboxReader *dirty, int64 id)
{
	static const char *const error = "the server crashed while its controller ran";
	const QueueSettings *queues;
	int			n = queue_list(&queues);
	OutboxRow	row;
	int			receive_count;
	bool		is_last = false;
	bool		blocks = false;

	/* Done after all, or prepared. */
	if (outbox_look(dirty, id) != OUTBOX_HERE)
		return;
	row = outbox_row(dirty);
	receive_count = Min(row.receive_count + 1, RECEIVE_COUNT_MAX);
	for (int i = 0; i < n; i++)
	{
		if (queues[i].key != row.queue)
			continue;
		is_last = receive_count >= queues[i].max_receive_count;
		blocks = queues[i].on_dead_letter == ON_DEAD_LETTER_BLOCK && row.group != 0;
	}
	(void) outbox_set_error(id, error);
	CommandCounterIncrement();
	if (is_last)
		(void) outbox_bury(id, receive_count, "consumer", RECEIVED_TOO_OFTEN, blocks);
	else
		(void) outbox_count_receive(id, receive_count);
	ereport(LOG,
			(errmsg("task " INT64_FORMAT " failed: %s", id, error),
			 is_last ? errdetail("It is a dead letter now, after %d receives.", receive_count) :
			 errdetail("It was received %d times.", receive_count)));
}

/* What is in a place was left there by a crash, of this database. */
static bool
is_left_here(const InHand *place)
{
	return place->is_left && place->dboid == MyDatabaseId;
}

void
in_hand_count(void)
{
	Oid			outbox;
	OutboxReader *dirty;
	bool		is_any = false;

	for (int i = 0; i < nplaces; i++)
		is_any |= is_left_here(&places[i]);
	if (!is_any)
		return;

	outbox = outbox_relid();
	dirty = outbox_begin_dirty();
	for (int i = 0; i < nplaces; i++)
	{
		InHand	   *place = &places[i];

		if (!is_left_here(place) || place->outbox != outbox)
			continue;
		for (int j = 0; j < place->n; j++)
			count(dirty, place->ids[j]);
	}
	outbox_end(dirty);
}

void
in_hand_forget(Oid dboid)
{
	for (int i = 0; i < nplaces; i++)
	{
		if (places[i].is_left && places[i].dboid == dboid)
		{
			places[i].n = 0;
			places[i].is_left = false;
		}
	}
}
