#include "mps.h"

#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The kernel's name of nvidia-cuda-mps-control: the first 15 characters. */
#define DAEMON_NAME "nvidia-cuda-mps"

enum { PATH_SIZE = 256 };

/* Return the pid of the process that holds the lock; 0: it is in another pid namespace; -1: no process does. */
static pid_t lock_holder(const char *path)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	struct stat found;
	pid_t holder = -1;

	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return -1;
	if (fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK)
		holder = lock.l_pid > 0 ? lock.l_pid : 0;
	(void)close(fd);
	return holder;
}

/* Check that the holder is a daemon of the user. A process that cannot be seen (hidepid) counts as one. */
static int check_holder(pid_t holder, uint32_t uid, char *why, size_t size)
{
	char path[64], name[32] = "";
	struct stat found;

	(void)snprintf(path, sizeof path, "/proc/%d/comm", (int)holder);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t length = read(fd, name, sizeof name - 1);
	int rc = fstat(fd, &found);
	(void)close(fd);
	if (length <= 0 || rc != 0)
		return 0;
	name[strcspn(name, "\n")] = '\0';
	if (strcmp(name, DAEMON_NAME) != 0)
		return ss_fail(why, size, "its lock is held by process %d (%s), which is not the daemon", (int)holder, name);
	if (found.st_uid != uid && found.st_uid != 0) /* /proc shows root as owner of a process that its user cannot trace */
		return ss_fail(why, size, "its lock is held by a daemon of user id %u", found.st_uid);
	return 0;
}

int ss_mps_check(const char *pipe_folder, uint32_t uid, char *why, size_t size)
{
	char path[PATH_SIZE];
	struct stat found;

	if (snprintf(path, sizeof path, "%s/control", pipe_folder) >= PATH_SIZE)
		return ss_fail(why, size, "the name of its folder is too long");
	if (lstat(path, &found) != 0)
		return ss_fail(why, size, "%s: %s", path, strerror(errno));
	if (!S_ISSOCK(found.st_mode))
		return ss_fail(why, size, "%s is not a socket", path);
	(void)snprintf(path, sizeof path, "%s/control_lock", pipe_folder);
	pid_t holder = lock_holder(path);
	if (holder < 0)
		return ss_fail(why, size, "no process holds %s", path);
	return holder == 0 ? 0 : check_holder(holder, uid, why, size);
}
