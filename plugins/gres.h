/* Count the GPUs in a list of generic resources as Slurm writes it, "gpu:a100:2(IDX:0,3),shard:...".
 *
 * This module does not depend on Slurm. */
#ifndef SLURM_SHARE_GRES_H
#define SLURM_SHARE_GRES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SS_GRES_MAX_GPUS = 65535 };

struct ss_gres {
	uint32_t gpus;   /* of all types together */
	bool has_shards; /* the list has parts of GPUs; then Slurm lists no GPU */
};

/* Return 0, or -1 for a text that is not such a list. NULL, "" and "(null)" are empty lists. Parts in parentheses, which tell the
 * GPUs' indexes, are ignored. The type is optional and can be anything; without a number it is 1. */
int ss_gres_read(const char *text, struct ss_gres *gres);

#endif
