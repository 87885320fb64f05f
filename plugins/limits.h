/* The driver's limits of the tasks' device memory: slurmstepd starts the job's keeper (prolog/limits.c) and tells it that tasks have
 * ended; each task asks it for its limits before its program starts. */
#ifndef SLURM_SHARE_LIMITS_H
#define SLURM_SHARE_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plan.h"

enum { SS_LIMITS_PATH_SIZE = 512 };

/* Return whether the driver is to enforce the memory cap of any slot. */
bool ss_limits_has(const struct ss_plan *plan);

/* Return whether the task in the slot may not run if the driver does not limit its memory: its user has named a size, and nothing
 * else enforces it. */
bool ss_limits_is_required(const struct ss_plan *plan, const struct ss_slot *slot);

void ss_limits_socket(char *path, size_t size, const char *state_root, uint32_t job);

/* As root, in slurmstepd in the step's cgroup: start the keeper of the plan's job, unless it runs. What fails here, fails again in the
 * tasks, which say so. */
void ss_limits_start(const char *state_root, const struct ss_plan_owner *owner);

#endif
