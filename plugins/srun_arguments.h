/* What srun was told on its command line about nodes, tasks, GPUs and waiting; Slurm shows a plugin none of it before the step is made.
 *
 * Strings in, a struct out: nothing here knows Slurm. */
#ifndef SLURM_SHARE_SRUN_WORDS_H
#define SLURM_SHARE_SRUN_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ss_srun_arguments {
	bool says_no_gpus;     /* --gres=none, --gpus=0 */
	bool overlaps;         /* --overlap */
	bool is_immediate;     /* --immediate */
	uint32_t immediate_s;  /* its value; 0: none, or not understood */
	uint32_t tasks_per_node; /* --ntasks-per-node; 0: not said, or not understood */
	bool says_gpus;        /* --gres, --gpus and its kin, --tres-per-task, --ntasks-per-gpu */
	bool says_tasks;       /* -n, --ntasks-per-node */
	bool says_other_place; /* another job, a part of this one, a file of nodes, a number of nodes that is not understood */
	uint32_t nodes;        /* the most of -N; 0: not said */
	uint32_t tasks;        /* -n; 0: not said, or not understood */
	uint32_t task_gpus;    /* --gpus-per-task, or the GPUs of --tres-per-task; 0: not said, or not understood */
	const char *node_list; /* -w, as it was written; NULL: not said */
};

/* `words` are those between "srun" and the program, as getopt(3) has told them apart. `said` points into them. */
void ss_srun_arguments_read(const char *const *arguments, size_t count, struct ss_srun_arguments *said);

/* The GPUs in a value of --gpus-per-task ("2", "a100:2", several with commas) and of --tres-per-task ("cpu=2,gres/gpu:a100:2").
 * 0: none, or not understood; NULL is none. */
uint32_t ss_gpus_per_task_read(const char *value);
uint32_t ss_tres_per_task_read(const char *value);

#endif
