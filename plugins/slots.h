/* Which slot goes to which task, and what stands in a slot's file: tables and texts, nothing touched. */
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
	SS_SLOT_OTHERS, /* somebody else of the job has it */
};

/* The slots of a plan. GPUs are numbered as they come first in the slot lines, which is Slurm's order. */
struct ss_slots {
	uint32_t count, gpus;
	uint16_t gpu[SS_PLAN_MAX_SLOTS];
	uint8_t state[SS_PLAN_MAX_SLOTS];
	uint16_t first[SS_PLAN_MAX_SLOTS]; /* of each GPU: its lowest slot */
	uint32_t promised;                 /* so many of the free ones are for steps on their way */
};

/* Every slot free, each on its GPU. */
void ss_slots_of_plan(const struct ss_plan *plan, struct ss_slots *slots);

/* Slots for `wanted` tasks in order, out of the free ones on `allowed` GPUs (NULL: all): always on the GPU with the most free
 * ones, on an equal one with the lowest number, and there the lowest; on an empty node task i gets slot i. Returns how many. */
uint32_t ss_slots_choose(const struct ss_slots *slots, const bool *allowed, uint32_t wanted, uint32_t *chosen);

/* How many slots are in `state`, on `allowed` GPUs (NULL: all). */
uint32_t ss_slots_count(const struct ss_slots *slots, const bool *allowed, enum ss_slot_state state);

/* Slurm's list of GPUs ("0,1", UUIDs since 25.11) -> the GPUs of the plan it names. Returns how many those are. */
uint32_t ss_slots_listed(const struct ss_plan *plan, const struct ss_slots *slots, const char *list, bool *listed);

/* The N of a GPU's /dev/nvidiaN; -1 where the plan does not say. */
int ss_slots_minor(const struct ss_plan *plan, const struct ss_slots *slots, uint32_t gpu);

/* One process and no later one of the same number. pid 0: none. */
struct ss_process {
	uint32_t pid;
	uint64_t start; /* field 22 of /proc/PID/stat */
};

/* What a held slot's file says; names.py has the format. */
struct ss_holding {
	uint32_t step;
	struct ss_process holder, task;
};

enum { SS_HOLDING_SIZE = 128 };

/* The text, with its newline; returns its length, which is below SS_HOLDING_SIZE. */
size_t ss_holding_render(const struct ss_holding *holding, char text[SS_HOLDING_SIZE]);

/* 0, or -1 for any other text: the file is its user's to write. */
int ss_holding_parse(const char *text, size_t length, struct ss_holding *holding);

#endif
