#include "plan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "names.h"
#include "options.h"

/* Walks the lines of a plan's text and remembers where it is, for the error's sake. */
struct reader {
	char *next;   /* the first byte behind the current line */
	char *line;   /* the current line, ended by a NUL */
	unsigned number;
	char *why;
	size_t why_size;
};

__attribute__((format(printf, 2, 3)))
static int wrong(const struct reader *reader, const char *format, ...)
{
	char what[256];
	va_list arguments;

	va_start(arguments, format);
	(void)vsnprintf(what, sizeof what, format, arguments);
	va_end(arguments);
	(void)snprintf(reader->why, reader->why_size, "line %u: %s", reader->number, what);
	return -1;
}

/* Every line ends in a newline and is short: ss_plan_parse has seen to it. */
static void step(struct reader *reader)
{
	reader->line = reader->next;
	char *newline = strchr(reader->line, '\n');
	if (newline == NULL) { /* behind the last line */
		reader->next = reader->line + strlen(reader->line);
	} else {
		*newline = '\0';
		reader->next = newline + 1;
	}
	reader->number++;
}

/* What follows "KEY " on the next line; NULL and an error where the line is another. */
static char *take(struct reader *reader, const char *key)
{
	size_t length = strlen(key);

	step(reader);
	if (strncmp(reader->line, key, length) != 0 || reader->line[length] != ' ' || reader->line[length + 1] == '\0') {
		(void)wrong(reader, "'%s ...' was expected here", key);
		return NULL;
	}
	return reader->line + length + 1;
}

static bool follows(const struct reader *reader, const char *key)
{
	size_t length = strlen(key);
	return strncmp(reader->next, key, length) == 0 && reader->next[length] == ' ';
}

static int take_number(struct reader *reader, const char *key, uint32_t least, uint32_t most, uint32_t *number)
{
	const char *word = take(reader, key);

	if (word == NULL)
		return -1;
	if (ss_number_parse(word, strlen(word), least, most, number) != 0)
		return wrong(reader, "'%s' is a number from %u to %u", key, least, most);
	return 0;
}

/* Cuts the word before the next single blank off `*rest`; NULL at the end. */
static char *cut(char **rest, char blank)
{
	char *word = *rest;

	if (word == NULL)
		return NULL;
	char *end = strchr(word, blank);
	if (end != NULL)
		*end++ = '\0';
	*rest = end;
	return word;
}

static int take_cores(struct reader *reader, struct ss_core_table *table)
{
	char *rest = take(reader, "cores"), *core;
	size_t cpus = 0;

	if (rest == NULL)
		return -1;
	while ((core = cut(&rest, ' ')) != NULL) {
		char *cpu;
		if (table->count == SS_CPUS_MAX)
			return wrong(reader, "more than %d cores", SS_CPUS_MAX);
		table->first[table->count++] = (uint16_t)cpus;
		while ((cpu = cut(&core, ',')) != NULL) {
			uint32_t number;
			if (cpus == SS_CPUS_MAX || ss_number_parse(cpu, strlen(cpu), 0, SS_CPUS_MAX - 1, &number) != 0)
				return wrong(reader, "a CPU is a number from 0 to %d", SS_CPUS_MAX - 1);
			table->cpu[cpus++] = (uint16_t)number;
		}
		table->first[table->count] = (uint16_t)cpus;
	}
	return 0;
}

static bool is_name(const char *name)
{
	if (*name == '\0' || (*name >= '0' && *name <= '9'))
		return false;
	for (; *name != '\0'; name++) {
		char c = *name;
		if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'))
			return false;
	}
	return true;
}

/* NAME=value or NAME?=value. Values hold no blank: the words were cut there. */
static int read_assignment(const struct reader *reader, char *word, struct ss_assignment *assignment)
{
	char *equals = strchr(word, '=');

	if (equals == NULL)
		return wrong(reader, "'%.80s' is not NAME=value", word);
	assignment->unless_set = equals > word && equals[-1] == '?';
	equals[assignment->unless_set ? -1 : 0] = '\0';
	assignment->name = word;
	assignment->value = equals + 1;
	if (!is_name(word))
		return wrong(reader, "'%.80s' is not the name of a variable", word);
	return 0;
}

static int take_slot(struct reader *reader, uint32_t number, struct ss_slot *slot, struct ss_assignment **free_assignment)
{
	char *rest = take(reader, "slot"), *word;
	uint32_t found;

	if (rest == NULL)
		return -1;
	word = cut(&rest, ' ');
	if (ss_number_parse(word, strlen(word), 0, SS_PLAN_MAX_SLOTS, &found) != 0 || found != number)
		return wrong(reader, "slot %u was expected here", number);
	word = cut(&rest, ' ');
	char *slash = word ? strchr(word, '/') : NULL;
	if (word == NULL || slash == NULL || strncmp(word, "part=", 5) != 0 ||
	    ss_number_parse(word + 5, (size_t)(slash - word) - 5, 0, SS_PLAN_MAX_SLOTS, &slot->part) != 0 ||
	    ss_number_parse(slash + 1, strlen(slash + 1), 1, SS_PLAN_MAX_SLOTS, &slot->parts) != 0 ||
	    slot->part >= slot->parts)
		return wrong(reader, "'part=I/P' with I below P was expected behind the slot's number");
	slot->environment = *free_assignment;
	while ((word = cut(&rest, ' ')) != NULL) {
		if (read_assignment(reader, word, *free_assignment) != 0)
			return -1;
		(*free_assignment)++;
		slot->variables++;
	}
	return 0;
}

static int take_share(struct reader *reader, struct ss_plan *plan)
{
	struct ss_request request;
	char sentence[SS_SENTENCE_SIZE], canonical[SS_CANONICAL_SIZE];

	plan->share = take(reader, "share");
	if (plan->share == NULL)
		return -1;
	if (ss_request_parse(plan->share, &request, sentence, sizeof sentence) != 0)
		return wrong(reader, "%.200s", sentence);
	if (request.off || ss_request_render(&request, canonical, sizeof canonical) != 0 || strcmp(canonical, plan->share) != 0)
		return wrong(reader, "the share is not in its canonical form");
	plan->per_gpu = (uint32_t)request.per_gpu;
	return 0;
}

static int take_end(struct reader *reader)
{
	step(reader);
	if (strcmp(reader->line, "end") != 0 || *reader->next != '\0')
		return wrong(reader, "'end' was expected here");
	return 0;
}

static int take_owner(struct reader *reader, const struct ss_plan_owner *owner, struct ss_plan *plan)
{
	if (take_number(reader, "job", 1, UINT32_MAX, &plan->job) != 0)
		return -1;
	if (plan->job != owner->job)
		return wrong(reader, "this is the plan of job %u, not of job %u", plan->job, owner->job);
	if (take_number(reader, "uid", 0, UINT32_MAX, &plan->uid) != 0)
		return -1;
	if (plan->uid != owner->uid)
		return wrong(reader, "this is the plan of user id %u, not of %u", plan->uid, owner->uid);
	plan->node = take(reader, "node");
	if (plan->node == NULL)
		return -1;
	if (owner->node != NULL && strcmp(plan->node, owner->node) != 0)
		return wrong(reader, "this is a plan of node %.64s, not of %.64s", plan->node, owner->node);
	return 0;
}

/* How many assignments and notes there can be at most, so that each is allocated once. */
static size_t count(const char *text, const char *what)
{
	size_t n = 0;
	for (const char *at = text; (at = strstr(at, what)) != NULL; at += strlen(what))
		n++;
	return n;
}

static int read_plan(struct reader *reader, const struct ss_plan_owner *owner, struct ss_plan *plan)
{
	step(reader);
	if (strcmp(reader->line, SS_PLAN_MAGIC) != 0)
		return wrong(reader, "not a plan of this version ('" SS_PLAN_MAGIC "')");
	if (take_owner(reader, owner, plan) != 0)
		return -1;
	if (follows(reader, "refused")) {
		plan->refused = take(reader, "refused");
		return plan->refused ? take_end(reader) : -1;
	}
	if (follows(reader, "unshared")) {
		plan->unshared = take(reader, "unshared");
		return plan->unshared ? take_end(reader) : -1;
	}
	if (take_share(reader, plan) != 0 || take_number(reader, "gpus", 1, SS_PLAN_MAX_SLOTS, &plan->gpus) != 0 ||
	    take_number(reader, "slots", 1, SS_PLAN_MAX_SLOTS, &plan->slot_count) != 0 || take_cores(reader, &plan->cores) != 0)
		return -1;
	plan->notes = calloc(count(reader->next, "\nnote ") + 1, sizeof *plan->notes);
	plan->assignments = calloc(count(reader->next, "=") + 1, sizeof *plan->assignments);
	plan->slot_storage = calloc(plan->slot_count, sizeof *plan->slot_storage);
	if (plan->notes == NULL || plan->assignments == NULL || plan->slot_storage == NULL)
		return wrong(reader, "no memory");
	while (follows(reader, "note")) {
		const char *note = take(reader, "note");
		if (note == NULL)
			return -1;
		plan->notes[plan->note_count++] = note;
	}
	struct ss_assignment *free_assignment = plan->assignments;
	for (uint32_t i = 0; i < plan->slot_count; i++)
		if (take_slot(reader, i, &plan->slot_storage[i], &free_assignment) != 0)
			return -1;
	plan->slots = plan->slot_storage;
	return take_end(reader);
}

/* Printable ASCII in lines of bounded length, the last one "end": what everything below relies on. */
static int check_text(const char *text, size_t length, struct reader *reader)
{
	static const char last[] = "\nend\n";
	size_t line = 0;

	reader->number = 1;
	if (length > SS_PLAN_MAX_BYTES)
		return wrong(reader, "the plan is longer than %d bytes", SS_PLAN_MAX_BYTES);
	for (size_t i = 0; i < length; i++) {
		if (++line > SS_PLAN_MAX_LINE)
			return wrong(reader, "longer than %d bytes", SS_PLAN_MAX_LINE);
		if (text[i] == '\n') {
			line = 0;
			reader->number++;
		} else if (text[i] < ' ' || text[i] > '~') {
			return wrong(reader, "a byte that is not printable ASCII");
		}
	}
	if (length < strlen(last) || memcmp(text + length - strlen(last), last, strlen(last)) != 0)
		return wrong(reader, "the plan is torn: its last line is not 'end'");
	reader->number = 0;
	return 0;
}

enum ss_plan_state ss_plan_parse(const char *text, size_t length, const struct ss_plan_owner *owner, struct ss_plan **result,
				 char *why, size_t size)
{
	struct reader reader = { .why = why, .why_size = size };

	if (check_text(text, length, &reader) != 0)
		return SS_PLAN_BAD;
	struct ss_plan *plan = calloc(1, sizeof *plan);
	char *copy = malloc(length + 1);
	if (plan == NULL || copy == NULL) {
		free(plan);
		free(copy);
		(void)wrong(&reader, "no memory");
		return SS_PLAN_BAD;
	}
	memcpy(copy, text, length);
	copy[length] = '\0';
	plan->text = reader.next = copy;
	if (read_plan(&reader, owner, plan) != 0) {
		ss_plan_free(plan);
		return SS_PLAN_BAD;
	}
	*result = plan;
	return SS_PLAN_READ;
}

/* At most one byte more than a plan may have, so that a longer file is noticed. -1 with errno. */
static ssize_t read_whole(int fd, char *buffer, size_t size)
{
	size_t used = 0;

	while (used < size) {
		ssize_t n = read(fd, buffer + used, size - used);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		if (n == 0)
			break;
		used += (size_t)n;
	}
	return (ssize_t)used;
}

/* The file has to be one that only root or the job's user can have written. */
static int check_file(int fd, uid_t uid, struct stat *file, char *why, size_t size)
{
	if (fstat(fd, file) != 0) {
		(void)snprintf(why, size, "%s", strerror(errno));
		return -1;
	}
	if (!S_ISREG(file->st_mode))
		(void)snprintf(why, size, "not a regular file");
	else if (file->st_uid != 0 && file->st_uid != uid)
		(void)snprintf(why, size, "belongs to user id %u, neither to root nor to the job's user", file->st_uid);
	else if (file->st_mode & (S_IWGRP | S_IWOTH))
		(void)snprintf(why, size, "others can write to it");
	else if (file->st_size > SS_PLAN_MAX_BYTES)
		(void)snprintf(why, size, "longer than %d bytes", SS_PLAN_MAX_BYTES);
	else
		return 0;
	return -1;
}

enum ss_plan_state ss_plan_read(const char *path, const struct ss_plan_owner *owner, struct ss_plan **plan, char *why, size_t size)
{
	/* O_NONBLOCK: a FIFO in the plan's place must not hold up the step */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
	struct stat file;

	if (fd < 0) {
		if (errno == ENOENT)
			return SS_PLAN_ABSENT;
		(void)snprintf(why, size, "%s", errno == ELOOP ? "a symbolic link" : strerror(errno));
		return SS_PLAN_BAD;
	}
	if (check_file(fd, owner->uid, &file, why, size) != 0) {
		(void)close(fd);
		return SS_PLAN_BAD;
	}
	size_t room = (size_t)file.st_size + 1;
	char *text = malloc(room);
	ssize_t length = text ? read_whole(fd, text, room) : -1;
	int saved = errno;
	(void)close(fd);
	enum ss_plan_state state = SS_PLAN_BAD;
	if (length < 0)
		(void)snprintf(why, size, "%s", text ? strerror(saved) : "no memory");
	else
		state = ss_plan_parse(text, (size_t)length, owner, plan, why, size);
	free(text);
	return state;
}

void ss_plan_free(struct ss_plan *plan)
{
	if (plan == NULL)
		return;
	free(plan->notes);
	free(plan->assignments);
	free(plan->slot_storage);
	free(plan->text);
	free(plan);
}
