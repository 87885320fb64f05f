/* What a user may write after --share-gpu: text -> struct ss_request -> canonical text.
 *
 * Strings in, codes out: nothing here knows Slurm, so a plain C test links it. The twin in Python is
 * slurm_share/share/option.py; tests/contract/test_option_in_two_languages.py keeps their verdicts equal. */
#ifndef SLURM_SHARE_OPTIONS_H
#define SLURM_SHARE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* -1 in a field means: the user did not say. */
struct ss_request {
	bool off;            /* "off": every other field is unset */
	int per_gpu;         /* tasks on each GPU, the N */
	int32_t mem_mib;     /* GPU memory of one task */
	int sm;              /* percent, or one of the two below */
	int mps;             /* 0 off, 1 on */
};
enum { SS_UNSET = -1, SS_SM_IS_EVEN = 101, SS_SM_IS_FREE = 102 };

/* Room for any canonical text, and for any sentence about a wrong one. */
enum { SS_CANONICAL_SIZE = 64, SS_SENTENCE_SIZE = 512 };

/* 0: `request` is filled. -1: `sentence` says what was wrong, what is valid, and gives an example. */
int ss_request_parse(const char *text, struct ss_request *request, char *sentence, size_t size);

/* The one canonical text of a request, e.g. "4,mem=8192M,sm=50,mps=off". -1 where `size` is too small. */
int ss_request_render(const struct ss_request *request, char *text, size_t size);

/* A decimal number from `least` to `most`: digits only, no sign, no leading zero. */
int ss_number_parse(const char *digits, size_t length, uint32_t least, uint32_t most, uint32_t *number);

#endif
