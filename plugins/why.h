/* Write the reason of a failure into the caller's buffer, and return -1. */
#ifndef SLURM_SHARE_WHY_H
#define SLURM_SHARE_WHY_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

__attribute__((format(printf, 3, 4)))
static inline int ss_fail(char *why, size_t size, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	(void)vsnprintf(why, size, format, arguments);
	va_end(arguments);
	return -1;
}

#endif
