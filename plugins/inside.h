/* What the plugin does in an srun inside an allocation that shares: srun's variables where no batch shell has set them, and a word
 * where the nodes of the job are too unlike for one srun. */
#ifndef SLURM_SHARE_INSIDE_H
#define SLURM_SHARE_INSIDE_H

#include "options.h"

/* Before srun looks at its environment. In the shell of salloc on the login host no step has set what a plain srun needs. */
void ss_inside_begin(void);

/* When srun has read its options. `asked`: --share-gpu, of this srun or of its job, NULL without one. Does not return where the
 * step is refused: no step has been made yet, and in an optional plugin srun ignores what a callback returns. */
void ss_inside_check(const struct ss_request *asked);

#endif
