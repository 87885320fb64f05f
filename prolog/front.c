/* slurm-share-prolog and slurm-share-epilog, as slurm.conf names them: programs in front of the hooks in Python.
 *
 * Python needs 13 ms to start and 100 ms to load the code of a shared job's hook. So this program
 *   1. checks whether there is anything to do for the job, exactly as main() of prolog.py and epilog.py does;
 *   2. asks the helper (helper.py), which has everything loaded, to do it;
 *   3. executes the hook in Python if the helper does not do it.
 * It is built twice, with HOOK "prolog" and "epilog", since slurmd may start it by a link of any name.
 *
 * If the helper or the hook's process is killed, the hook is run again from its beginning. Both hooks allow that: slurmd
 * itself runs a Prolog again for a requeued job, and an Epilog after its own restart. The Prolog decides again and
 * replaces the plan. The Epilog removes what is still there. A killed process is dead before this program notices it. If
 * the helper is killed, the kernel kills its processes after it; until then the ledger's lock separates the two hooks.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../plugins/names.h"

/* Tests define other paths. */
#ifndef STATE_ROOT
#define STATE_ROOT SS_STATE_ROOT
#endif
#ifndef CONFIG_FILE
#define CONFIG_FILE SS_CONFIG_FILE
#endif
#ifndef HELPER_FOLDER
#define HELPER_FOLDER SS_HELPER_FOLDER
#endif
#ifndef PYTHON_FOLDER
#define PYTHON_FOLDER "/opt/slurm-share/libexec"
#endif
#ifndef VERSION
#define VERSION "(not installed)"
#endif
#ifndef HOOK
#define HOOK "prolog"
#endif

#define PYTHON_HOOK PYTHON_FOLDER "/slurm-share-" HOOK
#define SOCKET HELPER_FOLDER "/" SS_HELPER_SOCKET
#define ANSWER_MS 1000 /* for the helper to accept a hook, which takes it less than 1 ms */
#define BEGIN_MS 2000  /* for the forked process to start: 128 at a time on few cores may have to wait */
#define CONFIG_BYTES (1 << 20)
#define TRIES 12 /* while an upgrade is installing files, as packaging/share/hook.in */
#define PAUSE_MS 500

extern char **environ;

static char config[CONFIG_BYTES];

/* ---- 1. Is there anything to do? ---------------------------------------------------------------------------------- */

static bool has_entries(const char *folder) {
	DIR *entries = opendir(folder);
	if (entries == NULL)
		return false;
	bool found = false;
	const struct dirent *entry;
	while (!found && (entry = readdir(entries)) != NULL)
		found = strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
	closedir(entries);
	return found;
}

/* Like hook.site_may_list_nodes and site_may_record_gpus: search the settings' names in the first MiB of the file. */
static bool site_has_work(bool has_gpus) {
	int fd = open(CONFIG_FILE, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t size = read(fd, config, sizeof config);
	close(fd);
	if (size <= 0)
		return false;
	static const char *const of_gpus[] = {SS_USAGE_SETTING, SS_JOB_MAPPING_SETTING, SS_GPUSTAT_SETTING};
	bool found = memmem(config, (size_t)size, SS_LISTING_SETTING, strlen(SS_LISTING_SETTING)) != NULL;
	for (size_t number = 0; has_gpus && !found && number < sizeof of_gpus / sizeof of_gpus[0]; number++)
		found = memmem(config, (size_t)size, of_gpus[number], strlen(of_gpus[number])) != NULL;
	return found;
}

static bool has_of_job(const char *folder) {
	const char *job = getenv("SLURM_JOB_ID");
	char path[4096];
	int size = snprintf(path, sizeof path, "%s/%s/%s", STATE_ROOT, folder, job == NULL ? "none" : job);
	struct stat found;
	return size > 0 && (size_t)size < sizeof path && lstat(path, &found) == 0;
}

static bool has_work(void) {
	bool is_epilog = strcmp(HOOK, "epilog") == 0;
	bool knows_jobs = is_epilog ? has_of_job(SS_JOBS_FOLDER) || has_of_job(SS_UNSHARED_FOLDER) ||
						 has_of_job(SS_USAGE_FOLDER) || has_of_job(SS_GPU_JOBS_FOLDER)
				    : has_entries(STATE_ROOT "/" SS_JOBS_FOLDER);
	return knows_jobs || getenv(SS_HOOK_VARIABLE) != NULL || site_has_work(!is_epilog && getenv("SLURM_JOB_GPUS") != NULL);
}

/* Drop the variables of the job's user, to which slurmd prepends SPANK_, except the two that the hooks read. They may be so
 * many or so large that the helper would not take them, or that Python could not start, which needs one variable more. */
static void drop_users_variables(void) {
	static const char share[] = SS_HOOK_VARIABLE "=", direct[] = SS_HOOK_DIRECT "=";
	char **kept = environ;
	for (char **one = environ; *one != NULL; one++)
		if (strncmp(*one, "SPANK_", strlen("SPANK_")) != 0 || strncmp(*one, share, strlen(share)) == 0 ||
		    strncmp(*one, direct, strlen(direct)) == 0)
			*kept++ = *one;
	*kept = NULL;
}

/* ---- 2. The helper ------------------------------------------------------------------------------------------------ */

static int64_t now_ms(void) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Return whether the socket is ready for `events` before `end`; end < 0: no time limit. */
static bool is_ready(int fd, short events, int64_t end) {
	for (;;) {
		int64_t left = end < 0 ? -1 : end - now_ms();
		if (end >= 0 && left < 0)
			left = 0;
		struct pollfd one = {.fd = fd, .events = events};
		int count = poll(&one, 1, (int)left);
		if (count > 0)
			return true;
		if (count == 0 || errno != EINTR)
			return false;
	}
}

/* Return whether only root can have made a socket in the folder. */
static bool is_roots(const char *folder) {
	struct stat found;
	return lstat(folder, &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == 0 && (found.st_mode & 022) == 0;
}

/* Return a connection to the helper; -1: root has started none. */
static int connected(void) {
	if (!is_roots(HELPER_FOLDER))
		return -1;
	/* Non-blocking: a stopped helper with a full queue must not block this hook. */
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	struct sockaddr_un place = {.sun_family = AF_UNIX, .sun_path = SOCKET};
	struct ucred peer;
	socklen_t size = sizeof peer;
	if (connect(fd, (const struct sockaddr *)&place, sizeof place) == 0 &&
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == 0)
		return fd;
	close(fd);
	return -1;
}

static bool sent(int fd, const char *data, size_t size, int64_t end) {
	while (size > 0) {
		ssize_t count = send(fd, data, size, MSG_NOSIGNAL);
		if (count >= 0) {
			data += count;
			size -= (size_t)count;
		} else if (errno == EAGAIN) {
			if (!is_ready(fd, POLLOUT, end))
				return false;
		} else if (errno != EINTR) {
			return false;
		}
	}
	return true;
}

/* Send "prolog 1234\n", then 1234 bytes of environment, with a NUL after each variable. */
static bool sent_request(int fd, int64_t end) {
	size_t size = 0, count = 0;
	for (char **one = environ; *one != NULL; one++, count++)
		size += strlen(*one) + 1;
	if (size > SS_HELPER_MOST_BYTES || count > SS_HELPER_MOST_VARIABLES)
		return false;
	char *whole = malloc(size + 1);
	if (whole == NULL)
		return false;
	char *at = whole;
	for (char **one = environ; *one != NULL; one++)
		at = stpcpy(at, *one) + 1;
	char head[64];
	int length = snprintf(head, sizeof head, "%s %zu\n", HOOK, size);
	bool done = length > 0 && sent(fd, head, (size_t)length, end) && sent(fd, whole, size, end);
	free(whole);
	return done;
}

/* Send the three standard files, with one byte. */
static bool sent_files(int fd) {
	int files[3] = {0, 1, 2};
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof files)];
	} control;
	memset(&control, 0, sizeof control);
	char byte = 0;
	struct iovec part = {.iov_base = &byte, .iov_len = 1};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(sizeof files);
	memcpy(CMSG_DATA(rights), files, sizeof files);
	/* Everything sent before has been read, so there is space, or the connection is broken. */
	return sendmsg(fd, &message, MSG_NOSIGNAL) == 1;
}

/* Return one byte; -1: the connection was closed, -2: none arrived in time. */
static int received(int fd, int64_t end) {
	for (;;) {
		unsigned char byte;
		ssize_t count = recv(fd, &byte, 1, 0);
		if (count == 1)
			return byte;
		if (count == 0 || (errno != EAGAIN && errno != EINTR))
			return -1;
		if (errno == EAGAIN && !is_ready(fd, POLLIN, end))
			return -2;
	}
}

/* Return whether the environment has variables of the dynamic loader, which the helper cannot apply any more. */
static bool is_loaded_differently(void) {
	for (char **one = environ; *one != NULL; one++)
		if (strncmp(*one, "LD_", 3) == 0)
			return true;
	return false;
}

/* Return the exit code of the hook, run by the helper; -1: it was not run, or did not end. */
static int run_by_helper(void) {
	if (geteuid() != 0 || is_loaded_differently())
		return -1;
	int fd = connected();
	if (fd < 0)
		return -1;
	int64_t end = now_ms() + ANSWER_MS;
	int code = -1;
	int answer = received(fd, end);
	if (answer == SS_HELPER_TAKES[0]) {
		/* The files go to the hook's own process: slurmd waits until every process has closed the hook's output, and a
		 * stopped helper would keep files open that were sent to it. A process that starts after this program has given
		 * up gets no files and ends. */
		if (sent_request(fd, end) && received(fd, now_ms() + BEGIN_MS) == SS_HELPER_BEGINS[0] && sent_files(fd))
			/* From here on the hook's watchdog and slurmd limit the time. */
			code = received(fd, -1) == SS_HELPER_ENDED[0] ? received(fd, -1) : -1;
	} else if (answer == -2)
		/* It is stopped or hangs: later hooks must not wait for it. It ends when it finds its socket removed. */
		unlink(SOCKET);
	close(fd);
	return code;
}

/* ---- 3. The hook in Python ---------------------------------------------------------------------------------------- */

static void become_python(void) {
	char *const argv[] = {PYTHON_HOOK, NULL};
	setenv(SS_ENV_FRONT, "1", 1);
	for (int tries = 0; tries < TRIES; tries++) {
		execv(PYTHON_HOOK, argv);
		struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
		nanosleep(&pause, NULL);
	}
}

static bool is_open(int fd) {
	return fcntl(fd, F_GETFD) >= 0;
}

int main(int count, char **arguments) {
	/* slurmd starts it without arguments. */
	if (count == 2 && strcmp(arguments[1], "--version") == 0)
		return puts("slurm-share-" HOOK " of slurm-share " VERSION) < 0 || fflush(stdout) != 0;
	if (!has_work())
		return SS_EXIT_OK;
	drop_users_variables();
	/* A file that is opened later must not become one of the three standard files. */
	for (int fd = 0; fd < 3; fd++)
		if (!is_open(fd) && open("/dev/null", O_RDWR) < 0)
			break;
	int code = run_by_helper();
	if (code >= 0)
		return code;
	become_python();
	/* An exit code would drain the node. */
	dprintf(2, "slurm-share: %s cannot be started, the job runs without it: %s\n", PYTHON_HOOK, strerror(errno));
	return SS_EXIT_OK;
}
