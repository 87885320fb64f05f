/* Ask slurmctld, from srun, which GPUs a job has on which node. */
#ifndef SLURM_SHARE_CONTROLLER_H
#define SLURM_SHARE_CONTROLLER_H

#include <stdint.h>

#include "job_gpus.h"

/* How long srun waits for the answer. Slurm itself waits for MessageTimeout, 10 s by default. */
enum { SS_CONTROLLER_WAIT_MS = 5000 };

enum ss_answer {
	SS_ANSWERED,    /* `job` is filled */
	SS_NO_ANSWER,   /* slurmctld has no such job of this user, or its answer cannot be parsed */
	SS_LATE_ANSWER,
};

/* Prints nothing. */
enum ss_answer ss_controller_ask(uint32_t job_id, struct ss_job_gpus *job);

#endif
