/* Parse and render the value of --share-gpu.
 *
 * This module does not depend on Slurm. slurm_share/share/option.py does the same in Python;
 * tests/contract/test_option_in_two_languages.py compares the two. */
#ifndef SLURM_SHARE_OPTIONS_H
#define SLURM_SHARE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A parsed value. SS_UNSET in a field: not given. */
struct ss_request {
	bool off;            /* "off": every other field is unset */
	int per_gpu;         /* tasks on each GPU, the N */
	int32_t mem_least_mib; /* the GPU memory that a task is sure of, if mem= names two sizes */
	int32_t mem_mib;     /* the most GPU memory of one task */
	int sm;              /* percent, SS_SM_IS_EVEN, SS_SM_IS_FREE or SS_SM_IS_STATIC */
	int sharing;         /* one of enum ss_sharing */
};
enum { SS_UNSET = -1, SS_SM_IS_EVEN = 101, SS_SM_IS_FREE = 102, SS_SM_IS_STATIC = 103 };
enum ss_sharing { SS_AUTO, SS_MPS, SS_TIME_SLICING, SS_EXCLUSIVE };

/* The sizes of buffers for any canonical text, and for any sentence about a wrong one. */
enum { SS_CANONICAL_SIZE = 64, SS_SENTENCE_SIZE = 512 };

/* Return 0 and fill `request`, or -1 and write a sentence about what is wrong and what is valid, with an example. */
int ss_request_parse(const char *text, struct ss_request *request, char *sentence, size_t size);

/* Write the canonical text of a request, e.g. "4,mem=8192M,sm=50,sharing=mps". Return -1 if `size` is too small. */
int ss_request_render(const struct ss_request *request, char *text, size_t size);

/* Return whether a text is the canonical one of its request, or the one of releases before `sharing=` (mps=on, mps=off). */
bool ss_request_is_canonical(const struct ss_request *request, const char *text);

/* Parse a decimal number from `least` to `most`: only digits, no leading zero. Return -1 for any other text. */
int ss_number_parse(const char *digits, size_t length, uint32_t least, uint32_t most, uint32_t *number);

#endif
