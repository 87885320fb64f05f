/* Fuzz the plugin's parsers: fuzz_parsers SECONDS EXECUTIONS SEED KEEP [PARSER].
 *
 * Run each parser for so many executions, or so many seconds (0: no time limit). An input is a mutation of a kept one, and is kept
 * if the code took a new path, which gcc reports (-fsanitize-coverage=trace-pc), so no other tool is needed. The same seed and
 * number of executions give the same inputs. Print "NAME executions kept ways" for each parser. A sanitizer's error ends the
 * program; the input is then in the file KEEP, after its parser's name, and `fuzz_parsers KEEP` runs it again. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cores.h"
#include "gres.h"
#include "job_gpus.h"
#include "names.h"
#include "options.h"
#include "plan.h"
#include "slots.h"
#include "srun_arguments.h"

enum { INPUT_MAX = 4096, KEPT_MAX = 4096, WAYS = 1 << 13, NAME_MAX_SIZE = 16, WORDS_MAX = 64, CLOCK_EVERY = 256 };

#define UNWATCHED __attribute__((no_sanitize_coverage))

/* ---- the parsers ---- */

/* Copy the text to a buffer that ends with its NUL, so that the sanitizer detects a read beyond it. */
static char *text_of(const char *data, size_t size)
{
	size_t length = strnlen(data, size);
	char *text = malloc(length + 1);

	if (text == NULL)
		abort();
	memcpy(text, data, length);
	text[length] = '\0';
	return text;
}

static void must(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "does not hold: %s\n", what);
		abort();
	}
}

static void try_option(const char *data, size_t size)
{
	struct ss_request request, again;
	char sentence[SS_SENTENCE_SIZE], canonical[SS_CANONICAL_SIZE], twice[SS_CANONICAL_SIZE], small[16];
	char *text = text_of(data, size);

	if (ss_request_parse(text, &request, sentence, sizeof sentence) == 0) {
		must(ss_request_render(&request, canonical, sizeof canonical) == 0, "what was read has a canonical text");
		must(ss_request_parse(canonical, &again, sentence, sizeof sentence) == 0, "which is read again");
		must(ss_request_render(&again, twice, sizeof twice) == 0 && strcmp(canonical, twice) == 0, "as the same");
	} else {
		must(strnlen(sentence, sizeof sentence) < sizeof sentence, "a sentence ends");
		for (const char *at = sentence; *at != '\0'; at++)
			must(*at >= ' ' && *at <= '~', "a sentence can be printed");
		must(ss_request_parse(text, &request, small, sizeof small) == -1 && strlen(small) < sizeof small, "and cut");
	}
	free(text);
}

static void try_plan(const char *data, size_t size)
{
	static const struct ss_plan_owner owner = { 4711, 2001, "n2" };
	static struct ss_slots slots;
	bool listed[SS_PLAN_MAX_SLOTS];
	struct ss_plan *plan = NULL;
	char why[SS_SENTENCE_SIZE];
	char *exact = malloc(size ? size : 1);

	if (exact == NULL)
		abort();
	memcpy(exact, data, size);
	if (ss_plan_parse(exact, size, &owner, &plan, why, sizeof why) == SS_PLAN_READ) {
		must(plan->job == owner.job && plan->uid == owner.uid && strcmp(plan->node, owner.node) == 0, "it is the owner's");
		if (plan->refused == NULL) {
			must(plan->slot_count <= SS_PLAN_MAX_SLOTS && plan->per_gpu >= 1, "its numbers are in range");
			ss_slots_of_plan(plan, &slots);
			must(slots.count == plan->slot_count, "every slot has its place");
			for (uint32_t slot = 0; slot < plan->slot_count; slot++)
				must(strlen(plan->gpu[plan->slots[slot].gpu].uuid) < size, "and its GPU");
			(void)ss_slots_listed(plan, &slots, "0,GPU-1,MIG-2", listed);
			for (uint32_t gpu = 0; gpu < slots.gpus; gpu++)
				(void)ss_slots_minor(plan, &slots, gpu);
		}
		ss_plan_free(plan);
	} else {
		must(plan == NULL, "a bad plan is none");
	}
	free(exact);
}

static void try_gres(const char *data, size_t size)
{
	struct ss_gres gres = { 0 };
	char *text = text_of(data, size);

	if (ss_gres_read(text, &gres) == 0)
		must(gres.gpus <= SS_GRES_MAX_GPUS, "no more GPUs than there can be");
	else
		must(gres.gpus == 0, "what cannot be read has none");
	free(text);
}

static void try_holding(const char *data, size_t size)
{
	struct ss_holding holding, again;
	char text[SS_HOLDING_SIZE];

	if (size <= SS_HOLDING_SIZE && ss_holding_parse(data, size, &holding) == 0) {
		size_t length = ss_holding_render(&holding, text);
		must(length < SS_HOLDING_SIZE && ss_holding_parse(text, length, &again) == 0, "it can be written and read");
		must(again.task.pid == holding.task.pid && again.task.start == holding.task.start, "as the same");
	}
}

static void try_cores(const char *data, size_t size)
{
	static struct ss_core_list list, mine;
	char *text = text_of(data, size);

	if (ss_cores_parse(text, &list) == 0) {
		uint32_t parts = 1 + (uint32_t)size * 7 % 64, other = (unsigned char)text[0];
		struct ss_deal deal = { other % parts, parts, other % 9, (uint32_t)size % 9 };
		must(list.count > 0 && list.count <= SS_CPUS_MAX, "a list has cores, and not too many");
		ss_cores_deal(&list, &deal, &mine);
		must(mine.count > 0 && mine.count <= list.count, "a part is a part");
	}
	free(text);
}

/* Words end with a newline. */
static void try_words(const char *data, size_t size)
{
	const char *words[WORDS_MAX];
	struct ss_srun_arguments said;
	size_t count = 0;
	char *text = text_of(data, size), *rest = text, *word;
	const char *end = text + strlen(text);

	while (count < WORDS_MAX && (word = strsep(&rest, "\n")) != NULL)
		words[count++] = word;
	ss_srun_arguments_read(words, count, &said);
	must(said.node_list == NULL || *said.node_list == '\0' || (said.node_list >= text && said.node_list <= end), "it points into the words");
	free(text);
}

/* The first line is the controller's comment; each other line is a node's name, a blank and its gres. */
static void try_job(const char *data, size_t size)
{
	static struct ss_job_gpus job;
	struct ss_srun_arguments said;
	struct ss_spread spread = { 4711, &said, 2, 2 };
	char sentence[SS_SENTENCE_SIZE];
	char *text = text_of(data, size), *rest = text, *line;

	memset(&job, 0, sizeof job);
	memset(&said, 0, sizeof said);
	line = strsep(&rest, "\n");
	ss_job_gpus_mark(&job, line);
	while ((line = strsep(&rest, "\n")) != NULL) {
		char *gres = line, *name = strsep(&gres, " ");
		if (ss_job_gpus_add(&job, name, gres) != 0)
			break;
	}
	must(job.listed <= SS_JOB_NODES_LISTED && job.listed <= job.nodes, "nodes are counted");
	if (ss_job_gpus_matter(&spread) && ss_job_gpus_check(&job, &spread, sentence, sizeof sentence) != 0)
		must(strnlen(sentence, sizeof sentence) < sizeof sentence, "a sentence ends");
	free(text);
}

#define PLAN_HEAD SS_PLAN_MAGIC "\njob 4711\nuid 2001\nnode n2\n"

static const struct parser {
	char name[NAME_MAX_SIZE];
	void (*try)(const char *, size_t);
	const char *seed[6];
} parsers[] = {
	{ "option", try_option, { "4", "4,mem=8G,sm=50%,mps=on", "off", "60,mem=8G:16T,sm=static", "2,mps=off",
				"2,sharing=time-slicing,mem=8G" } },
	{ "plan", try_plan,
	  { PLAN_HEAD "refused job 4711 has no GPU here\nend\n",
	    PLAN_HEAD "share 2,mem=8192M\ngpus 1\nslots 2\ncores 0,8 1,9\nnote shared without MPS: no binary\n"
		      "gpu 0 uuid=GPU-1 index=0 minor=1 memory_mib=81920 simulated=yes name=NVIDIA H100\n"
		      "slot 0 gpu=0 part=0/2 backend=mps memory_cap_mib=8192 memory_ratio=0.100 sm_percent=12.5 mps_directory=/p0\n"
		      "environment CUDA_VISIBLE_DEVICES=GPU-1 X_FRACTION?=0.4\n"
		      "slot 1 gpu=0 part=1/2 backend=time-slicing on_gpu=1 memory_cap_mib=20480 memory_least_mib=8192 cap_by=driver "
		      "sm_count=24 partition=GPU-1/D/7+= backend_variables=1\nenvironment A=b\nend\n" } },
	{ "gres", try_gres, { "gpu:2", "gpu:a100:2(IDX:0,3),shard:16", "(null)", "gpu", "shard:a100:4(0/8,4/8)", "craynetwork:1,gpu:h200:8(S:0-1)" } },
	{ "holding", try_holding, { "step 0 holder 10 11 task 12 13\n", SS_SLOT_USED "\n" } },
	{ "cores", try_cores, { "0-7", "0-3,8,10-11", "8191" } },
	{ "srun words", try_words,
	  { "-n4\n-N2-3\n--gres=gpu:1\nhostname", "--nodelist\nn[1-3]\n--jobid=4", "-wn2\n--ntasks-per-node=2\n--gpus-per-task=1", "--nodes=1-2k" } },
	{ "job", try_job, { "share-gpu=4\nn1 gpu:a100:2(IDX:0-1)\nn2 gpu:4", "site;share-gpu=2,mem=8G;x\nn1 gpu:2,shard:8(4/8)", "\nn1 (null)" } },
};

/* ---- the engine ---- */

static unsigned char ways[WAYS], seen[WAYS];
static uintptr_t before;
static uint64_t state;

/* gcc inserts a call of this function in every basic block. */
void __sanitizer_cov_trace_pc(void);
UNWATCHED void __sanitizer_cov_trace_pc(void)
{
	uintptr_t here = (uintptr_t)__builtin_return_address(0);
	unsigned char *way = &ways[((here >> 1) ^ before) % WAYS];

	if (*way < UINT8_MAX)
		(*way)++;
	before = here;
}

UNWATCHED static uint32_t dice(uint32_t sides)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)((state >> 32) % sides);
}

/* Return the class of the number of times that a path was taken: 1, 2, 3, 4, 8, 16, 32 or 128. */
UNWATCHED static unsigned char class_of(unsigned char times)
{
	static const unsigned char least[] = { 128, 32, 16, 8, 4, 3, 2, 1 };
	for (size_t i = 0; i < sizeof least; i++)
		if (times >= least[i])
			return (unsigned char)(1U << i);
	return 0;
}

UNWATCHED static int took_new_way(void)
{
	int is_new = 0;
	for (size_t i = 0; i < WAYS; i++) {
		unsigned char class = ways[i] ? class_of(ways[i]) : 0;
		if (class & (unsigned char)~seen[i]) {
			seen[i] |= class;
			is_new = 1;
		}
	}
	return is_new;
}

struct input {
	size_t size;
	char data[INPUT_MAX];
};

/* Mapped onto KEEP, so that the present input is in the file when a sanitizer ends this program. */
static struct {
	char name[NAME_MAX_SIZE];
	struct input input;
} * kept_for_later;

static struct input *kept[KEPT_MAX];
static size_t kept_count;

UNWATCHED static void keep(const struct input *input)
{
	if (kept_count == KEPT_MAX || (kept[kept_count] = malloc(sizeof *input)) == NULL)
		return;
	*kept[kept_count++] = *input;
}

static const char *const words[] = { "4294967295", "4294967296", "99999999999999999999", "-1", "0", "00", "\n", "\nend\n", "=", "?=", ",",
				     "-", "%", "(", ")", "[", "]", "/", "gpu:", "shard:", "mem=", "sm=", "mps=", "slot ", "part=", "note ",
				     "\xff", "\x1b[2J", "8191", "65536", " ", ":" };

UNWATCHED static void put(struct input *input, size_t at, const char *what, size_t length)
{
	if (input->size + length > INPUT_MAX)
		return;
	memmove(input->data + at + length, input->data + at, input->size - at);
	memcpy(input->data + at, what, length);
	input->size += length;
}

UNWATCHED static void change(struct input *input)
{
	size_t at = dice((uint32_t)input->size + 1), length;

	switch (dice(7)) {
	case 0: /* replace a byte */
		if (at < input->size)
			input->data[at] = (char)dice(256);
		break;
	case 1: /* flip a bit */
		if (at < input->size)
			input->data[at] = (char)(input->data[at] ^ (1 << dice(8)));
		break;
	case 2: /* remove some bytes */
		length = dice(1 + (uint32_t)(input->size - at > 16 ? 16 : input->size - at));
		memmove(input->data + at, input->data + at + length, input->size - at - length);
		input->size -= length;
		break;
	case 3: { /* insert a word of the format */
		const char *word = words[dice(sizeof words / sizeof *words)];
		put(input, at, word, strlen(word));
		break;
	}
	case 4: { /* insert a piece of another input */
		const struct input *other = kept[dice((uint32_t)kept_count)];
		size_t from = dice((uint32_t)other->size + 1);
		put(input, at, other->data + from, dice((uint32_t)(other->size - from) + 1));
		break;
	}
	case 5: /* repeat a piece of the input */
		length = dice(1 + (uint32_t)(input->size - at > 64 ? 64 : input->size - at));
		if (length > 0) {
			char piece[64];
			memcpy(piece, input->data + at, length);
			put(input, at, piece, length);
		}
		break;
	default: /* truncate */
		if (dice(4) == 0)
			input->size = at;
		else
			put(input, at, "0123456789"  + dice(10), 1);
	}
}

UNWATCHED static int is_new_way(const struct parser *parser, const struct input *input)
{
	memcpy(kept_for_later->name, parser->name, NAME_MAX_SIZE);
	kept_for_later->input = *input;
	memset(ways, 0, sizeof ways);
	before = 0;
	parser->try(input->data, input->size);
	return took_new_way();
}

UNWATCHED static double now(void)
{
	struct timespec at;
	(void)clock_gettime(CLOCK_MONOTONIC, &at);
	return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

UNWATCHED static void fuzz(const struct parser *parser, double seconds, uint64_t executions)
{
	static struct input input;
	double end = now() + seconds;
	uint64_t done = 0;
	size_t found = 0;

	memset(seen, 0, sizeof seen);
	while (kept_count > 0)
		free(kept[--kept_count]);
	for (size_t i = 0; i < sizeof parser->seed / sizeof *parser->seed && parser->seed[i] != NULL; i++) {
		input.size = strlen(parser->seed[i]);
		memcpy(input.data, parser->seed[i], input.size);
		(void)is_new_way(parser, &input);
		keep(&input);
		done++;
	}
	while ((executions == 0 || done < executions) && (seconds <= 0 || done % CLOCK_EVERY != 0 || now() < end)) {
		input = *kept[dice((uint32_t)kept_count)];
		for (uint32_t times = 1 + dice(6); times > 0; times--)
			change(&input);
		if (is_new_way(parser, &input))
			keep(&input);
		done++;
	}
	for (size_t i = 0; i < WAYS; i++)
		found += seen[i] != 0;
	printf("%s,%llu,%zu,%zu\n", parser->name, (unsigned long long)done, kept_count, found);
	fflush(stdout);
}

UNWATCHED static int again(const char *file)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC);

	kept_for_later = malloc(sizeof *kept_for_later);
	if (fd < 0 || kept_for_later == NULL || read(fd, kept_for_later, sizeof *kept_for_later) != (ssize_t)sizeof *kept_for_later)
		return 64;
	for (size_t i = 0; i < sizeof parsers / sizeof *parsers; i++)
		if (strcmp(parsers[i].name, kept_for_later->name) == 0)
			parsers[i].try(kept_for_later->input.data, kept_for_later->input.size);
	return 0;
}

UNWATCHED int main(int argc, char **argv)
{
	if (argc == 2)
		return again(argv[1]);
	if (argc < 5)
		return 64;
	double seconds = strtod(argv[1], NULL);
	uint64_t executions = strtoull(argv[2], NULL, 10);
	state = strtoull(argv[3], NULL, 10) * 2 + 0x9E3779B97F4A7C15ULL;
	int fd = open(argv[4], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof *kept_for_later) != 0)
		return 64;
	kept_for_later = mmap(NULL, sizeof *kept_for_later, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (kept_for_later == MAP_FAILED || (seconds <= 0 && executions == 0))
		return 64;
	for (size_t i = 0; i < sizeof parsers / sizeof *parsers; i++)
		if (argc == 5 || strcmp(argv[5], parsers[i].name) == 0)
			fuzz(&parsers[i], seconds, executions);
	return 0;
}
