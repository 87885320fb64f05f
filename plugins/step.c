#include "step.h"

#include <errno.h>
#include <fcntl.h>
#include <slurm/slurm.h>
#include <stdarg.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "exit_message.h"
#include "job_env.h"
#include "job_result.h"
#include "leases.h"
#include "limits.h"
#include "limits_client.h"
#include "mps.h"
#include "names.h"
#include "plan.h"
#include "private_folder.h"
#include "site_mode.h"
#include "slot_queue.h"
#include "slots.h"
#include "step_wait.h"

#define TEXT_OF_NUMBER(number) #number
#define TEXT_OF(name) TEXT_OF_NUMBER(name)

enum verdict {
	CHANGE_NOTHING,
	SAY_UNSHARED,  /* the job asked to share, but the node has no plan: say so once, and run unshared */
	REFUSE,        /* no task runs */
	GIVE_BATCH,    /* the shell of sbatch or salloc: set the variables for srun */
	GIVE_SLOTS,    /* a step of tasks */
};

/* A variable of the step of llsub's launchers, and of no task: launch.sh exports it (slurm_share/triples/records.py,
 * ENV_JOB_TASKS). */
#define LAUNCHERS_VARIABLE "LLSUB_JOB_TASKS_PER_NODE"

/* The result of ss_step_begin, for the tasks that slurmstepd forks afterwards. */
static struct {
	enum verdict verdict;
	bool say_notes;
	uint32_t nodes; /* of the job */
	uint32_t step_nodes, step_id;
	int64_t wait_limit_ms; /* --slot-wait */
	char wait_limit_said[32];
	char sentence[SS_PLAN_MAX_LINE + 256];
	struct ss_plan *plan;
	struct ss_step step;
	char slots_folder[512];
	/* a step of tasks */
	struct ss_leases *leases;
	bool is_loss; /* if tasks are refused, the job's result must not be COMPLETED */
	struct ss_slots slots; /* their states when this step chose */
	bool is_outside;       /* its srun runs on the login host */
	bool late;             /* each task chooses its slot itself: on the GPU that Slurm gives it, or after a wait */
	bool is_bound_late;    /* on the GPU that Slurm gives it */
	bool is_async, is_immediate;
	bool may_wait;         /* for slots that other steps hold, see step_wait.h */
	bool waits;            /* there were too few free slots when the step began */
	struct ss_step_wait wait;
	uint32_t chosen[SS_PLAN_MAX_SLOTS];
	uint32_t taken;
	/* the driver's limits of memory */
	char limits_socket[SS_LIMITS_PATH_SIZE]; /* empty: no slot has one */
	uint32_t ended;                          /* tasks of the step on this node */
	const char *state_root;
	/* a batch shell */
	bool is_script;
	struct ss_exit_message exit_message;
	uint32_t slurmstepd; /* its pid, in the callbacks that contain_spank moves to a child, too */
} now = { .exit_message = SS_NO_EXIT_MESSAGE, .wait_limit_ms = SS_WAIT_FOREVER };

static bool is_batch(uint32_t step_id)
{
	return step_id == SLURM_BATCH_SCRIPT || step_id == SLURM_INTERACTIVE_STEP;
}

/* The extern step has no task of the user. */
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

/* Return whether the step is below a batch shell whose node had a plan: then the other nodes of the job have one as well. */
static bool is_below_shared_batch(spank_t sp, uint32_t job)
{
	char value[16], own[16];

	(void)snprintf(own, sizeof own, "%u", job);
	return ss_env_get(sp, SS_ENV_JOB, value, sizeof value) && strcmp(value, own) == 0;
}

/* Return whether the step is below salloc's shell on the login host: the notes were not printed yet, and only the controller has
 * said that the job shares. */
static bool is_from_outside(spank_t sp)
{
	char value[16];

	return ss_env_get(sp, SS_SHELL_VARIABLE, value, sizeof value) && strcmp(value, SS_SHELL_OUTSIDE) == 0;
}

/* Return whether this is the step of llsub's launchers, or another one with SLURM_SHARE_SLOT=none. */
static bool is_launchers(spank_t sp)
{
	char value[16];

	return ss_env_get(sp, SS_ENV_SLOT, value, sizeof value) && strcmp(value, SS_SLOT_NONE) == 0;
}

static bool wants_no_slot(spank_t sp, const struct ss_request *asked)
{
	return (asked != NULL && asked->off) || is_launchers(sp);
}

static void read_cores(spank_t sp, struct ss_step *step)
{
	static struct ss_core_list job_cores;
	char *text = NULL, value[16];
	uint16_t cpus = 0;

	if (spank_get_item(sp, S_JOB_ALLOC_CORES, &text) != ESPANK_SUCCESS || ss_cores_parse(text, &job_cores) != 0)
		job_cores.count = 0;
	/* a step that overlaps others, such as a plain srun in the script, has all cores of the job; with --exact it has fewer */
	if (spank_get_item(sp, S_STEP_ALLOC_CORES, &text) != ESPANK_SUCCESS || ss_cores_parse(text, &step->cores) != 0)
		step->cores = job_cores;
	step->has_own_cores = step->cores.count < job_cores.count;
	/* srun sets the variable only if the user gave -c; S_STEP_CPUS_PER_TASK always has a value */
	if (!ss_env_get(sp, "SLURM_CPUS_PER_TASK", value, sizeof value) ||
	    ss_number_parse(value, strlen(value), 1, SS_CPUS_MAX, &step->cpus_per_task) != 0)
		step->cpus_per_task = 0;
	/* -c counts Slurm's CPUs, which are hardware threads with ThreadsPerCore=2 in slurm.conf */
	uint32_t threads = 1;
	if (spank_get_item(sp, S_JOB_NCPUS, &cpus) == ESPANK_SUCCESS && step->cores.count > 0 && cpus > step->cores.count)
		threads = (uint32_t)(cpus / step->cores.count);
	step->cores_per_task = (step->cpus_per_task + threads - 1) / threads;
	/* before the tasks are forked, the variable is set only if the user gave --cpu-bind: task/affinity writes its own choice
	 * into the environment of each task (seen on 26.05). srun inside a task inherits and obeys that. */
	step->is_bound = ss_env_has(sp, "SLURM_CPU_BIND_TYPE") &&
			 !(ss_env_get(sp, "SLURM_CPU_BIND_TYPE", value, sizeof value) && value[0] == '\0'); /* --cpu-bind=quiet */
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

/* Return whether the site shares in the job's partition, and did so when the job began, so that its Prolog was to make a plan. A
 * job that began with another mode continues as it began. */
static bool was_to_share(spank_t sp)
{
	char partition[256] = "", start[16];
	struct ss_site_mode site;
	uint32_t start_s;

	(void)ss_env_get(sp, "SLURM_JOB_PARTITION", partition, sizeof partition);
	ss_site_mode_read(SS_CONFIG_FILE, partition, &site);
	if (site.mode != SS_MODE_ON)
		return false;
	return !ss_env_get(sp, "SLURM_JOB_START_TIME", start, sizeof start) ||
	       ss_number_parse(start, strlen(start), 1, UINT32_MAX, &start_s) != 0 || site.changed_s < (int64_t)start_s;
}

/* Read why the Prolog let the job run unshared. Return false if there is no such note, or it cannot be read. */
static bool runs_unshared(const char *state_root, const struct ss_plan_owner *owner, char *reason, size_t size)
{
	struct ss_plan *note = NULL;
	char path[512], why[SS_SENTENCE_SIZE];

	(void)snprintf(path, sizeof path, "%s/" SS_UNSHARED_FOLDER "/%u", state_root, owner->job);
	if (ss_plan_read(path, owner, &note, why, sizeof why) != SS_PLAN_READ)
		return false;
	bool found = note->unshared != NULL;
	if (found)
		(void)snprintf(reason, size, "%s", note->unshared);
	ss_plan_free(note);
	return found;
}

/* The Prolog's log has a line only if the Prolog knew of the share: what asks through another program may reach only the step. */
#define NO_PLAN "its Prolog made none (its log there says why, unless it was not told that the job shares), or the job cannot see it, " \
		"as with a /run of its own"

/* `unshared`: why the Prolog let the job run unshared; NULL: there is no such note. */
static void decide_without_plan(spank_t sp, const struct ss_request *asked, bool batch, const char *node, const char *unshared,
				const char *state_root)
{
	bool asks = asked != NULL && !asked->off;
	bool lacks_plan = asks && unshared == NULL && was_to_share(sp);

	/* llsub's launchers are refused, too: without a plan they would use GPUs that other jobs may have */
	if (!batch && wants_no_slot(sp, asked) && !lacks_plan)
		return;
	if ((lacks_plan || is_below_shared_batch(sp, now.step.job)) && ss_is_private_folder(state_root, SS_OWN_MOUNTS)) {
		now.verdict = REFUSE;
		decide_sentence("job %u is to share its GPUs, but node %s gives every job its own %s, in which no plan can be seen; without "
				"a plan nothing is run; your administrators must take it out of the folders in job_container.conf or "
				"namespace.yaml", now.step.job, node, state_root);
		return;
	}
	/* another node of the job may share: a program must not run partly with slots and partly without */
	if (!batch && is_below_shared_batch(sp, now.step.job) && (now.nodes > 1 || !is_from_outside(sp))) {
		now.verdict = REFUSE;
		decide_sentence("job %u shares its GPUs, but node %s has no plan for it: its tasks here have no slot; leave the node out "
				"(srun --exclude=%s), and tell your administrators: slurm-share's Prolog is off there, or its log says why",
				now.step.job, node, node);
	} else if (lacks_plan && !batch && is_from_outside(sp)) {
		now.verdict = REFUSE;
		/* the number of its tasks is the number of the missing slots */
		decide_sentence("job %u is to share its GPUs, but node %s has no plan for it: " NO_PLAN "; submit the "
				"job again, or say what this srun takes, for example srun --" SS_OPTION "="
				SS_OPTION_OFF " -n1 --gres=gpu:1", now.step.job, node);
	} else if (lacks_plan) {
		now.verdict = REFUSE;
		decide_sentence("job %u is to share its GPUs, but node %s has no plan for it: " NO_PLAN "; without a "
				"plan nothing is run; tell your administrators, and submit the job again",
				now.step.job, node);
	} else if (asks) {
		now.verdict = SAY_UNSHARED;
		decide_sentence("job %u asked for --" SS_OPTION "=%d, but node %s does not share its GPUs: this runs unshared; %s",
				now.step.job, asked->per_gpu, node,
				unshared ? unshared : "your administrators have sharing switched off or only observed there, or its "
						      "Prolog's log says why");
	}
}

/* Return whether Slurm gave this step GPUs, which it does not with srun --gres=none. */
static bool has_gpus(spank_t sp)
{
	return ss_env_has(sp, "SLURM_STEP_GPUS") || ss_env_has(sp, SS_ENV_VISIBLE_DEVICES);
}

/* Find the GPUs of the plan that Slurm's variable `list` names; all of them if it names none. */
static uint32_t read_gpus(spank_t sp, const char *list, bool *listed)
{
	char text[SS_PLAN_MAX_LINE];
	uint32_t count = 0;

	if (ss_env_get(sp, list, text, sizeof text))
		count = ss_slots_listed(now.plan, &now.slots, text, listed);
	if (count > 0)
		return count;
	for (uint32_t gpu = 0; gpu < now.slots.gpus; gpu++)
		listed[gpu] = true;
	return now.slots.gpus;
}

/* Return whether Slurm gave the step GPUs that are not in the plan, or the batch shell another number of them than the plan has.
 * slurmd tells a Prolog less than it tells a step: the GPUs of one type only (24.11 and 26.05; the Prolog then asks the controller),
 * or those of another node, if the job's first step here was on only some of its nodes (seen on both, without PrologFlags=Alloc).
 * A number is that of a device file, except with MIG. */
static bool is_of_other_gpus(spank_t sp, bool batch, char *text, size_t size)
{
	bool listed[SS_PLAN_MAX_SLOTS];
	uint32_t items = 1, all = now.plan->gpus + now.plan->lost_count;

	if (!ss_env_get(sp, batch ? "SLURM_JOB_GPUS" : "SLURM_STEP_GPUS", text, size) || text[0] == '\0')
		return false;
	for (const char *at = text; *at != '\0'; at++)
		items += *at == ',';
	if (items > all || (batch && items < all))
		return true;
	for (uint32_t gpu = 0; gpu < now.slots.gpus; gpu++)
		if (ss_slots_minor(now.plan, &now.slots, gpu) < 0)
			return false;
	return ss_slots_listed(now.plan, &now.slots, text, listed) + ss_slots_lost(now.plan, text) < items;
}

/* Refuse the step if its GPUs are not those of the plan. */
static bool has_other_gpus(spank_t sp, bool batch)
{
	char text[SS_PLAN_MAX_LINE];

	ss_slots_of_plan(now.plan, &now.slots);
	if (!is_of_other_gpus(sp, batch, text, sizeof text))
		return false;
	now.verdict = REFUSE;
	now.is_loss = true;
	if (now.nodes > 1 && !batch)
		decide_sentence("job %u has other GPUs on node %s than its plan there: its first step on that node was on only some of its %u "
				"nodes, and for such a step Slurm tells a node the GPUs of another one; submit the job again, and begin with a "
				"step on all nodes (srun -N%u -n%u true)", now.step.job, now.plan->node, now.nodes, now.nodes, now.nodes);
	else
		decide_sentence("job %u has GPU %.256s on node %s, and its plan there is of %u GPU%s, which do not fit: slurmd named its Prolog "
				"other GPUs; nothing of it is run here; submit the job again, and tell your administrators", now.step.job,
				text, now.plan->node, now.plan->gpus, ss_plural(now.plan->gpus));
	return true;
}

/* Return whether Slurm gave the step, or the task, only GPUs that do not answer. */
static bool has_only_lost_gpus(spank_t sp)
{
	char text[SS_PLAN_MAX_LINE];
	bool listed[SS_PLAN_MAX_SLOTS];

	return ss_env_get(sp, "SLURM_STEP_GPUS", text, sizeof text) && ss_slots_listed(now.plan, &now.slots, text, listed) == 0 &&
	       ss_slots_lost(now.plan, text) > 0;
}

/* Return whether this node is the job's first one, whose batch shell prints the notes. */
static bool is_first_node(spank_t sp)
{
	char list[SS_PLAN_MAX_LINE];

	if (!ss_env_get(sp, "SLURM_JOB_NODELIST", list, sizeof list))
		return true;
	size_t prefix = strcspn(list, "[,"), first = list[prefix] == '[' ? strcspn(list + prefix + 1, "-,]") : 0;
	const char *node = now.plan->node;
	return strncmp(node, list, prefix) == 0 && strlen(node) >= prefix + first &&
	       strncmp(node + prefix, list + prefix + 1, first) == 0;
}

/* Return whether nobody has said yet that GPUs of the job do not answer on this node. */
static bool has_unsaid_loss(spank_t sp)
{
	return now.plan->lost != NULL && now.nodes > 1 && !is_first_node(sp) &&
	       ss_leases_used(now.slots_folder, now.plan->slot_count) == 0;
}

/* Return whether only the task knows its GPUs: Slurm binds the step's GPUs to its tasks (--gpu-bind, --gpus-per-task,
 * --ntasks-per-gpu, --tres-bind), or the step has only some of the job's. */
static bool chooses_late(spank_t sp)
{
	bool listed[SS_PLAN_MAX_SLOTS];
	char binding[256];

	if (ss_env_get(sp, "SLURM_TRES_BIND", binding, sizeof binding)) {
		const char *gpu = strstr(binding, "gpu:");
		if (gpu != NULL && strncmp(gpu, "gpu:none", strlen("gpu:none")) != 0)
			return true;
	} else if (ss_env_has(sp, "SLURM_TRES_BIND")) {
		return true; /* too long for the buffer */
	}
	return read_gpus(sp, "SLURM_STEP_GPUS", listed) < now.slots.gpus;
}

/* Find the GPUs without MPS or with a live daemon. */
static void find_well_gpus(bool *well)
{
	char why[SS_SENTENCE_SIZE];

	for (uint32_t gpu = 0; gpu < now.slots.gpus; gpu++) {
		const char *directory = now.plan->slots[now.slots.first[gpu]].mps_directory;
		well[gpu] = directory == NULL || ss_mps_check(directory, now.step.uid, why, sizeof why) == 0;
	}
}

/* Lease slots for the step's tasks, first on GPUs where they can run. On the others they are refused later, with the reason. */
static int take_slots(char *why, size_t size)
{
	bool well[SS_PLAN_MAX_SLOTS];

	find_well_gpus(well);
	return ss_leases_take(now.leases, &now.slots, well, NULL, 0, now.step.local_tasks, now.chosen, why, size);
}

static void say_that_it_waits(const struct ss_slot_wait *wait)
{
	slurm_spank_log("slurm-share: this step waits for %u of the %u slot%s that job %u has on %s, which other steps hold; others that wait "
			"meanwhile say nothing (--" SS_OPTION_SLOT_WAIT "=TIME limits the wait)", wait->wanted, wait->slots,
			ss_plural(wait->slots), now.step.job, now.plan->node);
}

/* Prepare the wait for slots that other steps hold. A step of several nodes does not wait: each of two could have the slots that the
 * other one waits for. An srun in a task would wait for the slots of its own step. */
static void prepare_wait(spank_t sp)
{
	char how[16] = "", slot[16];
	bool is_in_task = ss_env_get(sp, SS_ENV_SLOT, slot, sizeof slot);

	(void)ss_env_get(sp, SS_WAIT_VARIABLE, how, sizeof how);
	now.is_async = strcmp(how, SS_WAIT_ASYNC) == 0;
	now.is_immediate = strcmp(how, SS_WAIT_NOT) == 0;
	/* in the output file of a program that nobody watches it would be in the way */
	int64_t tell_ms = now.is_async ? INT64_MAX : SS_WAIT_TELL_MS;
	now.wait = (struct ss_step_wait){ .folder = now.slots_folder, .slots = now.plan->slot_count, .step = now.step_id,
					  .tasks = now.step.local_tasks, .limit_ms = now.wait_limit_ms, .tell_ms = tell_ms,
					  .tell = say_that_it_waits, .promise = -1 };
	now.may_wait = now.step_nodes == 1 && now.step.local_tasks <= now.plan->slot_count && (now.is_async || !is_in_task) &&
		       !now.is_immediate && now.wait_limit_ms != 0 && ss_step_wait_open(&now.wait);
}

static void lease_slots(spank_t sp, uint32_t step_id)
{
	char why[SS_SENTENCE_SIZE] = "";
	int taken = 0;

	if (has_other_gpus(sp, false))
		return;
	if (has_only_lost_gpus(sp)) {
		now.verdict = REFUSE;
		now.is_loss = true;
		decide_sentence("Slurm gave this step of job %u no GPU that answers on node %s (GPU %s of the job does not); start it with all "
				"GPUs of the job (srun --gres=gpu:%u), then its tasks get slots on the others", now.step.job,
				now.plan->node, now.plan->lost, now.plan->gpus + now.plan->lost_count);
		return;
	}
	now.late = now.is_bound_late = chooses_late(sp);
	prepare_wait(sp);
	if (now.may_wait && !now.late)
		now.waits = now.late = ss_step_wait_ask(&now.wait) == SS_WAIT_OVER;
	now.leases = ss_leases_open(now.slots_folder, now.plan->slot_count, now.step.local_tasks, step_id, now.late, why,
				    sizeof why);
	if (now.leases != NULL)
		ss_leases_held_by(now.leases, now.slurmstepd);
	if (now.leases != NULL && !now.late)
		taken = take_slots(why, sizeof why);
	ss_step_wait_close_promise(&now.wait);
	if (now.leases == NULL || taken < 0) {
		now.verdict = REFUSE;
		now.is_loss = true;
		decide_sentence("job %u cannot lease its slots on node %s: %s; if none of its own programs causes that, tell your "
				"administrators, and submit the job again",
				now.step.job, now.plan->node, why);
		return;
	}
	now.taken = (uint32_t)taken;
}

/* Return why the driver does not hold the guaranteed memory of the slots, in the Prolog's words; NULL: it does, or there is none. */
static const char *find_lost_guarantee(const struct ss_plan *plan)
{
	bool is_lost = false;

	for (uint32_t slot = 0; slot < plan->slot_count; slot++)
		is_lost = is_lost || (plan->slots[slot].memory_least_mib > 0 && !plan->slots[slot].is_cap_of_driver);
	if (!is_lost)
		return NULL;
	for (size_t i = 0; i < plan->note_count; i++)
		if (strncmp(plan->notes[i], SS_NOTE_OF_GUARANTEE, sizeof SS_NOTE_OF_GUARANTEE - 1) == 0)
			return plan->notes[i];
	return "the driver does not hold the guaranteed memory of its tasks";
}

static void decide_with_plan(spank_t sp, const struct ss_request *asked, bool batch, uint32_t step_id)
{
	if (now.plan->refused != NULL) {
		now.verdict = REFUSE;
		decide_sentence("%s", now.plan->refused);
	} else if (batch && has_other_gpus(sp, step_id == SLURM_BATCH_SCRIPT)) {
		return;
	} else if (batch) {
		now.verdict = GIVE_BATCH;
		now.say_notes = true;
		ss_env_give_batch(sp, now.plan);
		now.is_script = step_id == SLURM_BATCH_SCRIPT;
	} else if (is_launchers(sp)) {
		ss_leases_note_launcher(now.slots_folder);
	} else if (!wants_no_slot(sp, asked) && has_gpus(sp) && find_lost_guarantee(now.plan) != NULL) {
		now.verdict = REFUSE;
		now.is_loss = true;
		decide_sentence("job %u cannot have its share on node %s: %s", now.step.job, now.plan->node,
				find_lost_guarantee(now.plan));
	} else if (!wants_no_slot(sp, asked) && has_gpus(sp)) {
		now.verdict = GIVE_SLOTS;
		/* srun without sbatch: no shell has printed the notes */
		now.is_outside = !is_below_shared_batch(sp, now.step.job) || is_from_outside(sp);
		now.say_notes = now.is_outside || has_unsaid_loss(sp);
		read_cores(sp, &now.step);
		lease_slots(sp, step_id);
	}
}

static void plan_path(char *path, size_t size, const char *state_root, uint32_t job)
{
	(void)snprintf(path, size, "%s/" SS_JOBS_FOLDER "/%u/" SS_PLAN_FILE, state_root, job);
}

/* Return the number of the job's nodes. S_JOB_NNODES is the step's, and 1 in a batch step. */
static uint32_t read_nodes(spank_t sp)
{
	char text[16];
	uint32_t nodes = 1;

	if (ss_env_get(sp, "SLURM_JOB_NUM_NODES", text, sizeof text))
		(void)ss_number_parse(text, strlen(text), 1, UINT32_MAX, &nodes);
	return nodes;
}

void ss_step_prepare(spank_t sp, const char *state_root)
{
	uint32_t step_id = NO_VAL;
	struct ss_plan_owner owner = { .node = getenv("SLURMD_NODENAME") };
	uid_t uid = 0;
	char path[512];

	now.slurmstepd = (uint32_t)getpid();
	now.state_root = state_root;
	if (spank_get_item(sp, S_JOB_STEPID, &step_id) != ESPANK_SUCCESS || !(is_batch(step_id) || is_tasks(step_id)) ||
	    spank_get_item(sp, S_JOB_ID, &owner.job) != ESPANK_SUCCESS || spank_get_item(sp, S_JOB_UID, &uid) != ESPANK_SUCCESS)
		return;
	owner.uid = (uint32_t)uid;
	plan_path(path, sizeof path, state_root, owner.job);
	if (access(path, F_OK) != 0) /* nothing is opened for an ordinary job */
		return;
	ss_limits_start(state_root, &owner);
	if (is_batch(step_id))
		ss_exit_message_open(&now.exit_message);
}

void ss_step_note_loaded(spank_t sp, const char *state_root)
{
	char path[512];
	uint32_t job;

	if (spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return;
	(void)snprintf(path, sizeof path, "%s/" SS_JOBS_FOLDER "/%u/" SS_LOADED_FILE, state_root, job);
	/* only the Prolog of a shared job makes the file */
	int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return;
	if (pwrite(fd, "1", 1, 0) != 1)
		slurm_error("slurm-share: %s cannot be written: %s", path, strerror(errno));
	(void)close(fd);
}

void ss_step_limit_wait(const char *text)
{
	if (ss_slot_wait_parse(text, &now.wait_limit_ms) != 0)
		return;
	(void)snprintf(now.wait_limit_said, sizeof now.wait_limit_said, "%s", text);
}

void ss_step_begin(spank_t sp, const struct ss_request *asked, const char *state_root)
{
	/* from slurmd's environment, not from the step's, which the user can change */
	const char *node = getenv("SLURMD_NODENAME");
	char path[512], why[SS_SENTENCE_SIZE] = "", unshared[SS_SENTENCE_SIZE];
	struct ss_plan_owner owner = { .node = node };
	uint32_t step_id;

	now.step_nodes = 0;
	(void)spank_get_item(sp, S_JOB_NNODES, &now.step_nodes);
	if (!read_step(sp, &now.step, &step_id) || !(is_batch(step_id) || is_tasks(step_id)))
		return;
	bool batch = is_batch(step_id);
	now.step_id = step_id;
	ss_env_forget_other_job(sp, now.step.job);
	now.nodes = read_nodes(sp);
	node = node ? node : "of this task";
	owner.job = now.step.job;
	owner.uid = now.step.uid;
	plan_path(path, sizeof path, state_root, now.step.job);
	(void)snprintf(now.slots_folder, sizeof now.slots_folder, "%s/" SS_JOBS_FOLDER "/%u/" SS_SLOTS_FOLDER, state_root,
		       now.step.job);

	switch (ss_plan_read(path, &owner, &now.plan, why, sizeof why)) {
	case SS_PLAN_ABSENT:
		decide_without_plan(sp, asked, batch, node,
				    runs_unshared(state_root, &owner, unshared, sizeof unshared) ? unshared : NULL, state_root);
		break;
	case SS_PLAN_BAD:
		/* a damaged state folder must not affect an ordinary job */
		if ((asked != NULL && !asked->off) || is_below_shared_batch(sp, now.step.job)) {
			now.verdict = REFUSE;
			decide_sentence("job %u cannot use its share on node %s: %s: %s; tell your administrators, and submit the job again",
					now.step.job, node, path, why);
		}
		break;
	case SS_PLAN_READ:
		if (now.plan->refused == NULL && ss_limits_has(now.plan))
			ss_limits_socket(now.limits_socket, sizeof now.limits_socket, state_root, now.step.job);
		decide_with_plan(sp, asked, batch, step_id);
		break;
	}
	if (asked != NULL || now.verdict == GIVE_BATCH || now.verdict == GIVE_SLOTS || is_below_shared_batch(sp, now.step.job))
		ss_env_forget_option(sp);
	(void)spank_unsetenv(sp, SS_SHELL_VARIABLE);
	(void)spank_unsetenv(sp, SS_WAIT_VARIABLE);
}

/* Return the slot's part of the job's cores; in a step with its own cores (--exact), the task's part of those, in the order of the
 * slots' parts, so that tasks of one GPU have adjacent cores. */
static struct ss_deal deal_cores(uint32_t local_task, const struct ss_slot *slot)
{
	struct ss_deal deal = { slot->part, slot->parts, now.plan->gpus, now.step.cores_per_task };

	if (!now.step.has_own_cores)
		return deal;
	deal = (struct ss_deal){ local_task, now.step.local_tasks, 1, now.step.cores_per_task };
	if (now.late) /* the slots of the other tasks are not known */
		return deal;
	deal.part = 0;
	for (uint32_t task = 0; task < now.taken; task++)
		if (now.plan->slots[now.chosen[task]].part < slot->part)
			deal.part++;
	return deal;
}

/* Record that tasks did not run, and where the reason is printed. */
static void mark_refused(void)
{
	if (now.is_async)
		ss_queue_mark_refused_step(now.slots_folder, now.step_id);
	else
		ss_queue_mark_refused(now.slots_folder);
}

__attribute__((noreturn, format(printf, 2, 3)))
static void refuse(uint32_t local_task, const char *format, ...)
{
	char what[SS_PLAN_MAX_LINE];
	va_list arguments;

	va_start(arguments, format);
	(void)vsnprintf(what, sizeof what, format, arguments);
	va_end(arguments);
	mark_refused();
	slurm_spank_log("slurm-share: task %u of %u on %s %s", local_task + 1, now.step.local_tasks, now.plan->node, what);
	_exit(SS_EXIT_REFUSED);
}

static void refuse_surplus(uint32_t local_task) __attribute__((noreturn));
static void refuse_surplus(uint32_t local_task)
{
	const struct ss_plan *plan = now.plan;
	uint32_t others = ss_slots_count(&now.slots, NULL, SS_SLOT_OTHERS) + now.slots.promised;
	char arithmetic[96], remedy[512], lost[256] = "", fewer[64];

	if (plan->slot_count == 1 && plan->per_gpu > 1)
		refuse(local_task, "has no slot: -n1 gave this job one of the %u parts of a GPU, for one task at a time; submit it without "
		       "-n1 to have the whole GPU, with %u slots", plan->per_gpu, plan->per_gpu);
	if (plan->per_gpu * plan->gpus == plan->slot_count)
		(void)snprintf(arithmetic, sizeof arithmetic, "--" SS_OPTION "=%u on %u GPU%s makes %u", plan->per_gpu, plan->gpus,
			       ss_plural(plan->gpus), plan->slot_count);
	else
		(void)snprintf(arithmetic, sizeof arithmetic, "this job has %u here", plan->slot_count);
	if (plan->lost != NULL)
		(void)snprintf(lost, sizeof lost, ", because GPU %.128s of the job does not answer", plan->lost);
	/* srun ignores --ntasks-per-node where the job's -n says another number */
	if (now.nodes > 1)
		(void)snprintf(fewer, sizeof fewer, "srun -n%u --ntasks-per-node=%u", now.nodes * plan->slot_count, plan->slot_count);
	else
		(void)snprintf(fewer, sizeof fewer, "srun -n%u", plan->slot_count);
	if (others == 0 && plan->lost != NULL)
		refuse(local_task, "has no slot: %s%s; start at most %u on a node (%s), or submit the job without this node (sbatch "
		       "--exclude=%s)", arithmetic, lost, plan->slot_count, fewer, plan->node);
	if (others == 0)
		refuse(local_task, "has no slot: %s; start at most %u on a node (%s), or submit the job with a larger --" SS_OPTION,
		       arithmetic, plan->slot_count, fewer);
	if (now.step_nodes > 1)
		(void)snprintf(remedy, sizeof remedy, "a step of %u nodes does not wait for slots, as one of a single node does "
			       "(srun -w %s -n1 PROGRAM); or have the tasks dealt out (llsub PROGRAM [%u,%u] --tasks FILE)",
			       now.step_nodes, plan->node, now.nodes, plan->slot_count);
	else if (now.taken > 0)
		(void)snprintf(remedy, sizeof remedy, "wait for %s to end, or start at most %u now", others == 1 ? "it" : "them",
			       now.taken);
	else if (now.is_immediate)
		(void)snprintf(remedy, sizeof remedy, "--immediate does not wait for more; omit it");
	else
		(void)snprintf(remedy, sizeof remedy, "wait for one of them to end, or submit the job with a larger --" SS_OPTION);
	refuse(local_task, "has no slot: %s slots%s, %u held by other steps of the job; %s", arithmetic, lost, others, remedy);
}

/* Find the GPUs that this task has. With ConstrainDevices the device files of other GPUs cannot be opened, and Slurm's variable is
 * renumbered from 0 (seen on 26.05); without it Slurm's variable is right. access(2) asks the device cgroup as open(2) does,
 * without the driver. */
static void find_own_gpus(spank_t sp, bool *own)
{
	bool open[SS_PLAN_MAX_SLOTS];
	uint32_t closed = 0;

	for (uint32_t gpu = 0; gpu < now.slots.gpus; gpu++) {
		char path[32];
		int minor = ss_slots_minor(now.plan, &now.slots, gpu);
		(void)snprintf(path, sizeof path, "/dev/nvidia%d", minor);
		open[gpu] = minor < 0 || access(path, R_OK | W_OK) == 0 || errno != EPERM;
		closed += !open[gpu];
	}
	if (closed > 0 && (closed < now.slots.gpus || now.plan->lost != NULL))
		memcpy(own, open, sizeof open);
	else if (has_only_lost_gpus(sp))
		memset(own, 0, sizeof open);
	else
		(void)read_gpus(sp, "SLURM_STEP_GPUS", own);
}

/* The state of a task that chooses its slot itself. */
struct choice {
	uint32_t local_task, slot;
	bool own[SS_PLAN_MAX_SLOTS];       /* the GPUs that it may use */
	bool preferred[SS_PLAN_MAX_SLOTS];
	int taken;
	char why[SS_SENTENCE_SIZE];
};

static void take_own(struct choice *choice)
{
	choice->taken = ss_leases_take(now.leases, &now.slots, choice->preferred, choice->own, choice->local_task, 1, &choice->slot,
				       choice->why, sizeof choice->why);
}

/* Take a slot, as the first in the queue. The wait is over as well if it cannot succeed: no other step has a slot there. */
static bool take_in_turn(const struct ss_slot_wait *wait)
{
	struct choice *choice = wait->of_take;

	take_own(choice);
	return choice->taken != 0 || ss_slots_count(&now.slots, choice->own, SS_SLOT_OTHERS) + now.slots.promised == 0;
}

static void refuse_after_wait(uint32_t local_task) __attribute__((noreturn));
static void refuse_after_wait(uint32_t local_task)
{
	refuse(local_task, "is not started: too few of the %u slot%s of the job were free, and --" SS_OPTION_SLOT_WAIT "=%s is over; wait "
	       "longer, start fewer steps at once, or submit the job with a larger --" SS_OPTION, now.plan->slot_count,
	       ss_plural(now.plan->slot_count), now.wait_limit_said);
}

static uint32_t choose_own(spank_t sp, uint32_t local_task)
{
	static struct choice choice;
	uint32_t gpus = 0;
	bool *own = choice.own;

	choice.local_task = local_task;
	for (uint32_t gpu = 0; gpu < now.slots.gpus; gpu++)
		own[gpu] = true;
	if (now.is_bound_late)
		find_own_gpus(sp, own);
	for (uint32_t gpu = 0; gpu < now.slots.gpus; gpu++)
		gpus += own[gpu];
	if (gpus == 0)
		refuse(local_task, "has no GPU that answers: Slurm bound it to GPU %s, which does not; leave the binding of GPUs away, then it "
		       "gets a slot on another GPU of the job", now.plan->lost);
	find_well_gpus(choice.preferred);
	for (uint32_t gpu = 0; gpu < now.slots.gpus; gpu++)
		choice.preferred[gpu] = choice.preferred[gpu] && own[gpu];
	enum ss_wait_end end = SS_WAIT_UNABLE;
	if (now.waits) {
		end = ss_step_wait_for_all(&now.wait);
		if (end == SS_WAIT_PROMISED)
			take_own(&choice);
		ss_step_wait_chosen(&now.wait);
	}
	/* the promise is for any slots, and these tasks need one on their GPU */
	if (end != SS_WAIT_OVER && choice.taken == 0 && now.may_wait)
		end = ss_step_wait_for_one(&now.wait, take_in_turn, &choice);
	if (end == SS_WAIT_OVER)
		refuse_after_wait(local_task);
	if (end == SS_WAIT_UNABLE)
		take_own(&choice);
	if (choice.taken < 0)
		refuse(local_task, "cannot lease a slot: %s; if none of the job's own programs causes that, tell your administrators",
		       choice.why);
	if (choice.taken > 0)
		return choice.slot;
	if (!now.is_bound_late)
		refuse_surplus(local_task);
	uint32_t ours = ss_slots_count(&now.slots, own, SS_SLOT_OURS), others = ss_slots_count(&now.slots, own, SS_SLOT_OTHERS);
	refuse(local_task, "has no slot on the %u GPU%s that Slurm gave it: --" SS_OPTION "=%u makes %u there, %u held by this step and "
	       "%u by other steps of the job; start fewer tasks on a GPU, or leave the binding of GPUs away", gpus, ss_plural(gpus),
	       now.plan->per_gpu, ours + others, ours, others);
}

/* Refuse a task whose MPS daemon is gone: it would silently run on the whole GPU. */
static void check_mps(uint32_t local_task, const struct ss_slot *slot)
{
	const char *uuid = now.plan->gpu[slot->gpu].uuid;
	char why[SS_SENTENCE_SIZE] = "";

	if (slot->mps_directory == NULL || ss_mps_check(slot->mps_directory, now.step.uid, why, sizeof why) == 0)
		return;
	if (ss_is_private_folder(slot->mps_directory, SS_OWN_MOUNTS))
		refuse(local_task, "is not started: this node gives every job folders of its own, which hide the MPS daemon at %s; "
		       "your administrators must take them out of job_container.conf or namespace.yaml", slot->mps_directory);
	refuse(local_task, "is not started: the MPS daemon of %s is gone (%s), and without it nothing would limit the task; submit the "
	       "job again, or with --" SS_OPTION "=%u," SS_OPTION_SHARING "=" SS_SHARING_TIME_SLICING, uuid[0] != '\0' ? uuid : "its GPU", why,
	       now.plan->per_gpu);
}

static void say_notes(void)
{
	for (size_t i = 0; i < now.plan->note_count; i++)
		slurm_spank_log("slurm-share: %s", now.plan->notes[i]);
}

/* Have the driver limit the task's memory, before its program starts. Where that fails, MPS enforces the cap if it serves the slot; a
 * task whose user has named a size does not run without a limit. */
static void limit_memory(spank_t sp, uint32_t local_task, uint32_t number)
{
	const struct ss_slot *slot = &now.plan->slots[number];
	char request[32], why[SS_SENTENCE_SIZE];
	bool has_mps = slot->mps_directory != NULL;

	(void)snprintf(request, sizeof request, "task %u", number);
	if (!slot->is_cap_of_driver || ss_limits_ask(now.limits_socket, request, why, sizeof why) == 0)
		return;
	if (ss_limits_is_required(now.plan, slot))
		refuse(local_task, "is not started: the driver does not limit its memory to %u MiB (%s); submit the job again, on another "
		       "node (--exclude=%s), or without " SS_OPTION_MEM "=", slot->memory_cap_mib, why, now.plan->node);
	if (local_task == 0)
		slurm_spank_log("slurm-share: the driver does not limit the memory of tasks on %s (%s): %s", now.plan->node, why,
				has_mps ? "MPS alone enforces their caps" : "no cap is enforced");
	(void)spank_setenv(sp, SS_ENV_MEM_LIMIT, has_mps ? SS_MEM_LIMIT_MPS : SS_MEM_LIMIT_NONE, 1);
	if (slot->memory_ratio != NULL) /* the program sees all of the GPU's memory then */
		(void)spank_setenv(sp, SS_ENV_JAX_FRACTION, slot->memory_ratio, 0);
}

static void give_slot(spank_t sp, uint32_t local_task)
{
	uint32_t rank = 0;

	if (!now.late && local_task >= now.taken)
		refuse_surplus(local_task);
	uint32_t slot = now.late ? choose_own(sp, local_task) : now.chosen[local_task];
	check_mps(local_task, &now.plan->slots[slot]);
	if (spank_get_item(sp, S_TASK_GLOBAL_ID, &rank) != ESPANK_SUCCESS)
		rank = local_task;
	if (local_task == 0 && now.say_notes)
		say_notes();
	struct ss_deal deal = deal_cores(local_task, &now.plan->slots[slot]);
	if (ss_env_has(sp, SS_ENV_MPS_PARTITION)) {
		(void)spank_unsetenv(sp, SS_ENV_MPS_PARTITION);
		if (rank == 0)
			slurm_spank_log("slurm-share: " SS_ENV_MPS_PARTITION " is removed from the tasks' environment: it names a "
					"partition of another MPS daemon than theirs");
	}
	ss_env_give_task(sp, now.plan, &now.plan->slots[slot], &now.step, rank, &deal);
	limit_memory(sp, local_task, slot);
}

/* Return the task's number on this node; -1 if Slurm does not tell it. */
static int local_task_id(spank_t sp)
{
	int local_task = -1;
	return spank_get_item(sp, S_TASK_ID, &local_task) == ESPANK_SUCCESS ? local_task : -1;
}

/* Ignore SIGUSR1 and SIGUSR2, which are for the launcher's tasks, until the launcher handles them: they would end it. launch.sh
 * ignores them as well, but only from its first line on. */
static void ignore_early_signals(spank_t sp)
{
	char value[16];

	if (is_launchers(sp) && ss_env_get(sp, LAUNCHERS_VARIABLE, value, sizeof value)) {
		(void)signal(SIGUSR1, SIG_IGN);
		(void)signal(SIGUSR2, SIG_IGN);
	}
}

void ss_step_task(spank_t sp)
{
	int local_task = local_task_id(sp);

	ignore_early_signals(sp);
	if (now.verdict == CHANGE_NOTHING)
		return;
	if (local_task < 0)
		local_task = 0;
	switch (now.verdict) {
	case REFUSE:
		if (now.is_loss)
			mark_refused();
		slurm_spank_log("slurm-share: %s", now.sentence);
		_exit(SS_EXIT_REFUSED);
	case SAY_UNSHARED:
		if (local_task == 0)
			slurm_spank_log("slurm-share: %s", now.sentence);
		break;
	case GIVE_BATCH:
		say_notes();
		ss_exit_message_send(&now.exit_message);
		break;
	case GIVE_SLOTS:
		give_slot(sp, (uint32_t)local_task);
		break;
	case CHANGE_NOTHING:
		break;
	}
}

void ss_step_task_forked(spank_t sp)
{
	int local_task = local_task_id(sp);
	pid_t pid = 0;

	if (now.leases != NULL && local_task >= 0 && spank_get_item(sp, S_TASK_PID, &pid) == ESPANK_SUCCESS && pid > 0)
		ss_leases_name_task(now.leases, (uint32_t)local_task, (uint32_t)pid);
}

/* Tell the user how many of the job's slots on this node were used. */
static void say_how_many_were_used(void)
{
	uint32_t used = ss_leases_used(now.slots_folder, now.plan->slot_count);
	char where[96] = "", sentence[192];

	if (used >= now.plan->slot_count)
		return;
	/* a launcher that failed before it leased a slot has written the reason to the job's log */
	if (used == 0 && ss_leases_had_launcher(now.slots_folder))
		return;
	if (now.nodes > 1)
		(void)snprintf(where, sizeof where, " on %.64s", now.plan->node);
	if (used == 0)
		(void)snprintf(sentence, sizeof sentence, "no task took a share%s; start the program with srun or llsub", where);
	else
		(void)snprintf(sentence, sizeof sentence, "%u of %u slots used%s", used, now.plan->slot_count, where);
	ss_exit_message_log(&now.exit_message, sentence);
}

static bool has_waiting_steps(void)
{
	int queue = ss_queue_open(now.slots_folder);
	bool has = queue >= 0 && ss_queue_is_waited_in(queue);

	if (queue >= 0)
		(void)close(queue);
	return has;
}

/* Return whether the script has ended with 0 although a task was refused, as after `srun ... & wait`, or a step still waits for a
 * slot; then write the sentence. In an interactive shell the user reads the refusal, and a script that has failed has its own
 * result. */
static bool has_lost_tasks(spank_t sp, char *sentence, size_t size)
{
	static const char end[] = "the job ends with exit code " TEXT_OF(SS_EXIT_REFUSED);
	int status = -1;
	uint32_t step = UINT32_MAX;

	if (!now.is_script || spank_get_item(sp, S_TASK_EXIT_STATUS, &status) != ESPANK_SUCCESS || status != 0)
		return false;
	if (!ss_queue_has_refused(now.slots_folder, &step)) {
		if (!has_waiting_steps())
			return false;
		(void)snprintf(sentence, size, "steps of this job still wait for slots as its script ends, and do not run; end the "
			       "script with wait, or after srun --async with swait: %s", end);
	} else if (step != UINT32_MAX) {
		(void)snprintf(sentence, size, "a task of this job was refused and did not run, as the output file of step %u.%u says: %s",
			       now.step.job, step, end);
	} else {
		(void)snprintf(sentence, size, "a task of this job was refused and did not run, as its srun said: %s", end);
	}
	return true;
}

/* Have the limits of an ended task removed, and its cgroups below the step's, before slurmstepd removes its own: they are not empty
 * otherwise. If the keeper was killed, another one does it from the record. */
static void end_limits(void)
{
	const char *request = ++now.ended >= now.step.local_tasks ? "over last" : "over";
	struct ss_plan_owner owner = { now.step.job, now.step.uid, getenv("SLURMD_NODENAME") };
	char why[SS_SENTENCE_SIZE];

	if (ss_limits_ask(now.limits_socket, request, why, sizeof why) == 0)
		return;
	ss_limits_start(now.state_root, &owner);
	if (ss_limits_ask(now.limits_socket, request, why, sizeof why) != 0)
		slurm_error("slurm-share: memory limits of step %u.%u: %s", now.step.job, now.step_id, why);
}

void ss_step_task_ended(spank_t sp)
{
	int local_task = local_task_id(sp);

	if (now.limits_socket[0] != '\0')
		end_limits();
	if (now.verdict == GIVE_BATCH) {
		char sentence[224];
		bool is_loss = has_lost_tasks(sp, sentence, sizeof sentence);
		if (is_loss)
			ss_exit_message_log(&now.exit_message, sentence);
		else
			say_how_many_were_used();
		/* in any case: while the shell's stderr is open here, slurmstepd waits for the end of its output */
		ss_exit_message_close(&now.exit_message);
		if (is_loss)
			ss_job_result_refused(now.step.job);
	} else if (now.leases != NULL && local_task >= 0) {
		ss_leases_give_back(now.leases, (uint32_t)local_task);
	}
}

void ss_step_end(void)
{
	ss_leases_close(now.leases);
	now.leases = NULL;
	ss_exit_message_close(&now.exit_message);
	ss_plan_free(now.plan);
	now.plan = NULL;
	now.verdict = CHANGE_NOTHING;
}
