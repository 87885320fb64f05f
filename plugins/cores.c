#include "cores.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "options.h"

/* Parse a number at `*at`, and advance `*at` to its end. */
static int take_number(const char **at, uint32_t *number)
{
	size_t digits = strspn(*at, "0123456789");

	if (ss_number_parse(*at, digits, 0, SS_CPUS_MAX - 1, number) != 0)
		return -1;
	*at += digits;
	return 0;
}

int ss_cores_parse(const char *text, struct ss_core_list *list)
{
	const char *at = text;

	list->count = 0;
	if (text == NULL)
		return -1;
	for (;;) {
		uint32_t low, high;
		if (take_number(&at, &low) != 0)
			return -1;
		high = low;
		if (*at == '-') {
			at++;
			if (take_number(&at, &high) != 0 || high < low)
				return -1;
		}
		if (high - low >= SS_CPUS_MAX - list->count)
			return -1;
		for (uint32_t core = low; core <= high; core++)
			list->core[list->count++] = (uint16_t)core;
		if (*at == '\0')
			return 0;
		if (*at++ != ',')
			return -1;
	}
}

/* Append `length` cores of all[base .. base + size - 1] from index `first` on, cyclically. */
static void take_run(const struct ss_core_list *all, uint64_t base, uint64_t size, uint64_t first, uint64_t length,
		     struct ss_core_list *mine)
{
	for (uint64_t i = 0; i < length && i < size; i++)
		mine->core[mine->count++] = all->core[base + (first + i) % size];
}

void ss_cores_deal(const struct ss_core_list *all, const struct ss_deal *deal, struct ss_core_list *mine)
{
	uint64_t count = all->count, part = deal->part, parts = deal->parts ? deal->parts : 1;
	uint64_t groups = deal->groups && parts % deal->groups == 0 ? deal->groups : 1;
	uint64_t group = part / (parts / groups), member = part % (parts / groups);
	uint64_t run = deal->cores_per_task;

	mine->count = 0;
	if (count == 0)
		return;
	if (run == 0 && count >= parts) {
		uint64_t first = part * count / parts;
		take_run(all, 0, count, first, (part + 1) * count / parts - first, mine);
		return;
	}
	run = run ? run : 1;
	if (count < groups) {
		take_run(all, 0, count, group * run, run, mine);
		return;
	}
	uint64_t base = group * count / groups, size = (group + 1) * count / groups - base;
	if (run <= size)
		take_run(all, base, size, member * run, run, mine);
	else /* more cores than the group has: continue with those after it */
		take_run(all, 0, count, base, run, mine);
}

void ss_cores_cpus(const struct ss_core_list *list, const struct ss_core_table *table, struct ss_cpus *cpus)
{
	CPU_ZERO_S(sizeof cpus->set, cpus->set);
	if (table->count == 0)
		return;
	for (size_t i = 0; i < list->count; i++) {
		size_t k = list->core[i] % table->count;
		for (size_t n = table->first[k]; n < table->first[k + 1]; n++)
			CPU_SET_S(table->cpu[n], sizeof cpus->set, cpus->set);
	}
}

static bool has(const struct ss_cpus *cpus, size_t cpu)
{
	return cpu < SS_CPUS_MAX && CPU_ISSET_S(cpu, sizeof cpus->set, cpus->set);
}

int ss_cpus_render(const struct ss_cpus *cpus, char *text, size_t size)
{
	size_t used = 0;

	if (size == 0)
		return -1;
	text[0] = '\0';
	for (size_t cpu = 0; cpu < SS_CPUS_MAX; cpu++) {
		if (!has(cpus, cpu))
			continue;
		size_t last = cpu;
		while (has(cpus, last + 1))
			last++;
		int n = last > cpu ? snprintf(text + used, size - used, "%s%zu-%zu", used ? "," : "", cpu, last)
				   : snprintf(text + used, size - used, "%s%zu", used ? "," : "", cpu);
		if (n < 0 || (size_t)n >= size - used)
			return -1;
		used += (size_t)n;
		cpu = last;
	}
	return 0;
}

uint32_t ss_cores_threads(size_t cores, const struct ss_deal *deal, uint32_t cpus_per_task)
{
	if (cpus_per_task > 0)
		return cpus_per_task;
	size_t threads = deal->parts ? cores / deal->parts : cores;
	return threads > 1 ? (uint32_t)threads : 1;
}
