/* The sentence at the end of a job's output, for every kind of file; an alarm ends the test if a write blocks. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "exit_message.h"

/* Fork a shell with stderr `fd`, which sends it and writes `text`. */
static void run_shell(struct ss_exit_message *sockets, int fd, const char *text)
{
	pid_t pid = fork();
	if (pid == 0) {
		if (dup2(fd, STDERR_FILENO) < 0)
			_exit(1);
		ss_exit_message_send(sockets);
		_exit(write(STDERR_FILENO, text, strlen(text)) < 0);
	}
	(void)waitpid(pid, NULL, 0);
}

static void it_stands_behind_what_the_job_wrote(void)
{
	char path[] = "/tmp/test_exit_message.XXXXXX", text[256] = "";
	struct ss_exit_message sockets;
	int fd = mkstemp(path);

	ss_exit_message_open(&sockets);
	CHECK("open", sockets.from_task >= 0 && sockets.to_parent >= 0);
	run_shell(&sockets, fd, "output\n");
	ss_exit_message_log(&sockets, "1 of 8 slots used");
	CHECK("read", pread(fd, text, sizeof text - 1, 0) > 0);
	CHECK(text, strcmp(text, "output\nslurm-share: 1 of 8 slots used\n") == 0);
	CHECK("closed", sockets.from_task == -1 && sockets.to_parent == -1);
	ss_exit_message_log(&sockets, "twice");
	CHECK("once", lseek(fd, 0, SEEK_END) == (off_t)strlen(text));
	close(fd);
	(void)remove(path);
}

static void a_pipe_gets_it_where_there_is_room(void)
{
	char text[256] = "", filler[4096];
	struct ss_exit_message sockets;
	int pipes[2];

	if (pipe2(pipes, O_CLOEXEC) != 0)
		abort();
	ss_exit_message_open(&sockets);
	run_shell(&sockets, pipes[1], "output\n");
	ss_exit_message_log(&sockets, "x");
	CHECK("read", read(pipes[0], text, sizeof text - 1) > 0);
	CHECK(text, strcmp(text, "output\nslurm-share: x\n") == 0);
	CHECK("the job's own end still waits", (fcntl(pipes[1], F_GETFL) & O_NONBLOCK) == 0);
	memset(filler, 'x', sizeof filler);
	(void)fcntl(pipes[1], F_SETFL, O_NONBLOCK);
	while (write(pipes[1], filler, sizeof filler) > 0)
		;
	(void)fcntl(pipes[1], F_SETFL, 0);
	ss_exit_message_open(&sockets);
	run_shell(&sockets, pipes[1], "");
	ss_exit_message_log(&sockets, "x"); /* the pipe is full: lost */
	ss_exit_message_open(&sockets);
	run_shell(&sockets, pipes[1], "");
	close(pipes[0]);
	ss_exit_message_log(&sockets, "x"); /* no reader: lost, without SIGPIPE */
	close(pipes[1]);
	checked++;
}

static void closed_unsaid_it_keeps_nobody_waiting(void)
{
	struct ss_exit_message sockets;
	char byte;
	int pipes[2];

	if (pipe2(pipes, O_CLOEXEC) != 0)
		abort();
	ss_exit_message_open(&sockets);
	run_shell(&sockets, pipes[1], "");
	close(pipes[1]);
	ss_exit_message_close(&sockets);
	CHECK("the reader sees the end", read(pipes[0], &byte, 1) == 0);
	close(pipes[0]);
}

static void a_terminal_gets_it(void)
{
	char text[256] = "";
	struct ss_exit_message sockets;
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);

	if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
		fprintf(stderr, "NOT TESTED: no terminals here\n");
		return;
	}
	int terminal = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
	ss_exit_message_open(&sockets);
	run_shell(&sockets, terminal, "");
	ss_exit_message_log(&sockets, "x");
	CHECK("read", read(master, text, sizeof text - 1) > 0);
	CHECK(text, strcmp(text, "slurm-share: x\r\n") == 0);
	close(terminal);
	close(master);
}

static int open_files(void)
{
	int count = 0;
	for (int fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static void where_it_cannot_be_said_nothing_happens(void)
{
	struct ss_exit_message sockets = SS_NO_EXIT_MESSAGE;
	struct rlimit limit, none = { 0, 0 };
	char path[] = "/tmp/test_exit_message.XXXXXX";

	ss_exit_message_log(&sockets, "x");
	ss_exit_message_close(&sockets);
	ss_exit_message_open(&sockets);
	ss_exit_message_log(&sockets, "the shell died before it had sent anything");
	int odd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	ss_exit_message_open(&sockets);
	run_shell(&sockets, odd, "");
	ss_exit_message_log(&sockets, "x");
	close(odd);
	odd = open("/dev/full", O_WRONLY | O_CLOEXEC);
	ss_exit_message_open(&sockets);
	run_shell(&sockets, odd, "");
	ss_exit_message_log(&sockets, "x");
	close(odd);
	odd = mkstemp(path);
	ss_exit_message_open(&sockets);
	run_shell(&sockets, odd, "");
	(void)getrlimit(RLIMIT_FSIZE, &limit);
	none.rlim_max = limit.rlim_max;
	(void)setrlimit(RLIMIT_FSIZE, &none);
	ss_exit_message_log(&sockets, "x"); /* SIGXFSZ would end this process */
	(void)setrlimit(RLIMIT_FSIZE, &limit);
	close(odd);
	(void)remove(path);
}

/* With contain_spank slurmstepd runs a callback in a child that shares its memory and has a copy of its file descriptors. */
static void a_child_of_the_opener_says_it_and_leaves_nothing_to_wait_for(void)
{
	char text[256] = "", byte;
	struct ss_exit_message sockets;
	int pipes[2];

	for (int says = 0; says < 2; says++) {
		if (pipe2(pipes, O_CLOEXEC) != 0)
			abort();
		ss_exit_message_open(&sockets);
		run_shell(&sockets, pipes[1], "");
		close(pipes[1]);
		pid_t child = fork();
		if (child == 0) {
			if (says)
				ss_exit_message_log(&sockets, "x");
			ss_exit_message_close(&sockets);
			_exit(0);
		}
		(void)waitpid(child, NULL, 0);
		if (says)
			CHECK("said", read(pipes[0], text, sizeof text - 1) > 0 && strcmp(text, "slurm-share: x\n") == 0);
		CHECK("the reader sees the end", read(pipes[0], &byte, 1) == 0);
		CHECK("the opener's own", sockets.from_task >= 0);
		ss_exit_message_close(&sockets);
		CHECK("closed", sockets.from_task == -1);
		close(pipes[0]);
	}
}

/* Another part of slurmstepd has closed the sockets, and their numbers name other files. */
static void another_file_under_their_number_is_left_alone(void)
{
	struct ss_exit_message sockets;
	int others[2];
	char byte;

	ss_exit_message_open(&sockets);
	close(sockets.to_parent);
	close(sockets.from_task);
	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, others) != 0 || others[0] != sockets.to_parent ||
	    others[1] != sockets.from_task)
		abort();
	run_shell(&sockets, STDERR_FILENO, "");
	CHECK("nothing sent", recv(others[1], &byte, 1, MSG_DONTWAIT) < 0);
	ss_exit_message_log(&sockets, "x");
	CHECK("still open", send(others[0], "x", 1, 0) == 1 && recv(others[1], &byte, 1, MSG_DONTWAIT) == 1);
	close(others[0]);
	close(others[1]);
}

int main(void)
{
	int before = open_files();

	(void)alarm(60);
	it_stands_behind_what_the_job_wrote();
	a_pipe_gets_it_where_there_is_room();
	closed_unsaid_it_keeps_nobody_waiting();
	a_terminal_gets_it();
	where_it_cannot_be_said_nothing_happens();
	a_child_of_the_opener_says_it_and_leaves_nothing_to_wait_for();
	another_file_under_their_number_is_left_alone();
	CHECK("nothing is left open", open_files() == before);
	return finish();
}
