/* What the batch shell and the tasks of a shared job find in their environment, and the cores they run on. */
#ifndef SLURM_SHARE_JOB_ENV_H
#define SLURM_SHARE_JOB_ENV_H

#include <slurm/spank.h>

#include "batch_env.h"
#include "cores.h"
#include "names.h"
#include "plan.h"

/* The option as Slurm carries it: plugstack.h, SPANK_OPTION_ENV_PREFIX, then the plugin's and the option's name. */
#define SS_OPTION_VARIABLE "_SLURM_SPANK_OPTION_" SS_PLUGIN_NAME "_" SS_PLUGIN_NAME
#define SS_OPTION_INHERITED "SLURM_SPANK_" SS_OPTION_VARIABLE
#define SS_SLOT_WAIT_VARIABLE "_SLURM_SPANK_OPTION_" SS_PLUGIN_NAME "_slot_wait"

/* In a step: its srun was started where no step is, on the login host, so nobody has said the plan's notes there. */
#define SS_SHELL_VARIABLE "SLURM_SHARE_SHELL"
#define SS_SHELL_OUTSIDE "outside"

/* What carries --share-gpu to an srun or sbatch started from inside; ends with NULL. */
extern const char *const ss_option_variables[];

/* The parts of a step that its tasks have in common. */
struct ss_step {
	uint32_t job, uid;
	uint32_t local_tasks, total_tasks;
	uint32_t cpus_per_task;    /* the user's -c; 0: not given */
	uint32_t cores_per_task;   /* the same in cores */
	struct ss_core_list cores; /* of the job on this node; none where Slurm did not say */
	bool has_own_cores;        /* --exact: `cores` are the step's, fewer than the job's, for its tasks alone */
	bool is_bound;             /* the user gave --cpu-bind: the tasks stay where Slurm puts them */
};

/* A variable of the step's environment; false where it is not set or does not fit. */
bool ss_env_get(spank_t sp, const char *name, char *value, size_t size);
bool ss_env_has(spank_t sp, const char *name);

/* A job submitted from inside is a plain job: the option goes no further. */
void ss_env_forget_option(spank_t sp);

/* A plain srun in the script starts one task per slot, with all GPUs of the job. What the user set wins. */
void ss_env_give_batch(spank_t sp, const struct ss_plan *plan);

/* In the forked task: its slot's line, its place among its siblings, and the cores it is dealt. */
void ss_env_give_task(spank_t sp, const struct ss_plan *plan, const struct ss_slot *slot, const struct ss_step *step, uint32_t rank,
		      const struct ss_deal *deal);

#endif
