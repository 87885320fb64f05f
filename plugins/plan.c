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

/* The largest number in a plan, and the largest N in /dev/nvidiaN. */
enum { MOST_NUMBER = 999999999, MOST_MINOR = 255 };

/* The state of reading a plan line by line; errors name the line. */
struct reader {
	char *next;   /* the first byte after the current line */
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

/* Go to the next line. check_text() has ensured that every line ends in a newline and is short. */
static void step(struct reader *reader)
{
	reader->line = reader->next;
	char *newline = strchr(reader->line, '\n');
	if (newline == NULL) { /* after the last line */
		reader->next = reader->line + strlen(reader->line);
	} else {
		*newline = '\0';
		reader->next = newline + 1;
	}
	reader->number++;
}

/* Return the text after "KEY " on the next line; NULL and an error if the line begins otherwise. */
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
	const char *token = take(reader, key);

	if (token == NULL)
		return -1;
	if (ss_number_parse(token, strlen(token), least, most, number) != 0)
		return wrong(reader, "'%s' is a number from %u to %u", key, least, most);
	return 0;
}

/* Cut the text before the next `blank` off `*rest` and return it; NULL at the end. */
static char *cut(char **rest, char blank)
{
	char *token = *rest;

	if (token == NULL)
		return NULL;
	char *end = strchr(token, blank);
	if (end != NULL)
		*end++ = '\0';
	*rest = end;
	return token;
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

/* Return the text after "KEY NUMBER " on the next line; NULL and an error if the line begins otherwise. */
static char *take_numbered(struct reader *reader, const char *key, uint32_t number)
{
	char *rest = take(reader, key);
	uint32_t found;

	if (rest == NULL)
		return NULL;
	const char *token = cut(&rest, ' ');
	if (ss_number_parse(token, strlen(token), 0, SS_PLAN_MAX_SLOTS, &found) != 0 || found != number || rest == NULL) {
		(void)wrong(reader, "'%s %u ...' was expected here", key, number);
		return NULL;
	}
	return rest;
}

/* A field NAME=value of a line. */
struct field {
	const char *name;
	bool is_required;
	char *value; /* NULL: the line does not have it */
};

static struct field *find_field(struct field *fields, size_t count, const char *name, size_t length)
{
	for (size_t i = 0; i < count; i++)
		if (strlen(fields[i].name) == length && memcmp(fields[i].name, name, length) == 0)
			return &fields[i];
	return NULL;
}

static int read_fields(const struct reader *reader, char *rest, struct field *fields, size_t count)
{
	char *token;

	while ((token = cut(&rest, ' ')) != NULL) {
		size_t length = strcspn(token, "=");
		struct field *field = find_field(fields, count, token, length);
		if (field == NULL || field->value != NULL || token[length] == '\0' || token[length + 1] == '\0')
			return wrong(reader, "'%.80s' is not a field of this line", token);
		field->value = token + length + 1;
	}
	for (size_t i = 0; i < count; i++)
		if (fields[i].is_required && fields[i].value == NULL)
			return wrong(reader, "'%s=...' was expected here", fields[i].name);
	return 0;
}

/* Parse the number in a field. A missing field leaves `*number` unchanged. */
static int field_number(const struct reader *reader, const struct field *field, uint32_t most, uint32_t *number)
{
	if (field->value != NULL && ss_number_parse(field->value, strlen(field->value), 0, most, number) != 0)
		return wrong(reader, "'%s' is a number from 0 to %u", field->name, most);
	return 0;
}

/* Check for a decimal number of up to three digits, with up to three decimals. */
static int check_decimal(const struct reader *reader, const struct field *field)
{
	static const char digits[] = "0123456789";

	if (field->value == NULL)
		return 0;
	size_t whole = strspn(field->value, digits), end = whole;
	if (field->value[whole] == '.') {
		size_t decimals = strspn(field->value + whole + 1, digits);
		end += decimals > 0 && decimals <= 3 ? 1 + decimals : 0;
	}
	if (whole == 0 || whole > 3 || field->value[end] != '\0')
		return wrong(reader, "'%s' is a decimal number", field->name);
	return 0;
}

/* Parse I/P, with I below P, where P is `parts`. */
static int read_part(const char *text, uint32_t parts, struct ss_slot *slot)
{
	const char *slash = strchr(text, '/');

	if (slash == NULL || ss_number_parse(text, (size_t)(slash - text), 0, parts - 1, &slot->part) != 0 ||
	    ss_number_parse(slash + 1, strlen(slash + 1), parts, parts, &slot->parts) != 0)
		return -1;
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

/* Parse NAME=value or NAME?=value. */
static int read_assignment(const struct reader *reader, char *token, struct ss_assignment *assignment)
{
	char *equals = strchr(token, '=');

	if (equals == NULL)
		return wrong(reader, "'%.80s' is not NAME=value", token);
	assignment->unless_set = equals > token && equals[-1] == '?';
	equals[assignment->unless_set ? -1 : 0] = '\0';
	assignment->name = token;
	assignment->value = equals + 1;
	if (!is_name(token))
		return wrong(reader, "'%.80s' is not the name of a variable", token);
	return 0;
}

/* Read a slot's variables from the rest of a line. */
static int read_environment(const struct reader *reader, char *rest, struct ss_slot *slot, struct ss_assignment **free_assignment)
{
	char *token;

	slot->environment = *free_assignment;
	while ((token = cut(&rest, ' ')) != NULL) {
		if (read_assignment(reader, token, *free_assignment) != 0)
			return -1;
		(*free_assignment)++;
		slot->variables++;
	}
	return 0;
}

static int take_gpu(struct reader *reader, uint32_t number, struct ss_gpu *gpu)
{
	enum { UUID, INDEX, MINOR, MEMORY_MIB, HOST_MEMORY, SIMULATED, FIELDS };
	struct field fields[FIELDS] = { { "uuid", true, NULL },	       { "index", true, NULL },
					{ "minor", false, NULL },      { "memory_mib", false, NULL },
					{ "host_memory", false, NULL }, { "simulated", false, NULL } };
	static const char name[] = " name=";
	uint32_t index = 0, memory_mib = 0;
	char *rest = take_numbered(reader, "gpu", number);

	if (rest == NULL)
		return -1;
	char *end = strstr(rest, name); /* the name can have blanks in it */
	if (end == NULL)
		return wrong(reader, "'name=...' was expected here");
	*end = '\0';
	if (read_fields(reader, rest, fields, FIELDS) != 0 || field_number(reader, &fields[INDEX], MOST_NUMBER, &index) != 0)
		return -1;
	/* A MIG instance has its card's index and no device file of its own. */
	bool is_instance = strncmp(fields[UUID].value, "MIG-", 4) == 0;
	uint32_t minor = is_instance ? MOST_MINOR + 1 : index;
	if (field_number(reader, &fields[MINOR], MOST_NUMBER, &minor) != 0 ||
	    field_number(reader, &fields[MEMORY_MIB], MOST_NUMBER, &memory_mib) != 0)
		return -1;
	for (int flag = HOST_MEMORY; flag <= SIMULATED; flag++)
		if (fields[flag].value != NULL && strcmp(fields[flag].value, "yes") != 0)
			return wrong(reader, "'%s=yes' was expected here", fields[flag].name);
	gpu->uuid = fields[UUID].value;
	gpu->minor = minor <= MOST_MINOR ? (int)minor : -1;
	return 0;
}

static int take_slot(struct reader *reader, uint32_t number, const struct ss_plan *plan, struct ss_slot *slot,
		     struct ss_assignment **free_assignment)
{
	enum { GPU, PART, BACKEND, MEMORY_CAP_MIB, MEMORY_RATIO, SM_PERCENT, MPS_DIRECTORY, ON_GPU, MEMORY_LEAST_MIB, PARTITION,
	       SM_COUNT, CAP_BY, MPS_NAMESPACE, VARIABLES, FIELDS };
	struct field fields[FIELDS] = {
		{ "gpu", true, NULL },		   { "part", true, NULL },	   { "backend", true, NULL },
		{ "memory_cap_mib", false, NULL }, { "memory_ratio", false, NULL }, { "sm_percent", false, NULL },
		{ "mps_directory", false, NULL },  { "on_gpu", false, NULL },	    { "memory_least_mib", false, NULL },
		{ "partition", false, NULL },	   { "sm_count", false, NULL },	    { "cap_by", false, NULL },
		{ "mps_namespace", false, NULL },  { "backend_variables", false, NULL },
	};
	uint32_t on_gpu = 0, sm_count = 0, variables = 0;
	char *rest = take_numbered(reader, "slot", number);

	if (rest == NULL || read_fields(reader, rest, fields, FIELDS) != 0 ||
	    field_number(reader, &fields[GPU], plan->gpus - 1, &slot->gpu) != 0 ||
	    field_number(reader, &fields[MEMORY_CAP_MIB], MOST_NUMBER, &slot->memory_cap_mib) != 0 ||
	    field_number(reader, &fields[MEMORY_LEAST_MIB], MOST_NUMBER, &slot->memory_least_mib) != 0 ||
	    field_number(reader, &fields[SM_COUNT], MOST_NUMBER, &sm_count) != 0 ||
	    field_number(reader, &fields[ON_GPU], MOST_NUMBER, &on_gpu) != 0 ||
	    field_number(reader, &fields[VARIABLES], MOST_NUMBER, &variables) != 0 ||
	    check_decimal(reader, &fields[MEMORY_RATIO]) != 0 || check_decimal(reader, &fields[SM_PERCENT]) != 0)
		return -1;
	if (read_part(fields[PART].value, plan->slot_count, slot) != 0)
		return wrong(reader, "'part=I/%u' with I below %u was expected here", plan->slot_count, plan->slot_count);
	slot->memory_ratio = fields[MEMORY_RATIO].value;
	slot->mps_directory = fields[MPS_DIRECTORY].value;
	if (slot->mps_directory != NULL && slot->mps_directory[0] != '/')
		return wrong(reader, "'mps_directory' is an absolute path");
	if (fields[MPS_NAMESPACE].value != NULL && (fields[MPS_NAMESPACE].value[0] == '/' || slot->mps_directory == NULL))
		return wrong(reader, "'mps_namespace' is a path below 'mps_directory'");
	if (fields[MEMORY_LEAST_MIB].value != NULL &&
	    (fields[MEMORY_CAP_MIB].value == NULL || slot->memory_least_mib > slot->memory_cap_mib))
		return wrong(reader, "'memory_least_mib' is at most 'memory_cap_mib'");
	slot->is_cap_of_driver = fields[CAP_BY].value != NULL;
	if (slot->is_cap_of_driver && (strcmp(fields[CAP_BY].value, "driver") != 0 || fields[MEMORY_CAP_MIB].value == NULL))
		return wrong(reader, "'cap_by=driver' with 'memory_cap_mib' was expected here");
	rest = take(reader, "environment");
	if (rest == NULL || read_environment(reader, rest, slot, free_assignment) != 0)
		return -1;
	if (variables > slot->variables)
		return wrong(reader, "%u variables of the backend were expected here", variables);
	return 0;
}

static int read_slots(struct reader *reader, struct ss_plan *plan)
{
	struct ss_assignment *free_assignment = plan->assignments;

	for (uint32_t i = 0; i < plan->gpus; i++)
		if (take_gpu(reader, i, &plan->gpu[i]) != 0)
			return -1;
	for (uint32_t i = 0; i < plan->slot_count; i++)
		if (take_slot(reader, i, plan, &plan->slots[i], &free_assignment) != 0)
			return -1;
	return 0;
}

static int take_share(struct reader *reader, struct ss_plan *plan)
{
	struct ss_request request;
	char sentence[SS_SENTENCE_SIZE];

	plan->share = take(reader, "share");
	if (plan->share == NULL)
		return -1;
	if (ss_request_parse(plan->share, &request, sentence, sizeof sentence) != 0)
		return wrong(reader, "%.200s", sentence);
	if (request.off || !ss_request_is_canonical(&request, plan->share))
		return wrong(reader, "the share is not in its canonical form");
	plan->per_gpu = (uint32_t)request.per_gpu;
	plan->has_mem = request.mem_mib != SS_UNSET;
	return 0;
}

static int take_lost(struct reader *reader, struct ss_plan *plan)
{
	plan->lost = take(reader, "lost");
	if (plan->lost == NULL)
		return -1;
	plan->lost_count = 1;
	for (char *at = plan->lost; *at != '\0'; at++) {
		if (*at != ' ')
			continue;
		*at = ',';
		plan->lost_count++;
	}
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

/* Count the occurrences of a text, as an upper limit of assignments or notes, to allocate their array once. */
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
	plan->slots = calloc(plan->slot_count, sizeof *plan->slots);
	plan->gpu = calloc(plan->gpus, sizeof *plan->gpu);
	if (plan->notes == NULL || plan->assignments == NULL || plan->slots == NULL || plan->gpu == NULL)
		return wrong(reader, "no memory");
	if (follows(reader, "lost") && take_lost(reader, plan) != 0)
		return -1;
	while (follows(reader, "note")) {
		const char *note = take(reader, "note");
		if (note == NULL)
			return -1;
		plan->notes[plan->note_count++] = note;
	}
	if (read_slots(reader, plan) != 0)
		return -1;
	return take_end(reader);
}

/* Check that the text is printable ASCII in lines of limited length, the last one "end". The rest of the parser relies on that. */
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
		return wrong(reader, "the plan is truncated: its last line is not 'end'");
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

/* Read at most `size` bytes. The caller gives one byte more than the file's size, to notice a file that grows. Return -1 with errno
 * on failure. */
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

/* Check that only root or the job's user can have written the file. */
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
	/* O_NONBLOCK: opening a FIFO in the plan's place must not block the step */
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
	free(plan->slots);
	free(plan->gpu);
	free(plan->text);
	free(plan);
}
