/* Let the tasks of a step wait for slots on their node, before their programs start.
 *
 * srun --async, and srun on another host, cannot see the slots of a node. Their steps wait here, in task_init: Slurm counts the
 * step as started, so no time limit for launching applies (_send_launch_resp() in slurmstepd's mgr.c runs after the fork), and a
 * signal to the step, its time limit and the end of the job reach its tasks as usual. A step of several nodes does not wait: two of
 * them could wait for each other. This module does not depend on Slurm. */
#ifndef SLURM_SHARE_STEP_WAIT_H
#define SLURM_SHARE_STEP_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "slot_wait.h"

struct ss_step_wait {
	const char *folder;   /* the job's slots */
	uint32_t slots;       /* the number of the job's slots */
	uint32_t step, tasks; /* the step's number, and its tasks */
	int64_t limit_ms;     /* or SS_WAIT_FOREVER */
	int64_t tell_ms;      /* as of struct ss_slot_wait */
	void (*tell)(const struct ss_slot_wait *wait);
	/* set here: */
	struct ss_step_wait_shared *shared; /* by the tasks */
	int promise;                        /* the file that holds the promise of all tasks; -1: none */
};

/* Prepare the wait in the process that forks the tasks; return whether there is memory for it. */
bool ss_step_wait_open(struct ss_step_wait *wait);

/* Ask in that process, without waiting, for slots for all tasks. SS_WAIT_PROMISED: take them now, then close the promise. */
enum ss_wait_end ss_step_wait_ask(struct ss_step_wait *wait);
void ss_step_wait_close_promise(struct ss_step_wait *wait);

/* Wait in each task until there are slots for all of them. */
enum ss_wait_end ss_step_wait_for_all(struct ss_step_wait *wait);

/* Wait in one task, in the step's place of the queue, until `take` has taken its slot, or returns true for another reason. */
enum ss_wait_end ss_step_wait_for_one(struct ss_step_wait *wait, bool (*take)(const struct ss_slot_wait *), void *of_take);

/* Record in a task that it has its slot, or needs none. The one that holds the promise waits for the others. */
void ss_step_wait_chosen(struct ss_step_wait *wait);

#endif
