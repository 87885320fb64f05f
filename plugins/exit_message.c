#include "exit_message.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Room for one file descriptor, aligned as cmsg(3) asks. */
union control {
	char room[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
};

/* Return the inode of a socket, which no other one has at the same time; 0 for anything else. */
static uint64_t identity_of(int fd)
{
	struct stat found;

	return fd >= 0 && fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode) ? (uint64_t)found.st_ino : 0;
}

static bool is_same(int fd, uint64_t identity)
{
	return identity != 0 && identity_of(fd) == identity;
}

static void close_same(int fd, uint64_t identity)
{
	if (is_same(fd, identity))
		(void)close(fd);
}

void ss_exit_message_open(struct ss_exit_message *sockets)
{
	int pair[2];

	*sockets = SS_NO_EXIT_MESSAGE;
	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0)
		*sockets = (struct ss_exit_message){ .to_parent = pair[0], .from_task = pair[1],
						     .identity = { identity_of(pair[0]), identity_of(pair[1]) },
						     .opener = (uint32_t)getpid() };
}

void ss_exit_message_send(struct ss_exit_message *sockets)
{
	union control control = { .room = { 0 } };
	char byte = 0;
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.room,
				  .msg_controllen = sizeof control.room };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	int fd = STDERR_FILENO;

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	if (is_same(sockets->to_parent, sockets->identity[0]))
		(void)sendmsg(sockets->to_parent, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	close_same(sockets->to_parent, sockets->identity[0]);
	close_same(sockets->from_task, sockets->identity[1]);
	*sockets = SS_NO_EXIT_MESSAGE;
}

static int receive(const struct ss_exit_message *sockets)
{
	union control control;
	char byte;
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.room,
				  .msg_controllen = sizeof control.room };
	int fd = -1;

	if (!is_same(sockets->from_task, sockets->identity[1]) ||
	    recvmsg(sockets->from_task, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
		return -1;
	const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
	    header->cmsg_len == CMSG_LEN(sizeof fd))
		memcpy(&fd, CMSG_DATA(header), sizeof fd);
	return fd;
}

void ss_exit_message_close(struct ss_exit_message *sockets)
{
	int fd;

	while ((fd = receive(sockets)) >= 0)
		(void)close(fd);
	if (sockets->opener != (uint32_t)getpid())
		return;
	close_same(sockets->to_parent, sockets->identity[0]);
	close_same(sockets->from_task, sockets->identity[1]);
	*sockets = SS_NO_EXIT_MESSAGE;
}

/* Duplicate a regular file, to write at the job's offset. Reopen a pipe or terminal with O_NONBLOCK: the flag belongs to the open
 * file description, which processes of the job may still share. */
static int without_waiting(int fd)
{
	char path[32];
	struct stat found;

	if (fstat(fd, &found) != 0)
		return -1;
	if (S_ISREG(found.st_mode))
		return dup(fd);
	if (!S_ISFIFO(found.st_mode) && !isatty(fd))
		return -1;
	(void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	return open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
}

/* Write with SIGPIPE and SIGXFSZ blocked, which would end slurmstepd. */
static void write_quietly(int fd, const char *text, size_t length)
{
	static const struct timespec at_once;
	sigset_t raised, before, pending;

	(void)sigemptyset(&raised);
	(void)sigaddset(&raised, SIGPIPE);
	(void)sigaddset(&raised, SIGXFSZ);
	(void)sigpending(&pending);
	if (pthread_sigmask(SIG_BLOCK, &raised, &before) != 0)
		return;
	if (write(fd, text, length) < 0 && (errno == EPIPE || errno == EFBIG) && !sigismember(&pending, SIGPIPE) &&
	    !sigismember(&pending, SIGXFSZ))
		(void)sigtimedwait(&raised, NULL, &at_once);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void ss_exit_message_log(struct ss_exit_message *sockets, const char *sentence)
{
	char line[320];
	int fd = receive(sockets);

	ss_exit_message_close(sockets);
	if (fd < 0)
		return;
	int length = snprintf(line, sizeof line, "slurm-share: %s\n", sentence);
	int out = without_waiting(fd);
	if (out >= 0) {
		write_quietly(out, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
		(void)close(out);
	}
	(void)close(fd);
}
