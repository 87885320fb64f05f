/* The GPUs that a job has on each of its nodes, and whether one srun can use all of these nodes.
 *
 * srun starts the same number of tasks and requests the same number of GPUs on every node. If one node has 4 GPUs and another 2, it
 * fails with an error about gres, waits for ever, or starts tasks without a slot. This module does not depend on Slurm. */
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

/* Has no pointers, since it is sent through a pipe. All zero before the first node. */
struct ss_job_gpus {
	uint32_t nodes, least, most; /* the fewest and the most GPUs on one node */
	uint32_t least_of_some;      /* the fewest on a node that has any; 0: no node has any */
	bool has_shards;
	uint32_t per_gpu; /* the N of the share if the controller changed the job for it; else 0 */
	char share[SS_CANONICAL_SIZE];
	uint32_t listed; /* the number of nodes in `node`, the first ones of the job */
	struct ss_job_node node[SS_JOB_NODES_LISTED];
};

/* Add a node with the gres that Slurm lists for it. Return -1 if that cannot be parsed. */
int ss_job_gpus_add(struct ss_job_gpus *job, const char *name, const char *gres);

/* Read the share that job_submit.lua recorded in the job's admin_comment (share-gpu=...), unless it only observes. */
void ss_job_gpus_mark(struct ss_job_gpus *job, const char *admin_comment);

/* Read the same from the verdict in `extra` or `comment` (slurm-share=on,share-gpu=...): another tool's script may have
 * overwritten admin_comment. */
void ss_job_gpus_mark_of_verdict(struct ss_job_gpus *job, const char *text);

/* Read the controller's verdict in the job's `extra` or `comment` (slurm_share/share/rules/verdict.py): clear per_gpu if it is
 * anything but "on" for the run after `restarts` requeues. Without a verdict nothing changes. */
void ss_job_gpus_hear(struct ss_job_gpus *job, const char *text, uint32_t restarts);

/* The options and environment of an srun in a job. */
struct ss_spread {
	uint32_t job;
	const struct ss_srun_arguments *said;
	uint32_t nodes; /* of the job (SLURM_JOB_NUM_NODES): by default srun uses all of them */
	uint32_t gpus;  /* on each node (SLURM_GRES); 0: none */
};

/* Return whether this srun depends on the GPUs of the nodes, so that the controller must be asked. */
bool ss_job_gpus_matter(const struct ss_spread *spread);

/* Return 0, or -1 with a sentence on why this srun cannot work, and what does. */
int ss_job_gpus_check(const struct ss_job_gpus *job, const struct ss_spread *spread, char *sentence, size_t size);

#endif
