/* For tests/contract: lease_verdict FOLDER SLOTS GPUS TASKS PID. Lease a slot for each task, print their numbers in one line,
 * record PID as the first task, and hold them until the input ends. On failure print "no: WHY" and exit with 2.
 *
 * lease_verdict FOLDER SLOTS wait TASKS STEP: wait for a short time like srun, print "promised" or "over", and hold the promise
 * until the input ends. STEP -1: the step has no number yet.
 *
 * lease_verdict -: read the texts of slots' files, one per line in hexadecimal, and answer each with its task, or "no". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leases.h"
#include "slot_wait.h"

static uint32_t number(const char *text)
{
	return (uint32_t)strtoul(text, NULL, 10);
}

static void hold_until_input_ends(void)
{
	(void)fflush(stdout);
	while (getchar() != EOF)
		;
}

static int wait_as_srun(char **argv)
{
	struct ss_slot_wait wait = { .folder = argv[1], .slots = number(argv[2]), .wanted = number(argv[4]), .tell_ms = 60000 };
	enum ss_wait_end end = ss_slot_wait(&wait);

	if (end == SS_WAIT_PROMISED && strcmp(argv[5], "-1") != 0)
		ss_slot_wait_name_step(&wait, number(argv[5]));
	puts(end == SS_WAIT_PROMISED ? "promised" : end == SS_WAIT_OVER ? "over" : "unable");
	hold_until_input_ends();
	return 0;
}

static int answer_each(void)
{
	char line[1024], text[512];

	(void)setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof line, stdin) != NULL) {
		struct ss_holding holding;
		size_t length = 0;
		unsigned byte;
		for (const char *at = line; length < sizeof text && sscanf(at, "%2x", &byte) == 1; at += 2)
			text[length++] = (char)byte;
		if (length <= SS_HOLDING_SIZE && ss_holding_parse(text, length, &holding) == 0)
			printf("task %llu %llu\n", (unsigned long long)holding.task.pid, (unsigned long long)holding.task.start);
		else
			puts("no");
	}
	return 0;
}

int main(int argc, char **argv)
{
	static struct ss_slots slots;
	static uint32_t chosen[SS_PLAN_MAX_SLOTS];
	char why[512] = "";

	if (argc == 2)
		return answer_each();
	if (argc != 6 || number(argv[2]) > SS_PLAN_MAX_SLOTS)
		return 64;
	if (strcmp(argv[3], "wait") == 0)
		return wait_as_srun(argv);
	slots.count = number(argv[2]);
	slots.gpus = number(argv[3]);
	for (uint32_t slot = 0; slot < slots.count; slot++)
		slots.gpu[slot] = (uint16_t)(slot % slots.gpus);
	struct ss_leases *leases = ss_leases_open(argv[1], slots.count, number(argv[4]), 5, false, why, sizeof why);
	int taken = leases ? ss_leases_take(leases, &slots, NULL, NULL, 0, number(argv[4]), chosen, why, sizeof why) : -1;
	if (taken < 0) {
		printf("no: %s\n", why);
		ss_leases_close(leases);
		return 2;
	}
	for (int i = 0; i < taken; i++)
		printf("%s%u", i ? " " : "", chosen[i]);
	ss_leases_name_task(leases, 0, number(argv[5]));
	puts("");
	hold_until_input_ends();
	for (uint32_t task = 0; task < number(argv[4]); task++)
		ss_leases_give_back(leases, task);
	ss_leases_close(leases);
	return 0;
}
