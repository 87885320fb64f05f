#include "slot_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "names.h"

/* The end of the byte range for the promises of steps. */
static const int64_t END = SS_QUEUE_STEPS + (int64_t)UINT32_MAX * SS_QUEUE_ROOM;

/* A place above is never given, so that the promise of a place stays below SS_QUEUE_STEPS. */
static const int64_t PLACES_END = (int64_t)1 << 38;

/* The limits of lock queries and of ranges to search: the sruns of a job hold fewer locks. */
enum { PASSES_MAX = 8192, RANGES_MAX = SS_PLAN_MAX_SLOTS };

int ss_slot_file_open(const char *folder, const char *name, int flags)
{
	char path[512 + 16];
	struct stat found;

	(void)snprintf(path, sizeof path, "%s/%s", folder, name);
	/* O_NONBLOCK: opening a FIFO in its place must not block */
	int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
	if (fd >= 0 && (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode))) {
		(void)close(fd);
		errno = 0;
		return -1;
	}
	return fd;
}

bool ss_slot_file_has_text(const char *folder, const char *name)
{
	struct stat found;
	int fd = ss_slot_file_open(folder, name, O_RDONLY);

	if (fd < 0)
		return false;
	bool has = fstat(fd, &found) == 0 && found.st_size > 0;
	(void)close(fd);
	return has;
}

int ss_queue_open(const char *folder)
{
	return ss_slot_file_open(folder, SS_SLOTS_QUEUE, O_RDWR);
}

static int set(int queue, int command, short type, int64_t start, int64_t length)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length };

	return fcntl(queue, command, &lock);
}

/* Find any lock of another process in a range. */
static bool find(int queue, int64_t start, int64_t end, int64_t *from, int64_t *to)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = end - start };

	if (start >= end || fcntl(queue, F_OFD_GETLK, &lock) != 0 || lock.l_type == F_UNLCK)
		return false;
	*from = lock.l_start > start ? lock.l_start : start;
	*to = lock.l_len == 0 || lock.l_start + lock.l_len > end ? end : lock.l_start + lock.l_len;
	return true;
}

static bool is_locked(int queue, int64_t start, int64_t end)
{
	int64_t from, to;
	return find(queue, start, end, &from, &to);
}

/* Return the highest byte of a range that another process has locked; -1: none. */
static int64_t highest(int queue, int64_t start, int64_t end)
{
	if (!is_locked(queue, start, end))
		return -1;
	for (int64_t above = end; above - start > 1;) { /* there is a lock from `start` on, and none from `above` on */
		int64_t middle = start + (above - start) / 2;
		if (is_locked(queue, middle, end))
			start = middle;
		else
			above = middle;
	}
	return start;
}

int64_t ss_queue_join(int queue)
{
	int64_t place = highest(queue, 0, SS_QUEUE_CLAIMS) + 1;
	/* do not reuse the place of a promise that is still valid */
	int64_t claim = highest(queue, SS_QUEUE_CLAIMS, SS_QUEUE_STEPS);
	int64_t above = claim < 0 ? 0 : (claim - SS_QUEUE_CLAIMS) / SS_QUEUE_ROOM + 1;

	if (place < above)
		place = above;
	if (place >= PLACES_END || set(queue, F_OFD_SETLK, F_WRLCK, place, 1) != 0)
		return -1;
	return place;
}

int64_t ss_queue_join_step(int queue, uint32_t step)
{
	int64_t place = (int64_t)step * SS_QUEUE_STEP_PLACES;

	if (place >= PLACES_END)
		return ss_queue_join(queue);
	return set(queue, F_OFD_SETLK, F_WRLCK, place, 1) == 0 ? place : -1;
}

int64_t ss_queue_follow_step(int queue, uint32_t step)
{
	int64_t place = (int64_t)step * SS_QUEUE_STEP_PLACES;

	return place < PLACES_END && set(queue, F_OFD_SETLKW, F_WRLCK, place, 1) == 0 ? place : -1;
}

bool ss_queue_is_waited_in(int queue)
{
	return is_locked(queue, 0, SS_QUEUE_CLAIMS);
}

bool ss_queue_is_first(int queue, int64_t place)
{
	return !is_locked(queue, 0, place);
}

void ss_queue_follow(int queue, int64_t place)
{
	int64_t before = highest(queue, 0, place);

	if (before >= 0 && set(queue, F_OFD_SETLKW, F_RDLCK, before, 1) == 0)
		(void)set(queue, F_OFD_SETLK, F_UNLCK, before, 1);
}

static int64_t claim_of(int64_t place)
{
	return SS_QUEUE_CLAIMS + place * SS_QUEUE_ROOM;
}

static int64_t claim_of_step(uint32_t step)
{
	return SS_QUEUE_STEPS + (int64_t)step * SS_QUEUE_ROOM;
}

int ss_queue_claim(int queue, int64_t place, uint32_t slots)
{
	if (set(queue, F_OFD_SETLK, F_WRLCK, claim_of(place), slots) != 0)
		return -1;
	(void)set(queue, F_OFD_SETLK, F_UNLCK, place, 1);
	return 0;
}

int ss_queue_claim_step(int queue, int64_t place, uint32_t slots, uint32_t step)
{
	if (set(queue, F_OFD_SETLK, F_WRLCK, claim_of_step(step), slots) != 0)
		return -1;
	(void)set(queue, F_OFD_SETLK, F_UNLCK, place, 1);
	return 0;
}

bool ss_queue_has_claimed(int queue, uint32_t step)
{
	return is_locked(queue, claim_of_step(step), claim_of_step(step) + SS_QUEUE_ROOM);
}

void ss_queue_name_step(int queue, int64_t place, uint32_t slots, uint32_t step)
{
	/* for a moment both locks count: other processes see too few free slots, never too many */
	(void)set(queue, F_OFD_SETLK, F_WRLCK, claim_of_step(step), slots);
	(void)set(queue, F_OFD_SETLK, F_UNLCK, claim_of(place), SS_QUEUE_ROOM);
}

/* Return how many tasks of the step have chosen slots: two bytes of the file for each step, little-endian. 0 if unreadable. */
static uint32_t read_chosen(int queue, uint32_t step)
{
	unsigned char bytes[2] = { 0, 0 };

	if (pread(queue, bytes, sizeof bytes, (off_t)step * (off_t)sizeof bytes) != (ssize_t)sizeof bytes)
		return 0;
	return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8;
}

/* Return how many slots the lock from `from` to `to` promises to other steps than `step`. */
static uint32_t promised(int queue, int64_t from, int64_t to, uint32_t step)
{
	uint32_t slots = to - from < SS_QUEUE_ROOM ? (uint32_t)(to - from) : SS_QUEUE_ROOM;

	if (from < SS_QUEUE_STEPS)
		return slots;
	uint32_t of = (uint32_t)((from - SS_QUEUE_STEPS) / SS_QUEUE_ROOM), chosen = read_chosen(queue, of);
	return of == step || chosen >= slots ? 0 : slots - chosen;
}

uint32_t ss_queue_claimed(int queue, uint32_t step)
{
	struct {
		int64_t start, end;
	} left[RANGES_MAX];
	uint32_t count = 0, claimed = 0;

	left[count].start = SS_QUEUE_CLAIMS;
	left[count++].end = END;
	/* the kernel returns any one lock in a range: search on both sides of it */
	for (int passes = 0; count > 0 && passes < PASSES_MAX; passes++) {
		int64_t start = left[--count].start, end = left[count].end, from, to;
		if (!find(queue, start, end, &from, &to))
			continue;
		claimed += promised(queue, from, to, step);
		if (count + 2 > RANGES_MAX)
			break;
		left[count].start = start;
		left[count++].end = from;
		left[count].start = to;
		left[count++].end = end;
	}
	return claimed;
}

void ss_queue_chosen(int queue, uint32_t step, uint32_t tasks)
{
	uint32_t chosen = read_chosen(queue, step) + tasks;

	/* most steps get their slots without waiting: write nothing for a step without a promise */
	if (!is_locked(queue, claim_of_step(step), claim_of_step(step) + SS_QUEUE_ROOM))
		return;
	chosen = chosen < UINT16_MAX ? chosen : UINT16_MAX;
	unsigned char bytes[2] = { (unsigned char)(chosen & 0xff), (unsigned char)(chosen >> 8) };
	/* if the state folder is full, the promise is valid until the step's srun ends */
	(void)!pwrite(queue, bytes, sizeof bytes, (off_t)step * (off_t)sizeof bytes);
}

bool ss_queue_is_told(int queue)
{
	return is_locked(queue, SS_QUEUE_TOLD, SS_QUEUE_TOLD + 1) && set(queue, F_OFD_SETLK, F_RDLCK, SS_QUEUE_TOLD, 1) == 0;
}

bool ss_queue_is_first_to_tell(int queue)
{
	/* of several at once, one gets the lock for writing, and then shares it */
	bool is_first = set(queue, F_OFD_SETLK, F_WRLCK, SS_QUEUE_TOLD, 1) == 0;

	(void)set(queue, F_OFD_SETLK, F_RDLCK, SS_QUEUE_TOLD, 1);
	return is_first;
}

void ss_queue_tell(const char *folder)
{
	int queue = ss_slot_file_open(folder, SS_SLOTS_QUEUE, O_WRONLY);

	if (queue < 0)
		return;
	(void)futimens(queue, NULL); /* raises IN_ATTRIB of inotify(7), and needs no space in a full state folder */
	(void)close(queue);
}

/* Set the length of the file that records refusals: a hole needs no space in a full state folder either. */
static void set_refused(const char *folder, off_t length)
{
	struct stat found;
	int fd = ss_slot_file_open(folder, SS_SLOTS_REFUSED, O_WRONLY);

	if (fd < 0)
		return;
	if (fstat(fd, &found) == 0 && found.st_size == 0)
		(void)!ftruncate(fd, length);
	(void)close(fd);
}

void ss_queue_mark_refused(const char *folder)
{
	set_refused(folder, 1);
}

void ss_queue_mark_refused_step(const char *folder, uint32_t step)
{
	set_refused(folder, (off_t)step + 2);
}

bool ss_queue_has_refused(const char *folder, uint32_t *step)
{
	struct stat found;
	int fd = ss_slot_file_open(folder, SS_SLOTS_REFUSED, O_RDONLY);

	if (fd < 0)
		return false;
	bool has = fstat(fd, &found) == 0 && found.st_size > 0;
	(void)close(fd);
	*step = has && found.st_size > 1 && found.st_size < UINT32_MAX ? (uint32_t)(found.st_size - 2) : UINT32_MAX;
	return has;
}
