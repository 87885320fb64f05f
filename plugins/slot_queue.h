/* The queue of those srun's that wait for a slot, and the slots that are promised to steps on their way.
 *
 * All of it is byte-range locks on one file beside the slots' files (open file description locks, fcntl(2)): the kernel forgets a
 * waiter or a promise with the srun that held it, however that ended, and nothing has to be cleared away. Where which lock stands
 * is said in slurm_share/core/names.py. The file's few bytes say how much of a promise a step has used up.
 *
 * srun and slurmstepd both run these functions; their twin in Python is slurm_share/share/slot_queue.py. Whoever joins, claims,
 * names a step or chooses holds SS_SLOTS_LOCK meanwhile. Nothing here knows Slurm. */
#ifndef SLURM_SHARE_SLOT_QUEUE_H
#define SLURM_SHARE_SLOT_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

/* The queue of a job's slots, `folder`; -1 where it has none: its Prolog was of an older release. */
int ss_queue_open(const char *folder);

/* A place behind everybody who is there: its number, or -1. Closing the file gives it up. */
int64_t ss_queue_join(int queue);

bool ss_queue_is_first(int queue, int64_t place);

/* Sleeps until whoever is directly before `place` has left, or a signal comes. */
void ss_queue_follow(int queue, int64_t place);

/* Leaves the queue with a promise of so many slots, which stands until the file is closed; 0 or -1. */
int ss_queue_claim(int queue, int64_t place, uint32_t slots);

/* The promise is that step's from now on. */
void ss_queue_name_step(int queue, int64_t place, uint32_t slots, uint32_t step);

/* How many slots are promised to others than `step`. */
uint32_t ss_queue_claimed(int queue, uint32_t step);

/* So many tasks of the step have chosen, with or without success: they need no promise any more. */
void ss_queue_chosen(int queue, uint32_t step, uint32_t tasks);

/* Wakes the first in the queue: a slot may be free. */
void ss_queue_tell(const char *folder);

/* A task of the job was refused; and whether one was. */
void ss_queue_mark_refused(const char *folder);
bool ss_queue_has_refused(const char *folder);

#endif
