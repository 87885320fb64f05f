/* Set the environment of the batch shell and of the tasks of a shared job, and bind tasks to cores. */
#ifndef SLURM_SHARE_JOB_ENV_H
#define SLURM_SHARE_JOB_ENV_H

#include <slurm/spank.h>

#include "batch_env.h"
#include "cores.h"
#include "names.h"
#include "plan.h"

/* Slurm's variables for the option: SPANK_OPTION_ENV_PREFIX of plugstack.h, then the plugin's and the option's name. */
#define SS_OPTION_VARIABLE "_SLURM_SPANK_OPTION_" SS_PLUGIN_NAME "_" SS_PLUGIN_NAME
#define SS_OPTION_INHERITED "SLURM_SPANK_" SS_OPTION_VARIABLE
#define SS_SLOT_WAIT_VARIABLE "_SLURM_SPANK_OPTION_" SS_PLUGIN_NAME "_slot_wait"

/* In a step whose srun was started on the login host, outside any step, so that the plan's notes were not printed yet. */
#define SS_SHELL_VARIABLE "SLURM_SHARE_SHELL"
#define SS_SHELL_OUTSIDE "outside"

/* From srun to its step: how the step may wait for slots on its node. Without the variable it waits unless it is started in a task,
 * which holds slots itself. */
#define SS_WAIT_VARIABLE "SLURM_SHARE_WAIT"
#define SS_WAIT_ASYNC "async" /* srun --async: its output has what is said */
#define SS_WAIT_NOT "no"      /* --immediate */

/* The variables that pass --share-gpu on to an srun or sbatch started inside the job; ends with NULL. */
extern const char *const ss_option_variables[];

/* The properties of a step that are the same for all its tasks. */
struct ss_step {
	uint32_t job, uid;
	uint32_t local_tasks, total_tasks;
	uint32_t cpus_per_task;    /* the user's -c; 0: not given */
	uint32_t cores_per_task;   /* the same in cores */
	struct ss_core_list cores; /* the job's on this node; empty if Slurm does not tell them */
	bool has_own_cores;        /* --exact: `cores` are the step's own, fewer than the job's */
	bool is_bound;             /* the user gave --cpu-bind: the binding by Slurm is kept */
};

/* Copy a variable of the step's environment; return false if it is not set or does not fit. */
bool ss_env_get(spank_t sp, const char *name, char *value, size_t size);
bool ss_env_has(spank_t sp, const char *name);

/* Remove the option's variables: a job that is submitted inside this one is a plain job. */
void ss_env_forget_option(spank_t sp);

/* Remove what slurm-share set in another job: the client that submitted this one had not loaded the plugin, or the srun is of
 * another job. The variables that Slurm has set for this job stay. */
void ss_env_forget_other_job(spank_t sp, uint32_t job);

/* Set the variables with which a plain srun starts one task per slot, with all GPUs of the job. Keep values that the user set. */
void ss_env_give_batch(spank_t sp, const struct ss_plan *plan);

/* In the forked task: set the variables of its slot and rank, and bind it to its cores. */
void ss_env_give_task(spank_t sp, const struct ss_plan *plan, const struct ss_slot *slot, const struct ss_step *step, uint32_t rank,
		      const struct ss_deal *deal);

#endif
