/* Core lists, the part of them that a task gets, and CPU masks. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cores.h"

static const char *render_list(const struct ss_core_list *list, char *text, size_t size)
{
	size_t used = 0;
	text[0] = '\0';
	for (size_t i = 0; i < list->count && used < size; i++)
		used += (size_t)snprintf(text + used, size - used, "%s%u", i ? "," : "", list->core[i]);
	return text;
}

static void a_list_is_read_strictly(void)
{
	static const struct { const char *text, *cores; } rows[] = { /* NULL: refused */
		{ "0", "0" },
		{ "0-7", "0,1,2,3,4,5,6,7" },
		{ "0-2,5,7-8", "0,1,2,5,7,8" },
		{ "8191", "8191" },
		{ "", NULL },
		{ "-", NULL },
		{ "1-", NULL },
		{ "3-1", NULL },
		{ "1,", NULL },
		{ ",1", NULL },
		{ "a", NULL },
		{ "1-2-3", NULL },
		{ "0-7 ", NULL },
		{ "8192", NULL },
		{ "0-8191,0", NULL },
		{ "99999999999", NULL },
	};
	static struct ss_core_list list;
	char text[256];

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		int rc = ss_cores_parse(rows[i].text, &list);
		CHECK(rows[i].text, rc == (rows[i].cores ? 0 : -1));
		if (rc == 0 && rows[i].cores)
			CHECK(rows[i].text, strcmp(render_list(&list, text, sizeof text), rows[i].cores) == 0);
	}
	CHECK("NULL", ss_cores_parse(NULL, &list) == -1);
	CHECK("all", ss_cores_parse("0-8191", &list) == 0 && list.count == SS_CPUS_MAX);
}

static void a_task_is_dealt_its_part(void)
{
	static const struct { const char *all; struct ss_deal deal; const char *mine; } rows[] = {
		/* equal parts */
		{ "0-7", { 0, 8, 2, 0 }, "0" },
		{ "0-7", { 7, 8, 2, 0 }, "7" },
		{ "0-7", { 1, 4, 2, 0 }, "2,3" },
		{ "0-7", { 0, 3, 1, 0 }, "0,1" },
		{ "0-7", { 1, 3, 1, 0 }, "2,3,4" },
		{ "0-7", { 2, 3, 1, 0 }, "5,6,7" },
		{ "8-11", { 1, 2, 1, 0 }, "10,11" },
		{ "0-7", { 0, 1, 1, 0 }, "0,1,2,3,4,5,6,7" },
		/* more parts than cores: one core each, cyclically in the GPU's group */
		{ "0-3", { 0, 8, 2, 0 }, "0" },
		{ "0-3", { 1, 8, 2, 0 }, "1" },
		{ "0-3", { 2, 8, 2, 0 }, "0" },
		{ "0-3", { 4, 8, 2, 0 }, "2" },
		{ "0-3", { 7, 8, 2, 0 }, "3" },
		{ "0,1", { 1, 4, 1, 0 }, "1" },
		{ "0,1", { 5, 8, 2, 0 }, "1" },
		{ "3", { 7, 8, 2, 0 }, "3" },
		/* -c: consecutive cores of the GPU's group; tasks of one step do not overlap while there are enough cores */
		{ "0-7", { 0, 8, 2, 2 }, "0,1" },
		{ "0-7", { 4, 8, 2, 2 }, "4,5" },
		{ "0-7", { 1, 8, 2, 2 }, "2,3" },
		{ "0-7", { 5, 8, 2, 2 }, "6,7" },
		{ "0-7", { 2, 8, 2, 2 }, "0,1" },
		{ "0-7", { 0, 8, 2, 4 }, "0,1,2,3" },
		{ "0-7", { 4, 8, 2, 4 }, "4,5,6,7" },
		{ "0-7", { 4, 8, 2, 6 }, "4,5,6,7,0,1" },
		{ "0-7", { 1, 8, 2, 3 }, "3,0,1" },
		{ "0-7", { 1, 4, 1, 2 }, "2,3" },
		{ "0-7", { 3, 4, 1, 99 }, "0,1,2,3,4,5,6,7" },
		{ "0,1", { 3, 8, 8, 1 }, "1" },
		{ "0,1", { 3, 8, 0, 1 }, "1" },
	};
	static struct ss_core_list all, mine;
	char text[256], row[64];

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		(void)snprintf(row, sizeof row, "row %zu: %s part %u/%u", i, rows[i].all, rows[i].deal.part, rows[i].deal.parts);
		CHECK(row, ss_cores_parse(rows[i].all, &all) == 0);
		ss_cores_deal(&all, &rows[i].deal, &mine);
		CHECK(row, strcmp(render_list(&mine, text, sizeof text), rows[i].mine) == 0);
	}
	all.count = 0;
	ss_cores_deal(&all, &(struct ss_deal){ 0, 1, 1, 0 }, &mine);
	CHECK("no cores", mine.count == 0);
}

static void equal_parts_cover_every_core_once(void)
{
	static struct ss_core_list all, mine;

	for (uint32_t cores = 1; cores <= 64; cores++)
		for (uint32_t parts = 1; parts <= cores; parts++) {
			size_t seen = 0, least = SS_CPUS_MAX, most = 0;
			all.count = 0;
			while (all.count < cores) {
				all.core[all.count] = (uint16_t)all.count;
				all.count++;
			}
			for (uint32_t part = 0; part < parts; part++) {
				ss_cores_deal(&all, &(struct ss_deal){ part, parts, 1, 0 }, &mine);
				for (size_t i = 0; i < mine.count; i++)
					CHECK("in order", mine.core[i] == seen + i);
				seen += mine.count;
				least = mine.count < least ? mine.count : least;
				most = mine.count > most ? mine.count : most;
			}
			CHECK("all of them", seen == cores && most - least <= 1);
		}
}

static void cores_become_cpus_through_the_plans_table(void)
{
	/* two cores with two hardware threads each: 0,8 1,9 */
	static const struct ss_core_table table = { 2, { 0, 2, 4 }, { 0, 8, 1, 9 } };
	static const struct ss_core_table none;
	static struct ss_core_list list;
	static struct ss_cpus cpus;
	char text[64], small[4];

	CHECK("list", ss_cores_parse("0-1", &list) == 0);
	ss_cores_cpus(&list, &table, &cpus);
	CHECK("both", ss_cpus_render(&cpus, text, sizeof text) == 0 && strcmp(text, "0-1,8-9") == 0);
	CHECK("no room", ss_cpus_render(&cpus, small, sizeof small) == -1);
	CHECK("list", ss_cores_parse("7", &list) == 0);
	ss_cores_cpus(&list, &table, &cpus);
	CHECK("core 7 of a machine that claims 8 and has 2", ss_cpus_render(&cpus, text, sizeof text) == 0 && strcmp(text, "1,9") == 0);
	ss_cores_cpus(&list, &none, &cpus);
	CHECK("no table", ss_cpus_render(&cpus, text, sizeof text) == 0 && text[0] == '\0');
	CPU_SET_S(SS_CPUS_MAX - 1, sizeof cpus.set, cpus.set);
	CHECK("the last one", ss_cpus_render(&cpus, text, sizeof text) == 0 && strcmp(text, "8191") == 0);
}

static void a_task_is_told_its_threads(void)
{
	CHECK("-c wins", ss_cores_threads(8, &(struct ss_deal){ 0, 8, 2, 2 }, 4) == 4);
	CHECK("equal part", ss_cores_threads(16, &(struct ss_deal){ 0, 8, 2, 0 }, 0) == 2);
	CHECK("rounded down", ss_cores_threads(15, &(struct ss_deal){ 0, 8, 2, 0 }, 0) == 1);
	CHECK("never none", ss_cores_threads(2, &(struct ss_deal){ 0, 8, 2, 0 }, 0) == 1);
	CHECK("unknown", ss_cores_threads(0, &(struct ss_deal){ 0, 8, 2, 0 }, 0) == 1);
}

int main(void)
{
	a_list_is_read_strictly();
	a_task_is_dealt_its_part();
	equal_parts_cover_every_core_once();
	cores_become_cpus_through_the_plans_table();
	a_task_is_told_its_threads();
	return finish();
}
