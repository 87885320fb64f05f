/* The leases of one step: a lock on the file of each slot that one of its tasks has.
 *
 * slurmstepd holds the locks, not the task: a child of a killed task does not keep the slot, and a program that closes all its
 * files does not lose it. The lock is flock(2), which belongs to the open file, and slurmstepd holds that file by a mapping: with
 * contain_spank a callback's file descriptors end with the callback (leases.c). A task that chooses its slot itself cannot pass
 * such a lock to slurmstepd. So the file also names the task, and a slot whose task is alive is not leased again, whether its lock
 * is held or not; the same holds for the tasks of a slurmstepd that was killed. Whoever chooses slots finds a dead task.
 *
 * The files are in a folder of root's and belong to the job's user, who can lock and change them to the harm of his own job only.
 * This module does not depend on Slurm. */
#ifndef SLURM_SHARE_LEASES_H
#define SLURM_SHARE_LEASES_H

#include <stddef.h>
#include <stdint.h>

#include "slots.h"

struct ss_leases;

/* Prepare leases in the memory of the process that forks the tasks. `folder`: the job's slots. `late`: each task chooses for itself,
 * see below. Return NULL and a reason in `why` on failure. */
struct ss_leases *ss_leases_open(const char *folder, uint32_t slots, uint32_t tasks, uint32_t step, bool late, char *why,
				 size_t size);

/* Lease slots to `wanted` tasks from `first_task` on, first on `preferred` GPUs and then on `allowed` ones (NULL: any). Fill
 * `slots` with the states that were found, and `chosen`; return the number of leases. They are fewer than wanted if no more are
 * free, or the rest is promised to steps that waited (slot_queue.h). Called in the memory of ss_leases_open(), or, with `late`, by a
 * forked task for itself: the slot's file then names this process, and no lock is held. Return -1 and a reason in `why`, without a
 * lease, on failure. */
int ss_leases_take(struct ss_leases *leases, struct ss_slots *slots, const bool *preferred, const bool *allowed, uint32_t first_task,
		   uint32_t wanted, uint32_t *chosen, char *why, size_t size);

/* Name another process than the caller as the holder of the leases in the slots' files. */
void ss_leases_held_by(struct ss_leases *leases, uint32_t pid);

/* For srun, which leases no slots itself: take the lock for choosing, count the free slots while it is held (and fill `slots`), and
 * release it. The first two return -1 and a reason on failure. */
int ss_leases_begin(const struct ss_leases *leases, char *why, size_t size);
int ss_leases_free(const struct ss_leases *leases, struct ss_slots *slots, char *why, size_t size);
void ss_leases_end(int lock);

/* Write the pid of a forked task into its slots' files. */
void ss_leases_name_task(struct ss_leases *leases, uint32_t task, uint32_t pid);

/* Free the slots of a task that has ended. */
void ss_leases_give_back(struct ss_leases *leases, uint32_t task);

void ss_leases_close(struct ss_leases *leases);

/* Return how many of a job's slots have ever had a task. */
uint32_t ss_leases_used(const char *folder, uint32_t slots);

/* Record that a launcher, which leases slots itself, has started in the job; return whether one has. The record is in the file of
 * the lock for choosing. */
void ss_leases_note_launcher(const char *folder);
bool ss_leases_had_launcher(const char *folder);

/* The time limit for getting the lock for choosing. srun and a test shorten it. */
extern uint32_t ss_leases_patience_ms;

#endif
