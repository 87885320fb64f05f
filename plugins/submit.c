#include "submit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "given.h"
#include "inside.h"
#include "job_env.h"
#include "names.h"
#include "srun_arguments.h"

extern char **environ;

/* Unset every variable whose name begins with `prefix`. */
static void unset_prefix(const char *prefix)
{
	size_t length = strlen(prefix);
	char name[256];

	for (char **at = environ; at != NULL && *at != NULL;) {
		size_t end = strcspn(*at, "=");
		if (strncmp(*at, prefix, length) == 0 && end < sizeof name) {
			memcpy(name, *at, end);
			name[end] = '\0';
			if (unsetenv(name) == 0)
				continue; /* the next variable has moved to `at` */
		}
		at++;
	}
}

/* The numbers of tasks of the outer job and step: srun in the new job would take them for its own. */
static const char *const task_counts[] = { "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", NULL };

static void unset_all(const char *const *name)
{
	for (; *name != NULL; name++)
		(void)unsetenv(*name);
}

void ss_submit_unset_outer_job(void)
{
	bool is_in_share = getenv(SS_ENV_JOB) != NULL, has_record = getenv(SS_ENV_GIVEN) != NULL;

	ss_given_forget(&ss_own_environment, 0, false);
	if (getenv("SLURM_JOB_ID") == NULL)
		return;
	unset_all(ss_option_variables);
	(void)unsetenv(SS_SLOT_WAIT_VARIABLE);
	(void)unsetenv("SLURM_SPANK_" SS_SLOT_WAIT_VARIABLE);
	if (!is_in_share)
		return;
	unset_all(task_counts);
	if (!has_record) { /* a job that began with an older release */
		unset_all(ss_batch_variables);
		if (getenv(SS_ENV_SLOT) != NULL)
			unset_prefix("CUDA_MPS_");
	}
	unset_prefix("SLURM_SHARE_");
}

void ss_submit_unset_other_job(void)
{
	ss_given_forget(&ss_own_environment, ss_inside_number("SLURM_JOB_ID"), false);
}

/* Return whether the value is the job's own. srun gets it a second time, as spank_process_env_options() reads this variable. */
static bool is_inherited(const char *text)
{
	const char *job_value = getenv(SS_OPTION_INHERITED);
	return job_value != NULL && strcmp(job_value, text) == 0;
}

int ss_submit_option(const char *text, struct ss_request *request)
{
	char sentence[SS_SENTENCE_SIZE];
	const char *job = getenv("SLURM_JOB_ID");

	if (ss_request_parse(text, request, sentence, sizeof sentence) != 0) {
		slurm_error("slurm-share: %s", sentence);
		return -1;
	}
	if (!request->off && strcmp(program_invocation_short_name, "scrontab") == 0) { /* it calls no init_post_opt */
		slurm_error("slurm-share: scrontab does not pass --" SS_OPTION "=%s to the job, which would run unshared: take it from "
			    "the #SCRON line, write it into the job's own script as an #SBATCH line, and let the entry submit that "
			    "script: 0 * * * * sbatch job.sh", text);
		return -1;
	}
	if (spank_context() == S_CTX_LOCAL && job != NULL && !request->off && !is_inherited(text)) {
		slurm_error("slurm-share: srun --" SS_OPTION "=%s cannot change job %s: the share is fixed when the job is submitted; "
			    "give it to sbatch or salloc, and omit it here (--" SS_OPTION "=" SS_OPTION_OFF
			    " runs this step without a slot)", text, job);
		return -1;
	}
	return 0;
}

/* Find the request of the job that this srun is in. Without PrologFlags=Alloc a node's Prolog runs with the job's first step there
 * and gets the variables of that srun, not those of sbatch or salloc. So a step without a slot must pass the job's request, too. */
static bool find_job_request(struct ss_request *request)
{
	char sentence[SS_SENTENCE_SIZE];
	const char *text = getenv(SS_OPTION_INHERITED); /* in salloc's shell on the login host */

	if (text == NULL && ss_inside_shared_step())
		text = getenv(SS_ENV_REQUEST);
	return text != NULL && ss_request_parse(text, request, sentence, sizeof sentence) == 0 && !request->off;
}

/* Return whether the options of this command say that the job has no GPUs. A job_submit plugin does not see them: to it, the job
 * says nothing about GPUs, and gets whole nodes. It finds the #SBATCH lines in the script. */
static bool says_no_gpus(void)
{
	static const char *const gres[] = { "SBATCH_GRES", "SALLOC_GRES", "SLURM_GRES" };
	static const char *const per_task[] = { "SBATCH_GPUS_PER_TASK", "SALLOC_GPUS_PER_TASK", "SLURM_GPUS_PER_TASK" };
	enum { SBATCH, SALLOC, SRUN } command = SRUN;
	size_t count = 0;
	const char *const *arguments = ss_inside_arguments(&count);

	if (spank_context() == S_CTX_ALLOCATOR)
		command = strcmp(program_invocation_short_name, "salloc") == 0 ? SALLOC : SBATCH;
	return ss_gres_is_none(getenv(gres[command])) || ss_gpus_are_none(getenv(per_task[command])) ||
	       (arguments != NULL && ss_arguments_say_no_gpus(arguments, count));
}

void ss_submit_pass_request(spank_t sp, const struct ss_request *request)
{
	char canonical[SS_CANONICAL_SIZE];
	struct ss_request own;

	if (spank_context() == S_CTX_LOCAL && ss_inside_job() != 0 && (request == NULL || request->off) && find_job_request(&own))
		request = &own;
	if (request != NULL && request->off)
		(void)spank_job_control_setenv(sp, SS_JOB_CONTROL_OFF, "1", 1);
	else
		(void)spank_job_control_unsetenv(sp, SS_JOB_CONTROL_OFF);
	if (request == NULL || request->off || ss_request_render(request, canonical, sizeof canonical) != 0) {
		/* sbatch copies SLURM_SPANK_* from its environment into the new job (init_spank_env in sbatch's opt.c) */
		(void)spank_job_control_unsetenv(sp, SS_JOB_CONTROL_VARIABLE);
		(void)spank_job_control_unsetenv(sp, SS_JOB_CONTROL_DIRECT);
		(void)spank_job_control_unsetenv(sp, SS_JOB_CONTROL_NO_GPUS);
		if (request == NULL)
			(void)spank_job_control_unsetenv(sp, SS_OPTION_VARIABLE);
		return;
	}
	/* this srun requests an allocation of its own: tell job_submit.lua so, because it then checks the other options of srun */
	if (spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID") == NULL)
		(void)spank_job_control_setenv(sp, SS_JOB_CONTROL_DIRECT, "1", 1);
	else
		(void)spank_job_control_unsetenv(sp, SS_JOB_CONTROL_DIRECT);
	if ((spank_context() == S_CTX_ALLOCATOR || getenv("SLURM_JOB_ID") == NULL) && says_no_gpus())
		(void)spank_job_control_setenv(sp, SS_JOB_CONTROL_NO_GPUS, "1", 1);
	else
		(void)spank_job_control_unsetenv(sp, SS_JOB_CONTROL_NO_GPUS);
	if (spank_job_control_setenv(sp, SS_JOB_CONTROL_VARIABLE, canonical, 1) != ESPANK_SUCCESS)
		slurm_error("slurm-share: the request %s could not be passed to the job: it will not share", canonical);
}
