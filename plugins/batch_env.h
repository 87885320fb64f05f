/* The variables that make a plain srun start one task for each slot, with all GPUs of the job. Values that the user set are kept.
 *
 * They are set in the batch shell, through SPANK, and in an srun whose shell is not a step, through setenv(3): this module does
 * not depend on Slurm. */
#ifndef SLURM_SHARE_BATCH_ENV_H
#define SLURM_SHARE_BATCH_ENV_H

#include <stdbool.h>
#include <stdint.h>

#include "given.h"

/* The variables for srun; ends with NULL. */
extern const char *const ss_batch_variables[];

struct ss_batch_env {
	uint32_t job;
	uint32_t gpus, slots; /* on a node */
	bool has_shards;      /* the job has a part of a GPU */
	const char *request;  /* the job's share; NULL: not set */
};

void ss_batch_env_give(const struct ss_environment *environment, const struct ss_batch_env *what);

#endif
