/* Small functions that several files use. */
#ifndef SLURM_SHARE_COMMON_H
#define SLURM_SHARE_COMMON_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

/* Write the reason of a failure into the caller's buffer, and return -1. */
__attribute__((format(printf, 3, 4)))
static inline int ss_fail(char *why, size_t size, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	(void)vsnprintf(why, size, format, arguments);
	va_end(arguments);
	return -1;
}

/* Return the milliseconds of a clock that cannot be set. */
static inline int64_t ss_now_ms(void)
{
	struct timespec clock = { 0, 0 };

	(void)clock_gettime(CLOCK_MONOTONIC, &clock);
	return (int64_t)clock.tv_sec * 1000 + clock.tv_nsec / 1000000;
}

static inline const char *ss_plural(uint32_t count)
{
	return count == 1 ? "" : "s";
}

#endif
