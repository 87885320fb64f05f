/* In srun: does its step wait for slots, for how many, and what is said of it.
 *
 * A plain Slurm job queues its steps where there is no room for them. In a share Slurm sees room for any number (SLURM_OVERLAP), so
 * srun waits here, before it makes its step: later the tasks are being launched, and srun's own time limit for that runs. It waits
 * where it sees the slots, on the step's only node. Elsewhere slurmstepd refuses the tasks that have none. */
#ifndef SLURM_SHARE_SRUN_WAIT_H
#define SLURM_SHARE_SRUN_WAIT_H

#include <slurm/spank.h>

#include "options.h"

/* The option callback of --slot-wait: 0, or -1 after a sentence on stderr, and the command ends. */
int ss_srun_wait_option(const char *text);

/* When srun has read its options, before anything can refuse the step: from now on an srun that ends with SS_EXIT_REFUSED marks the
 * job, as far as nobody on this node does it. */
void ss_srun_wait_begin(const struct ss_request *asked, const char *state_root);

/* When nothing else has refused the step. Does not return where the step is refused. `asked` as for ss_inside_check(). */
void ss_srun_wait(const struct ss_request *asked, const char *state_root);

/* The step has its number, and none of its tasks has been started. */
void ss_srun_wait_step(spank_t sp);

#endif
