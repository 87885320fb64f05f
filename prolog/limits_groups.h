/* The cgroups whose device memory is limited, and the record of them in the job's folder.
 *
 * A task of a step has a cgroup of its own (Slurm's .../step_S/user/task_T), which gets the limits. The children of a launcher are all
 * in its task's cgroup, so each of its slots gets a cgroup, "slurm-share_T_NAME". With the driver's own book-keeping (back end misc) it
 * is below the task's, where Slurm's limits and accounting include it. The kernel's controller dmem must be enabled in the folder above,
 * and a folder with an enabled controller can have no processes, while Slurm signals the processes in the task's own folder only: then
 * it is beside the task's. Slurm kills, freezes and limits all that is below the step's folder, in both places. */
#ifndef SLURM_SHARE_LIMITS_GROUPS_H
#define SLURM_SHARE_LIMITS_GROUPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "limits_nvml.h"

enum { GROUP_PATH_SIZE = 512, GROUP_NAME_MAX = 32, UUID_SIZE = 96, GROUP_GPUS_MAX = 32, GROUPS_MAX = 2048 };

#define GROUP_PREFIX "slurm-share_"

/* A process that asks. `pidfd` tells whether it still runs: its number can be another process's after its end. */
struct asker {
	pid_t pid;
	int pidfd;
};

struct gpu_limits {
	char uuid[UUID_SIZE];
	struct memory_limits limits;
};

/* Begin with the record's file, which need not exist. Return -1 with the reason. */
int groups_begin(const char *record, char *why, size_t size);

/* Write a GPU of the job into the record. Return -1 with the reason. */
int groups_note_gpu(const char *uuid, char *why, size_t size);

/* Take over the groups that a killed process has recorded. */
void groups_recover(void);

/* Return the folder of cgroup v2; NULL: there is none. */
const char *groups_root(void);

/* Read the v2 path of a process. Return -1 if it has ended or is in none. */
int groups_path_of(pid_t pid, char *path, size_t size);

/* Return whether the path, below the job's `prefix`, is that of one task: /step_S/user/task_T. `*step`: length of the part with the
 * step's name. */
bool groups_is_task(const char *path, const char *prefix, size_t *step);

/* Limit the folder of a task. Fails if it has limits already. */
int groups_limit_task(const char *path, const struct gpu_limits *gpus, size_t count, char *why, size_t size);

/* Return whether a launcher's children can get cgroups of their own from here: the task's folder must have no limit itself. */
int groups_check(const char *path, const char *uuid, char *why, size_t size);

/* Move a process from its task's folder `path` into the group `name`, with these limits. A job has at most GROUPS_MAX groups. */
int groups_enter(const char *path, const char *name, const struct asker *asker, const struct gpu_limits *gpus, size_t count, char *why,
		 size_t size);

/* Set the soft limits of groups without a process to 0, so that other tasks can have what they reserved. `but`: a path that keeps its own;
 * NULL: none. */
void groups_unreserve_idle(const char *but);

/* Set the soft limits of a step's tasks to 0; kill what is in the step's groups, and remove them. `step`: its path; NULL: all steps.
 * `is_over`: no task of it runs any more; else tasks that run keep their limits. Return the number of groups that could not be ended. */
size_t groups_end(const char *step, bool is_over);

#endif
