/* One question to slurmctld, from srun: which GPUs does this job have on which node? */
#ifndef SLURM_SHARE_CONTROLLER_H
#define SLURM_SHARE_CONTROLLER_H

#include <stdint.h>

#include "job_gpus.h"

/* How long srun waits for the answer. Slurm itself waits MessageTimeout, 10 s or what the site says, before it gives up. */
enum { SS_CONTROLLER_WAIT_MS = 5000 };

enum ss_answer {
	SS_ANSWERED,    /* `job` is filled */
	SS_NO_ANSWER,   /* it knows no such job of ours, or wrote what we do not understand */
	SS_LATE_ANSWER,
};

/* Says nothing, whatever comes of it. */
enum ss_answer ss_controller_ask(uint32_t job_id, struct ss_job_gpus *job);

#endif
