/* For tests/contract: read a value per line, with its bytes in hexadecimal ("-" for an empty one), and print a line for each,
 * "ok CANONICAL" or "no SENTENCE". */
#include <stdio.h>
#include <string.h>

#include "options.h"

int main(void)
{
	char line[1024], text[512];

	(void)setvbuf(stdout, NULL, _IOLBF, 0); /* the caller waits for each answer */
	while (fgets(line, sizeof line, stdin) != NULL) {
		struct ss_request request;
		char sentence[SS_SENTENCE_SIZE], canonical[SS_CANONICAL_SIZE];
		size_t length = 0;
		unsigned byte;
		for (const char *at = line; length + 1 < sizeof text && sscanf(at, "%2x", &byte) == 1; at += 2)
			text[length++] = (char)byte;
		text[length] = '\0';
		if (ss_request_parse(text, &request, sentence, sizeof sentence) != 0)
			printf("no %s\n", sentence);
		else if (ss_request_render(&request, canonical, sizeof canonical) == 0)
			printf("ok %s\n", canonical);
		else
			return 1;
	}
	return 0;
}
