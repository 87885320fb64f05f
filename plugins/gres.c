#include "gres.h"

#include <string.h>

#include "options.h"

static const char gpu[] = "gpu", shard[] = "shard";

/* Return the end of the item at `at`: its comma or the NUL. Parentheses can have commas in them; NULL if they do not match. */
static const char *end_of_item(const char *at)
{
	size_t inner = strcspn(at, "(),");

	if (at[inner] == ')')
		return NULL;
	if (at[inner] != '(')
		return at + inner;
	const char *close = strpbrk(at + inner + 1, "()");
	if (close == NULL || *close != ')' || (close[1] != ',' && close[1] != '\0'))
		return NULL;
	return close + 1;
}

static bool is_named(const char *item, size_t length, const char *name)
{
	return length == strlen(name) && memcmp(item, name, length) == 0;
}

static bool is_digits(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (text[i] < '0' || text[i] > '9')
			return false;
	return length > 0;
}

/* Parse NAME[:TYPE][:NUMBER], `length` bytes. */
static int read_item(const char *item, size_t length, struct ss_gres *gres)
{
	const char *colon = memchr(item, ':', length), *last = memrchr(item, ':', length);
	size_t name = colon ? (size_t)(colon - item) : length;
	uint32_t number = 1;

	if (name == 0)
		return -1;
	if (is_named(item, name, shard))
		gres->has_shards = true;
	if (!is_named(item, name, gpu))
		return 0;
	if (last != NULL) {
		size_t tail = length - (size_t)(last + 1 - item);
		if (tail == 0 || (is_digits(last + 1, tail) && ss_number_parse(last + 1, tail, 0, SS_GRES_MAX_GPUS, &number) != 0))
			return -1;
	}
	if (gres->gpus + number > SS_GRES_MAX_GPUS)
		return -1;
	gres->gpus += number;
	return 0;
}

int ss_gres_read(const char *text, struct ss_gres *gres)
{
	*gres = (struct ss_gres){ 0, false };
	if (text == NULL || text[0] == '\0' || strcmp(text, "(null)") == 0)
		return 0;
	for (const char *at = text; at != NULL;) {
		const char *end = end_of_item(at);
		if (end == NULL || read_item(at, strcspn(at, "(,"), gres) != 0) {
			*gres = (struct ss_gres){ 0, false };
			return -1;
		}
		at = *end == ',' ? end + 1 : NULL;
	}
	return 0;
}
