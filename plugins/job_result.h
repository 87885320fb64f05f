/* The result of a batch job in which a task was refused: it does not end COMPLETED although its script ended with 0. */
#ifndef SLURM_SHARE_JOB_RESULT_H
#define SLURM_SHARE_JOB_RESULT_H

#include <stdint.h>

/* Report the job as FAILED with exit code SS_EXIT_REFUSED. Call it in the batch step's slurmstepd, as root, when the script has
 * ended with 0. Errors go to slurmd's log. */
void ss_job_result_refused(uint32_t job);

#endif
