#include "private_folder.h"

#include <stdio.h>
#include <string.h>

#define LINE_SIZE 4096

/* Return whether `path` is `folder` or below it; the root folder does not count. */
static bool is_at_or_below(const char *path, const char *folder)
{
	size_t length = strlen(folder);

	return length > 1 && strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

bool ss_is_private_folder(const char *path, const char *mounts)
{
	char line[LINE_SIZE], root[LINE_SIZE], point[LINE_SIZE];
	bool is_private = false;
	FILE *stream = fopen(mounts, "re");

	if (stream == NULL)
		return false;
	/* ID parent major:minor root point ... (proc_pid_mountinfo(5)); the last mount over a folder is the one that is seen */
	while (fgets(line, sizeof line, stream) != NULL)
		if (sscanf(line, "%*s %*s %*s %4095s %4095s", root, point) == 2 && is_at_or_below(path, point))
			is_private = strcmp(root, "/") != 0;
	(void)fclose(stream);
	return is_private;
}
