/* Wait for slots, in the order of arrival: in srun, before its step is made, or in the tasks of a step.
 *
 * The first in the queue checks the slots whenever one is freed, and every second, since a killed holder notifies nobody. The
 * others sleep until the one before them has left. This module does not depend on Slurm. */
#ifndef SLURM_SHARE_SLOT_WAIT_H
#define SLURM_SHARE_SLOT_WAIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SS_WAIT_FOREVER = -1 };

/* The time after which a wait is printed. */
enum { SS_WAIT_TELL_MS = 10000 };

struct ss_slot_wait {
	const char *folder; /* the job's slots */
	uint32_t slots;     /* the number of the job's slots */
	uint32_t wanted;
	int64_t limit_ms;   /* 0: do not wait; or SS_WAIT_FOREVER */
	int64_t tell_ms;    /* the time after which `tell` is called, once, and by one process of the queue */
	void (*tell)(const struct ss_slot_wait *wait);
	/* only for a step that Slurm has made: */
	bool is_step;
	uint32_t step;
	uint32_t *is_promised; /* shared by its tasks: one of them has a promise for all; NULL: a process alone */
	/* Take slots oneself instead of a promise, while this is the first in the queue: return whether the wait is over. NULL: not used. */
	bool (*take)(const struct ss_slot_wait *wait);
	void *of_take;
	/* the result: */
	int queue;          /* the file that holds the promise until it is closed; or -1 */
	int64_t place;
	uint32_t free_slots; /* at the last check, without those promised to others */
};

enum ss_wait_end {
	SS_WAIT_PROMISED, /* `queue` and `place` are valid; `queue` is -1 if another task of the step has the promise */
	SS_WAIT_OVER,     /* the time limit is over */
	SS_WAIT_UNABLE,   /* there is no queue, or another process holds the lock for choosing */
};

enum ss_wait_end ss_slot_wait(struct ss_slot_wait *wait);

/* Assign the promise to a step, under the lock for choosing: a process that counts promises at the same time could miss it. */
void ss_slot_wait_name_step(const struct ss_slot_wait *wait, uint32_t step);

/* Convert "90", "90s", "5m", "2h", "1d" to milliseconds; return -1 for any other text. */
int ss_slot_wait_parse(const char *text, int64_t *limit_ms);

#endif
