#include "inside.h"

#include <fcntl.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "batch_env.h"
#include "controller.h"
#include "given.h"
#include "gres.h"
#include "job_env.h"
#include "job_gpus.h"
#include "names.h"
#include "srun_arguments.h"

/* The controller's answer, which is requested at most once. */
static struct {
	bool is_asked;
	enum ss_answer answer;
	struct ss_job_gpus gpus;
} job;

uint32_t ss_inside_number(const char *name)
{
	const char *text = getenv(name);
	uint32_t number = 0;

	return text != NULL && ss_number_parse(text, strlen(text), 1, UINT32_MAX, &number) == 0 ? number : 0;
}

uint32_t ss_inside_job(void)
{
	return getenv("SLURM_WORKING_CLUSTER") == NULL ? ss_inside_number("SLURM_JOB_ID") : 0;
}

bool ss_inside_shared_step(void)
{
	return ss_inside_job() != 0 && ss_inside_number(SS_ENV_JOB) == ss_inside_job();
}

/* Return whether this is salloc's shell on the login host: the option's variable is set, and no step has removed it. */
static bool is_in_shell_outside(void)
{
	struct ss_request request;
	char sentence[SS_SENTENCE_SIZE];
	const char *inherited = getenv(SS_OPTION_INHERITED);

	return ss_inside_job() != 0 && !ss_inside_shared_step() && inherited != NULL &&
	       ss_request_parse(inherited, &request, sentence, sizeof sentence) == 0 && !request.off;
}

/* Return the job's GPUs; NULL without an answer of the controller. */
static const struct ss_job_gpus *job_gpus(void)
{
	if (!job.is_asked)
		job.answer = ss_controller_ask(ss_inside_job(), &job.gpus);
	job.is_asked = true;
	return job.answer == SS_ANSWERED ? &job.gpus : NULL;
}

void ss_inside_begin(void)
{
	if (!is_in_shell_outside())
		return;
	const struct ss_job_gpus *gpus = job_gpus();
	if (job.answer == SS_LATE_ANSWER)
		slurm_spank_log("slurm-share: the controller has not answered in %d s which GPUs job %u has: this srun uses only its "
				"own options; without any it starts one task without a GPU", SS_CONTROLLER_WAIT_MS / 1000,
				ss_inside_job());
	if (gpus == NULL)
		return;
	/* If sharing is off or only observed, the controller did not change the job, and no node has a plan for it. */
	if (gpus->per_gpu == 0 || (gpus->least_of_some == 0 && !gpus->has_shards))
		return;
	/* If nodes differ, use the smallest number, with which srun -N1 runs on each node. */
	struct ss_batch_env what = { .job = ss_inside_job(), .gpus = gpus->least_of_some, .has_shards = gpus->has_shards };
	what.slots = gpus->has_shards ? 1 : gpus->per_gpu * gpus->least_of_some;
	ss_batch_env_give(&ss_own_environment, &what);
	(void)setenv(SS_SHELL_VARIABLE, SS_SHELL_OUTSIDE, 1);
}

bool ss_inside_wants_slots(const struct ss_request *asked)
{
	const char *slot = getenv(SS_ENV_SLOT);

	return !(asked != NULL && asked->off) && !(slot != NULL && strcmp(slot, SS_SLOT_NONE) == 0);
}

const char *const *ss_inside_arguments(size_t *count)
{
	static char text[32768];
	static const char *arguments[2048];
	size_t found = 0, end = 0;
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;

	if (fd >= 0)
		(void)close(fd);
	/* the last one stays NULL */
	for (size_t at = 0; n > 0 && at < (size_t)n && found + 1 < sizeof arguments / sizeof *arguments; at = end + 1) {
		end = at + strlen(text + at);
		arguments[found++] = text + at;
	}
	/* sbatch --wrap and salloc may have no program */
	if (optind < 1 || (size_t)optind > found)
		return NULL;
	/* another use of getopt can have changed optind */
	if ((size_t)optind < found && arguments[optind][0] == '-' && strcmp(arguments[optind - 1], "--") != 0)
		return NULL;
	*count = (size_t)optind - 1;
	return arguments + 1;
}

/* Refuse several GPUs for each task: a slot is on one GPU, and the task would silently get only that. */
static void check_gpus_of_a_task(const struct ss_srun_arguments *said)
{
	uint32_t gpus = said->task_gpus;

	if (!said->says_gpus)
		gpus = ss_gpus_per_task_read(getenv("SLURM_GPUS_PER_TASK"));
	if (!said->says_gpus && gpus == 0)
		gpus = ss_tres_per_task_read(getenv("SLURM_TRES_PER_TASK"));
	if (gpus < 2)
		return;
	slurm_error("slurm-share: %u GPUs for each task do not go with job %u's share, in which a task has one slot on one GPU; "
		    "write --gpus-per-task=1, or srun --" SS_OPTION "=" SS_OPTION_OFF " --gpus-per-task=%u for a step without slots, "
		    "MPS and caps", gpus, ss_inside_job(), gpus);
	exit(SS_EXIT_REFUSED);
}

/* Say that submitit runs its function once in each slot, if the user did not ask for that number. submitit itself hides what sbatch
 * prints, and shows what srun prints (job.stderr()). */
static void hint_at_submitit(const struct ss_srun_arguments *said, const char *const *program)
{
	uint32_t slots = ss_inside_number("SLURM_NTASKS_PER_NODE");

	if (said->says_tasks || slots < 2 || !ss_given_has(&ss_own_environment, ss_inside_job(), "SLURM_NTASKS_PER_NODE"))
		return;
	for (; *program != NULL; program++)
		if (strcmp(*program, "submitit.core._submit") == 0) {
			const char *share = getenv(SS_ENV_REQUEST);
			slurm_spank_log("slurm-share: submitit runs its function in each of the %u slots of this node, and returns one of "
					"the results; executor.update_parameters(tasks_per_node=1, gpus_per_node=1, "
					"slurm_additional_parameters={\"share_gpu\": \"%s\"}) runs it in one slot, and several such jobs share "
					"a GPU", slots, share != NULL ? share : "");
			return;
		}
}

void ss_inside_check(const struct ss_request *asked)
{
	struct ss_spread spread = { .job = ss_inside_job(), .nodes = ss_inside_number("SLURM_JOB_NUM_NODES") };
	struct ss_srun_arguments said;
	struct ss_gres gres;
	char sentence[2 * SS_SENTENCE_SIZE];
	size_t count = 0;

	if (!ss_inside_shared_step() || !ss_inside_wants_slots(asked))
		return;
	const char *const *arguments = ss_inside_arguments(&count);
	ss_srun_arguments_read(arguments, count, &said);
	check_gpus_of_a_task(&said);
	if (arguments != NULL)
		hint_at_submitit(&said, arguments + count);
	/* most jobs have one node, for which there is nothing else to check */
	if (arguments == NULL || spread.nodes < 2)
		return;
	if (ss_gres_read(getenv("SLURM_GRES"), &gres) != 0)
		return;
	spread.said = &said;
	spread.gpus = gres.gpus;
	if (!ss_job_gpus_matter(&spread))
		return;
	const struct ss_job_gpus *gpus = job_gpus();
	if (gpus == NULL || ss_job_gpus_check(gpus, &spread, sentence, sizeof sentence) == 0)
		return;
	slurm_error("slurm-share: %s", sentence);
	exit(SS_EXIT_REFUSED);
}
