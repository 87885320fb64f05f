/* The plugin in slurmstepd: read the plan and lease slots once per step, then give the tasks their slots, or refuse them.
 *
 * With contain_spank (SlurmdParameters) slurmstepd runs user_init, task_post_fork and task_exit in a child that shares its memory,
 * and nothing else: what one of them opens is closed at its end. So no callback keeps a file descriptor for a later one, except the
 * sockets of exit_message.h, which ss_step_prepare() opens in slurmstepd itself. */
#ifndef SLURM_SHARE_STEP_H
#define SLURM_SHARE_STEP_H

#include <slurm/spank.h>

#include "options.h"

/* Called in init_post_opt: unlike the next ones, slurmstepd runs it itself with contain_spank, too. */
void ss_step_prepare(spank_t sp, const char *state_root);

/* Called with the value of --slot-wait, before ss_step_begin. */
void ss_step_limit_wait(const char *text);

/* Called in user_init, as the job's user. `asked`: the step's own --share-gpu, or NULL. `state_root`: the folder with the plans. */
void ss_step_begin(spank_t sp, const struct ss_request *asked, const char *state_root);

/* Called in task_init, in the forked task. Does not return if the task is refused: slurmstepd ignores what a callback of an
 * optional plugin returns, so the only way is to print a sentence and _exit. */
void ss_step_task(spank_t sp);

/* Called in task_post_fork and task_exit, as root. */
void ss_step_task_forked(spank_t sp);
void ss_step_task_ended(spank_t sp);

void ss_step_end(void);

/* Record, as root, that a slurmstepd of a shared job has loaded the plugin. */
void ss_step_note_loaded(spank_t sp, const char *state_root);

#endif
