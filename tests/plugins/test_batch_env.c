/* The variables for a plain srun, with and without variables that the user set. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "batch_env.h"
#include "check.h"
#include "names.h"

static bool is(const char *name, const char *value)
{
	const char *found = getenv(name);
	return value == NULL ? found == NULL : found != NULL && strcmp(found, value) == 0;
}

static void what_the_user_set_wins(void)
{
	static const struct { const char *name, *value; bool has_shards; const char *gres, *per_node, *overcommit; } rows[] = {
		{ NULL, NULL, false, "gpu:2", "8", "1" },
		{ NULL, NULL, true, NULL, "8", "1" },
		{ "SLURM_GPUS", "2", false, NULL, "8", "1" },
		{ "SLURM_GPUS_PER_NODE", "2", false, NULL, "8", "1" },
		{ "SLURM_GPUS_PER_NODE", "", false, "gpu:2", "8", "1" }, /* sbatch --gpus-per-node= */
		{ "SLURM_NTASKS", "3", false, "gpu:2", NULL, "1" },
		{ "SLURM_NTASKS_PER_GPU", "3", false, "gpu:2", NULL, "1" },
		{ "SLURM_NTASKS_PER_NODE", "3", false, "gpu:2", "3", "1" },
		{ "SLURM_GRES", "gpu:1", false, "gpu:1", "8", "1" },
		{ "SLURM_OVERCOMMIT", "0", false, "gpu:2", "8", "0" },
		{ SS_ENV_JOB, "11", false, "gpu:2", "8", "1" },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ss_batch_env what = { .job = 12, .gpus = 2, .slots = 8, .has_shards = rows[i].has_shards };
		const char *row = rows[i].name ? rows[i].name : "nothing";
		(void)clearenv();
		if (rows[i].name != NULL)
			(void)setenv(rows[i].name, rows[i].value, 1);
		ss_batch_env_give(&ss_own_environment, &what);
		CHECK(row, is("SLURM_GRES", rows[i].gres));
		CHECK(row, is("SLURM_NTASKS_PER_NODE", rows[i].per_node));
		CHECK(row, is("SLURM_OVERCOMMIT", rows[i].overcommit) && is("SLURM_OVERLAP", "1"));
		CHECK(row, is(SS_ENV_JOB, "12"));
	}
}

static void the_list_has_what_is_given(void)
{
	struct ss_batch_env what = { .job = 12, .gpus = 2, .slots = 8 };

	(void)clearenv();
	ss_batch_env_give(&ss_own_environment, &what);
	for (const char *const *name = ss_batch_variables; *name != NULL; name++) {
		CHECK(*name, getenv(*name) != NULL);
		(void)unsetenv(*name);
	}
	(void)unsetenv(SS_ENV_JOB);
	(void)unsetenv(SS_ENV_GIVEN);
	CHECK("no others", environ == NULL || *environ == NULL);
}

static void a_job_with_shards_asks_for_no_whole_gpu_again(void)
{
	struct ss_batch_env what = { .job = 12, .gpus = 1, .slots = 1, .has_shards = true };

	(void)clearenv();
	(void)setenv("SLURM_GPUS_PER_NODE", "1", 1);
	(void)setenv("SLURM_TRES_BIND", "gres/gpu:per_task:1", 1);
	ss_batch_env_give(&ss_own_environment, &what);
	CHECK("said", is("SLURM_GPUS_PER_NODE", "") && is("SLURM_TRES_BIND", ""));
	CHECK("not said", is("SLURM_GPUS", NULL) && is("SLURM_GRES", NULL));
	CHECK("one slot", is("SLURM_OVERLAP", NULL) && is("SLURM_OVERCOMMIT", "1"));
}

int main(void)
{
	what_the_user_set_wins();
	a_job_with_shards_asks_for_no_whole_gpu_again();
	the_list_has_what_is_given();
	return finish();
}
