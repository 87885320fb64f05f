/* The result of a batch job in which a task was refused: it is not to be COMPLETED because the script did not look. */
#ifndef SLURM_SHARE_JOB_RESULT_H
#define SLURM_SHARE_JOB_RESULT_H

#include <stdint.h>

/* In the batch step's slurmstepd, as root, when the script has ended with 0: the job is FAILED, with exit code SS_EXIT_REFUSED. Says
 * what went wrong in slurmd's log. */
void ss_job_result_refused(uint32_t job);

#endif
