/* A folder that Slurm laid over the node's, and file systems of the node's own. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "private_folder.h"

#define NODE "21 1 0:20 / / rw - overlay none rw\n22 21 0:21 / /run rw - tmpfs tmpfs rw\n"
#define STATE "23 22 0:22 / /run/slurm-share rw - tmpfs tmpfs rw\n"

static bool is_private(const char *path, const char *mounts)
{
	char file[] = "/tmp/slurm-share-mounts-XXXXXX";
	int fd = mkstemp(file);

	if (fd < 0 || write(fd, mounts, strlen(mounts)) != (ssize_t)strlen(mounts))
		abort();
	close(fd);
	bool found = ss_is_private_folder(path, file);
	unlink(file);
	return found;
}

int main(void)
{
	const char *state = "/run/slurm-share";

	CHECK("the node's own tmpfs", !is_private(state, NODE STATE));
	CHECK("a part of /run", !is_private(state, NODE));
	CHECK("a root in a subvolume", !is_private(state, "21 1 0:20 /@root / rw - btrfs /dev/sda rw\n"));
	CHECK("its own folder", is_private(state, NODE STATE "24 23 0:23 /n1/5/.5/_run_slurm-share /run/slurm-share rw - tmpfs t rw\n"));
	CHECK("its own /run", is_private(state, NODE STATE "24 22 8:1 /jobs/5/_run /run rw - ext4 /dev/sda1 rw\n"));
	CHECK("another folder", !is_private(state, NODE STATE "24 22 8:1 /jobs/5/_run /run/slurm-share2 rw - ext4 /dev/sda1 rw\n"));
	CHECK("its own /tmp", !is_private(state, NODE STATE "24 22 8:1 /jobs/5/_tmp /tmp rw - ext4 /dev/sda1 rw\n"));
	CHECK("no mounts", !is_private(state, "nothing of the kind\n"));
	CHECK("no file", !ss_is_private_folder(state, "/nowhere/mountinfo"));
	return finish();
}
