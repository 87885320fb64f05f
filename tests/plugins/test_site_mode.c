/* The mode of a partition in config.toml; config.py parses the same texts. */
#include <string.h>

#include "check.h"
#include "site_mode.h"

static void the_mode_is_the_partitions_or_the_sites(void)
{
	static const struct { const char *text, *partition; enum ss_mode mode; } rows[] = {
		{ "", "gpu", SS_MODE_OBSERVE },
		{ "mode = \"on\"", "gpu", SS_MODE_ON },
		{ "mode='on' # since May\r\nmax_share = 4\n", NULL, SS_MODE_ON },
		{ "  mode\t=\t\"off\"\n", "", SS_MODE_OFF },
		{ "\"mode\" = \"on\"\n", "gpu", SS_MODE_ON },
		{ "# mode = \"on\"\n", "gpu", SS_MODE_OBSERVE },
		{ "sm = \"on\"\nlog_file = 'mode = \"on\"'\n", "gpu", SS_MODE_OBSERVE },
		{ "mode = \"observe\"\n[partition.gpu]\nmode = \"on\"\n", "gpu", SS_MODE_ON },
		{ "mode = \"observe\"\n[partition.gpu]\nmode = \"on\"\n", "plain", SS_MODE_OBSERVE },
		{ "mode = \"observe\"\n[partition.gpu]\nmode = \"on\"\n", NULL, SS_MODE_OBSERVE },
		{ "mode = \"on\"\n[ partition . \"a.b\" ] # x\nmax_share = 2\n[partition.'c']\nmode = \"off\"", "a.b", SS_MODE_ON },
		{ "mode = \"on\"\n[partition.\"a.b\"]\nmode = \"off\"\n", "a.b", SS_MODE_OFF },
		{ "mode = \"on\"\n[partition]\ngpu.mode = \"off\"\n", "gpu", SS_MODE_OFF },
		{ "mode = \"on\"\npartition.gpu.mode = \"off\"\n", "gpu", SS_MODE_OFF },
		{ "[partition.gpu]\nmode = \"on\"\n[partition.gpux]\nmode = \"off\"\n", "gpu", SS_MODE_ON },
		/* slurm-share off overrides everything else */
		{ "switched_off = true\nmode = \"on\"\n[partition.gpu]\nmode = \"on\"\n", "gpu", SS_MODE_OFF },
		{ "mode = \"on\"\n switched_off=true # by slurm-share off\n", NULL, SS_MODE_OFF },
		{ "switched_off = false\nmode = \"on\"\n", "gpu", SS_MODE_ON },
		{ "switched_off = \"true\"\nmode = \"on\"\n", "gpu", SS_MODE_ON },
		{ "mode = \"on\"\n[partition.gpu]\nswitched_off = true\n", "gpu", SS_MODE_ON },
		/* keys with the same name in other tables */
		{ "mode = \"on\"\n[[partition.gpu]]\nmode = \"off\"\n", "gpu", SS_MODE_ON },
		{ "mode = \"on\"\n[partition.gpu.more]\nmode = \"off\"\n", "gpu", SS_MODE_ON },
		{ "mode = \"on\"\n[other.gpu]\nmode = \"off\"\n", "gpu", SS_MODE_ON },
		/* texts that the Prolog refuses, or this parser does not support */
		{ "mode = \"On\"\n", "gpu", SS_MODE_UNKNOWN },
		{ "mode = on\n", "gpu", SS_MODE_UNKNOWN },
		{ "mode = \"on\" x\n", "gpu", SS_MODE_UNKNOWN },
		{ "mode = \"\\u006fn\"\n", "gpu", SS_MODE_UNKNOWN },
		{ "mode = \"on\n", "gpu", SS_MODE_UNKNOWN },
		{ "mode = \"on\"\n[partition.gpu]\nmode = 1\n", "gpu", SS_MODE_UNKNOWN },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		CHECK(rows[i].text, ss_site_mode_parse(rows[i].text, rows[i].partition) == rows[i].mode);
}

static void a_file_has_an_age_and_may_be_absent(void)
{
	struct ss_site_mode found;

	ss_site_mode_read("/nowhere/config.toml", "gpu", &found);
	CHECK("absent", found.mode == SS_MODE_OBSERVE);
	ss_site_mode_read("/proc/self", "gpu", &found);
	CHECK("a folder", found.mode == SS_MODE_UNKNOWN);
	ss_site_mode_read(__FILE__, "gpu", &found);
	CHECK("a file", found.changed_s > 0);
}

int main(void)
{
	the_mode_is_the_partitions_or_the_sites();
	a_file_has_an_age_and_may_be_absent();
	return finish();
}
