/* The record of variables that slurm-share set: what another job inherits of them, and what stays. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "given.h"

static const struct ss_environment *const here = &ss_own_environment;

static bool is(const char *name, const char *value)
{
	const char *found = getenv(name);
	return value == NULL ? found == NULL : found != NULL && strcmp(found, value) == 0;
}

/* As a task of job 7 begins. */
static void begin_task(uint32_t job, const char *rank, const char *fraction)
{
	static struct ss_given given;

	ss_given_begin(&given, here, job);
	ss_given_set(&given, here, "SLURM_SHARE_RANK", rank, true);
	ss_given_set(&given, here, "CUDA_VISIBLE_DEVICES", "GPU-1", true);
	ss_given_set(&given, here, "FRACTION", fraction, false);
	ss_given_end(&given, here);
}

static void another_job_inherits_nothing(void)
{
	(void)clearenv();
	(void)setenv("HOME", "/h", 1);
	begin_task(7, "3", "0.5");
	CHECK("the record", is(SS_ENV_GIVEN, "7 SLURM_SHARE_RANK CUDA_VISIBLE_DEVICES=GPU-1 FRACTION=0.5"));
	CHECK("it has a variable", ss_given_has(here, 7, "FRACTION") && ss_given_has(here, 7, "SLURM_SHARE_RANK"));
	CHECK("it has no other", !ss_given_has(here, 8, "FRACTION") && !ss_given_has(here, 7, "HOME"));
	ss_given_forget(here, 7, false);
	CHECK("the same job", is("FRACTION", "0.5") && is("SLURM_SHARE_RANK", "3"));
	ss_given_forget(here, 8, false);
	CHECK("another job", is("FRACTION", NULL) && is("CUDA_VISIBLE_DEVICES", NULL) && is("SLURM_SHARE_RANK", NULL));
	CHECK("the rest", is("HOME", "/h") && is(SS_ENV_GIVEN, NULL));
}

static void what_the_user_set_stays(void)
{
	(void)clearenv();
	(void)setenv("FRACTION", ".9", 1);
	begin_task(7, "3", "0.5");
	CHECK("before", is("FRACTION", ".9"));
	(void)setenv("CUDA_VISIBLE_DEVICES", "5", 1);
	CHECK("the user's values are not ours", !ss_given_has(here, 7, "FRACTION") && !ss_given_has(here, 7, "CUDA_VISIBLE_DEVICES"));
	ss_given_forget(here, 0, false);
	CHECK("before and after", is("FRACTION", ".9") && is("CUDA_VISIBLE_DEVICES", "5"));
	CHECK("a name of slurm-share's own", is("SLURM_SHARE_RANK", NULL));
}

static void what_slurm_sets_for_the_new_job_stays_in_its_step(void)
{
	(void)clearenv();
	begin_task(7, "3", "0.5");
	(void)setenv(SS_ENV_GIVEN, "7 SLURM_SHARE_RANK SLURM_NTASKS=1 CUDA_VISIBLE_DEVICES=GPU-1 FRACTION=0.5", 1);
	(void)setenv("SLURM_NTASKS", "1", 1);
	ss_given_forget(here, 8, true);
	CHECK("Slurm's", is("SLURM_NTASKS", "1") && is("CUDA_VISIBLE_DEVICES", "GPU-1"));
	CHECK("ours", is("FRACTION", NULL) && is("SLURM_SHARE_RANK", NULL));
}

static void a_step_in_a_task_keeps_what_the_task_was_given(void)
{
	(void)clearenv();
	begin_task(7, "3", "0.5");
	begin_task(7, "0", "0.25");
	CHECK("the value", is("FRACTION", "0.5") && is("SLURM_SHARE_RANK", "0"));
	ss_given_forget(here, 0, false);
	CHECK("and its record", is("FRACTION", NULL));
	begin_task(7, "3", "0.5");
	begin_task(9, "0", "0.25"); /* nothing has removed it: it is another job's, and counts as set */
	CHECK("of another job", is(SS_ENV_GIVEN, "9 SLURM_SHARE_RANK CUDA_VISIBLE_DEVICES=GPU-1"));
}

static void odd_values_are_kept(void)
{
	static const char *const values[] = { "", "a b", "%41", "\n\t", "=x=", "\xff\xc3\xa4", "'\"$`\\", "  " };
	static struct ss_given given;

	for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
		(void)clearenv();
		ss_given_begin(&given, here, 7);
		ss_given_set(&given, here, "VALUE", values[i], true);
		ss_given_end(&given, here);
		CHECK(values[i], is("VALUE", values[i]));
		begin_task(7, "1", "1"); /* reads and writes the item once more */
		ss_given_forget(here, 0, false);
		CHECK(values[i], is("VALUE", NULL));
	}
}

static void a_damaged_record_removes_nothing_else(void)
{
	static const char *const records[] = { "", " ", "x", "0", "7", "8", "8 =", "8 = HOME==", "8 HOME=%2", "8 HOME=%zz", "8  ", "8 HOME=/h%",
					       "99999999999 HOME=/", "\n" };

	for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
		(void)clearenv();
		(void)setenv("HOME", "/h", 1);
		(void)setenv(SS_ENV_GIVEN, records[i], 1);
		ss_given_forget(here, 7, false);
		CHECK(records[i], is("HOME", "/h"));
	}
}

static void a_full_record_is_still_one(void)
{
	static struct ss_given given;
	static char value[SS_GIVEN_MAX_BYTES / 4];
	char name[16];

	(void)clearenv();
	memset(value, 'x', sizeof value - 1);
	ss_given_begin(&given, here, 4294967295U);
	for (int i = 0; i < 6; i++) {
		(void)snprintf(name, sizeof name, "V%d", i);
		ss_given_set(&given, here, name, value, true);
	}
	memset(value, ' ', sizeof value - 1); /* three bytes each */
	ss_given_set(&given, here, "BLANKS", value, true);
	ss_given_end(&given, here);
	CHECK("length", strlen(getenv(SS_ENV_GIVEN)) < SS_GIVEN_MAX_BYTES);
	CHECK("all are set", getenv("V5") != NULL && getenv("BLANKS") != NULL);
	ss_given_forget(here, 0, false);
	CHECK("what it has", is("V0", NULL) && is("V2", NULL));
	CHECK("what it has not", getenv("V5") != NULL && getenv("BLANKS") != NULL);
}

int main(void)
{
	another_job_inherits_nothing();
	what_the_user_set_stays();
	what_slurm_sets_for_the_new_job_stays_in_its_step();
	a_step_in_a_task_keeps_what_the_task_was_given();
	odd_values_are_kept();
	a_damaged_record_removes_nothing_else();
	a_full_record_is_still_one();
	return finish();
}
