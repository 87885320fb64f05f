/* The queue of processes that wait for slots: their order, their promises, and their end. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "leases.h"
#include "names.h"
#include "slot_queue.h"
#include "slot_wait.h"
#include "step_wait.h"

enum { SLOTS = 4, STEP = 7 };

static char folder[64], why[512];
static struct ss_slots slots;
static uint32_t chosen[SS_PLAN_MAX_SLOTS];
static int told;

static const char *path_of(const char *name)
{
	static char path[128];
	(void)snprintf(path, sizeof path, "%s/%s", folder, name);
	return path;
}

static void each_file(void (*act)(const char *))
{
	static const char *const names[] = { "0", "1", "2", "3", SS_SLOTS_LOCK, SS_SLOTS_QUEUE, SS_SLOTS_REFUSED };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		act(path_of(names[i]));
}

static void make(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		abort();
	close(fd);
}

static void drop(const char *path)
{
	(void)unlink(path);
}

static void new_folder(void)
{
	strcpy(folder, "/tmp/test_slot_wait.XXXXXX");
	if (mkdtemp(folder) == NULL)
		abort();
	each_file(make);
}

static void remove_folder(void)
{
	each_file(drop);
	(void)rmdir(folder);
}

static void tell(const struct ss_slot_wait *wait)
{
	(void)wait;
	told++;
}

static struct ss_slot_wait for_slots(uint32_t wanted, int64_t limit_ms)
{
	return (struct ss_slot_wait){ .folder = folder, .slots = SLOTS, .wanted = wanted, .limit_ms = limit_ms, .tell_ms = 60000,
				      .tell = tell, .queue = -1 };
}

static struct ss_leases *open_step(uint32_t tasks, uint32_t step)
{
	memset(&slots, 0, sizeof slots);
	slots.count = SLOTS;
	slots.gpus = 1;
	return ss_leases_open(folder, SLOTS, tasks, step, false, why, sizeof why);
}

static int take(struct ss_leases *leases, uint32_t wanted)
{
	return ss_leases_take(leases, &slots, NULL, NULL, 0, wanted, chosen, why, sizeof why);
}

/* A waiting process reports its name when it has its promise, and holds that until it is killed. */
static pid_t start_waiter(int results, char name, uint32_t wanted)
{
	pid_t pid = fork();
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		struct ss_slot_wait wait = for_slots(wanted, SS_WAIT_FOREVER);
		if (ss_slot_wait(&wait) != SS_WAIT_PROMISED)
			name = '?';
		if (write(results, &name, 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	return pid;
}

static void end(pid_t pid)
{
	(void)kill(pid, SIGKILL);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

/* Wait until so many processes wait. They join under the lock that is held here, so the place tried here is free. */
static void until_queued(int64_t count)
{
	for (;;) {
		int lock = open(path_of(SS_SLOTS_LOCK), O_RDWR | O_CLOEXEC);
		if (lock < 0 || flock(lock, LOCK_EX) != 0)
			abort();
		int queue = ss_queue_open(folder);
		int64_t place = ss_queue_join(queue);
		close(queue);
		close(lock);
		if (place >= count)
			return;
		(void)usleep(2000);
	}
}

static char next_of(int results)
{
	char name = 0;
	if (read(results, &name, 1) != 1)
		abort();
	return name;
}

static void what_is_free_is_promised_at_once(void)
{
	new_folder();
	struct ss_slot_wait first = for_slots(3, 0), second = for_slots(2, 0), third = for_slots(1, 0);
	CHECK("three of four", ss_slot_wait(&first) == SS_WAIT_PROMISED && first.queue >= 0);
	CHECK("one is left", ss_slot_wait(&second) == SS_WAIT_OVER && second.free_slots == 1 && second.queue < 0);
	CHECK("for one", ss_slot_wait(&third) == SS_WAIT_PROMISED);
	struct ss_leases *other = open_step(4, STEP + 1);
	CHECK("nothing for a step without a promise", take(other, 4) == 0 && slots.promised == 4);
	ss_leases_close(other);
	close(third.queue); /* as when its srun ends */
	other = open_step(4, STEP + 1);
	CHECK("what nobody was promised", take(other, 4) == 1);
	ss_leases_close(other);
	close(first.queue);
	remove_folder();
}

static void a_promise_is_its_own_steps_until_that_has_chosen(void)
{
	new_folder();
	struct ss_slot_wait wait = for_slots(3, 0);
	CHECK("promised", ss_slot_wait(&wait) == SS_WAIT_PROMISED);
	ss_slot_wait_name_step(&wait, STEP);
	int queue = ss_queue_open(folder);
	CHECK("to others three are gone", ss_queue_claimed(queue, STEP + 1) == 3);
	CHECK("not to itself", ss_queue_claimed(queue, STEP) == 0);
	struct ss_leases *step = open_step(3, STEP);
	CHECK("its slots", take(step, 3) == 3);
	CHECK("nothing is promised any more", ss_queue_claimed(queue, STEP + 1) == 0);
	struct ss_slot_wait next = for_slots(1, 0), none = for_slots(1, 0);
	CHECK("the fourth", ss_slot_wait(&next) == SS_WAIT_PROMISED);
	CHECK("no fifth", ss_slot_wait(&none) == SS_WAIT_OVER && none.free_slots == 0);
	ss_leases_give_back(step, 0);
	CHECK("one task has ended, its srun has not", ss_slot_wait(&none) == SS_WAIT_PROMISED);
	ss_leases_close(step);
	close(queue);
	close(wait.queue);
	close(next.queue);
	close(none.queue);
	remove_folder();
}

/* A pipe for the waiters, and a step that has all slots. */
static int results[2];

static struct ss_leases *begin_full(void)
{
	new_folder();
	if (pipe2(results, O_CLOEXEC) != 0)
		abort();
	struct ss_leases *step = open_step(4, STEP);
	CHECK("all", take(step, 4) == 4);
	return step;
}

static void end_full(struct ss_leases *step)
{
	ss_leases_close(step);
	close(results[0]);
	close(results[1]);
	remove_folder();
}

static void they_come_in_the_order_of_arrival(void)
{
	pid_t pids[3];
	struct ss_leases *step = begin_full();
	for (int i = 0; i < 3; i++) {
		pids[i] = start_waiter(results[1], (char)('a' + i), i == 0 ? 2 : 1);
		until_queued(i + 1);
	}
	ss_leases_give_back(step, 0);
	ss_leases_give_back(step, 1);
	CHECK("the one that wants two", next_of(results[0]) == 'a');
	ss_leases_give_back(step, 2);
	CHECK("then the next", next_of(results[0]) == 'b');
	end(pids[1]); /* its promise is released */
	CHECK("then the last", next_of(results[0]) == 'c');
	struct ss_slot_wait late = for_slots(1, 0);
	CHECK("nobody else", ss_slot_wait(&late) == SS_WAIT_OVER);
	end(pids[0]);
	end(pids[2]);
	end_full(step);
}

static void a_killed_waiter_leaves_its_place(void)
{
	struct ss_leases *step = begin_full();
	pid_t first = start_waiter(results[1], 'a', 1);
	until_queued(1);
	pid_t second = start_waiter(results[1], 'b', 1);
	until_queued(2);
	pid_t third = start_waiter(results[1], 'c', 1);
	until_queued(3);
	end(second);
	end(first);
	ss_leases_give_back(step, 0);
	CHECK("the third", next_of(results[0]) == 'c');
	end(third);
	end_full(step);
}

/* Start the tasks of a step that Slurm has made. Each reports the step's name when it may take a slot. They hold the promise until they
 * are killed. */
static struct ss_step_wait start_step(int results_of, char name, uint32_t step, uint32_t tasks, pid_t *pids)
{
	struct ss_step_wait wait = { .folder = folder, .slots = SLOTS, .step = step, .tasks = tasks, .limit_ms = SS_WAIT_FOREVER,
				     .tell_ms = 60000, .tell = tell };
	if (!ss_step_wait_open(&wait))
		abort();
	CHECK("not at once", ss_step_wait_ask(&wait) == SS_WAIT_OVER);
	for (uint32_t task = 0; task < tasks; task++) {
		pids[task] = fork();
		if (pids[task] != 0)
			continue;
		if (ss_step_wait_for_all(&wait) != SS_WAIT_PROMISED)
			name = '?';
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (write(results_of, &name, 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	return wait;
}

/* Wait until a task of the step has its place. */
static void until_step_queued(uint32_t step)
{
	for (;;) {
		int queue = ss_queue_open(folder);
		int64_t place = ss_queue_join_step(queue, step);
		close(queue);
		if (place < 0)
			return;
		(void)usleep(2000);
	}
}

static void steps_come_in_the_order_of_their_numbers(void)
{
	pid_t late, early, client;
	struct ss_leases *step = begin_full();

	(void)start_step(results[1], 'l', STEP + 5, 1, &late);
	until_step_queued(STEP + 5);
	client = start_waiter(results[1], 'c', 1);
	until_queued((STEP + 5) * SS_QUEUE_STEP_PLACES + 2);
	(void)start_step(results[1], 'e', STEP + 1, 1, &early);
	until_step_queued(STEP + 1);
	for (uint32_t task = 0; task < 3; task++) {
		ss_leases_give_back(step, task);
		CHECK("the step that Slurm made first, then the other one, then srun", next_of(results[0]) == "elc"[task]);
	}
	end(late);
	end(early);
	end(client);
	end_full(step);
}

static void a_step_gets_slots_for_all_its_tasks_or_none(void)
{
	pid_t tasks[3], next;
	struct ss_leases *step = begin_full();

	(void)start_step(results[1], 's', STEP + 1, 3, tasks);
	until_step_queued(STEP + 1);
	(void)start_step(results[1], 'n', STEP + 2, 1, &next);
	until_step_queued(STEP + 2);
	ss_leases_give_back(step, 0);
	ss_leases_give_back(step, 1);
	struct pollfd anybody = { results[0], POLLIN, 0 };
	CHECK("two of three are free: nobody goes ahead", poll(&anybody, 1, 200) == 0);
	ss_leases_give_back(step, 2);
	for (int i = 0; i < 3; i++)
		CHECK("all three", next_of(results[0]) == 's');
	ss_leases_give_back(step, 3);
	CHECK("then the next step", next_of(results[0]) == 'n');
	for (int i = 0; i < 3; i++)
		end(tasks[i]);
	end(next);
	end_full(step);
}

static void another_task_goes_on_for_one_that_is_killed(void)
{
	pid_t tasks[2], first;
	struct ss_leases *step = begin_full();

	(void)start_step(results[1], 'f', STEP + 1, 1, &first);
	until_step_queued(STEP + 1);
	(void)start_step(results[1], 's', STEP + 2, 2, tasks);
	until_step_queued(STEP + 2);
	end(first);
	for (int i = 0; i < 2; i++) {
		end(tasks[i]); /* one of them had the place, the other one takes it over */
		if (i == 0)
			until_step_queued(STEP + 2);
	}
	(void)start_step(results[1], 'n', STEP + 3, 1, &first);
	ss_leases_give_back(step, 0);
	CHECK("the queue goes on", next_of(results[0]) == 'n');
	end(first);
	end_full(step);
}

static void a_step_is_asked_for_at_once(void)
{
	new_folder();
	struct ss_step_wait wait = { .folder = folder, .slots = SLOTS, .step = STEP, .tasks = 3, .limit_ms = SS_WAIT_FOREVER, .tell_ms = 60000,
				     .tell = tell }, other = wait;
	other.step = STEP + 1;
	other.tasks = 1;
	CHECK("memory", ss_step_wait_open(&wait) && ss_step_wait_open(&other));
	CHECK("free", ss_step_wait_ask(&wait) == SS_WAIT_PROMISED && wait.promise >= 0);
	CHECK("one is left", ss_step_wait_ask(&other) == SS_WAIT_PROMISED);
	struct ss_leases *none = open_step(4, STEP + 2);
	CHECK("for nobody else", take(none, 1) == 0);
	ss_leases_close(none);
	ss_step_wait_close_promise(&wait);
	ss_step_wait_close_promise(&other);
	CHECK("and free again", ss_step_wait_ask(&other) == SS_WAIT_PROMISED);
	ss_step_wait_close_promise(&other);
	struct ss_slot_wait srun = for_slots(4, 0);
	CHECK("an srun", ss_slot_wait(&srun) == SS_WAIT_PROMISED);
	CHECK("not for a step", ss_step_wait_ask(&other) == SS_WAIT_OVER);
	ss_slot_wait_name_step(&srun, STEP + 1);
	CHECK("but for its own", ss_step_wait_ask(&other) == SS_WAIT_PROMISED && other.promise < 0);
	close(srun.queue);
	remove_folder();
}

static void a_wait_is_limited_and_told_of_once(void)
{
	struct ss_leases *step = begin_full();
	struct ss_slot_wait wait = for_slots(1, 800); /* long enough for a busy machine */
	wait.tell_ms = 20;
	told = 0;
	CHECK("as the first", ss_slot_wait(&wait) == SS_WAIT_OVER && told == 1);
	pid_t first = start_waiter(results[1], 'a', 1);
	until_queued(1);
	CHECK("behind another", ss_slot_wait(&wait) == SS_WAIT_OVER && told == 2);
	end(first);
	end_full(step);
}

/* Wait in several processes at once, and return how many have told of it. */
static int tellers(int count)
{
	int tellers = 0;

	for (int i = 0; i < count; i++) {
		if (fork() == 0) {
			struct ss_slot_wait wait = for_slots(1, 1500);
			wait.tell_ms = 20;
			told = 0;
			_exit(ss_slot_wait(&wait) == SS_WAIT_OVER ? told : 100);
		}
	}
	for (int i = 0, status; i < count; i++)
		tellers += wait(&status) > 0 ? WEXITSTATUS(status) : 100;
	return tellers;
}

static void of_many_waiters_one_tells(void)
{
	struct ss_leases *step = begin_full();
	int shared = ss_queue_open(folder);

	CHECK("nobody has told", !ss_queue_is_told(shared));
	CHECK("one of them", ss_queue_is_first_to_tell(shared));
	CHECK("no other one", tellers(5) == 0);
	close(shared);
	shared = ss_queue_open(folder);
	CHECK("they have ended", !ss_queue_is_told(shared));
	close(shared);
	CHECK("a later wait", tellers(1) == 1);
	end_full(step);
}

static void what_a_user_does_to_the_queue_is_borne(void)
{
	struct flock all = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	new_folder();
	int rogue = ss_queue_open(folder);
	CHECK("he locks all of it", fcntl(rogue, F_OFD_SETLK, &all) == 0);
	struct ss_slot_wait wait = for_slots(1, 0);
	CHECK("no place is left", ss_slot_wait(&wait) == SS_WAIT_UNABLE && wait.queue < 0);
	struct ss_leases *step = open_step(4, STEP);
	CHECK("all slots are promised", take(step, 4) == 0);
	close(rogue);
	CHECK("and free again", take(step, 4) == 4);
	ss_leases_close(step);
	drop(path_of(SS_SLOTS_QUEUE));
	CHECK("an older Prolog made none", ss_slot_wait(&wait) == SS_WAIT_UNABLE);
	step = open_step(4, STEP);
	CHECK("slots are taken as ever", take(step, 4) == 4);
	ss_leases_close(step);
	remove_folder();
}

static void a_refused_task_is_remembered(void)
{
	uint32_t step = 0;

	new_folder();
	CHECK("none yet", !ss_queue_has_refused(folder, &step));
	ss_queue_mark_refused(folder);
	ss_queue_mark_refused_step(folder, STEP);
	CHECK("one", ss_queue_has_refused(folder, &step));
	CHECK("the first, whose srun said it", step == UINT32_MAX);
	remove_folder();
	ss_queue_mark_refused(folder);
	CHECK("no folder", !ss_queue_has_refused(folder, &step));
	for (uint32_t refused = 0; refused < 2; refused++) {
		new_folder();
		ss_queue_mark_refused_step(folder, refused * 40000);
		CHECK("the step", ss_queue_has_refused(folder, &step) && step == refused * 40000);
		remove_folder();
	}
}

static void a_time_is_a_number_with_a_letter(void)
{
	static const struct {
		const char *text;
		int64_t ms;
	} rows[] = {
		{ "0", 0 }, { "1", 1000 }, { "90s", 90000 }, { "5m", 300000 }, { "2h", 7200000 }, { "1d", 86400000 },
		{ "366d", 31622400000 }, { "367d", -1 }, { "", -1 }, { "m", -1 }, { "-1", -1 }, { "1.5", -1 }, { "1:00", -1 },
		{ "5M", -1 }, { "5mm", -1 }, { "01", -1 }, { " 1", -1 }, { "99999999999", -1 },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		int64_t ms = -1;
		int rc = ss_slot_wait_parse(rows[i].text, &ms);
		CHECK(rows[i].text, rc == (rows[i].ms < 0 ? -1 : 0) && ms == rows[i].ms);
	}
}

int main(void)
{
	what_is_free_is_promised_at_once();
	a_promise_is_its_own_steps_until_that_has_chosen();
	they_come_in_the_order_of_arrival();
	a_killed_waiter_leaves_its_place();
	steps_come_in_the_order_of_their_numbers();
	a_step_gets_slots_for_all_its_tasks_or_none();
	another_task_goes_on_for_one_that_is_killed();
	a_step_is_asked_for_at_once();
	a_wait_is_limited_and_told_of_once();
	of_many_waiters_one_tells();
	what_a_user_does_to_the_queue_is_borne();
	a_refused_task_is_remembered();
	a_time_is_a_number_with_a_letter();
	return finish();
}
