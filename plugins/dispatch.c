/* The callbacks of SPANK (spank(7)).
 *
 * There is no slurm_spank_job_prolog and no slurm_spank_job_epilog: if a plugin has one, slurmd removes the option's variable from
 * the environment of all Prolog and Epilog scripts, and a crash there drains the node. */
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>
#include <string.h>

#include "inside.h"
#include "names.h"
#include "options.h"
#include "srun_wait.h"
#include "step.h"
#include "submit.h"

SPANK_PLUGIN(share_gpu, 1);

#define UNUSED __attribute__((unused))

static struct {
	struct ss_request request;
	bool asked; /* --share-gpu was given, to this command or to the job */
	const char *state_root;
} plugin = { .state_root = SS_STATE_ROOT };

static const struct ss_request *asked(void)
{
	return plugin.asked ? &plugin.request : NULL;
}

/* In sbatch, salloc and srun (remote 0) a wrong value is refused; in slurmstepd it is ignored. */
static int on_option(int value UNUSED, const char *text, int remote)
{
	if (!remote) {
		if (ss_submit_option(text, &plugin.request) != 0)
			return ESPANK_BAD_ARG;
		plugin.asked = true;
	} else {
		char sentence[SS_SENTENCE_SIZE];
		plugin.asked = ss_request_parse(text, &plugin.request, sentence, sizeof sentence) == 0;
	}
	return ESPANK_SUCCESS;
}

/* The option is for srun; sbatch and salloc accept it for the sruns of their job. */
static int on_slot_wait(int value UNUSED, const char *text, int remote)
{
	if (!remote && ss_srun_wait_option(text) != 0)
		return ESPANK_BAD_ARG;
	if (remote && text != NULL)
		ss_step_limit_wait(text);
	return ESPANK_SUCCESS;
}

static char option_name[] = SS_OPTION, option_form[] = "N[,KEY=VALUE...]";
static char option_usage[] = "let N tasks share each GPU: " SS_OPTION_FORM;
static struct spank_option option = { option_name, option_form, option_usage, 1, 0, on_option };
static char slot_wait_name[] = SS_OPTION_SLOT_WAIT, slot_wait_form[] = "TIME";
static char slot_wait_usage[] = "in a job that shares, how long srun waits for a free slot: seconds, or a number with s, m, h or d "
				"(default: as long as the job runs)";
static struct spank_option slot_wait_option = { slot_wait_name, slot_wait_form, slot_wait_usage, 1, 0, on_slot_wait };

/* plugstack.conf: `optional .../share_gpu.so [state=/absolute/folder]`. */
static void read_arguments(int ac, char **av)
{
	for (int i = 0; i < ac; i++) {
		if (strncmp(av[i], "state=/", 7) == 0)
			plugin.state_root = av[i] + 6;
		else
			slurm_error("slurm-share: plugstack.conf: '%s' is not an argument of " SS_PLUGIN_NAME ".so; it knows "
				    "state=/absolute/folder", av[i]);
	}
}

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	spank_context_t context = spank_context();

	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
		return ESPANK_SUCCESS;
	read_arguments(ac, av);
	if (context == S_CTX_ALLOCATOR)
		ss_submit_unset_outer_job();
	if (context == S_CTX_LOCAL) {
		ss_submit_unset_other_job();
		ss_inside_begin();
	}
	if (spank_option_register(sp, &option) != ESPANK_SUCCESS)
		return ESPANK_ERROR;
	return spank_option_register(sp, &slot_wait_option) == ESPANK_SUCCESS ? ESPANK_SUCCESS : ESPANK_ERROR;
}

int slurm_spank_init_post_opt(spank_t sp, int ac UNUSED, char **av UNUSED)
{
	spank_context_t context = spank_context();

	if (context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR)
		ss_submit_pass_request(sp, asked());
	if (context == S_CTX_LOCAL) {
		ss_srun_wait_begin(asked(), plugin.state_root);
		ss_inside_check(asked());
		ss_srun_wait(asked(), plugin.state_root);
	}
	if (context == S_CTX_REMOTE) {
		ss_step_note_loaded(sp, plugin.state_root);
		ss_step_prepare(sp, plugin.state_root);
	}
	return ESPANK_SUCCESS;
}

int slurm_spank_local_user_init(spank_t sp, int ac UNUSED, char **av UNUSED)
{
	ss_srun_wait_step(sp);
	return ESPANK_SUCCESS;
}

int slurm_spank_user_init(spank_t sp, int ac UNUSED, char **av UNUSED)
{
	ss_step_begin(sp, asked(), plugin.state_root);
	return ESPANK_SUCCESS;
}

int slurm_spank_task_init(spank_t sp, int ac UNUSED, char **av UNUSED)
{
	ss_step_task(sp);
	return ESPANK_SUCCESS;
}

int slurm_spank_task_post_fork(spank_t sp, int ac UNUSED, char **av UNUSED)
{
	ss_step_task_forked(sp);
	return ESPANK_SUCCESS;
}

int slurm_spank_task_exit(spank_t sp, int ac UNUSED, char **av UNUSED)
{
	ss_step_task_ended(sp);
	return ESPANK_SUCCESS;
}

int slurm_spank_exit(spank_t sp UNUSED, int ac UNUSED, char **av UNUSED)
{
	ss_step_end();
	return ESPANK_SUCCESS;
}
