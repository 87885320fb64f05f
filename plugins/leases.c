#include "leases.h"

#include "common.h"
#include "slot_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* A process that chooses slots holds the lock for well under a millisecond. */
uint32_t ss_leases_patience_ms = 5000;

struct ss_leases {
	char folder[512];
	uint32_t slots, tasks, step;
	bool late;
	struct ss_process holder;
	void **held; /* of each slot: the mapping that holds its lock; NULL: none */
	/* shared with the forked tasks: */
	size_t shared_size;
	struct ss_process *task; /* of each task, as named by the parent */
	uint32_t *owner;         /* of each slot: the number of its task plus one; 0: no task of this step; or HAD */
};

/* The owner of a slot whose task has ended. A task of the same step that chooses later does not get it. */
static const uint32_t HAD = UINT32_MAX;

/* Open the file of a slot, or (SS_PLAN_MAX_SLOTS) the one named `lock`. Return -1 and a reason on failure. */
static int open_file(const struct ss_leases *leases, uint32_t slot, char *why, size_t size)
{
	char name[16] = SS_SLOTS_LOCK;

	if (slot < SS_PLAN_MAX_SLOTS)
		(void)snprintf(name, sizeof name, "%" PRIu32, slot);
	int fd = ss_slot_file_open(leases->folder, name, O_RDWR);
	if (fd < 0)
		return ss_fail(why, size, "%s/%s: %s", leases->folder, name, errno ? strerror(errno) : "not a regular file");
	return fd;
}

static void unlock_and_close(int fd)
{
	(void)flock(fd, LOCK_UN);
	(void)close(fd);
}

/* Fields of /proc/PID/stat, proc(5). */
enum { THREADS = 20, START = 22 };

/* Return the number in field `wanted` of /proc/PID/stat; `at` is the blank before field 3. 0 if there is no such field. */
static uint64_t field_of(const char *at, int wanted)
{
	uint64_t number = 0;

	for (int field = 2; field < wanted && at != NULL; field++)
		at = strchr(at + (field > 2), ' ');
	for (at = at != NULL ? at + 1 : ""; *at >= '0' && *at <= '9'; at++)
		number = number * 10 + (uint64_t)(*at - '0');
	return number;
}

/* Return the start time of a process; 0 if there is none, or none of its threads runs. The kernel shows a process whose main thread
 * has ended as a zombie with several threads. */
static uint64_t start_of(uint32_t pid)
{
	char path[32], text[512];

	(void)snprintf(path, sizeof path, "/proc/%" PRIu32 "/stat", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t length = read(fd, text, sizeof text - 1);
	(void)close(fd);
	text[length > 0 ? length : 0] = '\0';
	const char *at = strrchr(text, ')'); /* the name before it can have any character */
	if (at == NULL || at[1] != ' ' || (strchr("ZX", at[2]) != NULL && field_of(at + 1, THREADS) < 2))
		return 0;
	return field_of(at + 1, START);
}

static bool is_alive(const struct ss_process *process)
{
	return process->pid != 0 && process->start != 0 && start_of(process->pid) == process->start;
}

/* Return false if the file system is full. A hole, which needs no space, still tells that a task had the slot (ss_leases_used). */
static bool put_text(int fd, const char *text, size_t length)
{
	bool is_written = pwrite(fd, text, length, 0) == (ssize_t)length;

	return ftruncate(fd, is_written ? (off_t)length : 1) == 0 && is_written;
}

static bool put_holding(const struct ss_leases *leases, int fd, struct ss_process task)
{
	struct ss_holding holding = { .step = leases->step, .holder = leases->holder, .task = task };
	char text[SS_HOLDING_SIZE];

	return put_text(fd, text, ss_holding_render(&holding, text));
}

static bool read_holding(int fd, struct ss_holding *holding)
{
	char text[SS_HOLDING_SIZE];
	ssize_t length = pread(fd, text, sizeof text, 0);

	return length > 0 && ss_holding_parse(text, (size_t)length, holding) == 0;
}

/* Return whether the task in the file of an unlocked slot is alive: it chose late, or its slurmstepd was killed. */
static bool has_living_task(int fd)
{
	struct ss_holding holding;

	return read_holding(fd, &holding) && is_alive(&holding.task);
}

/* Read every slot's state. `found` gets the locked files of free slots, and -1 for the others. */
static int read_leases(const struct ss_leases *leases, struct ss_slots *slots, int *found, char *why, size_t size)
{
	for (uint32_t slot = 0; slot < leases->slots; slot++)
		found[slot] = -1;
	for (uint32_t slot = 0; slot < leases->slots; slot++) {
		if (__atomic_load_n(&leases->owner[slot], __ATOMIC_ACQUIRE) != 0) {
			slots->state[slot] = SS_SLOT_OURS;
			continue;
		}
		int fd = open_file(leases, slot, why, size);
		if (fd < 0)
			return -1;
		slots->state[slot] = SS_SLOT_OTHERS;
		if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
			(void)close(fd);
		} else if (has_living_task(fd)) {
			unlock_and_close(fd);
		} else {
			slots->state[slot] = SS_SLOT_FREE;
			found[slot] = fd;
		}
	}
	return 0;
}

/* Let this process hold the lock of an open file without a file descriptor: a mapping refers to the file as well, and the kernel
 * releases the lock with the last reference. With contain_spank slurmstepd runs its callbacks in a child that shares its memory and
 * not its files, so the mapping is slurmstepd's and stays, and a file descriptor would end with the child. Return NULL on failure. */
static void *hold_lock(int fd)
{
	void *held = mmap(NULL, 1, PROT_NONE, MAP_PRIVATE, fd, 0);

	if (held == MAP_FAILED)
		return NULL;
	if (madvise(held, 1, MADV_DONTFORK) == 0) /* not the tasks' */
		return held;
	(void)munmap(held, 1);
	return NULL;
}

/* Lease a slot to a task, and close its file. Record the owner first, so that the parent frees the slot if the task dies in
 * between. Return -1 and a reason on failure. */
static int hold(struct ss_leases *leases, uint32_t slot, uint32_t task, int *found, char *why, size_t size)
{
	int fd = *found, rc = 0;

	*found = -1;
	__atomic_store_n(&leases->owner[slot], task + 1, __ATOMIC_RELEASE);
	errno = 0;
	if (leases->late) {
		struct ss_process self = { (uint32_t)getpid(), start_of((uint32_t)getpid()) };
		if (self.start == 0 || !put_holding(leases, fd, self))
			rc = ss_fail(why, size, "%s/%" PRIu32 ": %s", leases->folder, slot,
				     self.start == 0 ? "/proc does not show this task" : errno ? strerror(errno) : "not written");
		(void)flock(fd, LOCK_UN);
	} else {
		(void)put_holding(leases, fd, leases->task[task]); /* information: the lock holds the slot */
		leases->held[slot] = hold_lock(fd);
		if (leases->held[slot] == NULL)
			rc = ss_fail(why, size, "%s/%" PRIu32 ": %s", leases->folder, slot, strerror(errno));
	}
	(void)close(fd);
	if (rc != 0)
		__atomic_store_n(&leases->owner[slot], 0, __ATOMIC_RELEASE);
	return rc;
}

/* Wait for the lock for a limited time: a process of the user can hold it. */
int ss_leases_begin(const struct ss_leases *leases, char *why, size_t size)
{
	struct timespec pause = { .tv_nsec = 1000000 };
	int64_t began = ss_now_ms();
	int fd = open_file(leases, SS_PLAN_MAX_SLOTS, why, size);

	if (fd < 0)
		return -1;
	while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
		if (ss_now_ms() - began >= (int64_t)ss_leases_patience_ms) {
			(void)close(fd);
			return ss_fail(why, size, "%s/" SS_SLOTS_LOCK " is held by another process of the job for more than %u ms",
				    leases->folder, ss_leases_patience_ms);
		}
		(void)nanosleep(&pause, NULL);
	}
	return fd;
}

void ss_leases_end(int lock)
{
	unlock_and_close(lock);
}

static void let_go(const struct ss_leases *leases, const int *found)
{
	for (uint32_t slot = 0; slot < leases->slots; slot++)
		if (found[slot] >= 0)
			unlock_and_close(found[slot]);
}

int ss_leases_free(const struct ss_leases *leases, struct ss_slots *slots, char *why, size_t size)
{
	int found[SS_PLAN_MAX_SLOTS];
	int rc = read_leases(leases, slots, found, why, size);

	let_go(leases, found);
	return rc == 0 ? (int)ss_slots_count(slots, NULL, SS_SLOT_FREE) : -1;
}

/* Return how many of the wanted slots may be taken without those that are promised to other steps, and record that this step's
 * tasks have chosen. */
static uint32_t leave_promised(const struct ss_leases *leases, struct ss_slots *slots, uint32_t wanted)
{
	uint32_t free_slots = ss_slots_count(slots, NULL, SS_SLOT_FREE);
	int queue = ss_queue_open(leases->folder);

	slots->promised = 0;
	if (queue >= 0) {
		slots->promised = ss_queue_claimed(queue, leases->step);
		ss_queue_chosen(queue, leases->step, wanted);
		(void)close(queue);
	}
	if (slots->promised > free_slots)
		slots->promised = free_slots;
	return wanted < free_slots - slots->promised ? wanted : free_slots - slots->promised;
}

int ss_leases_take(struct ss_leases *leases, struct ss_slots *slots, const bool *preferred, const bool *allowed, uint32_t first_task,
		   uint32_t wanted, uint32_t *chosen, char *why, size_t size)
{
	int found[SS_PLAN_MAX_SLOTS];
	uint32_t taken = 0;
	int lock = ss_leases_begin(leases, why, size);

	if (lock < 0)
		return -1;
	int rc = read_leases(leases, slots, found, why, size);
	if (rc == 0) {
		uint32_t most = leave_promised(leases, slots, wanted);
		uint32_t count = ss_slots_choose(slots, preferred, most, chosen);
		for (uint32_t i = 0; i < count; i++)
			slots->state[chosen[i]] = SS_SLOT_OURS;
		count += ss_slots_choose(slots, allowed, most - count, chosen + count);
		for (uint32_t i = 0; i < count && first_task + i < leases->tasks && rc == 0; i++) {
			rc = hold(leases, chosen[i], first_task + i, &found[chosen[i]], why, size);
			taken += rc == 0;
		}
	}
	let_go(leases, found);
	ss_leases_end(lock);
	for (uint32_t i = 0; rc != 0 && i < taken; i++)
		ss_leases_give_back(leases, first_task + i);
	return rc == 0 ? (int)taken : -1;
}

struct ss_leases *ss_leases_open(const char *folder, uint32_t slots, uint32_t tasks, uint32_t step, bool late, char *why,
				 size_t size)
{
	struct ss_leases *leases = calloc(1, sizeof *leases);
	void **held = calloc(slots, sizeof *held);
	size_t shared_size = tasks * sizeof *leases->task + slots * sizeof *leases->owner;
	void *shared = mmap(NULL, shared_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (leases == NULL || held == NULL || shared == MAP_FAILED) {
		free(leases);
		free(held);
		if (shared != MAP_FAILED)
			(void)munmap(shared, shared_size);
		(void)ss_fail(why, size, "no memory");
		return NULL;
	}
	*leases = (struct ss_leases){ .slots = slots, .tasks = tasks, .step = step, .late = late, .held = held,
				      .shared_size = shared_size, .task = shared };
	leases->owner = (uint32_t *)(leases->task + tasks);
	ss_leases_held_by(leases, (uint32_t)getpid());
	(void)snprintf(leases->folder, sizeof leases->folder, "%s", folder);
	return leases;
}

void ss_leases_held_by(struct ss_leases *leases, uint32_t pid)
{
	leases->holder = (struct ss_process){ pid, start_of(pid) };
}

void ss_leases_name_task(struct ss_leases *leases, uint32_t task, uint32_t pid)
{
	char why[SS_HOLDING_SIZE];

	if (task >= leases->tasks)
		return;
	leases->task[task] = (struct ss_process){ pid, start_of(pid) };
	for (uint32_t slot = 0; slot < leases->slots; slot++) {
		int fd = leases->owner[slot] == task + 1 ? open_file(leases, slot, why, sizeof why) : -1;
		if (fd >= 0) {
			(void)put_holding(leases, fd, leases->task[task]);
			(void)close(fd);
		}
	}
}

/* Write that the slot of a task that chose late, and has ended, is free. Another step can have it already. The lock for choosing is
 * taken, not the slot's, which a process that chooses would find taken. */
static void mark_late_used(const struct ss_leases *leases, int fd)
{
	struct ss_holding holding;
	char why[SS_HOLDING_SIZE];
	int lock = ss_leases_begin(leases, why, sizeof why);

	if (lock < 0)
		return; /* the slot is free all the same: its task is dead */
	if (read_holding(fd, &holding) && holding.step == leases->step && !is_alive(&holding.task))
		(void)put_text(fd, SS_SLOT_USED "\n", strlen(SS_SLOT_USED "\n"));
	ss_leases_end(lock);
}

static void free_slot(struct ss_leases *leases, uint32_t slot)
{
	char why[SS_HOLDING_SIZE];
	int fd = open_file(leases, slot, why, sizeof why);

	if (fd >= 0 && leases->held[slot] == NULL)
		mark_late_used(leases, fd);
	else if (fd >= 0)
		(void)put_text(fd, SS_SLOT_USED "\n", strlen(SS_SLOT_USED "\n"));
	if (fd >= 0)
		(void)close(fd);
	if (leases->held[slot] != NULL)
		(void)munmap(leases->held[slot], 1);
	leases->held[slot] = NULL;
	__atomic_store_n(&leases->owner[slot], HAD, __ATOMIC_RELEASE);
}

void ss_leases_give_back(struct ss_leases *leases, uint32_t task)
{
	bool gave = false;

	for (uint32_t slot = 0; task < leases->tasks && slot < leases->slots; slot++) {
		if (__atomic_load_n(&leases->owner[slot], __ATOMIC_ACQUIRE) != task + 1)
			continue;
		free_slot(leases, slot);
		gave = true;
	}
	if (gave)
		ss_queue_tell(leases->folder);
}

void ss_leases_close(struct ss_leases *leases)
{
	bool held = false;

	if (leases == NULL)
		return;
	for (uint32_t slot = 0; slot < leases->slots; slot++) {
		held = held || (leases->owner[slot] != 0 && leases->owner[slot] != HAD);
		if (leases->held[slot] != NULL)
			(void)munmap(leases->held[slot], 1);
	}
	if (held)
		ss_queue_tell(leases->folder);
	(void)munmap(leases->task, leases->shared_size);
	free(leases->held);
	free(leases);
}

uint32_t ss_leases_used(const char *folder, uint32_t slots)
{
	uint32_t used = 0;
	char name[16];

	for (uint32_t slot = 0; slot < slots; slot++) {
		(void)snprintf(name, sizeof name, "%" PRIu32, slot);
		used += ss_slot_file_has_text(folder, name);
	}
	return used;
}

void ss_leases_note_launcher(const char *folder)
{
	int fd = ss_slot_file_open(folder, SS_SLOTS_LOCK, O_RDWR);

	if (fd < 0)
		return;
	put_text(fd, "launcher\n", 9);
	(void)close(fd);
}

bool ss_leases_had_launcher(const char *folder)
{
	return ss_slot_file_has_text(folder, SS_SLOTS_LOCK);
}
