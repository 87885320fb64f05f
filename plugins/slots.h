/* Choose slots for tasks, and parse and render the contents of a slot's file. */
#ifndef SLURM_SHARE_SLOTS_H
#define SLURM_SHARE_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "names.h"
#include "plan.h"

enum ss_slot_state {
	SS_SLOT_FREE,
	SS_SLOT_OURS,   /* a task of this step has it */
	SS_SLOT_OTHERS, /* another step or launcher of the job has it */
};

/* The slots of a plan. GPUs are numbered in the order in which the slots name them, which is Slurm's. */
struct ss_slots {
	uint32_t count, gpus;
	uint16_t gpu[SS_PLAN_MAX_SLOTS];
	uint8_t state[SS_PLAN_MAX_SLOTS];
	uint16_t first[SS_PLAN_MAX_SLOTS]; /* of each GPU: its lowest slot */
	uint32_t promised;                 /* free slots that are promised to other steps */
};

/* Fill `slots` from a plan, every slot free. */
void ss_slots_of_plan(const struct ss_plan *plan, struct ss_slots *slots);

/* Choose free slots for `wanted` tasks in order, on `allowed` GPUs (NULL: all): each time the lowest free slot of the GPU with the
 * most free slots; of equal GPUs, that of the lowest free slot. On an empty node task i gets slot i. Return their number. */
uint32_t ss_slots_choose(const struct ss_slots *slots, const bool *allowed, uint32_t wanted, uint32_t *chosen);

/* Return how many slots are in `state`, on `allowed` GPUs (NULL: all). */
uint32_t ss_slots_count(const struct ss_slots *slots, const bool *allowed, enum ss_slot_state state);

/* Set `listed` to the GPUs of the plan that Slurm's list names ("0,1", UUIDs since 25.11). Return their number. */
uint32_t ss_slots_listed(const struct ss_plan *plan, const struct ss_slots *slots, const char *list, bool *listed);

/* Return how many GPUs of the list are GPUs of the job that do not answer and have no slots. */
uint32_t ss_slots_lost(const struct ss_plan *plan, const char *list);

/* Return the N of a GPU's /dev/nvidiaN; -1 if the plan does not have it. */
int ss_slots_minor(const struct ss_plan *plan, const struct ss_slots *slots, uint32_t gpu);

/* A process, which its start time distinguishes from a later one with the same pid. pid 0: none. */
struct ss_process {
	uint32_t pid;
	uint64_t start; /* field 22 of /proc/PID/stat */
};

/* The contents of a leased slot's file; names.py has the format. */
struct ss_holding {
	uint32_t step;
	struct ss_process holder, task;
};

enum { SS_HOLDING_SIZE = 128 };

/* Write the text with its newline; return its length, which is below SS_HOLDING_SIZE. */
size_t ss_holding_render(const struct ss_holding *holding, char text[SS_HOLDING_SIZE]);

/* Return 0, or -1 for any other text, since the user can write into the file. */
int ss_holding_parse(const char *text, size_t length, struct ss_holding *holding);

#endif
