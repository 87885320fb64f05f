#include "slots.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "options.h"

void ss_slots_of_plan(const struct ss_plan *plan, struct ss_slots *slots)
{
	memset(slots, 0, sizeof *slots);
	slots->count = plan->slot_count;
	for (uint32_t slot = 0; slot < plan->slot_count; slot++) {
		uint32_t gpu = 0;
		while (gpu < slots->gpus && plan->slots[slots->first[gpu]].gpu != plan->slots[slot].gpu)
			gpu++;
		if (gpu == slots->gpus)
			slots->first[slots->gpus++] = (uint16_t)slot;
		slots->gpu[slot] = (uint16_t)gpu;
	}
}

static bool is_allowed(const bool *allowed, uint32_t gpu)
{
	return allowed == NULL || allowed[gpu];
}

/* Return the lowest free slot of a GPU from `slot` on; slots->count if there is none. */
static uint32_t next_free(const struct ss_slots *slots, uint32_t gpu, uint32_t slot)
{
	while (slot < slots->count && (slots->gpu[slot] != gpu || slots->state[slot] != SS_SLOT_FREE))
		slot++;
	return slot;
}

uint32_t ss_slots_choose(const struct ss_slots *slots, const bool *allowed, uint32_t wanted, uint32_t *chosen)
{
	uint16_t left[SS_PLAN_MAX_SLOTS] = { 0 }, next[SS_PLAN_MAX_SLOTS];
	uint32_t found = 0;

	for (uint32_t slot = 0; slot < slots->count; slot++)
		if (slots->state[slot] == SS_SLOT_FREE && is_allowed(allowed, slots->gpu[slot]))
			left[slots->gpu[slot]]++;
	for (uint32_t gpu = 0; gpu < slots->gpus; gpu++)
		next[gpu] = (uint16_t)next_free(slots, gpu, 0);
	for (; found < wanted; found++) {
		uint32_t best = 0;
		for (uint32_t gpu = 1; gpu < slots->gpus; gpu++)
			if (left[gpu] > left[best] || (left[gpu] == left[best] && next[gpu] < next[best]))
				best = gpu;
		if (slots->gpus == 0 || left[best] == 0)
			break;
		chosen[found] = next[best];
		left[best]--;
		next[best] = (uint16_t)next_free(slots, best, next[best] + 1U);
	}
	return found;
}

uint32_t ss_slots_count(const struct ss_slots *slots, const bool *allowed, enum ss_slot_state state)
{
	uint32_t count = 0;
	for (uint32_t slot = 0; slot < slots->count; slot++)
		if (slots->state[slot] == state && is_allowed(allowed, slots->gpu[slot]))
			count++;
	return count;
}

static const struct ss_gpu *gpu_of(const struct ss_plan *plan, const struct ss_slots *slots, uint32_t gpu)
{
	return &plan->gpu[plan->slots[slots->first[gpu]].gpu];
}

int ss_slots_minor(const struct ss_plan *plan, const struct ss_slots *slots, uint32_t gpu)
{
	return gpu_of(plan, slots, gpu)->minor;
}

static bool is_named(const struct ss_plan *plan, const struct ss_slots *slots, uint32_t gpu, const char *label, size_t length)
{
	const char *name = gpu_of(plan, slots, gpu)->uuid;
	uint32_t number;

	if (ss_number_parse(label, length, 0, 255, &number) == 0)
		return ss_slots_minor(plan, slots, gpu) == (int)number;
	return strlen(name) == length && memcmp(name, label, length) == 0;
}

uint32_t ss_slots_listed(const struct ss_plan *plan, const struct ss_slots *slots, const char *list, bool *listed)
{
	uint32_t count = 0;

	memset(listed, 0, slots->gpus * sizeof *listed);
	while (*list != '\0') {
		size_t length = strcspn(list, ",");
		for (uint32_t gpu = 0; gpu < slots->gpus; gpu++)
			if (!listed[gpu] && is_named(plan, slots, gpu, list, length)) {
				listed[gpu] = true;
				count++;
			}
		list += length + (list[length] == ',');
	}
	return count;
}

uint32_t ss_slots_lost(const struct ss_plan *plan, const char *list)
{
	uint32_t count = 0;

	while (plan->lost != NULL && *list != '\0') {
		size_t length = strcspn(list, ",");
		for (const char *at = plan->lost; *at != '\0';) {
			size_t name = strcspn(at, ",");
			count += name == length && memcmp(at, list, length) == 0;
			at += name + (at[name] == ',');
		}
		list += length + (list[length] == ',');
	}
	return count;
}

size_t ss_holding_render(const struct ss_holding *holding, char text[SS_HOLDING_SIZE])
{
	int length = snprintf(text, SS_HOLDING_SIZE, "step %" PRIu32 " holder %" PRIu32 " %" PRIu64 " task %" PRIu32 " %" PRIu64 "\n",
			      holding->step, holding->holder.pid, holding->holder.start, holding->task.pid, holding->task.start);
	return length > 0 && length < SS_HOLDING_SIZE ? (size_t)length : 0;
}

/* Parse a label, a number and the character `end` at `*at`, and advance `*at` past them. */
static int parse_field(const char **at, const char *label, char end, uint64_t *number)
{
	size_t length = strlen(label), digits;
	uint64_t value = 0;

	if (strncmp(*at, label, length) != 0)
		return -1;
	digits = strspn(*at + length, "0123456789");
	if (digits == 0 || digits > 19 || (*at)[length + digits] != end)
		return -1;
	for (size_t i = 0; i < digits; i++)
		value = value * 10 + (uint64_t)((*at)[length + i] - '0');
	*number = value;
	*at += length + digits + 1;
	return 0;
}

int ss_holding_parse(const char *text, size_t length, struct ss_holding *holding)
{
	char copy[SS_HOLDING_SIZE];
	const char *at = copy;
	uint64_t step, holder, task;

	if (length >= sizeof copy)
		return -1;
	memcpy(copy, text, length);
	copy[length] = '\0';
	if (parse_field(&at, "step ", ' ', &step) != 0 || parse_field(&at, "holder ", ' ', &holder) != 0 ||
	    parse_field(&at, "", ' ', &holding->holder.start) != 0 || parse_field(&at, "task ", ' ', &task) != 0 ||
	    parse_field(&at, "", '\n', &holding->task.start) != 0 || at != copy + length)
		return -1;
	if (step > UINT32_MAX || holder > INT32_MAX || task > INT32_MAX)
		return -1;
	holding->step = (uint32_t)step;
	holding->holder.pid = (uint32_t)holder;
	holding->task.pid = (uint32_t)task;
	return 0;
}
