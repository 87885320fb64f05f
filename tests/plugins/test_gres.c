/* The number of GPUs in a list of gres, as slurmctld writes it for a node, and as a user writes it for srun. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "gres.h"

static void a_list_says_how_many_are_gpus(void)
{
	static const struct { const char *text; uint32_t gpus; bool has_shards; } rows[] = {
		{ NULL, 0, false },
		{ "", 0, false },
		{ "(null)", 0, false },
		/* gres_detail_str, Slurm 24.11 and 26.05 */
		{ "gpu:simulated:4(IDX:0-3)", 4, false },
		{ "gpu:simulated:2(IDX:0-1)", 2, false },
		{ "shard:simulated:180180(180180/720720,0/720720)", 0, true },
		/* other sites' types */
		{ "gpu:2(IDX:0-1)", 2, false },
		{ "gpu:a100:2(IDX:0,3)", 2, false },
		{ "gpu:a100:2(IDX:0,3),gpu:h100:1(IDX:2)", 3, false },
		{ "gpu:1g.10gb:3(IDX:0,2-3)", 3, false },
		{ "gpu:nvidia_h100-pcie.v2:8(IDX:0-7)", 8, false },
		{ "gpu:2080:4(IDX:0-3)", 4, false },
		{ "gpu:2(IDX:0-1),shard:5(5/10)", 2, true },
		{ "nic:1(IDX:0),gpu:2(IDX:0-1),craynetwork:1", 2, false },
		{ "gpu:0(IDX:N/A)", 0, false },
		{ "gpu:tesla:0(IDX:N/A),mps:100", 0, false },
		{ "gpu:65535", 65535, false },
		/* SLURM_GRES */
		{ "gpu:4", 4, false },
		{ "gpu", 1, false },
		{ "gpu:a100", 1, false },
		{ "gpu:a100:2,nic", 2, false },
		{ "none", 0, false },
		/* similar names */
		{ "gpux:4", 0, false },
		{ "xgpu:4", 0, false },
		{ "shards:4", 0, false },
		{ "GPU:4", 0, false },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const char *row = rows[i].text ? rows[i].text : "NULL";
		struct ss_gres gres = { 77, true };
		CHECK(row, ss_gres_read(rows[i].text, &gres) == 0);
		CHECK(row, gres.gpus == rows[i].gpus && gres.has_shards == rows[i].has_shards);
	}
}

static void what_is_no_list_is_no_number(void)
{
	static const char *const rows[] = {
		"gpu:", "gpu:a100:", ":4", ",", "gpu:2,", ",gpu:2", "gpu:2,,nic:1", "gpu:2(IDX:0-1", "gpu:2)IDX:0-1(", "gpu:2(IDX:(0))",
		"gpu:2(IDX:0)x", "gpu:65536", "gpu:99999999999999999999", "gpu:007", "gpu:65535,gpu:1", "()", "(null),gpu:1",
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ss_gres gres = { 77, true };
		CHECK(rows[i], ss_gres_read(rows[i], &gres) == -1);
		CHECK(rows[i], gres.gpus == 0 && !gres.has_shards);
	}
}

static void an_overlong_list_is_read_to_its_end(void)
{
	enum { ITEMS = 60000 };
	static char text[ITEMS * 8 + 1];
	struct ss_gres gres;

	for (size_t i = 0; i < ITEMS; i++)
		memcpy(text + i * 8, "gpu:1(),", 8);
	text[ITEMS * 8 - 1] = '\0';
	CHECK("60000 items", ss_gres_read(text, &gres) == 0 && gres.gpus == ITEMS);
	memset(text, '(', sizeof text - 1);
	CHECK("parentheses", ss_gres_read(text, &gres) == -1);
	memset(text, '9', sizeof text - 1);
	memcpy(text, "gpu:", 4);
	CHECK("digits", ss_gres_read(text, &gres) == -1);
}

int main(void)
{
	a_list_says_how_many_are_gpus();
	what_is_no_list_is_no_number();
	an_overlong_list_is_read_to_its_end();
	return finish();
}
