#include "job_env.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

const char *const ss_option_variables[] = {
	SS_OPTION_INHERITED, SS_OPTION_VARIABLE, "SLURM_SPANK_" SS_JOB_CONTROL_VARIABLE, NULL,
};

bool ss_env_get(spank_t sp, const char *name, char *value, size_t size)
{
	return spank_getenv(sp, name, value, (int)size) == ESPANK_SUCCESS;
}

bool ss_env_has(spank_t sp, const char *name)
{
	char value[2];
	spank_err_t rc = spank_getenv(sp, name, value, sizeof value);
	return rc == ESPANK_SUCCESS || rc == ESPANK_NOSPACE;
}

static void set(spank_t sp, const char *name, const char *value, bool overwrite)
{
	spank_err_t rc = spank_setenv(sp, name, value, overwrite);
	if (rc != ESPANK_SUCCESS && rc != ESPANK_ENV_EXISTS)
		slurm_error("slurm-share: cannot set %s: %s", name, spank_strerror(rc));
}

void ss_env_forget_option(spank_t sp)
{
	for (const char *const *name = ss_option_variables; *name != NULL; name++)
		(void)spank_unsetenv(sp, *name);
}

/* A longer value than the buffer is cut, and so differs from every value in a record. */
static const char *get_of_step(void *sp, const char *name)
{
	static char value[2 * SS_GIVEN_MAX_BYTES];
	spank_err_t rc = spank_getenv(sp, name, value, sizeof value);

	return rc == ESPANK_SUCCESS || rc == ESPANK_NOSPACE ? value : NULL;
}

static void give_to_step(void *sp, const char *name, const char *value, bool overwrite)
{
	set(sp, name, value, overwrite);
}

static void unset_in_step(void *sp, const char *name)
{
	(void)spank_unsetenv(sp, name);
}

void ss_env_forget_other_job(spank_t sp, uint32_t job)
{
	struct ss_environment step = { sp, get_of_step, give_to_step, unset_in_step };

	ss_given_forget(&step, job, true);
}

void ss_env_give_batch(spank_t sp, const struct ss_plan *plan)
{
	struct ss_environment step = { sp, get_of_step, give_to_step, unset_in_step };
	struct ss_batch_env what = { .job = plan->job, .gpus = plan->gpus + plan->lost_count, .slots = plan->slot_count,
				     .has_shards = ss_env_has(sp, "SLURM_SHARDS_ON_NODE"), .request = plan->share };

	ss_batch_env_give(&step, &what);
}

/* Bind the task to its cores, and set a variable to the resulting mask: ConstrainCores intersects it with the step's cpuset; if
 * that would be empty (EINVAL), the task keeps its mask. */
static void pin(struct ss_given *given, const struct ss_environment *environment, const struct ss_plan *plan,
		const struct ss_step *step, const struct ss_deal *deal)
{
	struct ss_core_list mine;
	struct ss_cpus cpus;
	char text[1024];

	ss_cores_deal(&step->cores, deal, &mine);
	if (mine.count > 0 && !step->is_bound) {
		ss_cores_cpus(&mine, &plan->cores, &cpus);
		(void)sched_setaffinity(0, sizeof cpus.set, cpus.set);
	}
	memset(&cpus, 0, sizeof cpus);
	if (sched_getaffinity(0, sizeof cpus.set, cpus.set) == 0 && ss_cpus_render(&cpus, text, sizeof text) == 0)
		ss_given_set(given, environment, SS_ENV_CORES, text, true);
}

void ss_env_give_task(spank_t sp, const struct ss_plan *plan, const struct ss_slot *slot, const struct ss_step *step, uint32_t rank,
		      const struct ss_deal *deal)
{
	struct ss_environment task = { sp, get_of_step, give_to_step, unset_in_step };
	static struct ss_given given;

	ss_given_begin(&given, &task, plan->job);
	for (size_t i = 0; i < slot->variables; i++)
		ss_given_set(&given, &task, slot->environment[i].name, slot->environment[i].value, !slot->environment[i].unless_set);
	ss_given_set_number(&given, &task, SS_ENV_JOB, plan->job, true);
	ss_given_set(&given, &task, SS_ENV_REQUEST, plan->share, true);
	ss_given_set_number(&given, &task, SS_ENV_RANK, rank, true);
	ss_given_set_number(&given, &task, SS_ENV_SIZE, step->total_tasks, true);
	pin(&given, &task, plan, step, deal);
	ss_given_set_number(&given, &task, SS_ENV_THREADS, ss_cores_threads(step->cores.count, deal, step->cpus_per_task), false);
	ss_given_end(&given, &task);
}
