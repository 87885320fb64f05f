#include "given.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

/* An item of a record; `name` and `value` are copies. */
struct item {
	char name[256];
	bool has_value; /* false: any value is slurm-share's */
	char value[SS_GIVEN_MAX_BYTES];
};

static const char *get_own(void *of, const char *name)
{
	(void)of;
	return getenv(name);
}

static void give_own(void *of, const char *name, const char *value, bool overwrite)
{
	(void)of;
	(void)setenv(name, value, overwrite);
}

static void unset_own(void *of, const char *name)
{
	(void)of;
	(void)unsetenv(name);
}

const struct ss_environment ss_own_environment = { NULL, get_own, give_own, unset_own };

static bool begins(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

static int digit_of(char letter)
{
	static const char digits[] = "0123456789ABCDEF";
	const char *found = letter != '\0' ? strchr(digits, letter) : NULL;

	return found != NULL ? (int)(found - digits) : -1;
}

/* Decode %XX. A text that is not in the form of a record's values is copied as it is. */
static void decode(const char *text, size_t length, char *value)
{
	size_t used = 0;

	for (size_t at = 0; at < length; at++) {
		int high = text[at] == '%' && at + 2 < length ? digit_of(text[at + 1]) : -1;
		int low = high >= 0 ? digit_of(text[at + 2]) : -1;
		if (low >= 0) {
			value[used++] = (char)(unsigned char)(high * 16 + low);
			at += 2;
		} else {
			value[used++] = text[at];
		}
	}
	value[used] = '\0';
}

/* Return whether the name is slurm-share's own with any value (given_variables.py, OWN_PREFIXES). */
static bool is_own(const char *name)
{
	return begins(name, SS_GIVEN_PREFIX) || begins(name, "LLSUB_") || begins(name, "LLMR");
}

/* Read the item at `*at`, and move `*at` behind it. Return false at the end of the record. */
static bool next_item(const char **at, struct item *item)
{
	for (;;) {
		const char *begin = *at + strspn(*at, " ");
		size_t length = strcspn(begin, " "), name = strcspn(begin, "= ");
		if (length == 0)
			return false;
		*at = begin + length;
		if (name == 0 || name >= sizeof item->name || length >= sizeof item->value)
			continue;
		memcpy(item->name, begin, name);
		item->name[name] = '\0';
		item->has_value = name < length;
		item->value[0] = '\0';
		/* a record that was cut off or written by somebody else must not remove PATH */
		if (!item->has_value && !is_own(item->name))
			continue;
		if (item->has_value)
			decode(begin + name + 1, length - name - 1, item->value);
		return true;
	}
}

/* Return the job of a record, 0 if it has none, and set `*items` to its items. */
static uint32_t job_of(const char *record, const char **items)
{
	size_t digits = strcspn(record, " ");
	uint32_t job = 0;

	*items = record + digits;
	return ss_number_parse(record, digits, 1, UINT32_MAX, &job) == 0 ? job : 0;
}

/* Copy the environment's record, which `get` may overwrite. Return false if there is none. */
static bool copy_record(const struct ss_environment *environment, char *record, size_t size)
{
	const char *found = environment->get(environment->of, SS_ENV_GIVEN);

	if (found == NULL)
		return false;
	(void)snprintf(record, size, "%s", found);
	return true;
}

/* Return whether the variable still is as the item says. */
static bool is_true(const struct ss_environment *environment, const struct item *item)
{
	const char *value = environment->get(environment->of, item->name);

	return value != NULL && (!item->has_value || strcmp(value, item->value) == 0);
}

/* Remove the item of a name. */
static void drop(struct ss_given *given, const char *name)
{
	size_t length = strlen(name);

	for (char *at = given->text; *at != '\0';) {
		size_t item = 1 + strcspn(at + 1, " ");
		if (strncmp(at + 1, name, length) == 0 && (at[1 + length] == '=' || at[1 + length] == ' ' || at[1 + length] == '\0')) {
			memmove(at, at + item, strlen(at + item) + 1);
			given->used -= item;
		} else {
			at += item;
		}
	}
}

/* Add an item; `value` NULL: without a value. A record that is full stays as it is. */
static void add(struct ss_given *given, const char *name, const char *value)
{
	char item[SS_GIVEN_MAX_BYTES];
	int begun = snprintf(item, sizeof item, " %s%s", name, value != NULL ? "=" : "");
	size_t used = begun > 0 ? (size_t)begun : sizeof item;

	for (const char *at = value; at != NULL && *at != '\0' && used + 3 < sizeof item; at++) {
		unsigned char byte = (unsigned char)*at;
		if (byte <= ' ' || byte > '~' || byte == '%')
			used += (size_t)snprintf(item + used, 4, "%%%02X", byte);
		else
			item[used++] = *at;
	}
	/* with the number of the job before it */
	if (used + 3 >= sizeof item || given->used + used + 11 >= sizeof given->text)
		return;
	memcpy(given->text + given->used, item, used);
	given->used += used;
	given->text[given->used] = '\0';
}

void ss_given_begin(struct ss_given *given, const struct ss_environment *environment, uint32_t job)
{
	static char record[SS_GIVEN_MAX_BYTES];
	static struct item item;
	const char *at = NULL;

	given->job = job;
	given->used = 0;
	given->text[0] = '\0';
	if (!copy_record(environment, record, sizeof record) || job_of(record, &at) != job)
		return;
	while (next_item(&at, &item))
		if (is_true(environment, &item))
			add(given, item.name, item.has_value ? item.value : NULL);
}

void ss_given_set(struct ss_given *given, const struct ss_environment *environment, const char *name, const char *value,
		  bool overwrite)
{
	if (!overwrite && environment->get(environment->of, name) != NULL)
		return;
	environment->give(environment->of, name, value, true);
	drop(given, name);
	add(given, name, begins(name, SS_GIVEN_PREFIX) ? NULL : value);
}

void ss_given_set_number(struct ss_given *given, const struct ss_environment *environment, const char *name, uint32_t number,
			 bool overwrite)
{
	char value[16];

	(void)snprintf(value, sizeof value, "%u", number);
	ss_given_set(given, environment, name, value, overwrite);
}

void ss_given_end(const struct ss_given *given, const struct ss_environment *environment)
{
	char record[SS_GIVEN_MAX_BYTES + 16];

	(void)snprintf(record, sizeof record, "%u%s", given->job, given->text);
	environment->give(environment->of, SS_ENV_GIVEN, record, true);
}

bool ss_given_has(const struct ss_environment *environment, uint32_t job, const char *name)
{
	static char record[SS_GIVEN_MAX_BYTES];
	static struct item item;
	const char *at = NULL;

	if (!copy_record(environment, record, sizeof record) || job_of(record, &at) != job)
		return false;
	while (next_item(&at, &item))
		if (strcmp(item.name, name) == 0)
			return is_true(environment, &item);
	return false;
}

/* Return whether Slurm itself may have set the variable for a job. */
static bool is_slurms(const char *name)
{
	return (begins(name, "SLURM_") && !begins(name, SS_GIVEN_PREFIX)) || strcmp(name, SS_ENV_VISIBLE_DEVICES) == 0;
}

void ss_given_forget(const struct ss_environment *environment, uint32_t job, bool slurms_stay)
{
	static char record[SS_GIVEN_MAX_BYTES];
	static struct item item;
	const char *at = NULL;

	if (!copy_record(environment, record, sizeof record))
		return;
	uint32_t of = job_of(record, &at);
	if (job != 0 && of == job)
		return;
	while (next_item(&at, &item))
		if (!(slurms_stay && is_slurms(item.name)) && is_true(environment, &item))
			environment->unset(environment->of, item.name);
	environment->unset(environment->of, SS_ENV_GIVEN);
}
