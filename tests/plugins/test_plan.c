/* The plan's text: what is read, and what each damage is called. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "names.h"
#include "plan.h"

#define HEAD "slurm-share-plan 1\njob 4711\nuid 2001\nnode n2\n"
#define SHARE "share 2,mem=8192M\ngpus 2\nslots 4\ncores 0,2 1,3\n"
#define SLOTS                                                                          \
	"slot 0 part=0/4 CUDA_VISIBLE_DEVICES=GPU-a SLURM_SHARE_SLOT=0 XLA_X?=0.245\n" \
	"slot 1 part=2/4 CUDA_VISIBLE_DEVICES=GPU-b SLURM_SHARE_SLOT=1 EMPTY=\n"       \
	"slot 2 part=1/4\n"                                                            \
	"slot 3 part=3/4 A=b=c\n"

static const struct ss_plan_owner owner = { 4711, 2001, "n2" };

static void a_whole_plan_is_read(void)
{
	static const char text[] = HEAD SHARE "note shared without MPS\nnote and a second one\n" SLOTS "end\n";
	struct ss_plan *plan = NULL;
	char why[256] = "";

	CHECK("state", ss_plan_parse(text, strlen(text), &owner, &plan, why, sizeof why) == SS_PLAN_READ);
	CHECK(why, plan != NULL);
	if (plan == NULL)
		return;
	CHECK("owner", plan->job == 4711 && plan->uid == 2001 && strcmp(plan->node, "n2") == 0);
	CHECK("share", strcmp(plan->share, "2,mem=8192M") == 0 && plan->per_gpu == 2 && plan->gpus == 2 && plan->slot_count == 4);
	CHECK("cores", plan->cores.count == 2 && plan->cores.first[2] == 4 && plan->cores.cpu[1] == 2 && plan->cores.cpu[2] == 1);
	CHECK("notes", plan->note_count == 2 && strcmp(plan->notes[1], "and a second one") == 0);
	CHECK("slot 0", plan->slots[0].part == 0 && plan->slots[0].parts == 4 && plan->slots[0].variables == 3);
	CHECK("unless set", plan->slots[0].environment[2].unless_set && strcmp(plan->slots[0].environment[2].name, "XLA_X") == 0);
	CHECK("its value", strcmp(plan->slots[0].environment[2].value, "0.245") == 0);
	CHECK("empty value", strcmp(plan->slots[1].environment[2].value, "") == 0);
	CHECK("no variables", plan->slots[2].variables == 0);
	CHECK("= in a value", strcmp(plan->slots[3].environment[0].value, "b=c") == 0);
	ss_plan_free(plan);
}

static void a_refusal_is_read(void)
{
	static const char text[] = HEAD "refused node n2 belongs to job 4700; wait for it\nend\n";
	struct ss_plan *plan = NULL;
	char why[256] = "";

	CHECK("state", ss_plan_parse(text, strlen(text), &owner, &plan, why, sizeof why) == SS_PLAN_READ);
	CHECK("sentence", plan != NULL && strcmp(plan->refused, "node n2 belongs to job 4700; wait for it") == 0);
	ss_plan_free(plan);
}

static void the_node_may_be_unknown(void)
{
	static const char text[] = HEAD "refused x\nend\n";
	struct ss_plan *plan = NULL;
	char why[256] = "";

	CHECK("state", ss_plan_parse(text, strlen(text), &(struct ss_plan_owner){ 4711, 2001, NULL }, &plan, why, sizeof why) ==
		       SS_PLAN_READ);
	ss_plan_free(plan);
}

static void damage_is_named_with_its_line(void)
{
	static const struct { const char *text, *says; } rows[] = {
		{ "", "torn" },
		{ "end\n", "torn" },
		{ "\nend\n", "line 1: not a plan" },
		{ "slurm-share-plan 2\nend\n", "line 1: not a plan of this version" },
		{ "slurm-share-plan 1\nend\n", "line 2: 'job ...'" },
		{ HEAD, "torn" },
		{ HEAD "end\n", "line 5: 'share ...'" },
		{ HEAD "refused x\nend", "torn" },
		{ HEAD "refused x\nend\nend\n", "line 6: 'end'" },
		{ HEAD "refused \nend\n", "line 5: 'refused ...'" },
		{ HEAD "refused x\tx\nend\n", "line 5: a byte" },
		{ HEAD "refused x\r\nend\n", "line 5: a byte" },
		{ HEAD "refused \xc3\xa4\nend\n", "line 5: a byte" },
		{ HEAD SHARE SLOTS, "torn" },
		{ HEAD SHARE SLOTS "end\nmore\n", "torn" },
		{ HEAD SHARE "end\n", "line 9: 'slot ...'" },
		{ HEAD SHARE SLOTS "slot 4 part=0/4\nend\n", "line 13: 'end'" },
		{ HEAD SHARE SLOTS "note late\nend\n", "line 13: 'end'" },
		{ "slurm-share-plan 1\nuid 2001\njob 4711\nnode n2\nend\n", "line 2: 'job ...'" },
		{ "slurm-share-plan 1\njob 4712\nuid 2001\nnode n2\nrefused x\nend\n", "line 2: this is the plan of job 4712, not of job 4711" },
		{ "slurm-share-plan 1\njob 04711\nuid 2001\nnode n2\nrefused x\nend\n", "line 2: 'job' is a number" },
		{ "slurm-share-plan 1\njob 4711\nuid 2002\nnode n2\nrefused x\nend\n", "line 3: this is the plan of user id 2002" },
		{ "slurm-share-plan 1\njob 4711\nuid 2001\nnode n3\nrefused x\nend\n", "line 4: this is a plan of node n3, not of n2" },
		{ "slurm-share-plan 1\njob 99999999999\nuid 2001\nnode n2\nrefused x\nend\n", "line 2: 'job' is a number" },
		{ HEAD "share off\ngpus 2\nslots 4\ncores 0\nend\n", "line 5: the share is not in its canonical form" },
		{ HEAD "share 2,mem=8G\ngpus 2\nslots 4\ncores 0\nend\n", "line 5: the share is not in its canonical form" },
		{ HEAD "share 0\ngpus 2\nslots 4\ncores 0\nend\n", "line 5: --share-gpu=0" },
		{ HEAD "share 2\ngpus 0\nslots 4\ncores 0\nend\n", "line 6: 'gpus' is a number" },
		{ HEAD "share 2\ngpus 2\nslots 0\ncores 0\nend\n", "line 7: 'slots' is a number" },
		{ HEAD "share 2\ngpus 2\nslots 1025\ncores 0\nend\n", "line 7: 'slots' is a number from 1 to 1024" },
		{ HEAD "share 2\ngpus 2\nslots 1\ncores \nend\n", "line 8: 'cores ...'" },
		{ HEAD "share 2\ngpus 2\nslots 1\ncores 0, 1\nend\n", "line 8: a CPU is a number" },
		{ HEAD "share 2\ngpus 2\nslots 1\ncores 0  1\nend\n", "line 8: a CPU is a number" },
		{ HEAD "share 2\ngpus 2\nslots 1\ncores 8192\nend\n", "line 8: a CPU is a number" },
		{ HEAD "share 2\ngpus 2\nslots 1\ncores 0-3\nend\n", "line 8: a CPU is a number" },
		{ HEAD SHARE "slot 1 part=0/4\nend\n", "line 9: slot 0 was expected" },
		{ HEAD SHARE "slot 0\nend\n", "line 9: 'part=I/P'" },
		{ HEAD SHARE "slot 0 part=4/4\nend\n", "line 9: 'part=I/P'" },
		{ HEAD SHARE "slot 0 part=0/0\nend\n", "line 9: 'part=I/P'" },
		{ HEAD SHARE "slot 0 part=0\nend\n", "line 9: 'part=I/P'" },
		{ HEAD SHARE "slot 0 part=/\nend\n", "line 9: 'part=I/P'" },
		{ HEAD SHARE "slot 0 part/=0\nend\n", "line 9: 'part=I/P'" },
		{ HEAD SHARE "slot 0 A=b part=0/4\nend\n", "line 9: 'part=I/P'" },
		{ HEAD SHARE "slot 0 part=0/4 A\nend\n", "line 9: 'A' is not NAME=value" },
		{ HEAD SHARE "slot 0 part=0/4 =x\nend\n", "line 9: '' is not the name" },
		{ HEAD SHARE "slot 0 part=0/4 ?=x\nend\n", "line 9: '' is not the name" },
		{ HEAD SHARE "slot 0 part=0/4 1A=x\nend\n", "line 9: '1A' is not the name" },
		{ HEAD SHARE "slot 0 part=0/4 A-B=x\nend\n", "line 9: 'A-B' is not the name" },
		{ HEAD SHARE "slot 0 part=0/4  A=x\nend\n", "line 9: '' is not NAME=value" },
		{ HEAD SHARE "slot 0 part=0/4 A=x \nend\n", "line 9: '' is not NAME=value" },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ss_plan *plan = NULL;
		char why[512] = "", *exact = malloc(strlen(rows[i].text) + 1);
		if (exact == NULL)
			abort();
		memcpy(exact, rows[i].text, strlen(rows[i].text)); /* no NUL behind it: the sanitizer watches */
		CHECK(rows[i].text, ss_plan_parse(exact, strlen(rows[i].text), &owner, &plan, why, sizeof why) == SS_PLAN_BAD);
		CHECK(rows[i].text, plan == NULL);
		CHECK(why, strstr(why, rows[i].says) != NULL);
		free(exact);
	}
}

/* A line's length counts its newline. */
static void bounds_are_kept(void)
{
	static char text[SS_PLAN_MAX_BYTES + 64];
	struct ss_plan *plan = NULL;
	char why[256] = "";

	for (int over = 0; over <= 1; over++) {
		size_t head = strlen(HEAD "refused ");
		memcpy(text, HEAD "refused ", head);
		size_t sentence = (size_t)SS_PLAN_MAX_LINE - strlen("refused ") - 1 + (size_t)over;
		memset(text + head, 'x', sentence);
		memcpy(text + head + sentence, "\nend\n", 5);
		enum ss_plan_state state = ss_plan_parse(text, head + sentence + 5, &owner, &plan, why, sizeof why);
		CHECK("line", state == (over ? SS_PLAN_BAD : SS_PLAN_READ));
		if (!over)
			ss_plan_free(plan);
	}
	CHECK(why, strstr(why, "line 5: longer than 4096 bytes") != NULL);
	memset(text, '\n', sizeof text);
	CHECK("file", ss_plan_parse(text, sizeof text, &owner, &plan, why, sizeof why) == SS_PLAN_BAD);
	CHECK(why, strstr(why, "longer than 4194304 bytes") != NULL);
	CHECK("NUL", ss_plan_parse("a\0b\nend\n", 8, &owner, &plan, why, sizeof why) == SS_PLAN_BAD);
	CHECK(why, strstr(why, "line 1: a byte") != NULL);
}

static void random_damage_ends_in_a_verdict(void)
{
	static const char whole[] = HEAD SHARE "note hello\n" SLOTS "end\n";
	static const char alphabet[] = "0123456789 /=?,\nabcxyz-\x01\x80";
	char text[sizeof whole + 8];

	srand(20261120);
	for (int round = 0; round < 200000; round++) {
		struct ss_plan *plan = NULL;
		char why[128];
		size_t length = strlen(whole);
		memcpy(text, whole, length);
		for (int change = rand() % 4; change >= 0; change--) {
			size_t at = (size_t)rand() % length;
			switch (rand() % 3) {
			case 0: text[at] = alphabet[(size_t)rand() % (sizeof alphabet - 1)]; break;
			case 1: memmove(text + at, text + at + 1, length - at - 1); length--; break;
			default: memmove(text + at + 1, text + at, length - at); length++; break;
			}
		}
		char *exact = malloc(length);
		if (exact == NULL)
			abort();
		memcpy(exact, text, length);
		if (ss_plan_parse(exact, length, &owner, &plan, why, sizeof why) == SS_PLAN_READ)
			ss_plan_free(plan);
		free(exact);
		checked++;
	}
}

int main(void)
{
	a_whole_plan_is_read();
	a_refusal_is_read();
	the_node_may_be_unknown();
	damage_is_named_with_its_line();
	bounds_are_kept();
	random_damage_ends_in_a_verdict();
	return finish();
}
