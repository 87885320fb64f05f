/* The variables that make a plain srun start one task for each slot, with all GPUs of the job. What the user set wins.
 *
 * They are set in the batch shell, through SPANK, and in an srun whose shell is no step, through setenv(3): nothing here knows
 * Slurm. */
#ifndef SLURM_SHARE_BATCH_ENV_H
#define SLURM_SHARE_BATCH_ENV_H

#include <stdbool.h>
#include <stdint.h>

/* Somebody's environment. */
struct ss_environment {
	void *of;
	bool (*has)(void *of, const char *name);
	void (*give)(void *of, const char *name, const char *value, bool overwrite);
};

/* What srun reads; ends with NULL. */
extern const char *const ss_batch_variables[];

struct ss_batch_env {
	uint32_t job;
	uint32_t gpus, slots; /* on a node */
	bool has_shards;      /* the GPUs were asked for in parts */
};

void ss_batch_env_give(const struct ss_environment *environment, const struct ss_batch_env *what);

#endif
