/* The GPUs of a job's nodes, and the sruns that are refused because of them. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "job_gpus.h"

static struct ss_job_gpus job;

/* The numbers of GPUs of n1, n2, ...; -1 ends them. */
static void make_job(const int *gpus, const char *admin_comment)
{
	memset(&job, 0, sizeof job);
	for (int i = 0; gpus[i] >= 0; i++) {
		char name[16], gres[48] = "";
		(void)snprintf(name, sizeof name, "n%d", i + 1);
		if (gpus[i] > 0)
			(void)snprintf(gres, sizeof gres, "gpu:simulated:%d(IDX:0-%d)", gpus[i], gpus[i] - 1);
		if (ss_job_gpus_add(&job, name, gres) != 0)
			abort();
	}
	ss_job_gpus_mark(&job, admin_comment);
}

static void nodes_are_counted_and_compared(void)
{
	make_job((const int[]){ 4, 2, 0, 3, -1 }, "share-gpu=2");
	CHECK("4 2 0 3", job.nodes == 4 && job.least == 0 && job.most == 4 && job.least_of_some == 2 && job.listed == 4);
	CHECK("n2", strcmp(job.node[1].name, "n2") == 0 && job.node[1].gpus == 2);
	make_job((const int[]){ 0, 0, -1 }, NULL);
	CHECK("none", job.least == 0 && job.most == 0 && job.least_of_some == 0 && !job.has_shards);
	memset(&job, 0, sizeof job);
	CHECK("shard", ss_job_gpus_add(&job, "n1", "shard:simulated:180180(180180/720720,0/720720)") == 0 && job.has_shards);
	CHECK("no list", ss_job_gpus_add(&job, "n2", "gpu:") == -1);
	CHECK("no name", ss_job_gpus_add(&job, NULL, "gpu:1") == -1);
	memset(&job, 0, sizeof job);
	for (int i = 0; i < 2000; i++)
		(void)ss_job_gpus_add(&job, "a-name-that-is-longer-than-the-sixty-three-bytes-that-there-is-room-for", i == 1999 ? "gpu:1" : "gpu:2");
	CHECK("many", job.nodes == 2000 && job.listed == SS_JOB_NODES_LISTED && job.least == 1 && job.most == 2);
}

static void the_controllers_mark_is_one_item_of_the_comment(void)
{
	static const struct { const char *comment; uint32_t per_gpu; } rows[] = {
		{ "share-gpu=4", 4 },
		{ "share-gpu=4,mem=8192M,sm=even", 4 },
		{ "paid;share-gpu=4", 4 },
		{ "share-gpu=4;paid", 4 },
		{ ";;share-gpu=60;", 60 },
		{ NULL, 0 },
		{ "", 0 },
		{ "paid", 0 },
		{ "share-gpu=", 0 },
		{ "share-gpu=off", 0 },
		{ "share-gpu=61", 0 },
		{ "would-share-gpu=4", 0 },
		{ "share-gpu", 0 },
		{ "SHARE-GPU=4", 0 },
		{ "share-gpu=44444444444444444444444444444444444444444444444444444444444444444444444444444444444444444444444", 0 },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		make_job((const int[]){ 1, -1 }, rows[i].comment);
		CHECK(rows[i].comment ? rows[i].comment : "NULL", job.per_gpu == rows[i].per_gpu);
	}
}

static void the_verdict_has_the_mark_as_its_last_field(void)
{
	static const struct { const char *text; uint32_t per_gpu; } rows[] = {
		{ "slurm-share=on,share-gpu=4", 4 },
		{ "mine;slurm-share=on,runs=2,share-gpu=4,mem=8192M", 4 },
		{ "slurm-share=on,share-gpu=4;mine", 4 },
		{ NULL, 0 },
		{ "slurm-share=on", 0 },
		{ "slurm-share=on,share-gpu=", 0 },
		{ "slurm-share=on;x,share-gpu=4", 0 },
		{ "share-gpu=4", 0 },
		{ "mine,share-gpu=4", 0 },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		make_job((const int[]){ 1, -1 }, "JS1:H4s");
		ss_job_gpus_mark_of_verdict(&job, rows[i].text);
		CHECK(rows[i].text ? rows[i].text : "NULL", job.per_gpu == rows[i].per_gpu);
	}
}

static void a_verdict_that_is_not_on_takes_the_mark_away(void)
{
	static const struct { const char *text; uint32_t restarts, per_gpu; } rows[] = {
		{ NULL, 0, 4 },
		{ "", 0, 4 },
		{ "mine;too", 0, 4 },
		{ "slurm-share=on", 9, 4 },
		{ "mine;slurm-share=on", 0, 4 },
		{ "slurm-share=on,later=1", 0, 4 },
		{ "slurm-share=off", 0, 0 },
		{ "mine;slurm-share=off", 0, 0 },
		{ "slurm-share=observe,whole", 0, 0 },
		{ "slurm-share=On", 0, 0 },
		{ "slurm-share=", 0, 0 },
		{ "slurm-share=on;slurm-share=off", 0, 0 },
		{ "slurm-share=off;slurm-share=on", 0, 0 },
		{ "slurm-share=on,runs=2", 1, 4 },
		{ "slurm-share=on,runs=2", 2, 0 },
		{ "slurm-share=on,later=1,runs=1;mine", 1, 0 },
		{ "slurm-share=on;mine,runs=0", 1, 4 },
		{ "x slurm-share=off", 0, 4 },
		{ "slurm-share-mode=off", 0, 4 },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		make_job((const int[]){ 1, -1 }, "share-gpu=4");
		ss_job_gpus_hear(&job, rows[i].text, rows[i].restarts);
		CHECK(rows[i].text ? rows[i].text : "NULL", job.per_gpu == rows[i].per_gpu);
	}
}

static void alike_nodes_take_any_srun_and_unlike_ones_those_that_say_how(void)
{
	enum { ALIKE, UNLIKE, FEW_FIRST, WITHOUT };
	static const int jobs[][4] = { { 2, 2, 2, -1 }, { 4, 2, 2, -1 }, { 2, 4, 4, -1 }, { 0, 2, 2, -1 } };
	static const struct { const char *words[4]; int job; uint32_t gpus; const char *says; } rows[] = {
		{ { NULL }, ALIKE, 2, NULL },
		{ { "-N1", "-wn2" }, ALIKE, 2, NULL },
		/* all nodes */
		{ { NULL }, UNLIKE, 4, "job 12 has different numbers of GPUs on its nodes (n1: 4 GPUs, n2: 2), and one srun cannot give each "
				       "node its own number of tasks; submit it with the same number on each node (--share-gpu=2 "
				       "--gres=gpu:2), or on nodes that are alike" },
		{ { "-N3" }, UNLIKE, 4, "(n1: 4 GPUs, n2: 2)" },
		{ { "-wn2" }, UNLIKE, 4, "different numbers" }, /* to srun it is one of three nodes */
		{ { "-n9" }, UNLIKE, 4, "different numbers" },
		{ { "--ntasks-per-node=2" }, UNLIKE, 4, "different numbers" },
		{ { NULL }, UNLIKE, 0, "different numbers" },
		{ { NULL }, FEW_FIRST, 2, "(n1: 2 GPUs, n2: 4)" },
		{ { NULL }, WITHOUT, 0, "(n1: none, n2: 2 GPUs)" },
		{ { NULL }, WITHOUT, 0, "--gres=gpu:2)" },
		/* all nodes, with the number of tasks and no more GPUs than the smallest node has */
		{ { "-n9" }, UNLIKE, 0, NULL },
		{ { "-n9" }, FEW_FIRST, 2, NULL },
		{ { "--ntasks-per-node=2" }, FEW_FIRST, 2, NULL },
		/* some nodes */
		{ { "-N2" }, UNLIKE, 4, NULL },
		{ { "-n2" }, UNLIKE, 4, NULL },
		{ { "-N1", "-wn1" }, UNLIKE, 4, NULL },
		{ { "-N1", "-wn2" }, UNLIKE, 4, "job 12 has 2 GPUs on n2, and this srun asks for the 4 of the job's first node "
						"(SLURM_GRES); add --gres=gpu:2 --ntasks-per-node=4" },
		{ { "-N2", "-wn1,n3" }, UNLIKE, 4, "2 GPUs on n3" },
		{ { "-n1", "-wn2" }, UNLIKE, 4, "add --gres=gpu:2" },
		{ { "-N1", "-wn1" }, WITHOUT, 2, "0 GPUs on n1, and this srun asks for the 2 of the job's first node (SLURM_GRES); add "
						 "--gres=none" },
		{ { "-N1", "-wn2" }, UNLIKE, 2, NULL },
		{ { "-N1", "-wn[2-3]" }, UNLIKE, 4, NULL },
		{ { "-N1", "-wn22" }, UNLIKE, 4, NULL },
		{ { "-N1", "-w" }, UNLIKE, 4, NULL },
		{ { "-N1", "-w,n2" }, UNLIKE, 4, NULL },
		/* some nodes, with all numbers */
		{ { "--gres=gpu:2" }, UNLIKE, 4, NULL },
		{ { "--gpus-per-node=1" }, UNLIKE, 4, NULL },
		{ { "-N1", "-wn2", "--gres=gpu:2" }, UNLIKE, 4, NULL },
		{ { "--jobid=13" }, UNLIKE, 4, NULL },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ss_srun_arguments said;
		struct ss_spread spread = { .job = 12, .said = &said, .nodes = 3, .gpus = rows[i].gpus };
		char sentence[2 * SS_SENTENCE_SIZE] = "", small[16];
		const char *row = rows[i].words[0] ? rows[i].words[0] : "nothing";
		size_t count = 0;
		while (count < 4 && rows[i].words[count] != NULL)
			count++;
		make_job(jobs[rows[i].job], "share-gpu=2");
		ss_srun_arguments_read(rows[i].words, count, &said);
		CHECK(row, ss_job_gpus_check(&job, &spread, sentence, sizeof sentence) == (rows[i].says ? -1 : 0));
		CHECK(sentence, strstr(sentence, rows[i].says ? rows[i].says : "") != NULL);
		CHECK(row, rows[i].says == NULL || ss_job_gpus_matter(&spread));
		CHECK(row, ss_job_gpus_check(&job, &spread, small, sizeof small) == (rows[i].says ? -1 : 0) && strlen(small) < sizeof small);
	}
}

/* One node, or some nodes without their names: the controller is not asked. */
static void nobody_is_asked_where_it_does_not_matter(void)
{
	static const struct { const char *word; uint32_t nodes; bool matters; } rows[] = {
		{ "-l", 1, false }, { "-l", 2, true }, { "-N1", 2, false }, { "-n1", 2, false }, { "-wn2", 2, true }, { "--gres=gpu:1", 2, false },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ss_srun_arguments said;
		struct ss_spread spread = { .job = 12, .said = &said, .nodes = rows[i].nodes, .gpus = 4 };
		ss_srun_arguments_read(&rows[i].word, 1, &said);
		CHECK(rows[i].word, ss_job_gpus_matter(&spread) == rows[i].matters);
	}
}

static void a_sentence_shows_one_node_of_each_kind_and_not_too_many(void)
{
	struct ss_srun_arguments said = { 0 };
	struct ss_spread spread = { .job = 12, .said = &said, .nodes = 7, .gpus = 1 };
	char sentence[2 * SS_SENTENCE_SIZE];

	make_job((const int[]){ 1, 2, 1, 3, 4, 5, 6, -1 }, NULL);
	CHECK("kinds", ss_job_gpus_check(&job, &spread, sentence, sizeof sentence) == -1);
	CHECK(sentence, strstr(sentence, "(n1: 1 GPU, n2: 2, n4: 3, n5: 4, ...)") != NULL);
	CHECK(sentence, strstr(sentence, "each node (--gres=gpu:1), or") != NULL); /* without the controller's mark */
	memset(&job, 0, sizeof job);
	for (int i = 0; i < 4; i++) {
		char gres[16], name[128];
		memset(name, 'x', sizeof name - 1);
		name[sizeof name - 1] = '\0';
		(void)snprintf(gres, sizeof gres, "gpu:%d", i + 1);
		(void)ss_job_gpus_add(&job, name, gres);
	}
	CHECK("long names", ss_job_gpus_check(&job, &spread, sentence, sizeof sentence) == -1);
	CHECK(sentence, strstr(sentence, "or on nodes that are alike") != NULL);
}

int main(void)
{
	nodes_are_counted_and_compared();
	the_controllers_mark_is_one_item_of_the_comment();
	the_verdict_has_the_mark_as_its_last_field();
	a_verdict_that_is_not_on_takes_the_mark_away();
	alike_nodes_take_any_srun_and_unlike_ones_those_that_say_how();
	nobody_is_asked_where_it_does_not_matter();
	a_sentence_shows_one_node_of_each_kind_and_not_too_many();
	return finish();
}
