/* The GPUs that a job has on each of its nodes, and whether one srun can spread over them.
 *
 * srun starts one number of tasks and asks for one number of GPUs on every node; with 4 GPUs here and 2 there it fails with words
 * about gres, waits for ever, or starts tasks that find no slot. Nothing here knows Slurm. */
#ifndef SLURM_SHARE_JOB_GPUS_H
#define SLURM_SHARE_JOB_GPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"
#include "srun_arguments.h"

enum { SS_JOB_NODES_LISTED = 512, SS_NODE_NAME_SIZE = 64 };

struct ss_job_node {
	char name[SS_NODE_NAME_SIZE];
	uint32_t gpus;
};

/* Without pointers: it goes through a pipe. All zero before the first node. */
struct ss_job_gpus {
	uint32_t nodes, least, most; /* the fewest and the most GPUs on one node */
	uint32_t least_of_some;      /* the fewest on a node that has any; 0: none has */
	bool has_shards;
	uint32_t per_gpu; /* the N of the share, where the controller had a hand in it; else 0 */
	char share[SS_CANONICAL_SIZE];
	uint32_t listed; /* the first nodes of the job */
	struct ss_job_node node[SS_JOB_NODES_LISTED];
};

/* `gres`: what Slurm wrote about the node. -1 where that is not understood; then nothing is known about the job. */
int ss_job_gpus_add(struct ss_job_gpus *job, const char *name, const char *gres);

/* What job_submit.lua noted down where it did not only observe: the item share-gpu=... of the job's admin_comment. */
void ss_job_gpus_mark(struct ss_job_gpus *job, const char *admin_comment);

/* What the controller says of the job's share, in the texts of `extra` and `comment` (slurm_share/share/rules/verdict.py): takes the mark
 * away where that is anything but "on" for the run after `restarts` requeues. A job without a verdict keeps it. */
void ss_job_gpus_hear(struct ss_job_gpus *job, const char *text, uint32_t restarts);

/* What srun does in a job where it was told `said`, and its environment says the rest. */
struct ss_spread {
	uint32_t job;
	const struct ss_srun_arguments *said;
	uint32_t nodes; /* of the job, as SLURM_JOB_NUM_NODES has it: srun takes all of them unless told otherwise */
	uint32_t gpus;  /* on each node, as SLURM_GRES has it; 0: it has none */
};

/* Whether that depends on the GPUs of the nodes: else nobody needs to be asked about them. */
bool ss_job_gpus_matter(const struct ss_spread *spread);

/* 0, or -1 with the sentence that says why this srun cannot be, and what can. */
int ss_job_gpus_check(const struct ss_job_gpus *job, const struct ss_spread *spread, char *sentence, size_t size);

#endif
