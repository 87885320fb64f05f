/* The plan of one job on this node, as the Prolog wrote it. Its format stands in slurm_share/core/names.py.
 *
 * Read whole, checked whole, then only looked at: the strings of a struct ss_plan point into its own copy of the text.
 * Nothing here knows Slurm. */
#ifndef SLURM_SHARE_PLAN_H
#define SLURM_SHARE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cores.h"

struct ss_assignment {
	const char *name, *value;
	bool unless_set; /* NAME?=value: a value that the user gave wins */
};

struct ss_gpu {
	const char *uuid;
	int minor; /* the N of its /dev/nvidiaN; -1: not known */
};

struct ss_slot {
	uint32_t gpu; /* its place in the plan's list */
	uint32_t part, parts;
	const char *mps_directory; /* of the daemon that its task is a client of; NULL: it has none */
	const struct ss_assignment *environment;
	size_t variables;
};

struct ss_plan {
	uint32_t job, uid;
	const char *node;
	const char *refused; /* the sentence for the user, or NULL */
	const char *unshared; /* why the job runs as if it had not asked to share, or NULL: then the rest is filled */
	const char *share;   /* the request, canonical */
	uint32_t per_gpu;    /* its N */
	uint32_t gpus;
	const struct ss_gpu *gpu;
	uint32_t slot_count;
	const struct ss_slot *slots;
	size_t note_count;
	const char **notes;
	struct ss_core_table cores;
	/* what the pointers above point into */
	char *text;
	struct ss_assignment *assignments;
	struct ss_slot *slot_storage;
	struct ss_gpu *gpu_storage;
};

/* Whose plan it has to be. */
struct ss_plan_owner {
	uint32_t job, uid;
	const char *node; /* NULL: not known, not compared */
};

enum ss_plan_state {
	SS_PLAN_READ,   /* *plan is filled; ss_plan_free() it */
	SS_PLAN_ABSENT, /* there is no such file */
	SS_PLAN_BAD,    /* the file is unreadable, torn, or not this job's: `why` says it */
};

enum ss_plan_state ss_plan_read(const char *path, const struct ss_plan_owner *owner, struct ss_plan **plan, char *why, size_t size);

/* The same for a text in memory, `length` bytes with no NUL behind them. Never SS_PLAN_ABSENT. */
enum ss_plan_state ss_plan_parse(const char *text, size_t length, const struct ss_plan_owner *owner, struct ss_plan **plan,
				 char *why, size_t size);

void ss_plan_free(struct ss_plan *plan);

#endif
