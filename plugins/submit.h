/* What the plugin does in sbatch, salloc and srun: refuse a wrong value, hand a right one to the hooks, and keep the words of
 * an outer job out of a job submitted from inside it. */
#ifndef SLURM_SHARE_SUBMIT_H
#define SLURM_SHARE_SUBMIT_H

#include <slurm/spank.h>

#include "options.h"

/* sbatch and salloc, before they look at the environment: a job submitted from inside a share is a job of its own. */
void ss_submit_forget_outer_job(void);

/* The option callback of the submitting side: 0, or -1 after a sentence on stderr, and the command ends. */
int ss_submit_option(const char *text, struct ss_request *request);

/* The request to Prolog, Epilog and job_submit.lua, as SPANK_SHARE_GPU. NULL or off: no such variable, whoever set one; but in
 * a job that shares, srun repeats the job's own. */
void ss_submit_hand_over(spank_t sp, const struct ss_request *request);

#endif
