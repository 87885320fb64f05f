#include "step_wait.h"

#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "common.h"
#include "slot_queue.h"

struct ss_step_wait_shared {
	uint32_t is_promised, chosen;
};

/* The limit of the wait for the other tasks to choose, which they do at once; one that was killed does not. */
enum { OTHERS_MS = 5000 };

/* Signals for programs, which Slurm sends to all steps of a job (--signal, scancel --signal). They would end a process that does
 * not handle them; here slurmstepd's handlers would run, which write into its own pipe. A program that has not started has nothing
 * to save. */
static const int unheeded[] = { SIGUSR1, SIGUSR2, SIGALRM, SIGTSTP };
enum { UNHEEDED = sizeof unheeded / sizeof *unheeded };

bool ss_step_wait_open(struct ss_step_wait *wait)
{
	void *shared = mmap(NULL, sizeof *wait->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	wait->promise = -1;
	wait->shared = shared != MAP_FAILED ? shared : NULL;
	return wait->shared != NULL;
}

static struct ss_slot_wait slot_wait_of(const struct ss_step_wait *wait)
{
	return (struct ss_slot_wait){ .folder = wait->folder, .slots = wait->slots, .wanted = wait->tasks, .limit_ms = wait->limit_ms,
				      .tell_ms = wait->tell_ms, .tell = wait->tell, .is_step = true, .step = wait->step };
}

/* Return whether the step's srun has waited, and holds its promise. */
static bool is_promised_by_srun(const struct ss_step_wait *wait)
{
	int queue = ss_queue_open(wait->folder);
	bool is_promised = queue >= 0 && ss_queue_has_claimed(queue, wait->step);

	if (queue >= 0)
		(void)close(queue);
	return is_promised;
}

enum ss_wait_end ss_step_wait_ask(struct ss_step_wait *wait)
{
	struct ss_slot_wait asked = slot_wait_of(wait);

	if (is_promised_by_srun(wait))
		return SS_WAIT_PROMISED;
	asked.limit_ms = 0;
	asked.tell_ms = INT64_MAX;
	enum ss_wait_end end = ss_slot_wait(&asked);
	wait->promise = asked.queue;
	return end;
}

void ss_step_wait_close_promise(struct ss_step_wait *wait)
{
	if (wait->promise >= 0)
		(void)close(wait->promise);
	wait->promise = -1;
}

/* The name of a task while it waits. proctrack/linuxproc signals no process that is named as slurmstepd is. */
static const char NAME[] = "slot-wait";

/* Wait in a task. If its slurmstepd is killed nobody knows of the task any more: it must leave the queue and not start. */
static enum ss_wait_end wait_in_task(struct ss_slot_wait *slot_wait)
{
	struct sigaction ignored = { .sa_handler = SIG_IGN }, before[UNHEEDED];

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)prctl(PR_SET_NAME, NAME);
	for (int i = 0; i < UNHEEDED; i++)
		(void)sigaction(unheeded[i], &ignored, &before[i]);
	enum ss_wait_end end = ss_slot_wait(slot_wait);
	for (int i = 0; i < UNHEEDED; i++)
		(void)sigaction(unheeded[i], &before[i], NULL);
	(void)prctl(PR_SET_PDEATHSIG, 0);
	return end;
}

enum ss_wait_end ss_step_wait_for_all(struct ss_step_wait *wait)
{
	struct ss_slot_wait slot_wait = slot_wait_of(wait);

	slot_wait.is_promised = &wait->shared->is_promised;
	enum ss_wait_end end = wait_in_task(&slot_wait);
	wait->promise = slot_wait.queue;
	return end;
}

enum ss_wait_end ss_step_wait_for_one(struct ss_step_wait *wait, bool (*take)(const struct ss_slot_wait *), void *of_take)
{
	struct ss_slot_wait slot_wait = slot_wait_of(wait);

	slot_wait.take = take;
	slot_wait.of_take = of_take;
	return wait_in_task(&slot_wait);
}

void ss_step_wait_chosen(struct ss_step_wait *wait)
{
	struct timespec pause = { .tv_nsec = 1000000 };
	int64_t began = ss_now_ms();

	(void)__atomic_add_fetch(&wait->shared->chosen, 1, __ATOMIC_ACQ_REL);
	while (wait->promise >= 0 && __atomic_load_n(&wait->shared->chosen, __ATOMIC_ACQUIRE) < wait->tasks &&
	       ss_now_ms() - began < OTHERS_MS)
		(void)nanosleep(&pause, NULL);
	ss_step_wait_close_promise(wait);
}
