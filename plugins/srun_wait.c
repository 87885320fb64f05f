#include "srun_wait.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "inside.h"
#include "job_env.h"
#include "leases.h"
#include "names.h"
#include "plan.h"
#include "slot_queue.h"
#include "slot_wait.h"
#include "srun_arguments.h"

/* The time limit for the lock that is held to choose slots. slurmstepd waits longer for that lock, and reports it. */
enum { PATIENCE_MS = 1000 };

/* The options of this srun, and its wait, which holds its promise. */
static struct {
	bool has_limit;    /* --slot-wait */
	char limit_said[32];
	int64_t limit_ms;
	bool is_immediate; /* --immediate, SLURM_IMMEDIATE */
	bool is_seen_here; /* its tasks run only on this node, or take no slots of the job */
	char node[256];
	char folder[512];
	struct ss_slot_wait wait;
} now = { .wait = { .queue = -1 } };

int ss_srun_wait_option(const char *text)
{
	if (text == NULL || ss_slot_wait_parse(text, &now.limit_ms) != 0) {
		slurm_error("slurm-share: --" SS_OPTION_SLOT_WAIT "=%.32s: this is not a time; write a number of seconds, or a number with s, "
			    "m, h or d, for example --" SS_OPTION_SLOT_WAIT "=5m", text != NULL ? text : "");
		return -1;
	}
	(void)snprintf(now.limit_said, sizeof now.limit_said, "%s", text);
	now.has_limit = true;
	return 0;
}

static void say_that_it_waits(const struct ss_slot_wait *wait)
{
	slurm_info("slurm-share: this step waits for %u of the %u slot%s that job %u has on %s, which other steps hold; "
		   "others that wait meanwhile say nothing (--" SS_OPTION_SLOT_WAIT "=TIME limits the wait)", wait->wanted, wait->slots, ss_plural(wait->slots), ss_inside_job(),
		   now.node);
}

static void refuse(void) __attribute__((noreturn));
static void refuse(void)
{
	char why[128];

	if (now.is_immediate)
		(void)snprintf(why, sizeof why, "--immediate does not wait%s for more; omit it",
			       now.limit_ms > 0 ? " longer" : "");
	else
		(void)snprintf(why, sizeof why, "--" SS_OPTION_SLOT_WAIT "=%s is over; wait longer", now.limit_said);
	slurm_error("slurm-share: this step is not started: it wants %u of the %u slot%s that job %u has on %s, %u %s free, and %s, start "
		    "fewer steps at once, or submit the job with a larger --" SS_OPTION, now.wait.wanted, now.wait.slots,
		    ss_plural(now.wait.slots), ss_inside_job(), now.node, now.wait.free_slots, now.wait.free_slots == 1 ? "is" : "are", why);
	/* a script that uses --immediate checks srun's exit code itself */
	if (!now.is_immediate)
		ss_queue_mark_refused(now.folder);
	exit(SS_EXIT_REFUSED);
}

/* Record a refusal by srun's exit code, if the step was refused in srun, or a task on a node whose slots cannot be seen here. A
 * program that ends with the same exit code counts as refused, too. On this node slurmstepd records refusals itself. */
static void at_exit(int status, void *folder)
{
	if ((status & 0xff) == SS_EXIT_REFUSED && !now.is_seen_here)
		ss_queue_mark_refused(folder);
}

void ss_srun_wait_begin(const struct ss_request *asked, const char *state_root)
{
	(void)unsetenv(SS_WAIT_VARIABLE);
	if (!ss_inside_shared_step() || !ss_inside_wants_slots(asked))
		return;
	(void)snprintf(now.folder, sizeof now.folder, "%s/" SS_JOBS_FOLDER "/%u/" SS_SLOTS_FOLDER, state_root, ss_inside_job());
	(void)on_exit(at_exit, now.folder);
}

/* Return how many tasks srun will start on its only node. The order of precedence is that of srun. */
static uint32_t count_tasks(const struct ss_srun_arguments *said)
{
	uint32_t tasks = said->tasks;

	if (tasks == 0)
		tasks = ss_inside_number("SLURM_NTASKS");
	if (tasks == 0)
		tasks = ss_inside_number("SLURM_NPROCS");
	if (tasks == 0)
		tasks = said->tasks_per_node;
	if (tasks == 0)
		tasks = ss_inside_number("SLURM_NTASKS_PER_NODE");
	return tasks > 0 ? tasks : 1;
}

/* Return the number of slots of the step that this srun is a task of: they are not freed while it waits. */
static uint32_t count_own_slots(void)
{
	return getenv(SS_ENV_SLOT) != NULL ? ss_inside_number(SS_ENV_SIZE) : 0;
}

static bool takes_no_gpu(const struct ss_srun_arguments *said)
{
	const char *gres = getenv("SLURM_GRES");

	return said->says_no_gpus || (!said->says_gpus && gres != NULL && strcmp(gres, "none") == 0);
}

/* Return the number of the job's slots on this node; 0 without a plan. */
static uint32_t count_slots(const char *state_root)
{
	char path[512], why[SS_SENTENCE_SIZE];
	struct ss_plan_owner owner = { .job = ss_inside_job(), .uid = (uint32_t)getuid() };
	struct ss_plan *plan = NULL;
	uint32_t slots = 0;

	(void)snprintf(path, sizeof path, "%s/" SS_JOBS_FOLDER "/%u/" SS_PLAN_FILE, state_root, owner.job);
	if (ss_plan_read(path, &owner, &plan, why, sizeof why) != SS_PLAN_READ)
		return 0;
	if (plan->refused == NULL) {
		slots = plan->slot_count;
		(void)snprintf(now.node, sizeof now.node, "%.255s", plan->node);
	}
	ss_plan_free(plan);
	return slots;
}

static void read_immediate(const struct ss_srun_arguments *said)
{
	now.is_immediate = said->is_immediate || getenv("SLURM_IMMEDIATE") != NULL;
	uint32_t limit_s = said->is_immediate ? said->immediate_s : ss_inside_number("SLURM_IMMEDIATE");

	if (now.is_immediate && (!now.has_limit || now.limit_ms > (int64_t)limit_s * 1000)) {
		now.limit_ms = (int64_t)limit_s * 1000;
		now.has_limit = true;
	}
}

static bool is_on_this_node(const struct ss_srun_arguments *said)
{
	const char *node = getenv("SLURMD_NODENAME");

	return ss_inside_number("SLURM_JOB_NUM_NODES") < 2 ||
	       (said->node_list != NULL && node != NULL && strcmp(said->node_list, node) == 0);
}

/* Return whether the step may get several nodes: without -N and -w, srun deals its tasks to all nodes of the job. */
static bool may_be_on_several_nodes(const struct ss_srun_arguments *said)
{
	if (ss_inside_number("SLURM_JOB_NUM_NODES") < 2 || said->nodes == 1 || said->tasks == 1)
		return false;
	return said->node_list == NULL || strpbrk(said->node_list, ",[") != NULL;
}

/* Tell the step, of this job or of the one that --jobid names, how it may wait. slurmstepd removes the variable. */
static void pass_way_of_waiting(const struct ss_srun_arguments *said)
{
	if (!ss_inside_shared_step() && !said->says_other_place)
		return;
	if (said->is_async)
		(void)setenv(SS_WAIT_VARIABLE, SS_WAIT_ASYNC, 1);
	else if (said->is_immediate || getenv("SLURM_IMMEDIATE") != NULL)
		(void)setenv(SS_WAIT_VARIABLE, SS_WAIT_NOT, 1);
}

/* Refuse an asynchronous step that cannot wait on its node: it would be lost, and srun would end with 0. */
static void check_async(const struct ss_srun_arguments *said, uint32_t slots)
{
	uint32_t wanted = count_tasks(said);

	if (said->says_other_place || takes_no_gpu(said))
		return;
	if (may_be_on_several_nodes(said))
		slurm_error("slurm-share: this step is not started: srun --async waits for slots on one node only, and this step may get "
			    "several of the %u nodes of job %u; write -N1, with one srun for each node, or omit --async",
			    ss_inside_number("SLURM_JOB_NUM_NODES"), ss_inside_job());
	else if (slots > 0 && is_on_this_node(said) && wanted > slots)
		slurm_error("slurm-share: this step is not started: it wants %u slots, and job %u has %u on %s; start at most %u tasks "
			    "(srun -n%u), or submit the job with a larger --" SS_OPTION, wanted, ss_inside_job(), slots, now.node, slots,
			    slots);
	else
		return;
	ss_queue_mark_refused(now.folder);
	exit(SS_EXIT_REFUSED);
}

void ss_srun_wait(const struct ss_request *asked, const char *state_root)
{
	struct ss_srun_arguments said;
	size_t count = 0;

	const char *const *arguments = ss_inside_arguments(&count);

	if (arguments == NULL)
		return;
	ss_srun_arguments_read(arguments, count, &said);
	pass_way_of_waiting(&said);
	if (!ss_inside_shared_step() || !ss_inside_wants_slots(asked))
		return;
	now.is_seen_here = said.says_other_place || takes_no_gpu(&said) || is_on_this_node(&said);
	if (said.is_async) {
		check_async(&said, count_slots(state_root));
		return;
	}
	if (said.says_other_place || takes_no_gpu(&said) || !is_on_this_node(&said))
		return;
	/* without --overlap Slurm itself makes the step wait for the GPUs of another one */
	if (!said.overlaps && getenv("SLURM_OVERLAP") == NULL)
		return;
	uint32_t slots = count_slots(state_root), own = count_own_slots();
	now.wait.folder = now.folder;
	now.wait.slots = slots;
	now.wait.wanted = count_tasks(&said);
	/* slurmstepd refuses a step that can never have its slots */
	if (own >= slots || now.wait.wanted > slots - own)
		return;
	read_immediate(&said);
	now.wait.limit_ms = now.has_limit ? now.limit_ms : SS_WAIT_FOREVER; /* srun ends with its job */
	now.wait.tell_ms = SS_WAIT_TELL_MS;
	now.wait.tell = say_that_it_waits;
	ss_leases_patience_ms = PATIENCE_MS;
	if (ss_slot_wait(&now.wait) == SS_WAIT_OVER)
		refuse();
}

void ss_srun_wait_step(spank_t sp)
{
	uint32_t step = 0;

	if (now.wait.queue < 0)
		return;
	if (spank_get_item(sp, S_JOB_STEPID, &step) == ESPANK_SUCCESS) {
		ss_slot_wait_name_step(&now.wait, step);
		return;
	}
	(void)close(now.wait.queue); /* without the step's number, slurmstepd would not use the promise */
	now.wait.queue = -1;
}
