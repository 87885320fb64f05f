/* Make srun wait for free slots before it makes its step.
 *
 * In an ordinary job Slurm queues steps for which there are no resources. In a share steps overlap (SLURM_OVERLAP), so Slurm never
 * queues them. srun waits here if the step is on this node only, where it can see the slots: a step that is not made costs nothing,
 * and Ctrl-C ends the wait at once. Steps of other nodes and those of srun --async wait on their node (step_wait.h). */
#ifndef SLURM_SHARE_SRUN_WAIT_H
#define SLURM_SHARE_SRUN_WAIT_H

#include <slurm/spank.h>

#include "options.h"

/* The option callback of --slot-wait. Return 0, or print an error and return -1, after which the command ends. */
int ss_srun_wait_option(const char *text);

/* Record a refusal in the job if srun ends with SS_EXIT_REFUSED, unless slurmstepd on this node does so. Call it when srun has read
 * its options, before anything can refuse the step. */
void ss_srun_wait_begin(const struct ss_request *asked, const char *state_root);

/* Wait for the slots of the step. Does not return if the step is refused. `asked`: as for ss_inside_check(). */
void ss_srun_wait(const struct ss_request *asked, const char *state_root);

/* Assign the promised slots to the step, when it has its number and none of its tasks has started. */
void ss_srun_wait_step(spank_t sp);

#endif
