/* Waiting for slots, in srun, before its step is made: one after the other in the order of arrival, however many each wants.
 *
 * The first in the queue looks at the slots whenever somebody gives one back, and every second in any case: a holder that was
 * killed tells nobody. The others sleep until the one before them has left. Nothing here knows Slurm. */
#ifndef SLURM_SHARE_SLOT_WAIT_H
#define SLURM_SHARE_SLOT_WAIT_H

#include <stddef.h>
#include <stdint.h>

enum { SS_WAIT_FOREVER = -1 };

struct ss_slot_wait {
	const char *folder; /* the job's slots */
	uint32_t slots;     /* that there are */
	uint32_t wanted;
	int64_t limit_ms;   /* 0: not at all; SS_WAIT_FOREVER */
	int64_t tell_ms;    /* when `tell` is called, once */
	void (*tell)(const struct ss_slot_wait *wait);
	/* what came of it: */
	int queue;          /* holds the promise until it is closed; -1 */
	int64_t place;
	uint32_t free_slots; /* when it was looked at last, without those promised to others */
};

enum ss_wait_end {
	SS_WAIT_PROMISED, /* `queue` and `place` say it */
	SS_WAIT_OVER,
	SS_WAIT_UNABLE,   /* there is no queue, or somebody holds the lock of those who choose */
};

enum ss_wait_end ss_slot_wait(struct ss_slot_wait *wait);

/* The promise is that step's from now on. Nobody chooses meanwhile: whoever counted promises between the two of its places would
 * miss it. */
void ss_slot_wait_name_step(const struct ss_slot_wait *wait, uint32_t step);

/* "90", "90s", "5m", "2h", "1d" -> milliseconds; -1 for any other text. */
int ss_slot_wait_parse(const char *text, int64_t *limit_ms);

#endif
