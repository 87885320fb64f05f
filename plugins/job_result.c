#include "job_result.h"

#include <errno.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>
#include <unistd.h>

#include "names.h"

/* A job's result is its script's exit status, which slurmstepd reports and no plugin can change: S_TASK_EXIT_STATUS is read-only.
 * A process between slurmstepd and the script could exit with another code, but signals, limits and accounting of every job would
 * apply to it. So report the job as ended a moment before slurmstepd does, as salloc reports its own job: slurmctld keeps the
 * first result (seen on 24.11 and 26.05: FAILED, 69:0; the batch step itself stays COMPLETED, 0:0). Slurm's guide forbids Slurm
 * commands in Prolog and Epilog because slurmctld may wait for those. It does not wait for this code, and slurmstepd sends its own
 * report in the same way afterwards. */

/* slurm_complete_job() takes a job id up to Slurm 25.05, and a step id in later releases. */
__attribute__((unused))
static int complete_number(int (*complete)(uint32_t, uint32_t), uint32_t job)
{
	return complete(job, SS_EXIT_REFUSED << 8);
}

__attribute__((unused))
static int complete_identity(int (*complete)(slurm_step_id_t *, uint32_t), uint32_t job)
{
	slurm_step_id_t id = { .job_id = job, .step_id = NO_VAL, .step_het_comp = NO_VAL };

	return complete(&id, SS_EXIT_REFUSED << 8);
}

#define COMPLETE(job)                                                         \
	_Generic(&slurm_complete_job,                                         \
		int (*)(uint32_t, uint32_t): complete_number,                 \
		int (*)(slurm_step_id_t *, uint32_t): complete_identity)(slurm_complete_job, job)

/* Errors of slurmctld begin at this number; smaller ones are errors of the connection. */
enum { FIRST_CONTROLLER_ERROR = ESLURM_INVALID_PARTITION_NAME };

void ss_job_result_refused(uint32_t job)
{
	/* While slurmctld does not answer, slurmstepd cannot report the end either. libslurm itself retries for some seconds. */
	for (int tries = 0; tries < 6; tries++) {
		if (COMPLETE(job) == SLURM_SUCCESS)
			return;
		if (errno >= FIRST_CONTROLLER_ERROR)
			break;
		(void)sleep(5);
	}
	slurm_error("slurm-share: job %u had a task that was refused, but slurmctld could not be told: %s", job, slurm_strerror(errno));
}
