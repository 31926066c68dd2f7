/*
 * clock.c
 *	  A wall clock that a test can set, for a server of its own: preload it with
 *	  LD_PRELOAD (Linux).
 *
 * The file that TASKOUTBOX_TEST_CLOCK names holds a number of seconds (8 bytes);
 * it is added to what the system says. All processes of the server map that file,
 * so a step takes effect at once and everywhere. Other clocks are left alone.
 *
 * libfaketime does the same, but not for background workers: while a program
 * waits it does not fake, and PostgreSQL 15 starts its workers from a signal
 * handler, while it waits. They inherit that for ever.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *step;
static int	(*real_clock_gettime) (clockid_t, struct timespec *);

static void __attribute__((constructor))
start(void)
{
	const char *name = getenv("TASKOUTBOX_TEST_CLOCK");
	int			fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	void	   *map = fd >= 0 ? mmap(NULL, sizeof(*step), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;

	real_clock_gettime = (int (*) (clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
	if (map == MAP_FAILED || real_clock_gettime == NULL)
		_exit(127);
	step = map;
	close(fd);
}

/* PostgreSQL 16 and later compile with -fvisibility=hidden. */
#pragma GCC visibility push(default)

int
clock_gettime(clockid_t id, struct timespec *now)
{
	int			result = real_clock_gettime(id, now);

	if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		now->tv_sec += *step;
	return result;
}

int
gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec t;

	if (clock_gettime(CLOCK_REALTIME, &t) != 0)
		return -1;
	now->tv_sec = t.tv_sec;
	now->tv_usec = t.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *now)
{
	struct timespec t;

	if (clock_gettime(CLOCK_REALTIME, &t) != 0)
		return (time_t) -1;
	if (now)
		*now = t.tv_sec;
	return t.tv_sec;
}
