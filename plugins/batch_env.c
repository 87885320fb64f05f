#include "batch_env.h"

#include <stddef.h>
#include <stdio.h>

#include "names.h"

const char *const ss_batch_variables[] = {
	"SLURM_GRES", "SLURM_NTASKS_PER_NODE", "SLURM_OVERCOMMIT", "SLURM_OVERLAP", NULL,
};

/* srun ignores a variable with an empty value, as of `--gpus=` and SBATCH_GPUS= */
static bool has(const struct ss_environment *environment, const char *name)
{
	const char *value = environment->get(environment->of, name);

	return value != NULL && value[0] != '\0';
}

/* Each srun would request the whole GPUs that were given to salloc or sbatch, in a job that has shards of a GPU instead. */
static void forget_whole_gpus(struct ss_given *given, const struct ss_environment *environment)
{
	static const char *const names[] = {
		"SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK", "SLURM_TRES_BIND", NULL,
	};

	for (const char *const *name = names; *name != NULL; name++)
		if (has(environment, *name))
			ss_given_set(given, environment, *name, "", true);
}

void ss_batch_env_give(const struct ss_environment *environment, const struct ss_batch_env *what)
{
	static struct ss_given given;

	ss_given_begin(&given, environment, what->job);
	/* srun itself repeats shards, --gpus and --gpus-per-node, and does not accept a gres together with the last one
	 * ("mutually exclusive"), or with a --gpus with a type */
	if (what->has_shards)
		forget_whole_gpus(&given, environment);
	else if (!has(environment, "SLURM_GPUS") && !has(environment, "SLURM_GPUS_PER_NODE")) {
		char gres[32];
		(void)snprintf(gres, sizeof gres, "gpu:%u", what->gpus);
		ss_given_set(&given, environment, "SLURM_GRES", gres, false);
	}
	if (!has(environment, "SLURM_NTASKS") && !has(environment, "SLURM_NTASKS_PER_GPU"))
		ss_given_set_number(&given, environment, "SLURM_NTASKS_PER_NODE", what->slots, false);
	/* with more slots than CPUs Slurm would say "More processors requested than permitted" */
	ss_given_set(&given, environment, "SLURM_OVERCOMMIT", "1", false);
	/* every step requests all GPUs, and would wait for the step before it; with one slot that is right */
	if (what->slots > 1)
		ss_given_set(&given, environment, "SLURM_OVERLAP", "1", false);
	ss_given_set_number(&given, environment, SS_ENV_JOB, what->job, true);
	if (what->request != NULL)
		ss_given_set(&given, environment, SS_ENV_REQUEST, what->request, true);
	ss_given_end(&given, environment);
}
