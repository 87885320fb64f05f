/* given_verdict JOB: print this process's environment, each variable with a NUL, without what another job than JOB left in it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "given.h"

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	ss_given_forget(&ss_own_environment, (uint32_t)strtoul(argv[1], NULL, 10), false);
	for (char **at = environ; at != NULL && *at != NULL; at++)
		(void)fwrite(*at, 1, strlen(*at) + 1, stdout);
	return 0;
}
