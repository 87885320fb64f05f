#include "limits_client.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "common.h"

static int connect_to(const char *socket_path)
{
	static const struct timeval most = { SS_LIMITS_ANSWER_MS / 1000, 0 };
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	if (strlen(socket_path) >= sizeof address.sun_path) {
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(address.sun_path, socket_path);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	/* SO_SNDTIMEO limits connect(2) as well */
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most) != 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most) != 0 ||
	    connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
		int saved = errno;
		(void)close(fd);
		errno = saved;
		return -1;
	}
	return fd;
}

bool ss_limits_is_there(const char *socket_path)
{
	int fd = connect_to(socket_path);

	if (fd >= 0)
		(void)close(fd);
	return fd >= 0;
}

int ss_limits_ask(const char *socket_path, const char *request, char *why, size_t size)
{
	char answer[SS_LIMITS_MESSAGE_SIZE];
	ssize_t length = -1;

	int fd = connect_to(socket_path);
	if (fd < 0)
		return ss_fail(why, size, "the keeper of memory limits does not run: %s", strerror(errno));
	if (send(fd, request, strlen(request), MSG_NOSIGNAL) >= 0)
		do
			length = recv(fd, answer, sizeof answer - 1, 0);
		while (length < 0 && errno == EINTR);
	int saved = errno;
	(void)close(fd);
	if (length < 0 && (saved == EAGAIN || saved == EWOULDBLOCK))
		return ss_fail(why, size, "the keeper of memory limits did not answer within %d s", SS_LIMITS_ANSWER_MS / 1000);
	if (length <= 0)
		return ss_fail(why, size, "the keeper of memory limits has ended%s%s", length < 0 ? ": " : "",
			       length < 0 ? strerror(saved) : "");
	answer[length] = '\0';
	if (strcmp(answer, SS_LIMITS_DONE) == 0)
		return 0;
	const char *reason = strncmp(answer, SS_LIMITS_NOT, strlen(SS_LIMITS_NOT)) == 0 ? answer + strlen(SS_LIMITS_NOT) : answer;
	return ss_fail(why, size, "%s", reason);
}
