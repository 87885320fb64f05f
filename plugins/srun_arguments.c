#include "srun_arguments.h"

#include <string.h>
#include <strings.h>

#include "options.h"

/* The short options of srun without a value (optstring of srun's opt.c, 22.05 to 26.05), which can be combined: -lN1. */
static const char flags[] = "EhHlOQsuvVXZ";
/* The short options whose value, if any, is in the same argument. */
static const char tight[] = "IkK";

enum meaning { NODES, NODE_LIST, TASKS, TASKS_PER_NODE, GPUS, TASK_GPUS, TASK_TRES, OTHER_PLACE, IMMEDIATE, OVERLAP, ASYNC };

static const struct {
	char letter; /* 0: none */
	const char *name;
	enum meaning meaning;
	bool is_alone; /* its value, if any, is in the same argument */
} options[] = {
	{ 'N', "nodes", NODES, false },
	{ 'w', "nodelist", NODE_LIST, false },
	{ 'n', "ntasks", TASKS, false },
	{ 0, "ntasks-per-node", TASKS_PER_NODE, false },
	{ 0, "gres", GPUS, false },
	{ 'G', "gpus", GPUS, false },
	{ 0, "gpus-per-node", GPUS, false },
	{ 0, "gpus-per-socket", GPUS, false },
	{ 0, "gpus-per-task", TASK_GPUS, false },
	{ 0, "ntasks-per-gpu", GPUS, false },
	{ 0, "tres-per-task", TASK_TRES, false },
	{ 'F', "nodefile", OTHER_PLACE, false },
	{ 0, "jobid", OTHER_PLACE, false },
	{ 0, "het-group", OTHER_PLACE, false },
	{ 'M', "clusters", OTHER_PLACE, false },
	{ 'I', "immediate", IMMEDIATE, true },
	{ 0, "overlap", OVERLAP, true },
	{ 0, "async", ASYNC, true },
};
enum { OPTIONS = sizeof options / sizeof *options };

static int find_letter(char letter)
{
	for (int i = 0; i < OPTIONS; i++)
		if (options[i].letter == letter)
			return i;
	return -1;
}

/* Find a long option. getopt_long(3) accepts an unambiguous prefix of a name; srun has rejected ambiguous ones. */
static int find_name(const char *name, size_t length)
{
	int found = -1;

	for (int i = 0; i < OPTIONS; i++) {
		if (strncmp(options[i].name, name, length) != 0)
			continue;
		if (options[i].name[length] == '\0')
			return i;
		if (found < 0)
			found = i;
	}
	return found;
}

/* Return a number from 1 to 1000000; 0 for any other text. */
static uint32_t number_of(const char *digits)
{
	uint32_t number = 0;

	return ss_number_parse(digits, strlen(digits), 1, 1000000, &number) == 0 ? number : 0;
}

/* Return the number after the last colon or equals sign of an item of `length` bytes; 1 without a number. */
static uint32_t count_of(const char *item, size_t length)
{
	size_t at = length;
	uint32_t number = 0;

	while (at > 0 && item[at - 1] >= '0' && item[at - 1] <= '9')
		at--;
	if (at == length || (at > 0 && item[at - 1] != ':' && item[at - 1] != '='))
		return 1; /* only a type */
	return ss_number_parse(item + at, length - at, 0, 65535, &number) == 0 ? number : 0;
}

/* Return the sum over the items with the name `prefix`, which ends at a colon, an equals sign or the item's end. */
static uint32_t sum_of(const char *value, const char *prefix)
{
	size_t skip = strlen(prefix);
	uint32_t sum = 0;

	for (const char *at = value; at != NULL && *at != '\0';) {
		size_t length = strcspn(at, ",");
		bool counts = length >= skip && strncmp(at, prefix, skip) == 0 &&
			      (skip == 0 || length == skip || at[skip] == ':' || at[skip] == '=');
		if (counts && length > 0)
			sum += count_of(at + skip, length - skip);
		at = at[length] == ',' ? at + length + 1 : NULL;
	}
	return sum;
}

uint32_t ss_gpus_per_task_read(const char *value)
{
	return sum_of(value, "");
}

uint32_t ss_tres_per_task_read(const char *value)
{
	return sum_of(value, "gres/gpu") + sum_of(value, "gres:gpu");
}

/* Read the most nodes of "2" or "1-2". */
static void take_nodes(const char *value, struct ss_srun_arguments *said)
{
	const char *dash = strchr(value, '-');

	said->nodes = number_of(dash ? dash + 1 : value);
	if (said->nodes == 0)
		said->says_other_place = true;
}

static void take(enum meaning meaning, const char *value, struct ss_srun_arguments *said)
{
	switch (meaning) {
	case NODES:
		take_nodes(value, said);
		break;
	case NODE_LIST:
		said->node_list = value;
		break;
	case TASKS:
		said->says_tasks = true;
		said->tasks = number_of(value);
		break;
	case TASKS_PER_NODE:
		said->says_tasks = true;
		said->tasks_per_node = number_of(value);
		break;
	case GPUS:
		said->says_gpus = true;
		said->says_no_gpus = strcmp(value, "none") == 0 || strcmp(value, "0") == 0;
		break;
	case IMMEDIATE:
		said->is_immediate = true;
		said->immediate_s = number_of(value);
		break;
	case OVERLAP:
		said->overlaps = true;
		break;
	case ASYNC:
		said->is_async = true;
		break;
	case TASK_GPUS:
		said->says_gpus = true;
		said->task_gpus = ss_gpus_per_task_read(value);
		break;
	case TASK_TRES:
		said->says_gpus = true;
		said->task_gpus = ss_tres_per_task_read(value);
		break;
	case OTHER_PLACE:
		said->says_other_place = true;
		break;
	}
}

/* Read a long option with its value, and return the number of its arguments. */
static size_t read_long(const char *const *arguments, size_t count, struct ss_srun_arguments *said)
{
	const char *name = arguments[0] + 2;
	size_t length = strcspn(name, "=");
	int option = length > 0 ? find_name(name, length) : -1;

	if (option < 0)
		return 1; /* if its value is the next argument, that does not begin with a dash */
	if (name[length] == '=') {
		take(options[option].meaning, name + length + 1, said);
		return 1;
	}
	if (options[option].is_alone) {
		take(options[option].meaning, "", said);
		return 1;
	}
	take(options[option].meaning, count > 1 ? arguments[1] : "", said);
	return 2;
}

static size_t read_short(const char *const *arguments, size_t count, struct ss_srun_arguments *said)
{
	for (const char *letter = arguments[0] + 1; *letter != '\0'; letter++) {
		if (strchr(flags, *letter) != NULL)
			continue;
		bool is_tight = strchr(tight, *letter) != NULL;
		bool is_apart = !is_tight && letter[1] == '\0';
		int option = find_letter(*letter);
		if (option >= 0)
			take(options[option].meaning, !is_apart ? letter + 1 : count > 1 ? arguments[1] : "", said);
		return is_apart ? 2 : 1;
	}
	return 1;
}

bool ss_gres_is_none(const char *value)
{
	return value != NULL && strcasecmp(value, "none") == 0;
}

bool ss_gpus_are_none(const char *value)
{
	return value != NULL && strcmp(value, "0") == 0;
}

/* Return the value if the argument at `at` is this long option, else NULL. */
static const char *value_of(const char *const *arguments, size_t count, size_t at, const char *option)
{
	size_t length = strlen(option);

	if (strncmp(arguments[at], option, length) != 0)
		return NULL;
	if (arguments[at][length] == '=')
		return arguments[at] + length + 1;
	return arguments[at][length] == '\0' && at + 1 < count ? arguments[at + 1] : NULL;
}

bool ss_arguments_say_no_gpus(const char *const *arguments, size_t count)
{
	static const char *const gpu_options[] = { "--gres", "--gpus-per-task", "--gpus-per-node", "--gpus" };
	enum { KINDS = sizeof gpu_options / sizeof *gpu_options };
	bool none[KINDS] = { false }, any = false;

	for (size_t at = 0; at < count; at++) {
		for (size_t kind = 0; kind < KINDS; kind++) {
			const char *value = value_of(arguments, count, at, gpu_options[kind]);
			/* an empty value is none to Slurm, and comes from a shell variable that is not set */
			if (value != NULL)
				none[kind] = value[0] == '\0' || (kind == 0 ? ss_gres_is_none(value) : ss_gpus_are_none(value));
		}
	}
	for (size_t kind = 0; kind < KINDS; kind++)
		any = any || none[kind];
	return any;
}

void ss_srun_arguments_read(const char *const *arguments, size_t count, struct ss_srun_arguments *said)
{
	*said = (struct ss_srun_arguments){ 0 };
	for (size_t at = 0; at < count;) {
		const char *argument = arguments[at];
		if (strncmp(argument, "--", 2) == 0)
			at += read_long(arguments + at, count - at, said);
		else if (argument[0] == '-' && argument[1] != '\0')
			at += read_short(arguments + at, count - at, said);
		else
			at++; /* the value of a long option that is not in `options` */
	}
}
