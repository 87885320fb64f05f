/* slurm-share-limits: limit the device memory of the tasks of one job on this node through the driver (615), as root.
 *
 *   slurm-share-limits keep STATE_ROOT JOB UID NODE      the job's keeper; the plugin starts it in the first step that needs it
 *   slurm-share-limits run PROGRAM...                    a launcher's child: enter the group in SS_ENV_LIMITS, become PROGRAM
 *   slurm-share-limits end FOLDER                        the Epilog: end the keeper, remove what it or a killed one has left
 *
 * The keeper opens the driver's library once for all steps of the job, since that takes longer than a task's start, and slurmstepd
 * never loads it. It listens on a socket that root and the job's user can open. Each process asks for itself: the kernel tells the
 * keeper who asks. It must be in the folder of a task below the job's own cgroup, which slurmstepd, the keeper's parent, is in. A task
 * of a step asks in its forked process before its program starts; from then on the folder has its limits, and whatever asks from
 * there is refused. A process in a launcher's group is refused as well: it has left the task's folder.
 *
 * The keeper ends when the plan is removed. Requests and answers: plugins/limits_client.h. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "../plugins/common.h"
#include "../plugins/limits_client.h"
#include "../plugins/names.h"
#include "../plugins/options.h"
#include "../plugins/plan.h"
#include "limits_groups.h"
#include "limits_nvml.h"

#ifndef SO_PEERPIDFD /* since Linux 6.5 */
#define SO_PEERPIDFD 77
#endif
#define OWN_FOLDER "/slurm-share"
#define OWN_GROUP OWN_FOLDER "/limits"

enum { MOST_WAITING = 64, REQUEST_MS = 2000, CHECK_MS = 1000, END_MS = 5000, PAUSE_MS = 2, PATH_SIZE = 512 };

static struct {
	char folder[PATH_SIZE]; /* of the job, below the state's */
	char prefix[GROUP_PATH_SIZE];
	char problem[512]; /* why nothing can be limited; empty: it can */
	struct ss_plan *plan;
	struct stat plan_file;
	uid_t uid;
} keeper;

static volatile sig_atomic_t is_told_to_end;

static void on_end(int number)
{
	(void)number;
	is_told_to_end = 1;
}

static void file_of(char *path, const char *name)
{
	(void)snprintf(path, PATH_SIZE + 64, "%s/%s", keeper.folder, name);
}

/* ---- requests ---- */

/* Set the limits of each GPU of the plan to the cap of a slot there. `own`: the slot whose reserved part counts; NULL: none. */
static size_t of_plan(struct gpu_limits *gpus, const struct ss_slot *own)
{
	const struct ss_plan *plan = keeper.plan;
	size_t count = 0;

	for (uint32_t gpu = 0; gpu < plan->gpus && count < GROUP_GPUS_MAX; gpu++) {
		const struct ss_slot *slot = own != NULL && own->gpu == gpu ? own : NULL;
		for (uint32_t i = 0; i < plan->slot_count && slot == NULL; i++)
			if (plan->slots[i].gpu == gpu)
				slot = &plan->slots[i];
		if (slot == NULL || !slot->is_cap_of_driver || strlen(plan->gpu[gpu].uuid) >= UUID_SIZE)
			continue;
		strcpy(gpus[count].uuid, plan->gpu[gpu].uuid);
		gpus[count].limits.hard = (uint64_t)slot->memory_cap_mib << 20;
		gpus[count++].limits.soft = slot == own ? (uint64_t)slot->memory_least_mib << 20 : 0;
	}
	return count;
}

static int on_task(char *rest, const char *path, char *why, size_t size)
{
	struct gpu_limits gpus[GROUP_GPUS_MAX];
	uint32_t slot;

	if (ss_number_parse(rest, strlen(rest), 0, keeper.plan->slot_count - 1, &slot) != 0)
		return ss_fail(why, size, "'%.40s' is no slot of the plan", rest);
	return groups_limit_task(path, gpus, of_plan(gpus, &keeper.plan->slots[slot]), why, size);
}

/* Parse UUID=SOFT:HARD into the limits of that GPU. */
static int read_limits(char *word, struct gpu_limits *gpus, size_t count)
{
	uint32_t soft, hard;
	char *value = strchr(word, '='), *colon = value ? strchr(value, ':') : NULL;

	if (colon == NULL)
		return -1;
	*value++ = '\0';
	*colon++ = '\0';
	if (ss_number_parse(value, strlen(value), 0, SS_MEM_MAX_MIB, &soft) != 0 ||
	    ss_number_parse(colon, strlen(colon), 1, SS_MEM_MAX_MIB, &hard) != 0 || soft > hard)
		return -1;
	for (size_t i = 0; i < count; i++)
		if (strcmp(gpus[i].uuid, word) == 0) {
			gpus[i].limits = (struct memory_limits){ (uint64_t)soft << 20, (uint64_t)hard << 20 };
			return 0;
		}
	return -1;
}

static int on_enter(char *rest, const char *path, const struct asker *asker, char *why, size_t size)
{
	struct gpu_limits gpus[GROUP_GPUS_MAX];
	size_t count = of_plan(gpus, NULL);
	char *state = NULL, *name = strtok_r(rest, " ", &state), *word;

	while ((word = strtok_r(NULL, " ", &state)) != NULL)
		if (read_limits(word, gpus, count) != 0)
			return ss_fail(why, size, "'%.100s' is not GPU=SOFT:HARD, with a GPU of the plan", word);
	if (name == NULL || groups_check(path, keeper.plan->gpu[0].uuid, why, size) != 0)
		return name == NULL ? ss_fail(why, size, "no group is named") : -1;
	return groups_enter(path, name, asker, gpus, count, why, size);
}

/* Answer a task of the job's user, whose cgroup counts. */
static int of_asker(char *request, const struct asker *asker, char *why, size_t size)
{
	char path[GROUP_PATH_SIZE];
	size_t step;

	if (groups_path_of(asker->pid, path, sizeof path) != 0 || !groups_is_task(path, keeper.prefix, &step))
		return ss_fail(why, size, "the process has no cgroup of a task of this job for itself (TaskPlugin=task/cgroup makes one)");
	if (strcmp(request, "check") == 0)
		return groups_check(path, keeper.plan->gpu[0].uuid, why, size);
	if (strncmp(request, "task ", 5) == 0)
		return on_task(request + 5, path, why, size);
	if (strncmp(request, "enter ", 6) == 0)
		return on_enter(request + 6, path, asker, why, size);
	return ss_fail(why, size, "no such request");
}

/* Return a pidfd of the process that has connected, which may have ended; -1: it has. */
static int pidfd_of(int fd, pid_t pid)
{
	int pidfd = -1;
	socklen_t length = sizeof pidfd;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0)
		return pidfd;
	return errno == ENOPROTOOPT ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

static int on_user(char *request, int fd, pid_t pid, char *why, size_t size)
{
	struct asker asker = { pid, pidfd_of(fd, pid) };

	if (keeper.problem[0] != '\0' || asker.pidfd < 0)
		(void)ss_fail(why, size, "%s", keeper.problem[0] != '\0' ? keeper.problem : "the process that asked has ended");
	int rc = why[0] != '\0' ? -1 : of_asker(request, &asker, why, size);
	if (asker.pidfd >= 0)
		(void)close(asker.pidfd);
	return rc;
}

/* Answer slurmstepd, or the Epilog. */
static int on_root(const char *request, const struct ucred *peer, char *why, size_t size)
{
	char path[GROUP_PATH_SIZE];

	if (strcmp(request, "end") == 0) {
		is_told_to_end = 1;
		return 0;
	}
	if (strncmp(request, "over", 4) != 0)
		return ss_fail(why, size, "no such request");
	if (groups_path_of(peer->pid, path, sizeof path) != 0)
		return ss_fail(why, size, "process %d has no cgroup", (int)peer->pid);
	size_t length = strlen(keeper.prefix);
	char *rest = strncmp(path, keeper.prefix, length) == 0 ? strchr(path + length + 1, '/') : NULL;
	if (rest == NULL) /* .../step_S/slurm */
		return ss_fail(why, size, "process %d is in no step of the job", (int)peer->pid);
	*rest = '\0';
	size_t left = groups_end(path, strcmp(request, "over last") == 0);
	return left == 0 ? 0 : ss_fail(why, size, "%zu cgroups with limits are still there", left);
}

static void answer(int fd, char *request)
{
	struct ucred peer = { 0 };
	socklen_t length = sizeof peer;
	char why[512] = "", text[SS_LIMITS_MESSAGE_SIZE];
	int rc = -1;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.pid <= 0)
		(void)ss_fail(why, sizeof why, "the kernel does not say who asks");
	else if (peer.uid == 0)
		rc = on_root(request, &peer, why, sizeof why);
	else if (peer.uid == keeper.uid)
		rc = on_user(request, fd, peer.pid, why, sizeof why);
	else
		(void)ss_fail(why, sizeof why, "the job is another user's");
	(void)snprintf(text, sizeof text, rc == 0 ? SS_LIMITS_DONE "%s" : SS_LIMITS_NOT "%s", rc == 0 ? "" : why);
	(void)send(fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* ---- the loop ---- */

static bool has_plan(void)
{
	char path[PATH_SIZE + 64];
	struct stat found;

	file_of(path, SS_PLAN_FILE);
	return stat(path, &found) == 0 && found.st_ino == keeper.plan_file.st_ino && found.st_dev == keeper.plan_file.st_dev;
}

static void receive(struct pollfd *one)
{
	char request[SS_LIMITS_MESSAGE_SIZE];
	ssize_t length = recv(one->fd, request, sizeof request - 1, MSG_DONTWAIT | MSG_TRUNC); /* the whole length */

	if (length < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (length > 0 && length < (ssize_t)sizeof request) {
		request[length] = '\0';
		answer(one->fd, request);
	} else if (length > 0) {
		static const char text[] = SS_LIMITS_NOT "the request is too long";
		(void)send(one->fd, text, sizeof text - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
	}
	(void)close(one->fd);
	one->fd = -1;
}

static void serve(int listener)
{
	struct pollfd polled[1 + MOST_WAITING] = { { listener, POLLIN, 0 } };
	int64_t since[1 + MOST_WAITING] = { 0 }, checked = ss_now_ms();

	for (size_t i = 1; i <= MOST_WAITING; i++)
		polled[i] = (struct pollfd){ -1, POLLIN, 0 };
	while (!is_told_to_end && has_plan()) {
		size_t place = 0;
		(void)poll(polled, 1 + MOST_WAITING, CHECK_MS);
		if (ss_now_ms() - checked > CHECK_MS) {
			groups_unreserve_idle(NULL);
			checked = ss_now_ms();
		}
		for (size_t i = 1; i <= MOST_WAITING; i++) {
			if (polled[i].fd >= 0 && polled[i].revents != 0)
				receive(&polled[i]);
			if (polled[i].fd >= 0 && ss_now_ms() - since[i] > REQUEST_MS) {
				(void)close(polled[i].fd);
				polled[i].fd = -1;
			}
			if (polled[i].fd < 0)
				place = i;
		}
		polled[0].events = place > 0 ? POLLIN : 0;
		if (place > 0 && (polled[0].revents & POLLIN)) {
			polled[place].fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
			polled[place].revents = 0;
			since[place] = ss_now_ms();
			if (polled[place].fd >= 0)
				receive(&polled[place]); /* the request usually came with the connection */
		}
	}
}

/* ---- the keeper's start and end ---- */

static int listen_at(const char *path, uid_t uid)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	if (strlen(path) >= sizeof address.sun_path)
		return -1;
	strcpy(address.sun_path, path);
	(void)unlink(path);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	mode_t before = umask(0177);
	bool is_bound = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
	(void)umask(before);
	if (!is_bound || lchown(path, uid, (gid_t)-1) != 0 || listen(fd, MOST_WAITING) != 0)
		return -1;
	return fd;
}

/* Return a lock on the file that tells who is the keeper; -1: another process is. */
static int lock_keeper(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	char path[PATH_SIZE + 64];

	file_of(path, SS_LIMITS_LOCK);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	return fd >= 0 && fcntl(fd, F_SETLK, &lock) == 0 ? fd : -1;
}

/* Return the lock once no other process has it; -1: another one listens by now, or still has the lock after REQUEST_MS. */
static int wait_for_keeper(const char *socket_path)
{
	int64_t until = ss_now_ms() + REQUEST_MS;
	int lock;

	while ((lock = lock_keeper()) < 0 && ss_now_ms() < until && !ss_limits_is_there(socket_path))
		(void)poll(NULL, 0, PAUSE_MS);
	return lock;
}

/* Leave slurmstepd's cgroup, which Slurm removes at the step's end. */
static void leave_step(void)
{
	char folder[PATH_SIZE], number[16];
	const char *root = groups_root();

	if (root == NULL)
		return;
	(void)snprintf(folder, sizeof folder, "%s" OWN_FOLDER, root);
	(void)mkdir(folder, 0755);
	(void)snprintf(folder, sizeof folder, "%s" OWN_GROUP "/cgroup.procs", root);
	folder[strlen(folder) - strlen("/cgroup.procs")] = '\0';
	(void)mkdir(folder, 0755);
	strcat(folder, "/cgroup.procs");
	(void)snprintf(number, sizeof number, "%d", (int)getpid());
	int fd = open(folder, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, number, strlen(number)) < 0)
		(void)ss_fail(keeper.problem, sizeof keeper.problem, "%s: %s", folder, strerror(errno));
	if (fd >= 0)
		(void)close(fd);
}

static void read_prefix(void)
{
	if (groups_path_of(getpid(), keeper.prefix, sizeof keeper.prefix) == 0) {
		char *step = strstr(keeper.prefix, "/step_");
		if (step != NULL) {
			*step = '\0';
			return;
		}
	}
	(void)ss_fail(keeper.problem, sizeof keeper.problem, "Slurm keeps the jobs of this node in no cgroup v2");
}

/* Read the plan, the record of an earlier keeper, and the driver. */
static int prepare(const struct ss_plan_owner *owner)
{
	char path[PATH_SIZE + 64], why[SS_SENTENCE_SIZE] = "";

	file_of(path, SS_PLAN_FILE);
	if (stat(path, &keeper.plan_file) != 0 || ss_plan_read(path, owner, &keeper.plan, why, sizeof why) != SS_PLAN_READ ||
	    keeper.plan->slot_count == 0)
		return -1;
	read_prefix();
	leave_step();
	file_of(path, SS_LIMITS_RECORD);
	if (groups_begin(path, why, sizeof why) != 0) {
		(void)snprintf(keeper.problem, sizeof keeper.problem, "%s", why);
		return 0;
	}
	groups_recover();
	for (uint32_t gpu = 0; gpu < keeper.plan->gpus; gpu++)
		if (groups_note_gpu(keeper.plan->gpu[gpu].uuid, why, sizeof why) != 0)
			(void)snprintf(keeper.problem, sizeof keeper.problem, "%s", why);
	return 0;
}

static int open_driver(void)
{
	char why[512];

	if (nvml_open(why, sizeof why) == 0)
		return 0;
	if (keeper.problem[0] == '\0')
		(void)snprintf(keeper.problem, sizeof keeper.problem, "%s", why);
	return -1;
}

static int be_keeper(const struct ss_plan_owner *owner, int ready)
{
	static const struct sigaction at_end = { .sa_handler = on_end };
	char path[PATH_SIZE + 64];

	(void)setsid();
	(void)prctl(PR_SET_NAME, "slurm-share-lim");
	(void)sigaction(SIGTERM, &at_end, NULL);
	(void)signal(SIGHUP, SIG_IGN);
	file_of(path, SS_LIMITS_SOCKET);
	if (wait_for_keeper(path) < 0) /* two steps can start at once */
		return write(ready, "", 1) == 1 ? 0 : 1;
	if (prepare(owner) != 0)
		return 1;
	int listener = listen_at(path, keeper.uid);
	if (listener < 0 || write(ready, "", 1) != 1)
		return 1;
	(void)close(ready);
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	if (fd >= 0) {
		(void)!write(fd, "-1000", 5);
		(void)close(fd);
	}
	if (open_driver() != 0)
		syslog(LOG_DAEMON | LOG_WARNING, "slurm-share: memory limits of job %u: %s", owner->job, keeper.problem);
	serve(listener);
	(void)groups_end(NULL, false);
	(void)unlink(path);
	return 0;
}

/* Fork the keeper, and end when it listens. Slurmstepd waits for this process and never for the keeper. */
static int keep(char **arguments)
{
	struct ss_plan_owner owner = { .node = strcmp(arguments[3], "-") == 0 ? NULL : arguments[3] };
	int ready[2];
	char byte;

	if (ss_number_parse(arguments[1], strlen(arguments[1]), 1, UINT32_MAX, &owner.job) != 0 ||
	    ss_number_parse(arguments[2], strlen(arguments[2]), 1, UINT32_MAX, &owner.uid) != 0)
		return SS_EXIT_USAGE;
	(void)snprintf(keeper.folder, sizeof keeper.folder, "%s/" SS_JOBS_FOLDER "/%u", arguments[0], owner.job);
	keeper.uid = (uid_t)owner.uid;
	(void)close_range(3, ~0U, 0);
	if (chdir("/") != 0 || pipe2(ready, O_CLOEXEC) != 0)
		return 1;
	pid_t child = fork();
	if (child == 0) {
		(void)close(ready[0]);
		_exit(be_keeper(&owner, ready[1]));
	}
	(void)close(ready[1]);
	return child > 0 && read(ready[0], &byte, 1) == 1 ? 0 : 1;
}

/* ---- the Epilog's part ---- */

static pid_t keepers_pid(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	char path[PATH_SIZE + 64];
	pid_t holder = 0;

	file_of(path, SS_LIMITS_LOCK);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return 0;
	if (fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK)
		holder = lock.l_pid;
	(void)close(fd);
	return holder;
}

static void end_keeper(void)
{
	int64_t until = ss_now_ms() + END_MS;
	pid_t pid = keepers_pid();

	if (pid > 0)
		(void)kill(pid, SIGTERM);
	while (keepers_pid() > 0 && ss_now_ms() < until)
		(void)poll(NULL, 0, PAUSE_MS);
	pid = keepers_pid();
	if (pid > 0)
		(void)kill(pid, SIGKILL); /* it waits for the driver */
}

static int end(char **arguments)
{
	char path[PATH_SIZE + 64], why[512];

	(void)snprintf(keeper.folder, sizeof keeper.folder, "%s", arguments[0]);
	end_keeper();
	file_of(path, SS_LIMITS_RECORD);
	if (groups_begin(path, why, sizeof why) != 0)
		return 0; /* without cgroup v2 nothing was made */
	groups_recover();
	if (open_driver() != 0)
		fprintf(stderr, "%s\n", keeper.problem);
	size_t left = groups_end(NULL, true);
	(void)snprintf(path, sizeof path, "%s" OWN_GROUP, groups_root());
	(void)rmdir(path); /* another job's keeper may be there */
	if (left > 0)
		fprintf(stderr, "%zu cgroups with memory limits cannot be removed\n", left);
	return left > 0;
}

/* ---- a launcher's child ---- */

static int run(char **arguments)
{
	char request[SS_LIMITS_MESSAGE_SIZE], socket_path[PATH_SIZE], why[512];
	const char *given = getenv(SS_ENV_LIMITS), *rest = given ? strchr(given, ' ') : NULL;

	if (rest == NULL || rest - given >= PATH_SIZE ||
	    snprintf(request, sizeof request, "enter%s", rest) >= (int)sizeof request)
		return SS_EXIT_USAGE;
	(void)snprintf(socket_path, sizeof socket_path, "%.*s", (int)(rest - given), given);
	(void)unsetenv(SS_ENV_LIMITS);
	if (ss_limits_ask(socket_path, request, why, sizeof why) != 0) {
		fprintf(stderr, "slurm-share: the task is not started: the driver does not limit its memory: %s\n", why);
		return SS_EXIT_REFUSED;
	}
	(void)execv(arguments[0], arguments);
	if (errno == ENOEXEC) { /* a script without "#!", which the launcher and every shell start so */
		static char shell[] = "/bin/sh";
		arguments[-1] = shell; /* in the place of "run" */
		(void)execv(shell, arguments - 1);
	}
	int saved = errno;
	fprintf(stderr, "slurm-share: %s: %s\n", arguments[0], strerror(saved));
	return saved == ENOENT ? 127 : 126;
}

int main(int argc, char **argv)
{
	(void)signal(SIGPIPE, SIG_DFL);
	if (argc == 6 && strcmp(argv[1], "keep") == 0)
		return keep(argv + 2);
	if (argc == 3 && strcmp(argv[1], "end") == 0)
		return end(argv + 2);
	if (argc > 2 && strcmp(argv[1], "run") == 0)
		return run(argv + 2);
	fprintf(stderr, "slurm-share-limits is started by slurm-share's plugin, launcher and Epilog\n");
	return SS_EXIT_USAGE;
}
