/* What the plugin does in slurmstepd: read the plan and lease slots once per step, then refuse, give out slots, or stand aside. */
#ifndef SLURM_SHARE_STEP_H
#define SLURM_SHARE_STEP_H

#include <slurm/spank.h>

#include "options.h"

/* user_init, as the job's user. `asked`: the step's own --share-gpu, NULL without one. `state_root`: where the plans are. */
void ss_step_begin(spank_t sp, const struct ss_request *asked, const char *state_root);

/* task_init, in the forked task. Does not return where the task is refused: in an optional plugin slurmstepd ignores what a
 * callback returns, so a sentence and _exit are the one way. */
void ss_step_task(spank_t sp);

/* task_post_fork and task_exit, as root. */
void ss_step_task_forked(spank_t sp);
void ss_step_task_ended(spank_t sp);

void ss_step_end(void);

#endif
