/* The queue of the sruns and of the steps that wait for slots, and the slots that are promised to steps whose tasks have not chosen.
 *
 * Both are byte-range locks on one file (open file description locks, fcntl(2)): the kernel removes them when the process that holds
 * them ends, however it does, so nothing has to be cleaned up. slurm_share/core/names.py documents the ranges. The contents of the
 * file say how much of its promise a step has used.
 *
 * srun and slurmstepd use these functions; slurm_share/share/leases.py does the same in Python. A process that joins, claims,
 * names a step or chooses holds SS_SLOTS_LOCK meanwhile. This module does not depend on Slurm. */
#ifndef SLURM_SHARE_SLOT_QUEUE_H
#define SLURM_SHARE_SLOT_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

/* Open a regular file of a job's slots. Return -1 with errno, which is 0 if it is no regular file. */
int ss_slot_file_open(const char *folder, const char *name, int flags);
bool ss_slot_file_has_text(const char *folder, const char *name);

/* Open the queue of a job's slots in `folder`; -1 if there is none. */
int ss_queue_open(const char *folder);

/* Join the queue at its end; return the place, or -1. Closing the file leaves the queue. */
int64_t ss_queue_join(int queue);

/* Join the queue as a step that Slurm has made, before all steps that were made later; return the place. Return -1 if another task
 * of the step holds it: it is then waited for with the second function, until a signal arrives. */
int64_t ss_queue_join_step(int queue, uint32_t step);
int64_t ss_queue_follow_step(int queue, uint32_t step);

/* Return whether any process waits for slots. */
bool ss_queue_is_waited_in(int queue);

bool ss_queue_is_first(int queue, int64_t place);

/* Sleep until the process directly before `place` has left, or a signal arrives. */
void ss_queue_follow(int queue, int64_t place);

/* Leave the queue with a promise of so many slots, which stands until the file is closed; return 0 or -1. */
int ss_queue_claim(int queue, int64_t place, uint32_t slots);

/* The same for a step that Slurm has made. */
int ss_queue_claim_step(int queue, int64_t place, uint32_t slots, uint32_t step);

/* Return whether another process holds a promise to the step. */
bool ss_queue_has_claimed(int queue, uint32_t step);

/* Assign the promise to a step. */
void ss_queue_name_step(int queue, int64_t place, uint32_t slots, uint32_t step);

/* Return how many slots are promised to other steps than `step`. */
uint32_t ss_queue_claimed(int queue, uint32_t step);

/* Record that so many tasks of the step have chosen, successfully or not, and need no promise any more. */
void ss_queue_chosen(int queue, uint32_t step, uint32_t tasks);

/* Return whether another process of the queue has printed that it waits. Until this one ends, that counts for those that come. */
bool ss_queue_is_told(int queue);

/* Return whether this process is to print that it waits: no other one has. From then on it counts as printed. */
bool ss_queue_is_first_to_tell(int queue);

/* Wake the first process in the queue, since a slot may be free. */
void ss_queue_tell(const char *folder);

/* Record that a task of the job was refused; return whether one was. The first record stays. `step`: the asynchronous step whose
 * output has the reason, or UINT32_MAX if its srun has printed it. */
void ss_queue_mark_refused(const char *folder);
void ss_queue_mark_refused_step(const char *folder, uint32_t step);
bool ss_queue_has_refused(const char *folder, uint32_t *step);

#endif
