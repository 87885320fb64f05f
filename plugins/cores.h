/* The cores of a task: parse lists like "0-7,9", divide them into parts, make CPU masks.
 *
 * Slurm numbers cores, the kernel CPUs (hardware threads); the plan's `cores` line maps one to the other. This module does not
 * depend on Slurm. */
#ifndef SLURM_SHARE_CORES_H
#define SLURM_SHARE_CORES_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

/* NR_CPUS of the largest kernels (CONFIG_MAXSMP in arch/x86/Kconfig). */
enum { SS_CPUS_MAX = 8192 };

/* A set of core or CPU numbers, in the form the kernel's affinity calls take. */
struct ss_cpus {
	cpu_set_t set[SS_CPUS_MAX / CPU_SETSIZE];
};

/* Core numbers in Slurm's order. */
struct ss_core_list {
	size_t count;
	uint16_t core[SS_CPUS_MAX];
};

/* This machine's cores: core k has the CPUs cpu[first[k]] up to, not including, cpu[first[k + 1]]. */
struct ss_core_table {
	size_t count;
	uint16_t first[SS_CPUS_MAX + 1];
	uint16_t cpu[SS_CPUS_MAX];
};

/* The part of a step's cores that a task gets. */
struct ss_deal {
	uint32_t part;           /* the index of the task's part */
	uint32_t parts;          /* the number of equal parts */
	uint32_t groups;         /* the number of groups of adjacent parts; the parts of one GPU are a group */
	uint32_t cores_per_task; /* the user's -c, in cores; 0: the equal part */
};

/* Parse a list such as "0-3,8". Return -1 for any other text, also an empty one. */
int ss_cores_parse(const char *text, struct ss_core_list *list);

/* Set `mine` to the task's equal part of `all`. With -c, or with more parts than cores (then each task gets one core), the tasks of
 * a group take consecutive cores of the group, cyclically. `mine` is empty only if `all` is. */
void ss_cores_deal(const struct ss_core_list *all, const struct ss_deal *deal, struct ss_core_list *mine);

/* Set `cpus` to the CPUs of the cores in `list`. Core k is entry k modulo the table's length: a site can configure more cores than
 * the machine has (SlurmdParameters=config_overrides). */
void ss_cores_cpus(const struct ss_core_list *list, const struct ss_core_table *table, struct ss_cpus *cpus);

/* Write CPUs as "0-3,8". Return -1 if `size` is too small. */
int ss_cpus_render(const struct ss_cpus *cpus, char *text, size_t size);

/* Return the number of threads for a task: its -c, or its equal part of `cores`, at least 1. */
uint32_t ss_cores_threads(size_t cores, const struct ss_deal *deal, uint32_t cpus_per_task);

#endif
