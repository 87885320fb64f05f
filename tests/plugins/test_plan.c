/* The plan's text: valid plans, and damaged ones with their errors. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "names.h"
#include "plan.h"

#define OWNER "job 4711\nuid 2001\nnode n2\n"
#define HEAD "slurm-share-plan 3\n" OWNER
#define SHARE "share 2,mem=8192M\ngpus 2\nslots 4\ncores 0,2 1,3\n"
#define GPUS                                                                          \
	"gpu 0 uuid=GPU-a index=1 minor=5 memory_mib=81920 name=NVIDIA H100 80GB\n" \
	"gpu 1 uuid=GPU-b index=0 host_memory=yes simulated=yes name=\n"
#define SLOT(n) "slot " n " gpu=0 part=" n "/4 backend=time-slicing\nenvironment A=b\n"
#define SLOTS                                                                                                          \
	"slot 0 gpu=0 part=0/4 backend=mps memory_cap_mib=8192 memory_ratio=0.100 sm_percent=12.5 mps_directory=/p0\n" \
	"environment CUDA_VISIBLE_DEVICES=GPU-a SLURM_SHARE_SLOT=0 XLA_X?=0.245\n"                                     \
	"slot 1 gpu=1 part=2/4 backend=time-slicing on_gpu=3 memory_cap_mib=20480 memory_least_mib=8192 cap_by=driver "      \
	"partition=GPU-b/D/79+e= sm_count=24 backend_variables=1\n"                                                    \
	"environment CUDA_VISIBLE_DEVICES=GPU-b SLURM_SHARE_SLOT=1 EMPTY=\n"                                           \
	"slot 2 gpu=0 part=1/4 backend=mps mps_directory=/p0\n"                                                        \
	"environment A=b=c\n"                                                                                          \
	"slot 3 gpu=1 part=3/4 backend=time-slicing\n"                                                                 \
	"environment CUDA_MPS_PIPE_DIRECTORY=/not/typed\n"

static const struct ss_plan_owner owner = { 4711, 2001, "n2" };

/* Parse a text that is a plan; NULL: it is not. */
static struct ss_plan *parsed(const char *text, const struct ss_plan_owner *whose)
{
	struct ss_plan *plan = NULL;
	char why[256] = "";

	CHECK(text, ss_plan_parse(text, strlen(text), whose, &plan, why, sizeof why) == SS_PLAN_READ);
	CHECK(why, plan != NULL);
	return plan;
}

static void a_whole_plan_is_read(void)
{
	struct ss_plan *plan = parsed(HEAD SHARE "note shared without MPS\nnote and a second one\n" GPUS SLOTS "end\n", &owner);

	if (plan == NULL)
		return;
	CHECK("owner", plan->job == 4711 && plan->uid == 2001 && strcmp(plan->node, "n2") == 0);
	CHECK("share", strcmp(plan->share, "2,mem=8192M") == 0 && plan->per_gpu == 2 && plan->gpus == 2 && plan->slot_count == 4);
	CHECK("cores", plan->cores.count == 2 && plan->cores.first[2] == 4 && plan->cores.cpu[1] == 2 && plan->cores.cpu[2] == 1);
	CHECK("notes", plan->note_count == 2 && strcmp(plan->notes[1], "and a second one") == 0);
	CHECK("GPUs", strcmp(plan->gpu[0].uuid, "GPU-a") == 0 && strcmp(plan->gpu[1].uuid, "GPU-b") == 0);
	CHECK("minor", plan->gpu[0].minor == 5);
	CHECK("index for want of a minor", plan->gpu[1].minor == 0);
	CHECK("slot 0", plan->slots[0].part == 0 && plan->slots[0].parts == 4 && plan->slots[0].variables == 3);
	CHECK("GPU of a slot", plan->slots[0].gpu == 0 && plan->slots[1].gpu == 1 && plan->slots[2].gpu == 0 && plan->slots[3].gpu == 1);
	CHECK("MPS", plan->slots[0].mps_directory != NULL && strcmp(plan->slots[0].mps_directory, "/p0") == 0);
	CHECK("cap of MPS", plan->slots[0].memory_cap_mib == 8192 && plan->slots[0].memory_least_mib == 0 && !plan->slots[0].is_cap_of_driver);
	CHECK("cap of the driver",
	      plan->slots[1].memory_cap_mib == 20480 && plan->slots[1].memory_least_mib == 8192 && plan->slots[1].is_cap_of_driver);
	CHECK("no cap", plan->slots[2].memory_cap_mib == 0 && !plan->slots[2].is_cap_of_driver);
	CHECK("no MPS", plan->slots[1].mps_directory == NULL);
	CHECK("not from a variable", plan->slots[3].mps_directory == NULL);
	CHECK("unless set", plan->slots[0].environment[2].unless_set && strcmp(plan->slots[0].environment[2].name, "XLA_X") == 0);
	CHECK("its value", strcmp(plan->slots[0].environment[2].value, "0.245") == 0);
	CHECK("empty value", strcmp(plan->slots[1].environment[2].value, "") == 0);
	CHECK("= in a value", strcmp(plan->slots[2].environment[0].value, "b=c") == 0);
	ss_plan_free(plan);
}

static void gpus_that_do_not_answer_are_read(void)
{
	struct ss_plan *plan = parsed(HEAD SHARE "lost 1 GPU-c\nnote one\n" GPUS SLOTS "end\n", &owner);

	if (plan == NULL)
		return;
	CHECK("lost", plan->lost_count == 2 && strcmp(plan->lost, "1,GPU-c") == 0);
	CHECK("not among the GPUs", plan->gpus == 2 && plan->note_count == 1);
	ss_plan_free(plan);
	plan = parsed(HEAD SHARE GPUS SLOTS "end\n", &owner);
	CHECK("none", plan != NULL && plan->lost == NULL && plan->lost_count == 0);
	ss_plan_free(plan);
}

static void a_refusal_is_read(void)
{
	struct ss_plan *plan = parsed(HEAD "refused node n2 belongs to job 4700; wait for it\nend\n", &owner);

	CHECK("sentence", plan != NULL && strcmp(plan->refused, "node n2 belongs to job 4700; wait for it") == 0);
	ss_plan_free(plan);
	ss_plan_free(parsed(HEAD "refused x\nend\n", &(struct ss_plan_owner){ 4711, 2001, NULL })); /* of a node that is not known */
}

static void damage_is_named_with_its_line(void)
{
	static const struct { const char *text, *says; } rows[] = {
		{ "", "truncated" },
		{ "end\n", "truncated" },
		{ "\nend\n", "line 1: not a plan" },
		{ "slurm-share-plan 4\nend\n", "line 1: not a plan of this version" },
		{ "slurm-share-plan\nend\n", "line 1: not a plan of this version" },
		{ "slurm-share-plan 3\nend\n", "line 2: 'job ...'" },
		{ "slurm-share-plan 1\nend\n", "line 1: not a plan of this version" },
		{ HEAD, "truncated" },
		{ HEAD "end\n", "line 5: 'share ...'" },
		{ HEAD "refused x\nend", "truncated" },
		{ HEAD "refused x\nend\nend\n", "line 6: 'end'" },
		{ HEAD "refused \nend\n", "line 5: 'refused ...'" },
		{ HEAD "refused x\tx\nend\n", "line 5: a byte" },
		{ HEAD "refused x\r\nend\n", "line 5: a byte" },
		{ HEAD "refused \xc3\xa4\nend\n", "line 5: a byte" },
		{ HEAD SHARE GPUS SLOTS, "truncated" },
		{ HEAD SHARE GPUS SLOTS "end\nmore\n", "truncated" },
		{ HEAD SHARE "end\n", "line 9: 'gpu ...'" },
		{ HEAD SHARE GPUS "end\n", "line 11: 'slot ...'" },
		{ HEAD SHARE GPUS SLOTS SLOT("4") "end\n", "line 19: 'end'" },
		{ HEAD SHARE GPUS SLOTS "note late\nend\n", "line 19: 'end'" },
		{ "slurm-share-plan 3\nuid 2001\njob 4711\nnode n2\nend\n", "line 2: 'job ...'" },
		{ "slurm-share-plan 3\njob 4712\nuid 2001\nnode n2\nrefused x\nend\n", "line 2: this is the plan of job 4712, not of job 4711" },
		{ "slurm-share-plan 3\njob 04711\nuid 2001\nnode n2\nrefused x\nend\n", "line 2: 'job' is a number" },
		{ "slurm-share-plan 3\njob 4711\nuid 2002\nnode n2\nrefused x\nend\n", "line 3: this is the plan of user id 2002" },
		{ "slurm-share-plan 3\njob 4711\nuid 2001\nnode n3\nrefused x\nend\n", "line 4: this is a plan of node n3, not of n2" },
		{ "slurm-share-plan 3\njob 99999999999\nuid 2001\nnode n2\nrefused x\nend\n", "line 2: 'job' is a number" },
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
		{ HEAD SHARE "gpu 1 uuid=a index=0 name=x\nend\n", "line 9: 'gpu 0 ...'" },
		{ HEAD SHARE "lost \nend\n", "line 9: 'lost ...'" },
		{ HEAD SHARE "gpu 0\nend\n", "line 9: 'gpu 0 ...'" },
		{ HEAD SHARE "gpu 00 uuid=a index=0 name=x\nend\n", "line 9: 'gpu 0 ...'" },
		{ HEAD SHARE "gpu 0 uuid=a index=0\nend\n", "line 9: 'name=...'" },
		{ HEAD SHARE "gpu 0 index=0 name=x\nend\n", "line 9: 'uuid=...'" },
		{ HEAD SHARE "gpu 0 uuid=a name=x\nend\n", "line 9: 'index=...'" },
		{ HEAD SHARE "gpu 0 uuid= index=0 name=x\nend\n", "line 9: 'uuid=' is not a field" },
		{ HEAD SHARE "gpu 0 uuid=a index=x name=x\nend\n", "line 9: 'index' is a number" },
		{ HEAD SHARE "gpu 0 uuid=a index=00 name=x\nend\n", "line 9: 'index' is a number" },
		{ HEAD SHARE "gpu 0 uuid=a index=0 minor=-1 name=x\nend\n", "line 9: 'minor' is a number" },
		{ HEAD SHARE "gpu 0 uuid=a index=0 memory_mib=1e3 name=x\nend\n", "line 9: 'memory_mib' is a number" },
		{ HEAD SHARE "gpu 0 uuid=a index=0 simulated=no name=x\nend\n", "line 9: 'simulated=yes'" },
		{ HEAD SHARE "gpu 0 uuid=a uuid=b index=0 name=x\nend\n", "line 9: 'uuid=b' is not a field" },
		{ HEAD SHARE "gpu 0 uuid=a index=0 color=red name=x\nend\n", "line 9: 'color=red' is not a field" },
		{ HEAD SHARE "gpu 0 uuid=a  index=0 name=x\nend\n", "line 9: '' is not a field" },
		{ HEAD SHARE "gpu 0 uuid index=0 name=x\nend\n", "line 9: 'uuid' is not a field" },
		{ HEAD SHARE "gpu 0 uuid=a index=1000000000 name=x\nend\n", "line 9: 'index' is a number" },
		{ HEAD SHARE GPUS "slot 1 gpu=0 part=0/4 backend=mps\nend\n", "line 11: 'slot 0 ...'" },
		{ HEAD SHARE GPUS "slot 0\nend\n", "line 11: 'slot 0 ...'" },
		{ HEAD SHARE GPUS "slot 0 part=0/4 backend=mps\nend\n", "line 11: 'gpu=...'" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 backend=mps\nend\n", "line 11: 'part=...'" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4\nend\n", "line 11: 'backend=...'" },
		{ HEAD SHARE GPUS "slot 0 gpu=2 part=0/4 backend=mps\nend\n", "line 11: 'gpu' is a number from 0 to 1" },
		{ HEAD SHARE GPUS "slot 0 gpu=x part=0/4 backend=mps\nend\n", "line 11: 'gpu' is a number" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=4/4 backend=mps\nend\n", "line 11: 'part=I/4'" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/3 backend=mps\nend\n", "line 11: 'part=I/4'" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/0 backend=mps\nend\n", "line 11: 'part=I/4'" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0 backend=mps\nend\n", "line 11: 'part=I/4'" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=/ backend=mps\nend\n", "line 11: 'part=I/4'" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4/4 backend=mps\nend\n", "line 11: 'part=I/4'" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=-1/4 backend=mps\nend\n", "line 11: 'part=I/4'" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps A=b\nend\n", "line 11: 'A=b' is not a field" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps backend=x\nend\n", "line 11: 'backend=x' is not a field" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps memory_cap_mib=8G\nend\n", "line 11: 'memory_cap_mib' is a number" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps memory_ratio=.5\nend\n", "line 11: 'memory_ratio' is a decimal" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps memory_ratio=0.\nend\n", "line 11: 'memory_ratio' is a decimal" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps memory_ratio=0,5\nend\n", "line 11: 'memory_ratio' is a decimal" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps memory_ratio=-1\nend\n", "line 11: 'memory_ratio' is a decimal" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps memory_ratio=0.1234\nend\n", "line 11: 'memory_ratio' is a decimal" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps memory_ratio=1234\nend\n", "line 11: 'memory_ratio' is a decimal" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps memory_ratio=0.5.5\nend\n", "line 11: 'memory_ratio' is a decimal" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps memory_ratio=1e9\nend\n", "line 11: 'memory_ratio' is a decimal" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps sm_percent=x\nend\n", "line 11: 'sm_percent' is a decimal" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps on_gpu=x\nend\n", "line 11: 'on_gpu' is a number" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps sm_count=-1\nend\n", "line 11: 'sm_count' is a number" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps partition=\nend\n", "line 11: 'partition=' is not a field" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps memory_least_mib=1\nend\n", "line 11: 'memory_least_mib' is at most" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps memory_cap_mib=1 memory_least_mib=2\nend\n", "line 11: 'memory_least_mib' is at most" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps memory_cap_mib=1 cap_by=mps\nend\n", "line 11: 'cap_by=driver'" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps cap_by=driver\nend\n", "line 11: 'cap_by=driver'" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps mps_directory=p0\nend\n", "line 11: 'mps_directory' is an absolute path" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps backend_variables=x\nend\n", "line 11: 'backend_variables' is a number" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps \nend\n", "line 11: '' is not a field" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps\nenvironment \nend\n", "line 12: 'environment ...'" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps\nslot 1 gpu=0 part=1/4 backend=mps\nend\n", "line 12: 'environment ...'" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps\nenvironment A\nend\n", "line 12: 'A' is not NAME=value" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps\nenvironment =x\nend\n", "line 12: '' is not the name" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps\nenvironment ?=x\nend\n", "line 12: '' is not the name" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps\nenvironment 1A=x\nend\n", "line 12: '1A' is not the name" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps\nenvironment A-B=x\nend\n", "line 12: 'A-B' is not the name" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps\nenvironment A=x  B=x\nend\n", "line 12: '' is not NAME=value" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=mps\nenvironment A=x \nend\n", "line 12: '' is not NAME=value" },
		{ HEAD SHARE GPUS "slot 0 gpu=0 part=0/4 backend=x backend_variables=2\nenvironment A=b\nend\n", "line 12: 2 variables of the backend" },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ss_plan *plan = NULL;
		char why[512] = "", *exact = malloc(strlen(rows[i].text) + 1);
		if (exact == NULL)
			abort();
		memcpy(exact, rows[i].text, strlen(rows[i].text)); /* without a NUL: the sanitizer detects reads beyond it */
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

int main(void)
{
	a_whole_plan_is_read();
	gpus_that_do_not_answer_are_read();
	a_refusal_is_read();
	damage_is_named_with_its_line();
	bounds_are_kept();
	return finish();
}
