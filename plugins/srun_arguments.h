/* Read srun's options on nodes, tasks, GPUs and waiting from its arguments: Slurm does not tell a plugin before the step is made.
 *
 * This module does not depend on Slurm. */
#ifndef SLURM_SHARE_SRUN_ARGUMENTS_H
#define SLURM_SHARE_SRUN_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ss_srun_arguments {
	bool says_no_gpus;     /* --gres=none, --gpus=0 */
	bool overlaps;         /* --overlap */
	bool is_async;         /* --async */
	bool is_immediate;     /* --immediate */
	uint32_t immediate_s;  /* its value; 0: none, or not a number */
	uint32_t tasks_per_node; /* --ntasks-per-node; 0: not given, or not a number */
	bool says_gpus;        /* --gres, --gpus*, --tres-per-task, --ntasks-per-gpu */
	bool says_tasks;       /* -n, --ntasks-per-node */
	bool says_other_place; /* another job, a component of this one, a file of nodes, a number of nodes that cannot be parsed */
	uint32_t nodes;        /* the most nodes of -N; 0: not given */
	uint32_t tasks;        /* -n; 0: not given, or not a number */
	uint32_t task_gpus;    /* --gpus-per-task, or the GPUs of --tres-per-task; 0: not given, or not a number */
	const char *node_list; /* the value of -w; NULL: not given */
};

/* Read the arguments between "srun" and the program. `said` points into them. */
void ss_srun_arguments_read(const char *const *arguments, size_t count, struct ss_srun_arguments *said);

/* Return whether the last --gres, --gpus, --gpus-per-node or --gpus-per-task among the arguments of sbatch, salloc or srun says that
 * there are no GPUs. */
bool ss_arguments_say_no_gpus(const char *const *arguments, size_t count);

/* Return whether a value of --gres or of --gpus-per-task says that there are no GPUs; NULL: it does not. */
bool ss_gres_is_none(const char *value);
bool ss_gpus_are_none(const char *value);

/* Return the number of GPUs in a value of --gpus-per-task ("2", "a100:2", several with commas) or --tres-per-task
 * ("cpu=2,gres/gpu:a100:2"); 0 for NULL, for no GPUs, and for a value that cannot be parsed. */
uint32_t ss_gpus_per_task_read(const char *value);
uint32_t ss_tres_per_task_read(const char *value);

#endif
