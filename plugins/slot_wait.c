#include "slot_wait.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#include "common.h"
#include "leases.h"
#include "names.h"
#include "options.h"
#include "slot_queue.h"

/* The first and the longest sleep, and the longest one without inotify (max_user_instances can be used up). Each sleep is twice as
 * long as the one before: at first srun may not have installed its signal handlers yet, see keep_signals(). */
enum { FIRST_SLEEP_MS = 20, LAST_SLEEP_MS = 1000, UNTOLD_SLEEP_MS = 250 };

/* The longest sleep in a task behind another process in the queue. The kernel wakes it; a thousand tasks that look around every
 * second, each at all locks of the queue, would need a core. */
enum { STEP_SLEEP_MS = 60000 };

/* The signals that end srun. */
static const int ending[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM };
enum { ENDING = sizeof ending / sizeof *ending };

/* The handlers and the mask of srun. */
struct signals {
	bool has_handler[ENDING];
	struct sigaction handlers[ENDING];
	sigset_t blocked;
};

/* The state of the wait. */
struct waiter {
	struct ss_slot_wait *wait;
	struct ss_leases *leases;
	int changes; /* inotify on the queue's file; -1: not opened yet, -2: not available */
	int64_t began_ms, sleep_ms;
	bool has_told;
	struct signals signals;
};

static bool is_first(const struct ss_slot_wait *wait)
{
	return ss_queue_is_first(wait->queue, wait->place);
}

static bool has_promise(const struct ss_slot_wait *wait)
{
	return wait->is_promised != NULL && __atomic_load_n(wait->is_promised, __ATOMIC_ACQUIRE) != 0;
}

static int claim(const struct ss_slot_wait *wait)
{
	if (!wait->is_step)
		return ss_queue_claim(wait->queue, wait->place, wait->wanted);
	if (ss_queue_claim_step(wait->queue, wait->place, wait->wanted, wait->step) != 0)
		return -1;
	if (wait->is_promised != NULL)
		__atomic_store_n(wait->is_promised, 1, __ATOMIC_RELEASE);
	return 0;
}

/* Under the lock for choosing: join the queue if that was not done before, and claim the wanted slots if this process is the first
 * and they are free. */
static enum ss_wait_end try_to_claim(struct ss_slot_wait *wait, const struct ss_leases *leases)
{
	static struct ss_slots slots;
	char why[SS_SENTENCE_SIZE];
	enum ss_wait_end end = SS_WAIT_OVER;
	int lock = ss_leases_begin(leases, why, sizeof why);

	if (lock < 0)
		return SS_WAIT_UNABLE;
	if (wait->place < 0)
		wait->place = wait->is_step ? ss_queue_join_step(wait->queue, wait->step) : ss_queue_join(wait->queue);
	slots.count = wait->slots;
	int free_slots = ss_leases_free(leases, &slots, why, sizeof why);
	if (free_slots < 0 || (wait->place < 0 && !wait->is_step)) {
		end = SS_WAIT_UNABLE;
	} else if (wait->place >= 0) {
		uint32_t promised = ss_queue_claimed(wait->queue, wait->is_step ? wait->step : UINT32_MAX);
		wait->free_slots = promised < (uint32_t)free_slots ? (uint32_t)free_slots - promised : 0;
		if (wait->take == NULL && wait->free_slots >= wait->wanted && is_first(wait) && claim(wait) == 0)
			end = SS_WAIT_PROMISED;
	}
	ss_leases_end(lock);
	return end;
}

/* Try to claim with signals blocked: a process that is stopped (Ctrl-Z) while it holds the lock would block all others. */
static enum ss_wait_end try_undisturbed(struct ss_slot_wait *wait, const struct ss_leases *leases)
{
	sigset_t all, before;

	(void)sigfillset(&all);
	(void)sigprocmask(SIG_BLOCK, &all, &before);
	enum ss_wait_end end = try_to_claim(wait, leases);
	/* it takes the lock for choosing itself */
	if (end == SS_WAIT_OVER && wait->take != NULL && wait->place >= 0 && is_first(wait) && wait->take(wait))
		end = SS_WAIT_PROMISED;
	(void)sigprocmask(SIG_SETMASK, &before, NULL);
	return end;
}

static int watch(const char *folder)
{
	char path[512 + 16];
	int changes = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

	(void)snprintf(path, sizeof path, "%s/" SS_SLOTS_QUEUE, folder);
	if (changes >= 0 && inotify_add_watch(changes, path, IN_ATTRIB | IN_MODIFY) < 0) {
		(void)close(changes);
		changes = -1;
	}
	return changes >= 0 ? changes : -2;
}

static void sleep_as_first(const struct waiter *waiter, int64_t most_ms)
{
	char events[1024];
	struct pollfd changes = { waiter->changes, POLLIN, 0 };
	int64_t pause_ms = waiter->changes < 0 && most_ms > UNTOLD_SLEEP_MS ? UNTOLD_SLEEP_MS : most_ms;

	(void)poll(&changes, waiter->changes >= 0, (int)pause_ms);
	while (waiter->changes >= 0 && read(waiter->changes, events, sizeof events) > 0)
		;
}

/* Not SIGALRM, for which a thread of srun can install a handler at any time. */
#define ALARM (SIGRTMIN + 3)

static void on_alarm(int number)
{
	(void)number;
}

/* Waiting for a lock has no time limit, so a signal to this thread interrupts it. The signal is repeated, in case the first one
 * arrives before the wait; the last one is delivered before the timer is deleted, and so before the handler is removed. */
static void sleep_as_follower(struct ss_slot_wait *wait, int64_t most_ms)
{
	struct sigaction wake = { .sa_handler = on_alarm }, before;
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = ALARM };
	struct itimerspec after = { .it_interval = { 1, 0 } };
	timer_t timer;

	event._sigev_un._tid = gettid();
	if (most_ms == 0 || sigaction(ALARM, &wake, &before) != 0)
		return;
	if (timer_create(CLOCK_MONOTONIC, &event, &timer) == 0) {
		after.it_value.tv_sec = most_ms / 1000;
		after.it_value.tv_nsec = most_ms % 1000 * 1000000;
		(void)timer_settime(timer, 0, &after, NULL);
		if (wait->place < 0)
			wait->place = ss_queue_follow_step(wait->queue, wait->step);
		else
			ss_queue_follow(wait->queue, wait->place);
		(void)timer_delete(timer);
	} else {
		(void)poll(NULL, 0, (int)most_ms);
	}
	(void)sigaction(ALARM, &before, NULL);
}

/* Return the milliseconds until the next check, message or time limit. */
static int64_t next_sleep(struct waiter *waiter, bool is_behind)
{
	const struct ss_slot_wait *wait = waiter->wait;
	int64_t waited = ss_now_ms() - waiter->began_ms, most = waiter->sleep_ms;

	waiter->sleep_ms = most * 2 < LAST_SLEEP_MS ? most * 2 : LAST_SLEEP_MS;
	if (wait->is_step && is_behind)
		most = STEP_SLEEP_MS;
	if (!waiter->has_told && wait->tell_ms - waited < most)
		most = wait->tell_ms - waited;
	if (wait->limit_ms >= 0 && wait->limit_ms - waited < most)
		most = wait->limit_ms - waited;
	return most > 0 ? most : 0;
}

/* Restore the default action of the signals that end srun. srun has blocked them (24.11), or handles them later in its main loop,
 * so that Ctrl-C would have no effect before there is a slot. A thread of 26.05 can install its handlers late, so do this before
 * each sleep. Ignored signals (nohup) stay ignored. */
static void keep_signals(struct signals *signals)
{
	struct sigaction as_usual = { .sa_handler = SIG_DFL }, found;

	for (int i = 0; i < ENDING; i++) {
		if (sigaction(ending[i], NULL, &found) != 0 || found.sa_handler == SIG_DFL || found.sa_handler == SIG_IGN)
			continue;
		signals->handlers[i] = found;
		signals->has_handler[i] = true;
		(void)sigaction(ending[i], &as_usual, NULL);
	}
}

static void begin_signals(struct signals *signals)
{
	sigset_t opened;

	(void)sigemptyset(&opened);
	(void)sigaddset(&opened, ALARM);
	for (int i = 0; i < ENDING; i++)
		(void)sigaddset(&opened, ending[i]);
	keep_signals(signals);
	(void)sigprocmask(SIG_UNBLOCK, &opened, &signals->blocked);
}

static void end_signals(const struct signals *signals)
{
	(void)sigprocmask(SIG_SETMASK, &signals->blocked, NULL);
	for (int i = 0; i < ENDING; i++)
		if (signals->has_handler[i])
			(void)sigaction(ending[i], &signals->handlers[i], NULL);
}

static enum ss_wait_end wait_on(struct waiter *waiter)
{
	struct ss_slot_wait *wait = waiter->wait;

	for (;;) {
		if (has_promise(wait)) {
			wait->place = -1;
			return SS_WAIT_PROMISED;
		}
		bool first = wait->place < 0 || is_first(wait);
		if (first) {
			enum ss_wait_end end = try_undisturbed(wait, waiter->leases);
			if (end != SS_WAIT_OVER)
				return end;
		}
		int64_t waited = ss_now_ms() - waiter->began_ms;
		if (wait->limit_ms >= 0 && waited >= wait->limit_ms)
			return SS_WAIT_OVER;
		if (!waiter->has_told && waited >= wait->tell_ms) {
			waiter->has_told = true;
			if (ss_queue_is_first_to_tell(wait->queue))
				wait->tell(wait);
		}
		if (wait->limit_ms != 0)
			keep_signals(&waiter->signals);
		if (wait->place < 0 || !is_first(wait))
			sleep_as_follower(wait, next_sleep(waiter, true));
		else if (waiter->changes == -1)
			waiter->changes = watch(wait->folder); /* then check once more */
		else if (first)
			sleep_as_first(waiter, next_sleep(waiter, false));
	}
}

enum ss_wait_end ss_slot_wait(struct ss_slot_wait *wait)
{
	struct waiter waiter = { .wait = wait, .changes = -1, .began_ms = ss_now_ms(), .sleep_ms = FIRST_SLEEP_MS };
	char why[SS_SENTENCE_SIZE];
	enum ss_wait_end end = SS_WAIT_UNABLE;

	wait->place = -1;
	wait->free_slots = 0;
	wait->queue = ss_queue_open(wait->folder);
	waiter.leases = wait->queue >= 0 ? ss_leases_open(wait->folder, wait->slots, 0, UINT32_MAX, false, why, sizeof why) : NULL;
	if (waiter.leases != NULL) {
		waiter.has_told = ss_queue_is_told(wait->queue);
		/* slurmstepd asks without waiting, and its handlers are not to be touched */
		if (wait->limit_ms != 0)
			begin_signals(&waiter.signals);
		end = wait_on(&waiter);
		if (wait->limit_ms != 0)
			end_signals(&waiter.signals);
	}
	ss_leases_close(waiter.leases);
	if (waiter.changes >= 0)
		(void)close(waiter.changes);
	bool has_own_promise = end == SS_WAIT_PROMISED && wait->place >= 0 && wait->take == NULL;
	if (!has_own_promise && wait->queue >= 0) {
		(void)close(wait->queue);
		wait->queue = -1;
	}
	return end;
}

void ss_slot_wait_name_step(const struct ss_slot_wait *wait, uint32_t step)
{
	char why[SS_SENTENCE_SIZE];
	struct ss_leases *leases = ss_leases_open(wait->folder, wait->slots, 0, UINT32_MAX, false, why, sizeof why);
	int lock = leases != NULL ? ss_leases_begin(leases, why, sizeof why) : -1;

	/* do it without the lock as well: without the step's number the step would have no promise at all */
	ss_queue_name_step(wait->queue, wait->place, wait->wanted, step);
	if (lock >= 0)
		ss_leases_end(lock);
	ss_leases_close(leases);
}

int ss_slot_wait_parse(const char *text, int64_t *limit_ms)
{
	static const char letters[] = "smhd";
	static const uint32_t seconds[] = { 1, 60, 3600, 86400 };
	size_t digits = strspn(text, "0123456789");
	uint32_t number, unit = 1;

	if (text[digits] != '\0') {
		const char *letter = strchr(letters, text[digits]);
		if (letter == NULL || text[digits + 1] != '\0')
			return -1;
		unit = seconds[letter - letters];
	}
	/* no job runs for more than a year */
	if (ss_number_parse(text, digits, 0, 366 * 86400U / unit, &number) != 0)
		return -1;
	*limit_ms = (int64_t)number * unit * 1000;
	return 0;
}
