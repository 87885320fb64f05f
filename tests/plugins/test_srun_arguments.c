/* srun's options on nodes, tasks and GPUs, in every form that getopt_long(3) accepts. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "srun_arguments.h"

enum { MOST = 8 };

static void what_is_said_of_waiting(void)
{
	static const struct {
		const char *words[MOST];
		bool immediate, overlaps, no_gpus;
		uint32_t immediate_s, tasks_per_node, tasks;
	} rows[] = {
		{ { "-n2" }, false, false, false, 0, 0, 2 },
		{ { "--immediate", "-n2" }, true, false, false, 0, 0, 2 },
		{ { "--immediate=30", "-n2" }, true, false, false, 30, 0, 2 },
		{ { "--imm=30" }, true, false, false, 30, 0, 0 },
		{ { "-I", "-n2" }, true, false, false, 0, 0, 2 },
		{ { "-I5", "-n2" }, true, false, false, 5, 0, 2 },
		{ { "-lI" }, true, false, false, 0, 0, 0 },
		{ { "--overlap", "-n2" }, false, true, false, 0, 0, 2 },
		{ { "--async", "-n2" }, false, false, false, 0, 0, 2 },
		{ { "--overcommit", "--output=x" }, false, false, false, 0, 0, 0 },
		{ { "--gres=none" }, false, false, true, 0, 0, 0 },
		{ { "--gres", "none", "-n2" }, false, false, true, 0, 0, 2 },
		{ { "--gpus=0" }, false, false, true, 0, 0, 0 },
		{ { "--gres=gpu:1" }, false, false, false, 0, 0, 0 },
		{ { "--ntasks-per-node=3" }, false, false, false, 0, 3, 0 },
		{ { "--slot-wait", "5", "-n2" }, false, false, false, 0, 0, 2 },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ss_srun_arguments said;
		size_t count = 0;
		while (count < MOST && rows[i].words[count] != NULL)
			count++;
		ss_srun_arguments_read(rows[i].words, count, &said);
		CHECK(rows[i].words[0], said.is_immediate == rows[i].immediate && said.immediate_s == rows[i].immediate_s);
		CHECK(rows[i].words[0], said.overlaps == rows[i].overlaps && said.says_no_gpus == rows[i].no_gpus);
		CHECK(rows[i].words[0], said.tasks == rows[i].tasks && said.tasks_per_node == rows[i].tasks_per_node);
		CHECK(rows[i].words[0], said.is_async == (strcmp(rows[i].words[0], "--async") == 0));
	}
}

static void each_form_says_the_same(void)
{
	static const struct {
		const char *words[MOST];
		uint32_t nodes, tasks;
		const char *node_list;
		bool gpus, says_tasks, other_place;
	} rows[] = {
		{ { NULL }, 0, 0, NULL, false, false, false },
		{ { "-N1" }, 1, 0, NULL, false, false, false },
		{ { "-N", "1" }, 1, 0, NULL, false, false, false },
		{ { "--nodes=1" }, 1, 0, NULL, false, false, false },
		{ { "--nodes", "1" }, 1, 0, NULL, false, false, false },
		{ { "-N1-3" }, 3, 0, NULL, false, false, false },
		{ { "-lN1" }, 1, 0, NULL, false, false, false },
		{ { "-luN", "2", "-n5" }, 2, 5, NULL, false, true, false },
		{ { "-N1", "-N2" }, 2, 0, NULL, false, false, false },
		{ { "-wn2" }, 0, 0, "n2", false, false, false },
		{ { "-w", "n2,n3", "-N1" }, 1, 0, "n2,n3", false, false, false },
		{ { "--nodelist=n[2-3]" }, 0, 0, "n[2-3]", false, false, false },
		{ { "--nodel", "n2" }, 0, 0, "n2", false, false, false },
		{ { "-n8" }, 0, 8, NULL, false, true, false },
		{ { "--ntasks=8" }, 0, 8, NULL, false, true, false },
		{ { "--nt", "8" }, 0, 8, NULL, false, true, false },
		{ { "--ntasks-per-node=8" }, 0, 0, NULL, false, true, false },
		{ { "-n", "many" }, 0, 0, NULL, false, true, false },
		{ { "--gres=gpu:1" }, 0, 0, NULL, true, false, false },
		{ { "--gres", "none" }, 0, 0, NULL, true, false, false },
		{ { "-G1" }, 0, 0, NULL, true, false, false },
		{ { "--gpus=1" }, 0, 0, NULL, true, false, false },
		{ { "--gpus-per-node", "1" }, 0, 0, NULL, true, false, false },
		{ { "--gpus-per-t=1" }, 0, 0, NULL, true, false, false },
		{ { "--ntasks-per-gpu=2" }, 0, 0, NULL, true, false, false },
		{ { "--tres-per-task=gres/gpu:1" }, 0, 0, NULL, true, false, false },
		{ { "--jobid=12" }, 0, 0, NULL, false, false, true },
		{ { "--het-group=1" }, 0, 0, NULL, false, false, true },
		{ { "-F", "hosts" }, 0, 0, NULL, false, false, true },
		{ { "-M", "other" }, 0, 0, NULL, false, false, true },
		{ { "-N", "few" }, 0, 0, NULL, false, false, true },
		{ { "-N0" }, 0, 0, NULL, false, false, true },
		{ { "-N1,2" }, 0, 0, NULL, false, false, true },
		/* values of other options that look like options */
		{ { "-J", "-N1" }, 0, 0, NULL, false, false, false },
		{ { "-o-N1" }, 0, 0, NULL, false, false, false },
		{ { "-lJ", "-n4", "-K1", "-I" }, 0, 0, NULL, false, false, false },
		{ { "-I30", "-k", "-KN1" }, 0, 0, NULL, false, false, false },
		{ { "--job-name", "gres", "--gres-flags=allow-task-sharing" }, 0, 0, NULL, false, false, false },
		{ { "--exact", "--mem=1G", "--gpu-bind=none", "--tres-bind=gres/gpu:none", "-c4", "-r1", "-xn1" },
		  0, 0, NULL, false, false, false },
		{ { "--", "-" }, 0, 0, NULL, false, false, false },
		/* missing values */
		{ { "-N" }, 0, 0, NULL, false, false, true },
		{ { "-w" }, 0, 0, "", false, false, false },
		{ { "--gres" }, 0, 0, NULL, true, false, false },
		{ { "", "-", "--" }, 0, 0, NULL, false, false, false },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ss_srun_arguments said;
		size_t count = 0;
		const char *row = rows[i].words[0] ? rows[i].words[0] : "nothing";
		while (count < MOST && rows[i].words[count] != NULL)
			count++;
		ss_srun_arguments_read(rows[i].words, count, &said);
		CHECK(row, said.nodes == rows[i].nodes);
		CHECK(row, said.tasks == rows[i].tasks && said.says_tasks == rows[i].says_tasks);
		CHECK(row, said.says_gpus == rows[i].gpus && said.says_other_place == rows[i].other_place);
		CHECK(row, (said.node_list == NULL) == (rows[i].node_list == NULL));
		CHECK(row, said.node_list == NULL || strcmp(said.node_list, rows[i].node_list) == 0);
	}
}

static void gpus_of_a_task_are_counted(void)
{
	static const struct {
		const char *word;
		uint32_t gpus;
	} rows[] = {
		{ "--gpus-per-task=1", 1 },
		{ "--gpus-per-task=2", 2 },
		{ "--gpus-per-t=2", 2 },
		{ "--gpus-per-task=a100:2", 2 },
		{ "--gpus-per-task=a100:1,v100:2", 3 },
		{ "--gpus-per-task=a100", 1 },
		{ "--gpus-per-task=rtx3090", 1 },
		{ "--gpus-per-task=0", 0 },
		{ "--gpus-per-task=99999999999", 0 },
		{ "--gpus-per-task=", 0 },
		{ "--tres-per-task=gres/gpu:2", 2 },
		{ "--tres-per-task=gres/gpu=2", 2 },
		{ "--tres-per-task=gres:gpu:2", 2 },
		{ "--tres-per-task=cpu=4,gres/gpu:a100:2", 2 },
		{ "--tres-per-task=gres/gpu", 1 },
		{ "--tres-per-task=gres/gpumem:2", 0 },
		{ "--tres-per-task=cpu=4", 0 },
		{ "--tres-per-task=gres/nic:4", 0 },
		{ "--gpus=4", 0 },
		{ "--gres=gpu:4", 0 },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ss_srun_arguments said;
		ss_srun_arguments_read(&rows[i].word, 1, &said);
		CHECK(rows[i].word, said.task_gpus == rows[i].gpus);
	}
	CHECK("nothing in the environment", ss_gpus_per_task_read(NULL) == 0 && ss_tres_per_task_read(NULL) == 0);
}

static void no_gpus_are_recognised(void)
{
	static const struct { const char *words[4]; bool none; } rows[] = {
		{ { "--gres=none" }, true },
		{ { "--gres=NONE", "-W" }, true },
		{ { "-W", "--gres", "none" }, true },
		{ { "--gpus-per-task=0" }, true },
		{ { "--gpus-per-task", "0" }, true },
		{ { "--gres=none", "--gres=gpu:1" }, false },
		{ { "--gres=gpu:1", "--gres=none" }, true },
		{ { "--gres=" }, true },
		{ { "--gres", "" }, true },
		{ { "--gpus=" }, true },
		{ { "--gpus-per-node=", "--gpus=1" }, true },
		{ { "--gpus-per-node=0" }, true },
		{ { "--gpus=", "--gpus=2" }, false },
		{ { "--gpus-per-node=2" }, false },
		{ { "--gres-flags=none" }, false },
		{ { "--gres" }, false },
		{ { "--gres=none,gpu:1" }, false },
		{ { "--gpus-per-task=1" }, false },
		{ { NULL }, false },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		size_t count = 0;
		while (count < 4 && rows[i].words[count] != NULL)
			count++;
		CHECK(rows[i].words[0] ? rows[i].words[0] : "nothing",
		      ss_arguments_say_no_gpus(rows[i].words, count) == rows[i].none);
	}
}

int main(void)
{
	no_gpus_are_recognised();
	what_is_said_of_waiting();
	each_form_says_the_same();
	gpus_of_a_task_are_counted();
	return finish();
}
