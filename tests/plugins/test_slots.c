/* The slots that a step gets, and the contents of a slot's file. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "slots.h"

/* Make slots round robin over `gpus`; in `states` f is free, o is of this step, x is of another one. */
static void make(struct ss_slots *slots, uint32_t gpus, const char *states)
{
	memset(slots, 0, sizeof *slots);
	slots->gpus = gpus;
	slots->count = (uint32_t)strlen(states);
	for (uint32_t i = 0; i < slots->count; i++) {
		slots->gpu[i] = (uint16_t)(i % gpus);
		slots->state[i] = states[i] == 'f' ? SS_SLOT_FREE : states[i] == 'o' ? SS_SLOT_OURS : SS_SLOT_OTHERS;
	}
	for (uint32_t gpu = 0; gpu < gpus; gpu++)
		slots->first[gpu] = (uint16_t)gpu;
}

static const char *render(const uint32_t *chosen, uint32_t count, char *text, size_t size)
{
	size_t used = 0;
	text[0] = '\0';
	for (uint32_t i = 0; i < count && used < size; i++)
		used += (size_t)snprintf(text + used, size - used, "%s%u", i ? "," : "", chosen[i]);
	return text;
}

static void the_emptiest_gpu_comes_first(void)
{
	static const struct { uint32_t gpus; const char *states, *allowed; uint32_t wanted; const char *chosen; } rows[] = {
		{ 2, "ffffffff", NULL, 8, "0,1,2,3,4,5,6,7" },
		{ 2, "ffffffff", NULL, 9, "0,1,2,3,4,5,6,7" },
		{ 2, "ffffffff", NULL, 1, "0" },
		{ 2, "xfffffff", NULL, 1, "1" },
		{ 2, "xxffffff", NULL, 4, "2,3,4,5" },
		{ 2, "xxxxffff", NULL, 4, "4,5,6,7" },
		{ 2, "xfxfxfff", NULL, 2, "1,3" },
		{ 2, "xfxfxfff", NULL, 4, "1,3,5,6" },
		{ 2, "xxxxxxxx", NULL, 1, "" },
		{ 2, "oofxffff", NULL, 2, "2,4" },
		{ 2, "oooooooo", NULL, 1, "" },
		{ 2, "ffffffff", NULL, 0, "" },
		{ 1, "ffff", NULL, 5, "0,1,2,3" },
		{ 4, "ffff", NULL, 4, "0,1,2,3" },
		{ 4, "xfxf", NULL, 4, "1,3" },
		{ 4, "xfffffffffffffff", NULL, 16, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15" },
		/* only some GPUs */
		{ 2, "ffffffff", "01", 3, "1,3,5" },
		{ 2, "ffffffff", "01", 5, "1,3,5,7" },
		{ 2, "fxffffff", "10", 4, "0,2,4,6" },
		{ 2, "xfxfxfxf", "10", 1, "" },
		{ 2, "ffffffff", "00", 1, "" },
		{ 4, "ffffffff", "0110", 4, "1,2,5,6" },
	};
	static struct ss_slots slots;
	uint32_t chosen[SS_PLAN_MAX_SLOTS];
	bool allowed[SS_PLAN_MAX_SLOTS];
	char text[256], row[64];

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		make(&slots, rows[i].gpus, rows[i].states);
		for (uint32_t gpu = 0; rows[i].allowed && gpu < rows[i].gpus; gpu++)
			allowed[gpu] = rows[i].allowed[gpu] == '1';
		uint32_t count = ss_slots_choose(&slots, rows[i].allowed ? allowed : NULL, rows[i].wanted, chosen);
		(void)snprintf(row, sizeof row, "row %zu: %s, %u", i, rows[i].states, rows[i].wanted);
		CHECK(row, strcmp(render(chosen, count, text, sizeof text), rows[i].chosen) == 0);
	}
}

static void any_table_gives_each_free_slot_once(void)
{
	static struct ss_slots slots;
	static const char letters[] = "fox";
	uint32_t chosen[SS_PLAN_MAX_SLOTS];
	char states[65];

	srand(20261120);
	for (int round = 0; round < 20000; round++) {
		uint32_t gpus = 1 + (uint32_t)rand() % 8, count = gpus * (1 + (uint32_t)rand() % 8), wanted = (uint32_t)rand() % 70;
		bool seen[64] = { false };
		for (uint32_t i = 0; i < count; i++)
			states[i] = letters[rand() % 3];
		states[count] = '\0';
		make(&slots, gpus, states);
		uint32_t free_ones = ss_slots_count(&slots, NULL, SS_SLOT_FREE);
		uint32_t found = ss_slots_choose(&slots, NULL, wanted, chosen);
		CHECK(states, found == (wanted < free_ones ? wanted : free_ones));
		for (uint32_t i = 0; i < found; i++) {
			CHECK(states, states[chosen[i]] == 'f' && !seen[chosen[i]]);
			seen[chosen[i]] = true;
		}
	}
}

static struct ss_plan *plan_of(const char *slot_lines)
{
	static const struct ss_plan_owner owner = { 1, 2, "n" };
	char text[2048], why[256] = "";
	struct ss_plan *plan = NULL;

	int length = snprintf(text, sizeof text, SS_PLAN_MAGIC "\njob 1\nuid 2\nnode n\nshare 2\ngpus 2\nslots 4\ncores 0\n%send\n",
			      slot_lines);
	if (ss_plan_parse(text, (size_t)length, &owner, &plan, why, sizeof why) != SS_PLAN_READ) {
		fprintf(stderr, "%s\n", why);
		abort();
	}
	return plan;
}

#define GPUS(b, a) "gpu 0 uuid=GPU-b " b " name=B\ngpu 1 uuid=GPU-a " a " name=A\n"
#define LINE(slot, gpu) "slot " slot " gpu=" gpu " part=0/4 backend=x\nenvironment CUDA_VISIBLE_DEVICES=x\n"

static void slurms_words_for_gpus_are_understood(void)
{
	struct ss_plan *plan = plan_of(GPUS("index=1 minor=5", "index=0") LINE("0", "0") LINE("1", "1") LINE("2", "0") LINE("3", "1"));
	static const struct { const char *list, *listed; } rows[] = {
		{ "5", "10" }, { "0", "01" }, { "0,5", "11" }, { "5,0", "11" }, { "1", "00" }, { "GPU-a", "01" },
		{ "GPU-b,GPU-a", "11" }, { "GPU-", "00" }, { "GPU-aa", "00" }, { "", "00" }, { ",", "00" }, { "0,0", "01" },
		{ ",0,", "01" }, { "05", "00" }, { "0 5", "00" }, { "GPU-a,x,5", "11" },
	};
	static struct ss_slots slots;
	bool listed[SS_PLAN_MAX_SLOTS];

	ss_slots_of_plan(plan, &slots);
	CHECK("two GPUs", slots.gpus == 2 && slots.count == 4);
	CHECK("round robin", slots.gpu[0] == 0 && slots.gpu[1] == 1 && slots.gpu[2] == 0 && slots.gpu[3] == 1);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		uint32_t count = ss_slots_listed(plan, &slots, rows[i].list, listed);
		CHECK(rows[i].list, listed[0] == (rows[i].listed[0] == '1') && listed[1] == (rows[i].listed[1] == '1'));
		CHECK(rows[i].list, count == (uint32_t)listed[0] + (uint32_t)listed[1]);
	}
	CHECK("minor", ss_slots_minor(plan, &slots, 0) == 5);
	CHECK("index for want of a minor", ss_slots_minor(plan, &slots, 1) == 0);
	ss_plan_free(plan);
	plan = plan_of(GPUS("index=256", "index=0") LINE("0", "1") LINE("1", "0") LINE("2", "0") LINE("3", "1"));
	ss_slots_of_plan(plan, &slots);
	CHECK("as they come first", slots.gpus == 2 && slots.gpu[1] == 1 && slots.gpu[2] == 1 && slots.gpu[3] == 0);
	CHECK("no number", ss_slots_minor(plan, &slots, 0) == 0 && ss_slots_minor(plan, &slots, 1) == -1);
	CHECK("nothing named", ss_slots_listed(plan, &slots, "", listed) == 0);
	ss_plan_free(plan);
}

static void a_mig_instance_has_no_number_of_its_own(void)
{
	struct ss_plan *plan = plan_of("gpu 0 uuid=MIG-b index=0 name=B\ngpu 1 uuid=MIG-a index=0 name=A\n" LINE("0", "0") LINE("1", "1")
				       LINE("2", "0") LINE("3", "1"));
	static struct ss_slots slots;
	bool listed[SS_PLAN_MAX_SLOTS];

	ss_slots_of_plan(plan, &slots);
	CHECK("not its card's", ss_slots_minor(plan, &slots, 0) == -1 && ss_slots_minor(plan, &slots, 1) == -1);
	CHECK("no number names it", ss_slots_listed(plan, &slots, "0,1", listed) == 0);
	CHECK("its UUID does", ss_slots_listed(plan, &slots, "MIG-a", listed) == 1 && !listed[0] && listed[1]);
	ss_plan_free(plan);
}

static void gpus_that_do_not_answer_are_counted(void)
{
	struct ss_plan plan = { 0 };
	char lost[] = "1,GPU-c";

	CHECK("none is lost", ss_slots_lost(&plan, "0,1") == 0);
	plan.lost = lost;
	plan.lost_count = 2;
	CHECK("named", ss_slots_lost(&plan, "0,1") == 1 && ss_slots_lost(&plan, "GPU-c,1") == 2 && ss_slots_lost(&plan, "GPU-c") == 1);
	CHECK("others", ss_slots_lost(&plan, "0,11,GPU-cc,GPU-") == 0 && ss_slots_lost(&plan, "") == 0 && ss_slots_lost(&plan, ",") == 0);
}

static void a_holding_is_read_as_it_is_written(void)
{
	static const struct ss_holding rows[] = {
		{ 0, { 102, 8123456 }, { 112, 8123460 } },
		{ 4294967040U, { 2147483647, 9999999999999999999U }, { 2147483647, 9999999999999999999U } },
		{ 7, { 1, 0 }, { 0, 0 } },
	};
	char text[SS_HOLDING_SIZE];
	struct ss_holding back;

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		size_t length = ss_holding_render(&rows[i], text);
		CHECK(text, length > 0 && length < SS_HOLDING_SIZE);
		CHECK(text, ss_holding_parse(text, length, &back) == 0);
		CHECK(text, back.step == rows[i].step && back.holder.pid == rows[i].holder.pid && back.task.pid == rows[i].task.pid);
		CHECK(text, back.holder.start == rows[i].holder.start && back.task.start == rows[i].task.start);
		CHECK(text, ss_holding_parse(text, length - 1, &back) == -1);
	}
}

static void any_other_text_holds_nothing(void)
{
	static const char *const rows[] = {
		"", "\n", "used\n", "step", "step \n", "step 0 holder 1 2 task 3 4", "step 0 holder 1 2 task 3 4\n\n",
		"step 0 holder 1 2 task 3 4 \n", " step 0 holder 1 2 task 3 4\n", "step 0  holder 1 2 task 3 4\n",
		"step -1 holder 1 2 task 3 4\n", "step 0 holder 1 task 3 4\n", "step 0 holder 1 2 task 3\n",
		"step 0 holder 4294967297 2 task 3 4\n", "step 0 holder 1 2 task 2147483648 4\n",
		"step 0 holder 1 2 task 3 99999999999999999999\n", "step 4294967296 holder 1 2 task 3 4\n",
		"step 0 holder 1 2 task 3 0x4\n", "step 0 holder 1 2 task 3 4\nstep 0 holder 1 2 task 3 4\n",
	};
	struct ss_holding holding;
	char text[SS_HOLDING_SIZE * 2];

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		CHECK(rows[i], ss_holding_parse(rows[i], strlen(rows[i]), &holding) == -1);
	memset(text, '1', sizeof text);
	CHECK("long", ss_holding_parse(text, sizeof text, &holding) == -1);
	CHECK("NUL", ss_holding_parse("step 0 holder 1 2 task 3 4\0\n", 28, &holding) == -1);
}

int main(void)
{
	the_emptiest_gpu_comes_first();
	any_table_gives_each_free_slot_once();
	slurms_words_for_gpus_are_understood();
	a_mig_instance_has_no_number_of_its_own();
	gpus_that_do_not_answer_are_counted();
	a_holding_is_read_as_it_is_written();
	any_other_text_holds_nothing();
	return finish();
}
