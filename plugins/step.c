#include "step.h"

#include <slurm/slurm.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job_env.h"
#include "names.h"
#include "plan.h"

enum verdict {
	STAND_ASIDE,   /* change nothing */
	SAY_UNSHARED,  /* a share was asked for and this node has no plan: say it once, run on */
	REFUSE,        /* no task runs */
	GIVE_BATCH,    /* the batch shell, or salloc's */
	GIVE_SLOTS,    /* a step of tasks */
};

/* What ss_step_begin found out, for the tasks that slurmstepd forks afterwards. */
static struct {
	enum verdict verdict;
	bool say_notes;
	char sentence[SS_PLAN_MAX_LINE + 256];
	struct ss_plan *plan;
	struct ss_step step;
} now;

static bool is_batch(uint32_t step_id)
{
	return step_id == SLURM_BATCH_SCRIPT || step_id == SLURM_INTERACTIVE_STEP;
}

/* The extern step holds no task of the user. */
static bool is_tasks(uint32_t step_id)
{
	return step_id <= SLURM_MAX_NORMAL_STEP_ID;
}

__attribute__((format(printf, 1, 2)))
static void decide_sentence(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	(void)vsnprintf(now.sentence, sizeof now.sentence, format, arguments);
	va_end(arguments);
}

/* Below a batch shell whose node had a plan: then the other nodes of the job have one as well. */
static bool is_below_shared_batch(spank_t sp, uint32_t job)
{
	char value[16], own[16];

	(void)snprintf(own, sizeof own, "%u", job);
	return ss_env_get(sp, SS_ENV_JOB, value, sizeof value) && strcmp(value, own) == 0;
}

static bool wants_no_slot(spank_t sp, const struct ss_request *asked)
{
	char value[16];

	return (asked != NULL && asked->off) ||
	       (ss_env_get(sp, SS_ENV_SLOT, value, sizeof value) && strcmp(value, SS_SLOT_NONE) == 0);
}

static void read_cores(spank_t sp, struct ss_step *step)
{
	static struct ss_core_list job_cores;
	char *text = NULL, value[16];
	uint16_t cpus = 0;

	if (spank_get_item(sp, S_JOB_ALLOC_CORES, &text) != ESPANK_SUCCESS || ss_cores_parse(text, &job_cores) != 0)
		job_cores.count = 0;
	/* the same as the job's in a step that overlaps others, as a plain srun in the script does; fewer with --exact */
	if (spank_get_item(sp, S_STEP_ALLOC_CORES, &text) != ESPANK_SUCCESS || ss_cores_parse(text, &step->cores) != 0)
		step->cores = job_cores;
	step->has_own_cores = step->cores.count < job_cores.count;
	/* srun sets it where the user gave -c; S_STEP_CPUS_PER_TASK is also filled where nobody did */
	if (!ss_env_get(sp, "SLURM_CPUS_PER_TASK", value, sizeof value) ||
	    ss_number_parse(value, strlen(value), 1, SS_CPUS_MAX, &step->cpus_per_task) != 0)
		step->cpus_per_task = 0;
	/* -c counts CPUs, as Slurm does: hardware threads where slurm.conf says ThreadsPerCore=2 */
	uint32_t threads = 1;
	if (spank_get_item(sp, S_JOB_NCPUS, &cpus) == ESPANK_SUCCESS && step->cores.count > 0 && cpus > step->cores.count)
		threads = (uint32_t)(cpus / step->cores.count);
	step->cores_per_task = (step->cpus_per_task + threads - 1) / threads;
}

static bool read_step(spank_t sp, struct ss_step *step, uint32_t *step_id)
{
	uid_t uid;

	if (spank_get_item(sp, S_JOB_ID, &step->job) != ESPANK_SUCCESS || spank_get_item(sp, S_JOB_STEPID, step_id) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_UID, &uid) != ESPANK_SUCCESS)
		return false;
	step->uid = (uint32_t)uid;
	if (spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &step->local_tasks) != ESPANK_SUCCESS)
		step->local_tasks = 0;
	if (spank_get_item(sp, S_JOB_TOTAL_TASK_COUNT, &step->total_tasks) != ESPANK_SUCCESS)
		step->total_tasks = 0;
	return true;
}

static void decide_without_plan(spank_t sp, const struct ss_request *asked, bool batch, const char *node)
{
	if (!batch && wants_no_slot(sp, asked))
		return;
	if (!batch && is_below_shared_batch(sp, now.step.job)) {
		now.verdict = REFUSE;
		decide_sentence("job %u shares its GPUs, but node %s has no plan for it: its tasks here have no slot; leave the node out "
				"(srun --exclude=%s), and tell your administrators: slurm-share's Prolog is off there, or its log says why",
				now.step.job, node, node);
	} else if (asked != NULL && !asked->off) {
		now.verdict = SAY_UNSHARED;
		decide_sentence("job %u asked for --" SS_OPTION "=%d, but node %s has no plan for it: this runs unshared; tell your "
				"administrators: slurm-share's Prolog is off there, or its log says why",
				now.step.job, asked->per_gpu, node);
	}
}

static void decide_with_plan(spank_t sp, const struct ss_request *asked, bool batch)
{
	if (now.plan->refused != NULL) {
		now.verdict = REFUSE;
		decide_sentence("%s", now.plan->refused);
	} else if (batch) {
		now.verdict = GIVE_BATCH;
		now.say_notes = true;
		ss_env_give_batch(sp, now.plan);
	} else if (!wants_no_slot(sp, asked)) {
		now.verdict = GIVE_SLOTS;
		now.say_notes = !is_below_shared_batch(sp, now.step.job); /* srun without sbatch: no shell has said them */
		read_cores(sp, &now.step);
	}
}

void ss_step_begin(spank_t sp, const struct ss_request *asked, const char *state_root)
{
	/* slurmd sets it for its slurmsteps; the step's own environment is the user's to write */
	const char *node = getenv("SLURMD_NODENAME");
	char path[512], why[SS_SENTENCE_SIZE] = "";
	struct ss_plan_owner owner = { .node = node };
	uint32_t step_id;

	if (!read_step(sp, &now.step, &step_id) || !(is_batch(step_id) || is_tasks(step_id)))
		return;
	bool batch = is_batch(step_id);
	node = node ? node : "of this task";
	owner.job = now.step.job;
	owner.uid = now.step.uid;
	(void)snprintf(path, sizeof path, "%s/" SS_JOBS_FOLDER "/%u/" SS_PLAN_FILE, state_root, now.step.job);

	switch (ss_plan_read(path, &owner, &now.plan, why, sizeof why)) {
	case SS_PLAN_ABSENT:
		decide_without_plan(sp, asked, batch, node);
		break;
	case SS_PLAN_BAD:
		/* an ordinary job is not to suffer from a damaged state folder */
		if ((asked != NULL && !asked->off) || is_below_shared_batch(sp, now.step.job)) {
			now.verdict = REFUSE;
			decide_sentence("job %u cannot use its share on node %s: %s: %s; tell your administrators, and submit the job again",
					now.step.job, node, path, why);
		}
		break;
	case SS_PLAN_READ:
		decide_with_plan(sp, asked, batch);
		break;
	}
	if (asked != NULL || now.verdict == GIVE_BATCH || now.verdict == GIVE_SLOTS)
		ss_env_forget_option(sp);
}

/* The slot of a task: its number on the node. */
static uint32_t choose_slot(uint32_t local_task)
{
	return local_task;
}

/* The slot's part of the job's cores; in a step with cores of its own, the task's part of those, in the order of the slots'
 * parts, so that tasks of one GPU stay neighbours. */
static struct ss_deal deal_cores(const struct ss_slot *slot)
{
	struct ss_deal deal = { slot->part, slot->parts, now.plan->gpus, now.step.cores_per_task };

	if (!now.step.has_own_cores)
		return deal;
	deal = (struct ss_deal){ 0, now.step.local_tasks, 1, now.step.cores_per_task };
	for (uint32_t task = 0; task < now.step.local_tasks; task++) {
		uint32_t other = choose_slot(task);
		if (other < now.plan->slot_count && now.plan->slots[other].part < slot->part)
			deal.part++;
	}
	return deal;
}

static void refuse_surplus(uint32_t local_task) __attribute__((noreturn));
static void refuse_surplus(uint32_t local_task)
{
	const struct ss_plan *plan = now.plan;
	char arithmetic[96];

	if (plan->per_gpu * plan->gpus == plan->slot_count)
		(void)snprintf(arithmetic, sizeof arithmetic, "--" SS_OPTION "=%u on %u GPU%s makes %u", plan->per_gpu, plan->gpus,
			       plan->gpus == 1 ? "" : "s", plan->slot_count);
	else
		(void)snprintf(arithmetic, sizeof arithmetic, "this job has %u here", plan->slot_count);
	slurm_spank_log("slurm-share: task %u of %u on %s has no slot: %s; start at most %u on a node (srun --ntasks-per-node=%u), or "
			"submit the job with a larger --" SS_OPTION, local_task + 1, now.step.local_tasks, plan->node, arithmetic,
			plan->slot_count, plan->slot_count);
	_exit(SS_EXIT_REFUSED);
}

static void say_notes(void)
{
	for (size_t i = 0; i < now.plan->note_count; i++)
		slurm_spank_log("slurm-share: %s", now.plan->notes[i]);
}

static void give_slot(spank_t sp, uint32_t local_task)
{
	uint32_t rank = 0, slot = choose_slot(local_task);

	if (slot >= now.plan->slot_count)
		refuse_surplus(local_task);
	if (spank_get_item(sp, S_TASK_GLOBAL_ID, &rank) != ESPANK_SUCCESS)
		rank = local_task;
	if (local_task == 0 && now.say_notes)
		say_notes();
	struct ss_deal deal = deal_cores(&now.plan->slots[slot]);
	ss_env_give_task(sp, now.plan, &now.plan->slots[slot], &now.step, rank, &deal);
}

void ss_step_task(spank_t sp)
{
	int local_task = 0;

	if (now.verdict == STAND_ASIDE)
		return;
	if (spank_get_item(sp, S_TASK_ID, &local_task) != ESPANK_SUCCESS || local_task < 0)
		local_task = 0;
	switch (now.verdict) {
	case REFUSE:
		slurm_spank_log("slurm-share: %s", now.sentence);
		_exit(SS_EXIT_REFUSED);
	case SAY_UNSHARED:
		if (local_task == 0)
			slurm_spank_log("slurm-share: %s", now.sentence);
		break;
	case GIVE_BATCH:
		say_notes();
		break;
	case GIVE_SLOTS:
		give_slot(sp, (uint32_t)local_task);
		break;
	case STAND_ASIDE:
		break;
	}
}

void ss_step_end(void)
{
	ss_plan_free(now.plan);
	now.plan = NULL;
	now.verdict = STAND_ASIDE;
}
