/* The plugin in an srun inside an allocation that shares: set srun's variables if no batch shell has set them, and refuse an srun
 * on nodes with different numbers of GPUs. */
#ifndef SLURM_SHARE_INSIDE_H
#define SLURM_SHARE_INSIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"

/* Set the variables for a plain srun in salloc's shell on the login host, where no step has set them. Call it before srun reads its
 * environment. */
void ss_inside_begin(void);

/* Check srun's options after it has read them. `asked`: the --share-gpu of this srun or of its job, or NULL. Does not return if the
 * step is refused: no step has been made yet, and srun ignores what a callback of an optional plugin returns. */
void ss_inside_check(const struct ss_request *asked);

/* Return the job that this srun is in; 0: it makes its own allocation, or is in one of another cluster. */
uint32_t ss_inside_job(void);

/* Return whether this srun is below a batch shell or an interactive step whose node had a plan. */
bool ss_inside_shared_step(void);

/* Return whether the tasks of this srun get slots: neither --share-gpu=off nor SLURM_SHARE_SLOT=none. */
bool ss_inside_wants_slots(const struct ss_request *asked);

/* Return the number in a variable; 0 if it is not set or has no number. */
uint32_t ss_inside_number(const char *name);

/* Return the arguments of the command line (of srun, sbatch or salloc) before the program, whose index getopt(3) left in optind; NULL
 * if they are not known. */
const char *const *ss_inside_arguments(size_t *count);

#endif
