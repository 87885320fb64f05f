/* What Slurm writes about generic resources, "gpu:a100:2(IDX:0,3),shard:..." -> how many of them are GPUs.
 *
 * Strings in, numbers out: nothing here knows Slurm. */
#ifndef SLURM_SHARE_GRES_H
#define SLURM_SHARE_GRES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SS_GRES_MAX_GPUS = 65535 };

struct ss_gres {
	uint32_t gpus;   /* of all types together */
	bool has_shards; /* parts of GPUs; Slurm names no GPU beside them */
};

/* 0, or -1 for a text that is no such list. NULL, "" and "(null)" are lists of nothing. A part in parentheses, which GPUs they are,
 * is not looked at; the type may be anything, or absent, and so may the number: then it is 1. */
int ss_gres_read(const char *text, struct ss_gres *gres);

#endif
