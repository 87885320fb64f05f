/* The leases of several steps of one job. Each step is a process, like a slurmstepd. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "leases.h"

enum { SLOTS = 8, GPUS = 2 };

static char folder[64], why[512];
static struct ss_slots slots;
static uint32_t chosen[SS_PLAN_MAX_SLOTS];

static const char *path_of(const char *name)
{
	static char path[128];
	(void)snprintf(path, sizeof path, "%s/%s", folder, name);
	return path;
}

static const char *slot_path(uint32_t slot)
{
	char name[16];
	(void)snprintf(name, sizeof name, "%u", slot);
	return path_of(name);
}

static void put(const char *path, const char *text, size_t length)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, text, length) != (ssize_t)length)
		abort();
	close(fd);
}

static const char *content(uint32_t slot)
{
	static char text[256];
	int fd = open(slot_path(slot), O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	text[length > 0 ? length : 0] = '\0';
	close(fd);
	return text;
}

static void new_folder(void)
{
	strcpy(folder, "/tmp/test_leases.XXXXXX");
	if (mkdtemp(folder) == NULL)
		abort();
	put(path_of(SS_SLOTS_LOCK), "", 0);
	for (uint32_t slot = 0; slot < SLOTS; slot++)
		put(slot_path(slot), "", 0);
}

static void remove_folder(void)
{
	for (uint32_t slot = 0; slot < SLOTS; slot++)
		(void)remove(slot_path(slot));
	(void)remove(path_of(SS_SLOTS_LOCK));
	(void)remove(folder);
}

static void fresh_table(void)
{
	memset(&slots, 0, sizeof slots);
	slots.count = SLOTS;
	slots.gpus = GPUS;
	for (uint32_t slot = 0; slot < SLOTS; slot++)
		slots.gpu[slot] = (uint16_t)(slot % GPUS);
}

static struct ss_leases *open_step(uint32_t tasks, bool late)
{
	fresh_table();
	return ss_leases_open(folder, SLOTS, tasks, 5, late, why, sizeof why);
}

static int take(struct ss_leases *leases, const bool *allowed, uint32_t task, uint32_t wanted)
{
	return ss_leases_take(leases, &slots, allowed, allowed, task, wanted, chosen, why, sizeof why);
}

static void wait_for(pid_t pid)
{
	int status;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
}

/* A task: a process that runs until it is killed. */
static pid_t start_task(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	return pid;
}

static void kill_task(pid_t pid)
{
	(void)kill(pid, SIGKILL);
	wait_for(pid);
}

/* Another step: a process that leases `wanted` slots, reports their number, and holds them until it is killed. */
static pid_t start_step(uint32_t wanted, int *got)
{
	int pipes[2];
	unsigned char answer = 255;

	if (pipe2(pipes, O_CLOEXEC) != 0)
		abort();
	pid_t pid = fork();
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		struct ss_leases *leases = open_step(wanted, false);
		answer = (unsigned char)(leases ? take(leases, NULL, 0, wanted) : 254);
		if (write(pipes[1], &answer, 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(pipes[1]);
	if (read(pipes[0], &answer, 1) != 1)
		abort();
	close(pipes[0]);
	*got = answer;
	return pid;
}

static void steps_share_the_slots_and_give_them_back(void)
{
	int got;
	new_folder();
	struct ss_leases *first = open_step(3, false);
	CHECK(why, first != NULL && take(first, NULL, 0, 3) == 3);
	CHECK("lowest", chosen[0] == 0 && chosen[1] == 1 && chosen[2] == 2);
	CHECK(content(0), strncmp(content(0), "step 5 holder ", 14) == 0 && strstr(content(0), " task 0 0\n") != NULL);
	pid_t other = start_step(4, &got);
	CHECK("the other step", got == 4);
	struct ss_leases *third = open_step(8, false);
	CHECK("what is left", third != NULL && take(third, NULL, 0, 8) == 1 && chosen[0] == 7);
	CHECK("others", ss_slots_count(&slots, NULL, SS_SLOT_OTHERS) == 7);
	CHECK("used", ss_leases_used(folder, SLOTS) == 8);
	CHECK("no launcher", !ss_leases_had_launcher(folder));
	ss_leases_note_launcher(folder);
	CHECK("a launcher", ss_leases_had_launcher(folder));
	kill_task(other); /* its tasks were never forked */
	struct ss_leases *fourth = open_step(8, false);
	CHECK("of the killed step", fourth != NULL && take(fourth, NULL, 0, 8) == 4 && chosen[0] == 3);
	ss_leases_give_back(first, 1);
	CHECK(content(1), strcmp(content(1), SS_SLOT_USED "\n") == 0);
	struct ss_leases *fifth = open_step(8, false);
	CHECK("one given back", fifth != NULL && take(fifth, NULL, 0, 8) == 1 && chosen[0] == 1);
	ss_leases_close(first);
	ss_leases_close(third);
	ss_leases_close(fourth);
	ss_leases_close(fifth);
	struct ss_leases *last = open_step(8, false);
	CHECK("all closed", last != NULL && take(last, NULL, 0, 8) == 8);
	ss_leases_close(last);
	remove_folder();
}

static void many_steps_at_once_never_share_a_slot(void)
{
	for (int round = 0; round < 20; round++) {
		pid_t pids[12];
		int results[2], total = 0;
		unsigned char slot;
		bool seen[SLOTS] = { false };
		new_folder();
		if (pipe2(results, O_CLOEXEC) != 0)
			abort();
		for (int i = 0; i < 12; i++) {
			pids[i] = fork();
			if (pids[i] == 0) {
				struct ss_leases *leases = open_step(1, i % 2);
				int taken = leases ? take(leases, NULL, 0, 1) : -1;
				slot = taken == 1 ? (unsigned char)chosen[0] : taken == 0 ? 100 : 200;
				if (write(results[1], &slot, 1) != 1)
					_exit(1);
				for (;;)
					pause();
			}
		}
		for (int i = 0; i < 12; i++) {
			if (read(results[0], &slot, 1) != 1)
				abort();
			CHECK("a slot or none", slot < SLOTS || slot == 100);
			if (slot < SLOTS) {
				CHECK("only once", !seen[slot]);
				seen[slot] = true;
				total++;
			}
		}
		CHECK("all eight", total == SLOTS);
		for (int i = 0; i < 12; i++)
			kill_task(pids[i]);
		close(results[0]);
		close(results[1]);
		remove_folder();
	}
}

static void the_slot_of_a_dead_holder_is_its_tasks_while_that_lives(void)
{
	int got;
	new_folder();
	pid_t task = start_task();
	struct ss_leases *leases = open_step(1, false);
	CHECK("taken", leases != NULL && take(leases, NULL, 0, 1) == 1 && chosen[0] == 0);
	ss_leases_name_task(leases, 0, (uint32_t)task);
	CHECK(content(0), strstr(content(0), " task 0 0\n") == NULL);
	ss_leases_close(leases); /* like a kill: nothing is given back */
	leases = open_step(8, false);
	CHECK("not given out", leases != NULL && take(leases, NULL, 0, 8) == 7 && chosen[0] == 1);
	ss_leases_close(leases);
	CHECK("the mark stands", strstr(content(0), "step 5 holder ") != NULL);
	kill_task(task);
	pid_t step = start_step(8, &got);
	CHECK("given out", got == 8);
	kill_task(step);
	remove_folder();
}

static void a_process_of_the_same_number_is_another(void)
{
	char text[SS_HOLDING_SIZE];
	new_folder();
	struct ss_holding holding = { 0, { 1, 1 }, { (uint32_t)getpid(), 1 } }; /* this process did not start one tick after boot */
	put(slot_path(0), text, ss_holding_render(&holding, text));
	struct ss_leases *leases = open_step(1, false);
	CHECK("free", leases != NULL && take(leases, NULL, 0, 1) == 1 && chosen[0] == 0);
	ss_leases_close(leases);
	remove_folder();
}

static void a_task_that_has_ended_but_is_not_waited_for_is_dead(void)
{
	new_folder();
	pid_t task = start_task();
	struct ss_leases *leases = open_step(1, false);
	CHECK("taken", leases != NULL && take(leases, NULL, 0, 1) == 1);
	ss_leases_name_task(leases, 0, (uint32_t)task);
	ss_leases_close(leases);
	siginfo_t ended;
	(void)kill(task, SIGKILL);
	(void)waitid(P_PID, (id_t)task, &ended, WEXITED | WNOWAIT);
	leases = open_step(1, false);
	CHECK("free", leases != NULL && take(leases, NULL, 0, 1) == 1 && chosen[0] == 0);
	ss_leases_close(leases);
	wait_for(task);
	remove_folder();
}

static void *runs_on(void *argument)
{
	while (pause() != 0)
		;
	return argument;
}

/* The kernel shows such a process as a zombie with several threads. */
static void a_task_whose_main_thread_has_ended_is_alive(void)
{
	char path[64], text[512];
	new_folder();
	pid_t task = fork();
	if (task == 0) {
		pthread_t thread;
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)pthread_create(&thread, NULL, runs_on, NULL);
		pthread_exit(NULL);
	}
	(void)snprintf(path, sizeof path, "/proc/%d/stat", task);
	do {
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		ssize_t length = read(fd, text, sizeof text - 1);
		text[length > 0 ? length : 0] = '\0';
		close(fd);
	} while (strstr(text, ") Z ") == NULL);
	struct ss_leases *leases = open_step(1, false);
	CHECK("taken", leases != NULL && take(leases, NULL, 0, 1) == 1 && chosen[0] == 0);
	ss_leases_name_task(leases, 0, (uint32_t)task);
	ss_leases_close(leases);
	leases = open_step(8, false);
	CHECK("not given out", leases != NULL && take(leases, NULL, 0, 8) == 7 && chosen[0] == 1);
	ss_leases_close(leases);
	kill_task(task);
	remove_folder();
}

static int open_files(void)
{
	int count = 0;
	for (int fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

struct callback {
	void (*run)(struct callback *callback);
	struct ss_leases *leases;
	pid_t task;
	int taken;
};

static int run_callback(void *argument)
{
	struct callback *callback = argument;
	callback->run(callback);
	return 0;
}

/* Run a callback as slurmstepd does with contain_spank: in a child with this process's memory and its own file descriptors. */
static void contained(struct callback *callback, void (*run)(struct callback *))
{
	static _Alignas(16) char stack[1 << 20];
	callback->run = run;
	wait_for(clone(run_callback, stack + sizeof stack, CLONE_VM | SIGCHLD, callback));
}

static void user_init(struct callback *callback)
{
	callback->leases = open_step(2, false);
	callback->taken = callback->leases != NULL ? take(callback->leases, NULL, 0, 2) : -1;
}

static void task_post_fork(struct callback *callback)
{
	ss_leases_name_task(callback->leases, 0, (uint32_t)callback->task);
}

static void task_exit(struct callback *callback)
{
	ss_leases_give_back(callback->leases, 0);
}

/* Return how many slots another step gets. */
static int others_get(void)
{
	int got;
	kill_task(start_step(SLOTS, &got));
	return got;
}

static void a_lease_does_not_end_with_the_callback_that_took_it(void)
{
	struct callback callback = { .taken = -1 };
	char holder[64];
	int before = open_files(), status;

	new_folder();
	contained(&callback, user_init);
	CHECK("taken", callback.taken == 2);
	ss_leases_held_by(callback.leases, (uint32_t)getpid());
	CHECK("no file is open", open_files() == before);
	CHECK("others", others_get() == SLOTS - 2);
	pid_t task = callback.task = start_task();
	contained(&callback, task_post_fork);
	(void)snprintf(holder, sizeof holder, "step 5 holder %d ", getpid());
	CHECK(content(0), strncmp(content(0), holder, strlen(holder)) == 0 && strstr(content(0), " task 0 0\n") == NULL);
	put(slot_path(0), "", 0); /* as the user can */
	CHECK("the lock holds it", others_get() == SLOTS - 2);
	kill_task(task);
	CHECK("held until slurmstepd has seen that", others_get() == SLOTS - 2);
	contained(&callback, task_exit);
	CHECK(content(0), strcmp(content(0), SS_SLOT_USED "\n") == 0);
	CHECK("one more", others_get() == SLOTS - 1);
	pid_t child = fork(); /* a task that lives on holds no lock of slurmstepd */
	if (child == 0)
		for (;;)
			pause();
	ss_leases_close(callback.leases);
	CHECK("all", others_get() == SLOTS);
	kill_task(child);
	CHECK("nothing is left open", open_files() == before && waitpid(-1, &status, WNOHANG) < 0);
	remove_folder();
}

/* Without its lock only the text holds its slot. */
static void a_late_task_whose_file_cannot_be_written_gets_no_slot(void)
{
	struct rlimit none = { 0, 0 };
	int status;
	new_folder();
	struct ss_leases *leases = open_step(1, true);
	pid_t task = fork();
	if (task == 0) {
		(void)signal(SIGXFSZ, SIG_IGN);
		(void)setrlimit(RLIMIT_FSIZE, &none);
		int taken = leases ? take(leases, NULL, 0, 1) : 0;
		_exit(taken == -1 && strstr(why, "/0: File too large") != NULL ? 0 : 1);
	}
	CHECK("refused", waitpid(task, &status, 0) == task && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	ss_leases_close(leases);
	CHECK("free", others_get() == SLOTS);
	remove_folder();
}

/* A task's end is told later than another step finds it. */
static void what_ended_late_does_not_free_the_slot_of_the_next_task(void)
{
	int results[2];
	unsigned char got = 0;
	new_folder();
	if (pipe2(results, O_CLOEXEC) != 0)
		abort();
	struct ss_leases *first = open_step(1, true), *second = ss_leases_open(folder, SLOTS, 1, 6, true, why, sizeof why);
	pid_t tasks[2];
	for (int i = 0; i < 2; i++) {
		tasks[i] = fork();
		if (tasks[i] == 0) {
			got = take(i == 0 ? first : second, NULL, 0, 1) == 1 && chosen[0] == 0;
			if (write(results[1], &got, 1) != 1)
				_exit(1);
			for (;;)
				pause();
		}
		CHECK("slot 0", read(results[0], &got, 1) == 1 && got == 1);
		if (i == 0)
			kill_task(tasks[0]);
	}
	ss_leases_give_back(first, 0);
	CHECK("the next one's", others_get() == SLOTS - 1);
	kill_task(tasks[1]);
	CHECK("free", others_get() == SLOTS);
	ss_leases_close(first);
	ss_leases_close(second);
	close(results[0]);
	close(results[1]);
	remove_folder();
}

/* Each task chooses a slot on its own GPU. The lease outlives its exec, and ends with the task. */
static void late_choices_end_with_their_tasks(void)
{
	static const bool second_gpu[GPUS] = { false, true };
	int results[2], status;
	unsigned char slot;
	bool seen[SLOTS] = { false };
	pid_t pids[5];

	new_folder();
	if (pipe2(results, O_CLOEXEC) != 0)
		abort();
	struct ss_leases *leases = open_step(5, true);
	CHECK(why, leases != NULL);
	for (uint32_t task = 0; task < 5; task++) {
		pids[task] = fork();
		if (pids[task] == 0) {
			slot = take(leases, second_gpu, task, 1) == 1 ? (unsigned char)chosen[0] : 100;
			if (write(results[1], &slot, 1) != 1)
				_exit(1);
			execlp("sleep", "sleep", "30", (char *)NULL);
			_exit(1);
		}
		ss_leases_name_task(leases, task, (uint32_t)pids[task]);
		if (read(results[0], &slot, 1) != 1)
			abort();
		CHECK("four on that GPU", slot == (task < 4 ? 1 + 2 * task : 100));
		if (slot < SLOTS)
			seen[slot] = true;
	}
	CHECK("all four", seen[1] && seen[3] && seen[5] && seen[7]);
	struct ss_leases *other = open_step(8, false);
	CHECK("the others' view", other != NULL && take(other, NULL, 0, 8) == 4 && chosen[0] == 0 && chosen[1] == 2);
	ss_leases_close(other);
	kill_task(pids[1]);
	ss_leases_give_back(leases, 1);
	kill_task(pids[4]); /* it had no slot */
	ss_leases_give_back(leases, 4);
	other = open_step(8, false);
	CHECK("one more", other != NULL && take(other, NULL, 0, 8) == 5);
	ss_leases_close(other);
	pid_t late = fork();
	if (late == 0)
		_exit(take(leases, second_gpu, 4, 1)); /* a task that chooses late does not get a slot that was freed */
	CHECK("waited", waitpid(late, &status, 0) == late && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	ss_leases_close(leases);
	other = open_step(8, false);
	CHECK("their tasks live", other != NULL && take(other, NULL, 0, 8) == 5);
	ss_leases_close(other);
	for (int i = 0; i < 4; i++)
		if (i != 1)
			kill_task(pids[i]);
	other = open_step(8, false);
	CHECK("and end", other != NULL && take(other, NULL, 0, 8) == 8);
	ss_leases_close(other);
	close(results[0]);
	close(results[1]);
	remove_folder();
}

static void what_users_do_to_their_files_is_borne(void)
{
	char noise[5000];
	new_folder();
	for (size_t i = 0; i < sizeof noise; i++)
		noise[i] = (char)(i * 7);
	put(slot_path(0), noise, sizeof noise);
	put(slot_path(1), "step 0 holder 1 1 task 1 99999999999999999999999\n", 49);
	put(slot_path(2), "used\nused\n", 10);
	int rogue = open(slot_path(3), O_RDONLY | O_CLOEXEC);
	CHECK("rogue", flock(rogue, LOCK_EX) == 0);
	struct ss_leases *leases = open_step(8, false);
	CHECK("all but the one he holds", leases != NULL && take(leases, NULL, 0, 8) == 7);
	CHECK(content(0), strncmp(content(0), "step 5 ", 7) == 0);
	ss_leases_close(leases);
	close(rogue);
	rogue = open(path_of(SS_SLOTS_LOCK), O_RDONLY | O_CLOEXEC);
	CHECK("rogue", flock(rogue, LOCK_EX) == 0);
	ss_leases_patience_ms = 20;
	leases = open_step(8, false);
	CHECK("no choice", leases != NULL && take(leases, NULL, 0, 8) == -1);
	CHECK(why, strstr(why, "lock is held by another process of the job") != NULL);
	ss_leases_close(leases);
	close(rogue);
	remove_folder();
}

static void a_damaged_folder_is_refused(void)
{
	new_folder();
	(void)remove(slot_path(5));
	struct ss_leases *leases = open_step(8, false);
	CHECK("a file too few", leases != NULL && take(leases, NULL, 0, 8) == -1);
	CHECK(why, strstr(why, "/5: No such file") != NULL);
	ss_leases_close(leases);
	leases = open_step(8, true);
	CHECK("late", leases != NULL && take(leases, NULL, 0, 1) == -1);
	ss_leases_close(leases);
	leases = open_step(8, false);
	CHECK("a link", symlink("/etc/passwd", slot_path(5)) == 0 && leases != NULL && take(leases, NULL, 0, 8) == -1);
	(void)remove(slot_path(5));
	CHECK("a FIFO", mkfifo(slot_path(5), 0600) == 0 && take(leases, NULL, 0, 8) == -1);
	CHECK(why, strstr(why, "not a regular file") != NULL);
	(void)remove(slot_path(5));
	put(slot_path(5), "", 0);
	CHECK("whole again: the failures held nothing", take(leases, NULL, 0, 8) == 8);
	ss_leases_close(leases);
	(void)remove(path_of(SS_SLOTS_LOCK));
	leases = open_step(8, false);
	CHECK("no lock", leases != NULL && take(leases, NULL, 0, 8) == -1);
	ss_leases_close(leases);
	remove_folder();
	leases = open_step(8, false);
	CHECK("no folder", leases != NULL && take(leases, NULL, 0, 8) == -1);
	ss_leases_close(leases);
	CHECK("used", ss_leases_used(folder, SLOTS) == 0);
}

static void wrong_task_numbers_do_nothing(void)
{
	new_folder();
	struct ss_leases *leases = open_step(2, false);
	CHECK("more wanted than tasks", leases != NULL && take(leases, NULL, 0, 8) == 2);
	ss_leases_name_task(leases, 2, 1);
	ss_leases_name_task(leases, UINT32_MAX, 1);
	ss_leases_give_back(leases, 2);
	ss_leases_give_back(leases, UINT32_MAX);
	ss_leases_give_back(leases, 0);
	ss_leases_give_back(leases, 0);
	ss_leases_close(leases);
	leases = open_step(0, false);
	CHECK("no tasks", leases != NULL && take(leases, NULL, 0, 1) == 0);
	ss_leases_close(leases);
	ss_leases_close(NULL);
	remove_folder();
}

int main(void)
{
	steps_share_the_slots_and_give_them_back();
	many_steps_at_once_never_share_a_slot();
	the_slot_of_a_dead_holder_is_its_tasks_while_that_lives();
	a_process_of_the_same_number_is_another();
	a_task_that_has_ended_but_is_not_waited_for_is_dead();
	a_task_whose_main_thread_has_ended_is_alive();
	a_lease_does_not_end_with_the_callback_that_took_it();
	a_late_task_whose_file_cannot_be_written_gets_no_slot();
	what_ended_late_does_not_free_the_slot_of_the_next_task();
	late_choices_end_with_their_tasks();
	what_users_do_to_their_files_is_borne();
	a_damaged_folder_is_refused();
	wrong_task_numbers_do_nothing();
	return finish();
}
