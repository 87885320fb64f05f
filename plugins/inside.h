/* What the plugin does in an srun inside an allocation that shares: srun's variables where no batch shell has set them, and a word
 * where the nodes of the job are too unlike for one srun. */
#ifndef SLURM_SHARE_INSIDE_H
#define SLURM_SHARE_INSIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"

/* Before srun looks at its environment. In the shell of salloc on the login host no step has set what a plain srun needs. */
void ss_inside_begin(void);

/* When srun has read its options. `asked`: --share-gpu, of this srun or of its job, NULL without one. Does not return where the
 * step is refused: no step has been made yet, and in an optional plugin srun ignores what a callback returns. */
void ss_inside_check(const struct ss_request *asked);

/* The job this srun is in; 0: it is to make its own allocation, or in one of another cluster, whose controller is not ours. */
uint32_t ss_inside_job(void);

/* Below a batch shell or an interactive step whose node had a plan. */
bool ss_inside_shared_step(void);

/* Whether the tasks of this srun are to have slots: neither --share-gpu=off nor SLURM_SHARE_SLOT=none. */
bool ss_inside_wants_slots(const struct ss_request *asked);

/* A variable's number; 0 where it is not set, or is none. */
uint32_t ss_inside_number(const char *name);

/* The words of the command line before the program, which getopt(3) has left at optind. NULL where they cannot be had. */
const char *const *ss_inside_arguments(size_t *count);

#endif
