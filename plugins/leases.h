/* The leases of one step: a lock on the file of each slot that one of its tasks has.
 *
 * slurmstepd holds the locks, not the task: a child that a killed task leaves behind does not keep its slot, and a program that
 * closes what it did not open does not lose it. The lock is flock(2): it belongs to the open file, which slurmstepd shares with
 * the tasks it has forked until they exec, so giving back is an explicit unlock. Where slurmstepd itself is killed its locks are
 * gone and its tasks are not: so the file names the task, and a slot whose task lives is not given out.
 *
 * The files are in a folder of root's and belong to the job's user, who can lock and write them as he likes: he cheats himself.
 * Nothing here knows Slurm. */
#ifndef SLURM_SHARE_LEASES_H
#define SLURM_SHARE_LEASES_H

#include <stddef.h>
#include <stdint.h>

#include "slots.h"

struct ss_leases;

/* What the process that forks the tasks needs beforehand. `folder`: the job's slots. `late`: the tasks are to choose by
 * themselves, see below. NULL and a reason in `why`. */
struct ss_leases *ss_leases_open(const char *folder, uint32_t slots, uint32_t tasks, uint32_t step, bool late, char *why,
				 size_t size);

/* Takes slots for `wanted` tasks, `first_task` and those behind it, on `preferred` GPUs first and then on `allowed` ones (NULL:
 * any); fills `slots` with what was found, and `chosen`. Fewer than wanted where there are no more, or the others are promised to
 * steps that waited for them (slot_queue.h). Called by the process that opened, or, with `late`, by a task that it has forked, for itself:
 * the lock is then on the file that both have open, and outlives the task's exec. -1 and a reason in `why`: none was taken. */
int ss_leases_take(struct ss_leases *leases, struct ss_slots *slots, const bool *preferred, const bool *allowed, uint32_t first_task,
		   uint32_t wanted, uint32_t *chosen, char *why, size_t size);

/* For srun, which takes none itself: the lock of those who choose (-1 and a reason), what is free while it is held (-1 and a
 * reason, `slots` is filled), and its end. */
int ss_leases_begin(const struct ss_leases *leases, char *why, size_t size);
int ss_leases_free(const struct ss_leases *leases, struct ss_slots *slots, char *why, size_t size);
void ss_leases_end(int lock);

/* A task has been forked: its slots' files name it. */
void ss_leases_name_task(struct ss_leases *leases, uint32_t task, uint32_t pid);

/* A task has ended: its slots are free. */
void ss_leases_give_back(struct ss_leases *leases, uint32_t task);

void ss_leases_close(struct ss_leases *leases);

/* How many of a job's slots have ever had a task. */
uint32_t ss_leases_used(const char *folder, uint32_t slots);

/* A launcher, which leases slots itself, has begun in the job; whether one had. Kept in the file of the choosers' lock. */
void ss_leases_note_launcher(const char *folder);
bool ss_leases_had_launcher(const char *folder);

/* How long a chooser waits for others to have chosen. A test shortens it. */
extern uint32_t ss_leases_patience_ms;

#endif
