/* Keep slurm_load_job() by job number; from 26.05 on it takes a step id otherwise. */
#define SLURM_BACKWARD_COMPAT

#include "controller.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

static int describe(const slurm_job_info_t *record, struct ss_job_gpus *job)
{
	/* hostlist_t is a pointer up to 22.05, and a structure later */
	__typeof__(slurm_hostlist_create("")) names = slurm_hostlist_create(record->nodes);
	char *name;
	uint32_t node = 0;
	int rc = 0;

	if (names == NULL)
		return -1;
	while (rc == 0 && (name = slurm_hostlist_shift(names)) != NULL) {
		rc = ss_job_gpus_add(job, name, node < record->gres_detail_cnt ? record->gres_detail_str[node] : NULL);
		free(name);
		node++;
	}
	slurm_hostlist_destroy(names);
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 2, 0)
	ss_job_gpus_mark_of_verdict(job, record->extra);
#endif
	ss_job_gpus_mark_of_verdict(job, record->comment);
	ss_job_gpus_mark(job, record->admin_comment);
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 2, 0)
	ss_job_gpus_hear(job, record->extra, record->restart_cnt);
#endif
	ss_job_gpus_hear(job, record->comment, record->restart_cnt);
	return rc == 0 && job->nodes > 0 ? 0 : -1;
}

static int load(uint32_t job_id, struct ss_job_gpus *job)
{
	job_info_msg_t *message = NULL;
	int rc = -1;

	memset(job, 0, sizeof *job);
	if (slurm_load_job(&message, job_id, SHOW_DETAIL | SHOW_LOCAL) != SLURM_SUCCESS || message == NULL)
		return -1;
	/* the message has all elements of an array, or all components of a heterogeneous job */
	for (uint32_t i = 0; i < message->record_count && rc != 0; i++) {
		const slurm_job_info_t *record = &message->job_array[i];
		if (record->job_id == job_id && record->user_id == getuid() && record->nodes != NULL)
			rc = describe(record, job);
	}
	slurm_free_job_info_msg(message);
	return rc;
}

static size_t size_of(const struct ss_job_gpus *job)
{
	return offsetof(struct ss_job_gpus, node) + job->listed * sizeof job->node[0];
}

static void write_all(int fd, const char *bytes, size_t size)
{
	while (size > 0) {
		ssize_t n = write(fd, bytes, size);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return;
		bytes += n;
		size -= (size_t)n;
	}
}

/* Hide libslurm's messages about a controller that does not answer: srun prints its own a moment later. */
static void be_quiet(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0)
		return;
	(void)dup2(null, STDOUT_FILENO);
	(void)dup2(null, STDERR_FILENO);
}

static void answer(int to_parent, uint32_t job_id, struct ss_job_gpus *job) __attribute__((noreturn));
static void answer(int to_parent, uint32_t job_id, struct ss_job_gpus *job)
{
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	be_quiet();
	if (load(job_id, job) == 0)
		write_all(to_parent, (const char *)job, size_of(job));
	_exit(0);
}

/* Read all bytes until the end of the stream, for at most SS_CONTROLLER_WAIT_MS. */
static enum ss_answer read_all(int fd, char *bytes, size_t room, size_t *size)
{
	int64_t end = ss_now_ms() + SS_CONTROLLER_WAIT_MS;

	for (*size = 0;;) {
		struct pollfd ready = { fd, POLLIN, 0 };
		int64_t left = end - ss_now_ms();
		if (left <= 0)
			return SS_LATE_ANSWER;
		int found = poll(&ready, 1, (int)left);
		if (found < 0 && errno != EINTR)
			return SS_NO_ANSWER;
		if (found <= 0)
			continue;
		ssize_t n = read(fd, bytes + *size, room - *size);
		if (n <= 0)
			return n == 0 ? SS_ANSWERED : SS_NO_ANSWER;
		*size += (size_t)n;
	}
}

/* A child process asks, since libslurm has no time limit for a single call. */
enum ss_answer ss_controller_ask(uint32_t job_id, struct ss_job_gpus *job)
{
	enum ss_answer found = SS_NO_ANSWER;
	size_t size = 0;
	int pipes[2];

	if (pipe2(pipes, O_CLOEXEC) != 0)
		return SS_NO_ANSWER;
	pid_t child = fork();
	if (child == 0)
		answer(pipes[1], job_id, job);
	(void)close(pipes[1]);
	if (child > 0)
		found = read_all(pipes[0], (char *)job, sizeof *job, &size);
	(void)close(pipes[0]);
	if (child > 0) {
		(void)kill(child, SIGKILL);
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
	}
	if (found == SS_ANSWERED &&
	    (size < offsetof(struct ss_job_gpus, node) || job->listed > SS_JOB_NODES_LISTED || size != size_of(job)))
		return SS_NO_ANSWER;
	return found;
}
