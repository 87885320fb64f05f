/* The plugin in sbatch, salloc and srun: refuse a wrong value, pass a valid one to the hooks, and remove the variables of an outer
 * job from a job that is submitted inside it. */
#ifndef SLURM_SHARE_SUBMIT_H
#define SLURM_SHARE_SUBMIT_H

#include <slurm/spank.h>

#include "options.h"

/* Remove the variables of the outer job in an sbatch or salloc inside a share. Call it before they read the environment. */
void ss_submit_unset_outer_job(void);

/* Remove what slurm-share set in another job than the one that this srun makes a step of, if it makes one. Call it before srun
 * reads the environment. */
void ss_submit_unset_other_job(void);

/* The option callback in sbatch, salloc and srun. Return 0, or print an error and return -1, after which the command ends. */
int ss_submit_option(const char *text, struct ss_request *request);

/* Pass the request to Prolog, Epilog and job_submit.lua, as SPANK_SHARE_GPU. If it is NULL or off, remove that variable; but in a
 * job that shares, srun passes the job's own request. */
void ss_submit_pass_request(spank_t sp, const struct ss_request *request);

#endif
