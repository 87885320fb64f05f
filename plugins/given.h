/* The record of the variables that slurm-share set for a job, which lies beside them in the environment. A job that is submitted
 * from inside another one inherits both, and can tell the other job's values from the user's own.
 *
 * slurm_share/core/given_variables.py does the same in Python; tests/contract/test_given_in_two_languages.py compares the two.
 * This module does not depend on Slurm. */
#ifndef SLURM_SHARE_GIVEN_H
#define SLURM_SHARE_GIVEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "names.h"

/* Access to an environment. */
struct ss_environment {
	void *of;
	const char *(*get)(void *of, const char *name); /* valid until the next call; NULL: not set */
	void (*give)(void *of, const char *name, const char *value, bool overwrite);
	void (*unset)(void *of, const char *name);
};

/* The environment of this process. */
extern const struct ss_environment ss_own_environment;

struct ss_given {
	uint32_t job;
	size_t used;
	char text[SS_GIVEN_MAX_BYTES]; /* the items, each with a blank before it, and a NUL */
};

/* Begin the record for a job with those items of the environment's record that are of the same job and still true. */
void ss_given_begin(struct ss_given *given, const struct ss_environment *environment, uint32_t job);

/* Set a variable and record it. Without `overwrite`, a variable that is set stays as it is. */
void ss_given_set(struct ss_given *given, const struct ss_environment *environment, const char *name, const char *value,
		  bool overwrite);

/* The same for a number. */
void ss_given_set_number(struct ss_given *given, const struct ss_environment *environment, const char *name, uint32_t number,
			 bool overwrite);

/* Write the record into the environment. */
void ss_given_end(const struct ss_given *given, const struct ss_environment *environment);

/* Return whether the environment's record is of this job and says that slurm-share set the variable, which still has that value. */
bool ss_given_has(const struct ss_environment *environment, uint32_t job, const char *name);

/* If the environment's record is not of this job, remove it and the variables that still have the values in it. Variables that the
 * user has changed since then stay. `job` 0: the record of any job is another one's. `slurms_stay`: Slurm has already set its own
 * variables for this job, and they stay, too. */
void ss_given_forget(const struct ss_environment *environment, uint32_t job, bool slurms_stay);

#endif
