/* Which cores a task of a share runs on: lists like "0-7,9", equal parts of them, CPU masks.
 *
 * Slurm counts cores, the kernel counts CPUs (hardware threads); the plan's `cores` line translates. Nothing here knows
 * Slurm. */
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

/* How the cores of a step are dealt to a task. */
struct ss_deal {
	uint32_t part;           /* the task's part ... */
	uint32_t parts;          /* ... of so many equal ones */
	uint32_t groups;         /* neighbouring parts that belong together, those of one GPU: so many groups in all */
	uint32_t cores_per_task; /* what the user asked for with -c, in cores; 0: the equal part */
};

/* "0-3,8" -> list. -1 for anything else, also for an empty text. */
int ss_cores_parse(const char *text, struct ss_core_list *list);

/* The task's cores out of `all`: its balanced part. With -c, or where there are more parts than cores (then one each), the tasks
 * of a group take runs out of the group's cores, going round there. `mine` is empty only where `all` is. */
void ss_cores_deal(const struct ss_core_list *all, const struct ss_deal *deal, struct ss_core_list *mine);

/* The CPUs of `list`. Core k is entry k modulo the table's length: a site may claim more cores than the machine has
 * (SlurmdParameters=config_overrides). */
void ss_cores_cpus(const struct ss_core_list *list, const struct ss_core_table *table, struct ss_cpus *cpus);

/* CPUs -> "0-3,8". -1 where `size` is too small. */
int ss_cpus_render(const struct ss_cpus *cpus, char *text, size_t size);

/* The threads a task is told to use: its -c, or its equal part of `cores`, at least 1. */
uint32_t ss_cores_threads(size_t cores, const struct ss_deal *deal, uint32_t cpus_per_task);

#endif
