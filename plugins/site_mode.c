#include "site_mode.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The most parts of a key, and the size of each: longer keys are ignored. */
enum { PARTS_MAX = 8, PART_SIZE = 128, FILE_MAX = 1 << 20 };

/* A dotted key: partition.gpu.mode has three parts. */
struct key {
	int parts;
	char part[PARTS_MAX][PART_SIZE];
};

static const char *skip_blanks(const char *at)
{
	return at + strspn(at, " \t");
}

/* Copy a part of a key or a quoted string, and return the text after it. Return NULL if there is neither. */
static const char *read_token(const char *at, char token[PART_SIZE])
{
	static const char bare[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
	bool is_quoted = *at == '"' || *at == '\'';
	size_t length = is_quoted ? strcspn(at + 1, *at == '"' ? "\"\\\n" : "'\n") : strspn(at, bare);

	if (is_quoted && at[1 + length] != *at)
		return NULL; /* an escape sequence, or no closing quote */
	if ((!is_quoted && length == 0) || length >= PART_SIZE)
		return NULL;
	memcpy(token, at + is_quoted, length);
	token[length] = '\0';
	return at + length + (is_quoted ? 2 : 0);
}

/* Append the parts of a key to those of its table; return the text after it, or NULL. */
static const char *read_key(const char *at, struct key *key)
{
	for (at = skip_blanks(at); key->parts < PARTS_MAX; at = skip_blanks(at + 1)) {
		at = read_token(at, key->part[key->parts]);
		if (at == NULL)
			return NULL;
		key->parts++;
		at = skip_blanks(at);
		if (*at != '.')
			return at;
	}
	return NULL;
}

static bool is_at_end(const char *at)
{
	at = skip_blanks(at);
	return *at == '\0' || *at == '#' || *at == '\r';
}

static enum ss_mode mode_of(const char *token)
{
	if (strcmp(token, "on") == 0)
		return SS_MODE_ON;
	if (strcmp(token, "observe") == 0)
		return SS_MODE_OBSERVE;
	return strcmp(token, "off") == 0 ? SS_MODE_OFF : SS_MODE_UNKNOWN;
}

/* Parse a line [table]. Return false for [[array]] and for a line that cannot be parsed. */
static bool read_table(const char *line, struct key *table)
{
	table->parts = 0;
	const char *at = line[1] != '[' ? read_key(line + 1, table) : NULL;
	return at != NULL && *at == ']' && is_at_end(at + 1);
}

struct modes {
	enum ss_mode site, partition;
	bool is_switched_off; /* by `slurm-share off`, for every partition */
	bool names_partition; /* the file has a mode for the partition */
};

static void read_line(const char *line, const struct key *table, const char *partition, struct modes *modes)
{
	struct key key = *table;
	char token[PART_SIZE];
	const char *at = read_key(line, &key);

	if (at == NULL || *at != '=')
		return;
	if (key.parts == 1 && strcmp(key.part[0], "switched_off") == 0) {
		at = skip_blanks(at + 1);
		modes->is_switched_off = strncmp(at, "true", 4) == 0 && is_at_end(at + 4);
		return;
	}
	if (strcmp(key.part[key.parts - 1], "mode") != 0)
		return;
	at = skip_blanks(at + 1);
	bool is_text = *at == '"' || *at == '\'';
	at = is_text ? read_token(at, token) : NULL;
	enum ss_mode mode = at != NULL && is_at_end(at) ? mode_of(token) : SS_MODE_UNKNOWN;
	if (key.parts == 1) {
		modes->site = mode;
	} else if (key.parts == 3 && strcmp(key.part[0], "partition") == 0 && partition != NULL && strcmp(key.part[1], partition) == 0) {
		modes->partition = mode;
		modes->names_partition = true;
	}
}

enum ss_mode ss_site_mode_parse(const char *text, const char *partition)
{
	struct modes modes = { .site = SS_MODE_OBSERVE };
	struct key table = { 0 };
	bool is_parsed = true;
	char line[1024];

	while (*text != '\0') {
		size_t length = strcspn(text, "\n");
		size_t kept = length < sizeof line ? length : sizeof line - 1;
		memcpy(line, text, kept);
		line[kept] = '\0';
		text += length + (text[length] == '\n');
		const char *at = skip_blanks(line);
		if (*at == '[')
			is_parsed = read_table(at, &table);
		else if (is_parsed)
			read_line(at, &table, partition, &modes);
	}
	if (modes.is_switched_off)
		return SS_MODE_OFF;
	return modes.names_partition ? modes.partition : modes.site;
}

void ss_site_mode_read(const char *path, const char *partition, struct ss_site_mode *found)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat file;

	*found = (struct ss_site_mode){ fd < 0 && errno == ENOENT ? SS_MODE_OBSERVE : SS_MODE_UNKNOWN, 0 };
	if (fd < 0)
		return;
	if (fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_size < FILE_MAX) {
		char *text = calloc((size_t)file.st_size + 1, 1);
		if (text != NULL && read(fd, text, (size_t)file.st_size) == (ssize_t)file.st_size)
			found->mode = ss_site_mode_parse(text, partition);
		found->changed_s = (int64_t)file.st_mtime;
		free(text);
	}
	(void)close(fd);
}
