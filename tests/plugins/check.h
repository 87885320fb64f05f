/* Table tests in C: CHECK() prints the row that failed, and finish() returns the exit code. */
#ifndef SLURM_SHARE_CHECK_H
#define SLURM_SHARE_CHECK_H

#include <stdio.h>

static int failed, checked;

#define CHECK(row, condition)                                                                     \
	do {                                                                                      \
		checked++;                                                                        \
		if (!(condition)) {                                                               \
			failed++;                                                                 \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, (row), #condition); \
		}                                                                                 \
	} while (0)

static int finish(void)
{
	printf("%d checks, %d failed\n", checked, failed);
	return failed != 0 || checked == 0;
}

#endif
