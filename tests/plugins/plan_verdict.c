/* For tests/contract: plan_verdict FILE JOB UID NODE. Print the plan in a fixed form and exit with 0; or "absent" and 1; or
 * "bad: WHY" and 2.
 *
 * plan_verdict - JOB UID: read plans from the input, each as "SIZE\n" and so many bytes, and answer each with what is printed
 * above and a line with a dot. Any node's plan is taken. */
#include <stdio.h>
#include <stdlib.h>

#include "plan.h"

static void print_plan(const struct ss_plan *plan)
{
	printf("job %u uid %u node %s\n", plan->job, plan->uid, plan->node);
	if (plan->refused != NULL) {
		printf("refused %s\n", plan->refused);
		return;
	}
	if (plan->unshared != NULL) {
		printf("unshared %s\n", plan->unshared);
		return;
	}
	printf("share %s gpus %u slots %u\n", plan->share, plan->gpus, plan->slot_count);
	for (size_t core = 0; core < plan->cores.count; core++)
		for (size_t n = plan->cores.first[core]; n < plan->cores.first[core + 1]; n++)
			printf("core %zu cpu %u\n", core, plan->cores.cpu[n]);
	if (plan->lost != NULL)
		printf("lost %u %s\n", plan->lost_count, plan->lost);
	for (size_t i = 0; i < plan->note_count; i++)
		printf("note %s\n", plan->notes[i]);
	for (uint32_t i = 0; i < plan->slot_count; i++) {
		const struct ss_slot *slot = &plan->slots[i];
		const struct ss_gpu *gpu = &plan->gpu[slot->gpu];
		printf("slot %u part %u of %u on %s minor %d MPS %s\n", i, slot->part, slot->parts, gpu->uuid, gpu->minor,
		       slot->mps_directory ? slot->mps_directory : "none");
		if (slot->memory_cap_mib > 0 || slot->memory_least_mib > 0)
			printf("memory %u least %u%s\n", slot->memory_cap_mib, slot->memory_least_mib,
			       slot->is_cap_of_driver ? " by the driver" : "");
		for (size_t v = 0; v < slot->variables; v++)
			printf("%s %s=%s\n", slot->environment[v].unless_set ? "default" : "set", slot->environment[v].name,
			       slot->environment[v].value);
	}
}

static int answer_each(const struct ss_plan_owner *owner)
{
	size_t size;

	while (scanf("%zu", &size) == 1 && getchar() == '\n') {
		struct ss_plan *plan = NULL;
		char why[512] = "", *text = malloc(size ? size : 1);
		if (text == NULL || fread(text, 1, size, stdin) != size)
			return 1;
		if (ss_plan_parse(text, size, owner, &plan, why, sizeof why) == SS_PLAN_READ)
			print_plan(plan);
		else
			printf("bad: %s\n", why);
		ss_plan_free(plan);
		free(text);
		puts(".");
		(void)fflush(stdout);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct ss_plan *plan = NULL;
	char why[512] = "";

	if (argc != 4 && argc != 5)
		return 64;
	struct ss_plan_owner owner = { (uint32_t)strtoul(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10), argv[4] };
	if (argc == 4)
		return answer_each(&owner);
	switch (ss_plan_read(argv[1], &owner, &plan, why, sizeof why)) {
	case SS_PLAN_ABSENT:
		puts("absent");
		return 1;
	case SS_PLAN_BAD:
		printf("bad: %s\n", why);
		return 2;
	case SS_PLAN_READ:
		break;
	}
	print_plan(plan);
	ss_plan_free(plan);
	return 0;
}
