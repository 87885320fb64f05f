/* A live daemon, a dead one, and processes that only look like one. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "mps.h"

static char folder[64], why[512];

static const char *path_of(const char *name)
{
	static char path[108];
	(void)snprintf(path, sizeof path, "%s/%s", folder, name);
	return path;
}

static void make_file(const char *name)
{
	int fd = open(path_of(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0)
		abort();
	close(fd);
}

/* The socket stays after its process has ended, like that of a killed daemon. */
static void make_socket(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memcpy(address.sun_path, path_of("control"), strlen(path_of("control")) + 1);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0)
		abort();
	close(fd);
}

/* Start a process with that name, which holds the lock until it is killed. */
static pid_t start_holder(const char *name, short type)
{
	int ready[2];
	char byte = 0;

	if (pipe2(ready, O_CLOEXEC) != 0)
		abort();
	pid_t pid = fork();
	if (pid == 0) {
		struct flock lock = { .l_type = type, .l_whence = SEEK_SET };
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)prctl(PR_SET_NAME, name);
		int fd = open(path_of("control_lock"), O_RDWR | O_CLOEXEC);
		if (fd < 0 || fcntl(fd, F_SETLK, &lock) != 0 || write(ready[1], &byte, 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1)
		abort();
	close(ready[0]);
	return pid;
}

static void end(pid_t pid)
{
	(void)kill(pid, SIGKILL);
	(void)waitpid(pid, NULL, 0);
}

static int check(void)
{
	why[0] = '\0';
	return ss_mps_check(folder, getuid(), why, sizeof why);
}

int main(void)
{
	strcpy(folder, "/tmp/test_mps.XXXXXX");
	if (mkdtemp(folder) == NULL)
		abort();
	CHECK("nothing", check() == -1 && strstr(why, "control: No such file") != NULL);
	make_file("control");
	CHECK("a file", check() == -1 && strstr(why, "is not a socket") != NULL);
	(void)remove(path_of("control"));
	make_socket();
	CHECK("no lock file", check() == -1 && strstr(why, "no process holds") != NULL);
	make_file("control_lock");
	CHECK("left behind by a killed daemon", check() == -1 && strstr(why, "no process holds") != NULL);
	pid_t daemon = start_holder("nvidia-cuda-mps", F_WRLCK);
	CHECK(why, check() == 0);
	int fd = open(path_of("control_lock"), O_RDONLY | O_CLOEXEC);
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	CHECK("the look took nothing", fcntl(fd, F_GETLK, &lock) == 0 && lock.l_pid == daemon);
	close(fd);
	end(daemon);
	CHECK("killed", check() == -1 && strstr(why, "no process holds") != NULL);
	pid_t other = start_holder("backup", F_RDLCK);
	CHECK("another program's lock", check() == -1 && strstr(why, "(backup), which is not the daemon") != NULL);
	end(other);
	if (getuid() == 0) {
		daemon = start_holder("nvidia-cuda-mps", F_WRLCK);
		CHECK("root's is believed", ss_mps_check(folder, 2001, why, sizeof why) == 0);
		end(daemon);
	}
	(void)remove(path_of("control_lock"));
	CHECK("a FIFO", mkfifo(path_of("control_lock"), 0666) == 0 && check() == -1);
	(void)remove(path_of("control_lock"));
	CHECK("a link", symlink("/etc/passwd", path_of("control_lock")) == 0 && check() == -1);
	(void)remove(path_of("control_lock"));
	(void)remove(path_of("control"));
	(void)remove(folder);
	char name[400];
	memset(name, 'x', sizeof name - 1);
	name[sizeof name - 1] = '\0';
	CHECK("long", ss_mps_check(name, 0, why, sizeof why) == -1);
	return finish();
}
