/* The plan of one job on this node, as the Prolog wrote it. slurm_share/core/names.py documents its format.
 *
 * The file is read and checked as a whole. The strings of a struct ss_plan point into its own copy of the text. This module does
 * not depend on Slurm. */
#ifndef SLURM_SHARE_PLAN_H
#define SLURM_SHARE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cores.h"

struct ss_assignment {
	const char *name, *value;
	bool unless_set; /* NAME?=value: keep a value that the user set */
};

struct ss_gpu {
	const char *uuid;
	int minor; /* the N of its /dev/nvidiaN; -1: not known, or a MIG instance */
};

struct ss_slot {
	uint32_t gpu; /* the index in the plan's list */
	uint32_t part, parts;
	const char *memory_ratio; /* the cap as a part of the GPU's memory; NULL: not known */
	uint32_t memory_cap_mib; /* 0: none, or not known */
	uint32_t memory_least_mib; /* the part of the cap that the task is sure of; 0: not said */
	bool is_cap_of_driver; /* the driver enforces the cap, on the task's cgroup */
	const char *mps_directory; /* the pipe directory of its MPS daemon; NULL: none */
	const struct ss_assignment *environment;
	size_t variables;
};

struct ss_plan {
	uint32_t job, uid;
	const char *node;
	const char *refused; /* the sentence for the user, or NULL */
	const char *unshared; /* why the job runs unshared, or NULL */
	/* without these two: */
	const char *share;   /* the request in its canonical form */
	uint32_t per_gpu;    /* the N of the request */
	bool has_mem;        /* the user has named a size of memory */
	uint32_t gpus;
	struct ss_gpu *gpu;
	uint32_t slot_count;
	struct ss_slot *slots;
	size_t note_count;
	const char **notes;
	struct ss_core_table cores;
	char *lost;          /* Slurm's names of the job's GPUs that do not answer and have no slots, with commas; NULL: none */
	uint32_t lost_count;
	/* the memory that the pointers above point into */
	char *text;
	struct ss_assignment *assignments;
};

/* The job, user and node that a plan must have. */
struct ss_plan_owner {
	uint32_t job, uid;
	const char *node; /* NULL: not known and not compared */
};

enum ss_plan_state {
	SS_PLAN_READ,   /* *plan is filled; ss_plan_free() it */
	SS_PLAN_ABSENT, /* there is no such file */
	SS_PLAN_BAD,    /* the file cannot be read, is damaged, or is not this job's; `why` has the reason */
};

enum ss_plan_state ss_plan_read(const char *path, const struct ss_plan_owner *owner, struct ss_plan **plan, char *why, size_t size);

/* The same for a text of `length` bytes in memory, without a NUL at its end. Never returns SS_PLAN_ABSENT. */
enum ss_plan_state ss_plan_parse(const char *text, size_t length, const struct ss_plan_owner *owner, struct ss_plan **plan,
				 char *why, size_t size);

void ss_plan_free(struct ss_plan *plan);

#endif
