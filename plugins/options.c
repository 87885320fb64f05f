#include "options.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "names.h"

/* A piece of the user's text, not ended by a NUL. */
struct span {
	const char *at;
	size_t length;
};

/* The user's text, and the buffer for the sentence about it. */
struct refusal {
	const char *text;
	char *sentence;
	size_t size;
};

static bool is_text(struct span span, const char *text)
{
	return span.length == strlen(text) && memcmp(span.at, text, span.length) == 0;
}

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Copy untrusted text for output on a terminal: at most `size` bytes, with other bytes than printable ASCII replaced. */
static const char *show(struct span span, char *buffer, size_t size)
{
	size_t n = 0;
	while (n < span.length && n + 4 < size) {
		char c = span.at[n];
		buffer[n++] = c >= ' ' && c <= '~' ? c : '?';
	}
	(void)snprintf(buffer + n, size - n, "%s", n < span.length ? "..." : "");
	return buffer;
}

__attribute__((format(printf, 2, 3)))
static int refuse(const struct refusal *refusal, const char *format, ...)
{
	char why[256], shown[SS_OPTION_MAX_BYTES + 8];
	va_list arguments;

	va_start(arguments, format);
	(void)vsnprintf(why, sizeof why, format, arguments);
	va_end(arguments);
	show((struct span){ refusal->text, strlen(refusal->text) }, shown, sizeof shown);
	(void)snprintf(refusal->sentence, refusal->size,
		       "--" SS_OPTION "=%s: %s; write --" SS_OPTION "=" SS_OPTION_FORM ", for example --" SS_OPTION "=" SS_OPTION_EXAMPLE, shown, why);
	return -1;
}

int ss_number_parse(const char *digits, size_t length, uint32_t least, uint32_t most, uint32_t *number)
{
	uint64_t value = 0;

	if (length == 0 || length > 10 || (digits[0] == '0' && length > 1))
		return -1;
	for (size_t i = 0; i < length; i++) {
		if (digits[i] < '0' || digits[i] > '9')
			return -1;
		value = value * 10 + (uint64_t)(digits[i] - '0');
	}
	if (value < least || value > most)
		return -1;
	*number = (uint32_t)value;
	return 0;
}

static int parse_per_gpu(struct span span, struct ss_request *request, const struct refusal *refusal)
{
	uint32_t number;
	char shown[32];

	if (ss_number_parse(span.at, span.length, 1, SS_SHARE_MAX, &number) == 0) {
		request->per_gpu = (int)number;
		return 0;
	}
	if (span.length == 0)
		return refuse(refusal, "the number of tasks on each GPU is missing");
	return refuse(refusal, "'%s' is not a number of tasks on each GPU (1 to %d)", show(span, shown, sizeof shown),
		      SS_SHARE_MAX);
}

/* Parse a size in the form of Slurm's --mem: MiB without a unit; M, MB and MiB are the same. */
static int parse_size(struct span span, int32_t *mib, const struct refusal *refusal)
{
	uint32_t number, unit = 1;
	size_t digits = 0;
	char shown[32];

	while (digits < span.length && span.at[digits] >= '0' && span.at[digits] <= '9')
		digits++;
	struct span suffix = { span.at + digits, span.length - digits };
	bool known = suffix.length == 0;
	if (suffix.length >= 1 && suffix.length <= 3) {
		switch (lower(suffix.at[0])) {
		case 'm': unit = 1; known = true; break;
		case 'g': unit = 1024; known = true; break;
		case 't': unit = 1024 * 1024; known = true; break;
		default: break;
		}
		if (suffix.length == 2)
			known = known && lower(suffix.at[1]) == 'b';
		else if (suffix.length == 3)
			known = known && lower(suffix.at[1]) == 'i' && lower(suffix.at[2]) == 'b';
	}
	if (known && ss_number_parse(span.at, digits, 1, SS_MEM_MAX_MIB / unit, &number) == 0) {
		if (suffix.length == 0 && number < SS_MEM_BARE_MIN_MIB)
			return refuse(refusal, SS_OPTION_MEM "=%u would be %u MiB, and a size below %d needs its unit: "
				      SS_OPTION_MEM "=%uG", number, number, SS_MEM_BARE_MIN_MIB, number);
		if (number * unit < SS_MEM_MIN_MIB)
			return refuse(refusal, SS_OPTION_MEM "=%uM is less than any CUDA program needs (%dM at least): "
				      SS_OPTION_MEM "=%uG", number, SS_MEM_MIN_MIB, number);
		*mib = (int32_t)(number * unit);
		return 0;
	}
	return refuse(refusal, SS_OPTION_MEM "='%s' is not a size like 8G or 800M, at most 16T", show(span, shown, sizeof shown));
}

/* Parse one size, or two: what a task is sure of, and the most it may take. */
static int parse_mem(struct span span, struct ss_request *request, const struct refusal *refusal)
{
	const char *colon = memchr(span.at, ':', span.length);
	char shown_least[32], shown_most[32];

	if (colon == NULL)
		return parse_size(span, &request->mem_mib, refusal);
	struct span least = { span.at, (size_t)(colon - span.at) };
	struct span most = { colon + 1, span.length - least.length - 1 };
	if (parse_size(least, &request->mem_least_mib, refusal) != 0 || parse_size(most, &request->mem_mib, refusal) != 0)
		return -1;
	if (request->mem_least_mib < request->mem_mib)
		return 0;
	show(least, shown_least, sizeof shown_least);
	show(most, shown_most, sizeof shown_most);
	if (request->mem_least_mib == request->mem_mib)
		return refuse(refusal, SS_OPTION_MEM "=%s:%s names one size twice: " SS_OPTION_MEM "=%s", shown_least, shown_most,
			      shown_most);
	return refuse(refusal, SS_OPTION_MEM "=%s:%s: the first size is what a task is sure of, the second the most it may take, and %s "
		      "is less than %s: " SS_OPTION_MEM "=%s:%s", shown_least, shown_most, shown_most, shown_least, shown_most,
		      shown_least);
}

static int parse_sm(struct span span, struct ss_request *request, const struct refusal *refusal)
{
	uint32_t number;
	char shown[32];

	if (is_text(span, SS_SM_EVEN)) {
		request->sm = SS_SM_IS_EVEN;
		return 0;
	}
	if (is_text(span, SS_SM_FREE)) {
		request->sm = SS_SM_IS_FREE;
		return 0;
	}
	if (is_text(span, SS_SM_STATIC)) {
		request->sm = SS_SM_IS_STATIC;
		return 0;
	}
	size_t digits = span.length > 0 && span.at[span.length - 1] == '%' ? span.length - 1 : span.length;
	if (ss_number_parse(span.at, digits, 1, 100, &number) == 0) {
		request->sm = (int)number;
		return 0;
	}
	return refuse(refusal, SS_OPTION_SM "='%s' is not a percentage from 1 to 100, " SS_SM_EVEN ", " SS_SM_FREE " or " SS_SM_STATIC,
		      show(span, shown, sizeof shown));
}

/* The words of sharing=, by enum ss_sharing. */
static const char *const sharing_words[] = { SS_SHARING_AUTO, SS_SHARING_MPS, SS_SHARING_TIME_SLICING, SS_SHARING_EXCLUSIVE };

static int parse_sharing(struct span span, int *sharing, const struct refusal *refusal)
{
	char shown[32];

	for (int i = SS_AUTO; i <= SS_EXCLUSIVE; i++) {
		if (is_text(span, sharing_words[i])) {
			*sharing = i;
			return 0;
		}
	}
	return refuse(refusal, SS_OPTION_SHARING "='%s' is not " SS_SHARING_AUTO ", " SS_SHARING_MPS ", " SS_SHARING_TIME_SLICING " or "
		      SS_SHARING_EXCLUSIVE, show(span, shown, sizeof shown));
}

/* Parse the older words: mps=on is sharing=mps, and mps=off is sharing=time-slicing. */
static int parse_mps(struct span span, int *older, const struct refusal *refusal)
{
	char shown[32];

	if (is_text(span, SS_MPS_ON) || is_text(span, SS_MPS_OFF)) {
		*older = is_text(span, SS_MPS_ON) ? SS_MPS : SS_TIME_SLICING;
		return 0;
	}
	return refuse(refusal, SS_OPTION_MPS "='%s' is neither " SS_MPS_ON " nor " SS_MPS_OFF, show(span, shown, sizeof shown));
}

/* `older`: what mps= says, an enum ss_sharing. */
static int parse_setting(struct span span, struct ss_request *request, int *older, const struct refusal *refusal)
{
	const char *equals = memchr(span.at, '=', span.length);
	size_t key_length = equals ? (size_t)(equals - span.at) : span.length;
	struct span key = { span.at, key_length };
	struct span value = equals ? (struct span){ equals + 1, span.length - key_length - 1 } : (struct span){ "", 0 };
	char shown[32];

	show(key, shown, sizeof shown);
	if (is_text(key, SS_OPTION_MEM)) {
		if (request->mem_mib == SS_UNSET)
			return parse_mem(value, request, refusal);
	} else if (is_text(key, SS_OPTION_SM)) {
		if (request->sm == SS_UNSET)
			return parse_sm(value, request, refusal);
	} else if (is_text(key, SS_OPTION_SHARING)) {
		if (request->sharing == SS_UNSET)
			return parse_sharing(value, &request->sharing, refusal);
	} else if (is_text(key, SS_OPTION_MPS)) {
		if (*older == SS_UNSET)
			return parse_mps(value, older, refusal);
	} else {
		return refuse(refusal, "'%s' is not one of " SS_OPTION_MEM ", " SS_OPTION_SM " and " SS_OPTION_SHARING, shown);
	}
	return refuse(refusal, "'%s' is given twice", shown);
}

/* Check the settings of a request together. */
static int check_together(const struct ss_request *request, const struct refusal *refusal)
{
	if (request->sharing != SS_TIME_SLICING && request->sharing != SS_EXCLUSIVE)
		return 0;
	const char *sharing = sharing_words[request->sharing];
	if (request->sharing == SS_EXCLUSIVE && request->per_gpu != 1)
		return refuse(refusal, SS_OPTION_SHARING "=%s gives each task a GPU of its own, and %d tasks are asked for on each: "
			      "--" SS_OPTION "=1," SS_OPTION_SHARING "=%s", sharing, request->per_gpu, sharing);
	if (request->sharing == SS_EXCLUSIVE && request->mem_mib != SS_UNSET)
		return refuse(refusal, "a task with a GPU of its own has all of its memory, so " SS_OPTION_MEM "= cannot go with "
			      SS_OPTION_SHARING "=%s: --" SS_OPTION "=1," SS_OPTION_SHARING "=%s", sharing, sharing);
	if (request->sm != SS_UNSET && request->sm != SS_SM_IS_FREE)
		return refuse(refusal, "MPS holds the cap on multiprocessors, so " SS_OPTION_SM "= cannot go with " SS_OPTION_SHARING
			      "=%s, except " SS_OPTION_SM "=" SS_SM_FREE, sharing);
	return 0;
}

int ss_request_parse(const char *text, struct ss_request *request, char *sentence, size_t size)
{
	struct refusal refusal = { text ? text : "", sentence, size };
	int older = SS_UNSET;

	*request = (struct ss_request){ false, SS_UNSET, SS_UNSET, SS_UNSET, SS_UNSET, SS_UNSET };
	if (text == NULL || text[0] == '\0')
		return refuse(&refusal, "the value is missing");
	if (strlen(text) > SS_OPTION_MAX_BYTES)
		return refuse(&refusal, "longer than %d characters", SS_OPTION_MAX_BYTES);
	if (strcmp(text, SS_OPTION_OFF) == 0) {
		request->off = true;
		return 0;
	}
	for (const char *at = text; at != NULL;) {
		const char *comma = strchr(at, ',');
		struct span span = { at, comma ? (size_t)(comma - at) : strlen(at) };
		int rc = at == text ? parse_per_gpu(span, request, &refusal) : parse_setting(span, request, &older, &refusal);
		if (rc != 0)
			return -1;
		at = comma ? comma + 1 : NULL;
	}
	if (older != SS_UNSET && request->sharing != SS_UNSET && request->sharing != older)
		return refuse(&refusal, SS_OPTION_MPS "=%s is an older word for " SS_OPTION_SHARING "=%s, and cannot go with "
			      SS_OPTION_SHARING "=%s: write one of them", older == SS_MPS ? SS_MPS_ON : SS_MPS_OFF,
			      sharing_words[older], sharing_words[request->sharing]);
	if (older != SS_UNSET)
		request->sharing = older;
	return check_together(request, &refusal);
}

/* Append with snprintf at `*used`; return -1 if the text does not fit. */
__attribute__((format(printf, 4, 5)))
static int append(char *text, size_t size, size_t *used, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	int n = vsnprintf(text + *used, size - *used, format, arguments);
	va_end(arguments);
	if (n < 0 || (size_t)n >= size - *used)
		return -1;
	*used += (size_t)n;
	return 0;
}

/* `older`: as releases before `sharing=` wrote it. */
static int render(const struct ss_request *request, bool older, char *text, size_t size)
{
	static const char *const sm_words[] = { SS_SM_EVEN, SS_SM_FREE, SS_SM_STATIC };
	size_t used = 0;
	int rc = 0;

	if (size == 0)
		return -1;
	if (request->off)
		return append(text, size, &used, "%s", SS_OPTION_OFF);
	rc |= append(text, size, &used, "%d", request->per_gpu);
	if (request->mem_least_mib != SS_UNSET)
		rc |= append(text, size, &used, "," SS_OPTION_MEM "=%dM:%dM", (int)request->mem_least_mib, (int)request->mem_mib);
	else if (request->mem_mib != SS_UNSET)
		rc |= append(text, size, &used, "," SS_OPTION_MEM "=%dM", (int)request->mem_mib);
	if (request->sm >= SS_SM_IS_EVEN)
		rc |= append(text, size, &used, "," SS_OPTION_SM "=%s", sm_words[request->sm - SS_SM_IS_EVEN]);
	else if (request->sm != SS_UNSET)
		rc |= append(text, size, &used, "," SS_OPTION_SM "=%d", request->sm);
	if (request->sharing == SS_UNSET)
		return rc;
	if (older && (request->sharing == SS_MPS || request->sharing == SS_TIME_SLICING))
		rc |= append(text, size, &used, "," SS_OPTION_MPS "=%s", request->sharing == SS_MPS ? SS_MPS_ON : SS_MPS_OFF);
	else
		rc |= append(text, size, &used, "," SS_OPTION_SHARING "=%s", sharing_words[request->sharing]);
	return rc;
}

int ss_request_render(const struct ss_request *request, char *text, size_t size)
{
	return render(request, false, text, size);
}

bool ss_request_is_canonical(const struct ss_request *request, const char *text)
{
	char canonical[SS_CANONICAL_SIZE], before[SS_CANONICAL_SIZE];

	return (render(request, false, canonical, sizeof canonical) == 0 && strcmp(text, canonical) == 0) ||
	       (render(request, true, before, sizeof before) == 0 && strcmp(text, before) == 0);
}
