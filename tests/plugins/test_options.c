/* Values of --share-gpu: valid ones with their canonical text, and refused ones with their sentence. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "names.h"
#include "options.h"

static void a_valid_value_has_one_canonical_text(void)
{
	static const struct { const char *text, *canonical; } rows[] = {
		{ "1", "1" },
		{ "4", "4" },
		{ "60", "60" },
		{ "off", "off" },
		{ "4,mem=8G", "4,mem=8192M" },
		{ "4,mem=8gib", "4,mem=8192M" },
		{ "4,mem=8Gb", "4,mem=8192M" },
		{ "4,mem=800", "4,mem=800M" },
		{ "4,mem=800M", "4,mem=800M" },
		{ "4,mem=512", "4,mem=512M" },
		{ "4,mem=64M", "4,mem=64M" },
		{ "4,mem=16T", "4,mem=16777216M" },
		{ "4,mem=16777216", "4,mem=16777216M" },
		{ "4,mem=16384g", "4,mem=16777216M" },
		{ "4,sm=50", "4,sm=50" },
		{ "4,sm=50%", "4,sm=50" },
		{ "4,sm=100%", "4,sm=100" },
		{ "4,sm=1", "4,sm=1" },
		{ "4,sm=even", "4,sm=even" },
		{ "4,sm=free", "4,sm=free" },
		{ "4,sm=static", "4,sm=static" },
		{ "4,mps=on", "4,sharing=mps" },
		{ "4,mps=off", "4,sharing=time-slicing" },
		{ "4,sm=free,mps=off", "4,sm=free,sharing=time-slicing" },
		{ "4,mps=on,sm=50%,mem=8G", "4,mem=8192M,sm=50,sharing=mps" },
		{ "4,mps=on,sharing=mps", "4,sharing=mps" },
		{ "4,sharing=time-slicing,mps=off", "4,sharing=time-slicing" },
		{ "4,sharing=auto", "4,sharing=auto" },
		{ "1,sharing=exclusive", "1,sharing=exclusive" },
		{ "4,mem=8G:20G", "4,mem=8192M:20480M" },
		{ "4,sharing=time-slicing,mem=800M:1T", "4,mem=800M:1048576M,sharing=time-slicing" },
		{ "60,mem=8388608MiB:16777216MiB,sm=free,sharing=time-slicing",
		  "60,mem=8388608M:16777216M,sm=free,sharing=time-slicing" },
		{ "4,sm=even,mem=1T", "4,mem=1048576M,sm=even" },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ss_request request, again;
		char sentence[SS_SENTENCE_SIZE] = "", canonical[SS_CANONICAL_SIZE] = "", twice[SS_CANONICAL_SIZE] = "";
		CHECK(rows[i].text, ss_request_parse(rows[i].text, &request, sentence, sizeof sentence) == 0);
		CHECK(rows[i].text, ss_request_render(&request, canonical, sizeof canonical) == 0);
		CHECK(rows[i].text, strcmp(canonical, rows[i].canonical) == 0);
		CHECK(rows[i].text, ss_request_parse(canonical, &again, sentence, sizeof sentence) == 0);
		CHECK(rows[i].text, ss_request_render(&again, twice, sizeof twice) == 0 && strcmp(canonical, twice) == 0);
		CHECK(rows[i].text, ss_request_is_canonical(&request, canonical));
		CHECK(rows[i].text, ss_request_render(&request, canonical, strlen(rows[i].canonical)) == -1);
	}
}

static void anything_else_is_refused_by_name(void)
{
	static const struct { const char *text, *says; } rows[] = {
		{ NULL, "missing" },
		{ "", "missing" },
		{ "0", "'0' is not a number of tasks" },
		{ "61", "'61'" },
		{ "007", "'007'" },
		{ "+4", "'+4'" },
		{ "-1", "'-1'" },
		{ " 4", "' 4'" },
		{ "4 ", "'4 '" },
		{ "4.0", "'4.0'" },
		{ "0x4", "'0x4'" },
		{ "1e1", "'1e1'" },
		{ "four", "'four'" },
		{ "OFF", "'OFF'" },
		{ "off,mem=8G", "'off'" },
		{ "4,off", "'off' is not one of mem, sm and sharing" },
		{ "99999999999999999999", "'99999999999999999999'" },
		{ "4;rm -rf", "'4;rm -rf'" },
		{ "4\n", "'4?'" },
		{ "4,", "'' is not one of" },
		{ ",4", "number of tasks on each GPU is missing" },
		{ ",", "number of tasks on each GPU is missing" },
		{ "4,,mem=8G", "'' is not one of" },
		{ "4,mem", "'' is not a size" },
		{ "4,mem=", "'' is not a size" },
		{ "4,mem=0", "'0' is not a size" },
		{ "4,mem=8", "mem=8 would be 8 MiB, and a size below 512 needs its unit: mem=8G" },
		{ "4,mem=511", "mem=511G" },
		{ "4,mem=8M", "mem=8M is less than any CUDA program needs (64M at least): mem=8G" },
		{ "4,mem=63mib", "64M at least" },
		{ "4,mem=08G", "'08G'" },
		{ "4,mem=-1", "'-1'" },
		{ "4,mem=8K", "'8K'" },
		{ "4,mem=8B", "'8B'" },
		{ "4,mem=8GiBs", "'8GiBs'" },
		{ "4,mem=8Gi", "'8Gi'" },
		{ "4,mem=1.5G", "'1.5G'" },
		{ "4,mem=17T", "'17T'" },
		{ "4,mem=16777217", "'16777217'" },
		{ "4,mem=18446744073709551617", "mem='" },
		{ "4,mem=4294967297T", "mem='" },
		{ "4,Mem=8G", "'Mem' is not one of" },
		{ "4,memory=8G", "'memory' is not one of" },
		{ "4,mem=8G,mem=9G", "'mem' is given twice" },
		{ "4,sm=0", "'0' is not a percentage" },
		{ "4,sm=101", "'101'" },
		{ "4,sm=%", "'%'" },
		{ "4,sm=50%%", "'50%%'" },
		{ "4,sm=05", "'05'" },
		{ "4,sm=Even", "'Even'" },
		{ "4,sm=even,sm=free", "'sm' is given twice" },
		{ "4,mps=yes", "'yes' is neither on nor off" },
		{ "4,mps", "'' is neither on nor off" },
		{ "4,mps=on,mps=on", "'mps' is given twice" },
		{ "4,mps=off,sm=50", "sm= cannot go with sharing=time-slicing, except sm=free" },
		{ "4,mps=off,sm=even", "sm= cannot go with sharing=time-slicing" },
		{ "4,sharing=time-slicing,sm=static", "sm= cannot go with sharing=time-slicing" },
		{ "1,sharing=exclusive,sm=static", "sm= cannot go with sharing=exclusive" },
		{ "2,sharing=exclusive", "2 tasks are asked for on each: --share-gpu=1,sharing=exclusive" },
		{ "1,sharing=exclusive,mem=8G", "has all of its memory" },
		{ "4,sharing=mig", "'mig' is not auto, mps, time-slicing or exclusive" },
		{ "4,sharing", "'' is not auto, mps" },
		{ "4,sharing=mps,sharing=mps", "'sharing' is given twice" },
		{ "4,mps=off,sharing=mps", "mps=off is an older word for sharing=time-slicing, and cannot go with sharing=mps" },
		{ "4,sharing=auto,mps=on", "mps=on is an older word for sharing=mps, and cannot go with sharing=auto" },
		{ "4,mem=20G:8G", "8G is less than 20G: mem=8G:20G" },
		{ "4,mem=8G:8192M", "mem=8G:8192M names one size twice: mem=8192M" },
		{ "4,mem=8G:", "mem='' is not a size" },
		{ "4,mem=:8G", "mem='' is not a size" },
		{ "4,mem=8G:9G:10G", "'9G:10G' is not a size" },
		{ "4,mem=8:20G", "mem=8 would be 8 MiB" },
		{ "4,mem=8G:20G,mem=8G", "'mem' is given twice" },
		{ "4,sm=stat", "'stat' is not a percentage from 1 to 100, even, free or static" },
		{ "4,mem=8G,sm=50,mps=on,                                            ", "longer than 64" },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const char *row = rows[i].text ? rows[i].text : "NULL";
		struct ss_request request;
		char sentence[SS_SENTENCE_SIZE] = "";
		CHECK(row, ss_request_parse(rows[i].text, &request, sentence, sizeof sentence) == -1);
		CHECK(sentence, strstr(sentence, rows[i].says) != NULL);
		CHECK(sentence, strstr(sentence, SS_OPTION_FORM) != NULL);
		CHECK(sentence, strstr(sentence, "for example --share-gpu=4,mem=8G") != NULL);
		CHECK(sentence, strchr(sentence, '\n') == NULL);
	}
}

static void a_text_of_an_earlier_release_is_canonical_too(void)
{
	static const struct { const char *text; bool is; } rows[] = {
		{ "4,mem=8192M,mps=on", true },
		{ "4,sm=free,mps=off", true },
		{ "4,sharing=mps", true },
		{ "4,mem=8G,mps=on", false },
		{ "4,mps=on,sharing=mps", false },
		{ "4,mps=on,mem=8192M", false },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ss_request request;
		char sentence[SS_SENTENCE_SIZE] = "";
		CHECK(rows[i].text, ss_request_parse(rows[i].text, &request, sentence, sizeof sentence) == 0);
		CHECK(rows[i].text, ss_request_is_canonical(&request, rows[i].text) == rows[i].is);
	}
}

int main(void)
{
	a_text_of_an_earlier_release_is_canonical_too();
	a_valid_value_has_one_canonical_text();
	anything_else_is_refused_by_name();
	return finish();
}
