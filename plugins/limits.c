#include "limits.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "common.h"
#include "limits_client.h"
#include "names.h"
#include "options.h"

bool ss_limits_has(const struct ss_plan *plan)
{
	for (uint32_t i = 0; i < plan->slot_count; i++)
		if (plan->slots[i].is_cap_of_driver)
			return true;
	return false;
}

bool ss_limits_is_required(const struct ss_plan *plan, const struct ss_slot *slot)
{
	return slot->memory_least_mib > 0 || (plan->has_mem && slot->mps_directory == NULL);
}

void ss_limits_socket(char *path, size_t size, const char *state_root, uint32_t job)
{
	(void)snprintf(path, size, "%s/" SS_JOBS_FOLDER "/%u/" SS_LIMITS_SOCKET, state_root, job);
}

static bool is_needed(const char *state_root, const struct ss_plan_owner *owner)
{
	char path[SS_LIMITS_PATH_SIZE], why[SS_SENTENCE_SIZE];
	struct ss_plan *plan = NULL;

	(void)snprintf(path, sizeof path, "%s/" SS_JOBS_FOLDER "/%u/" SS_PLAN_FILE, state_root, owner->job);
	if (ss_plan_read(path, owner, &plan, why, sizeof why) != SS_PLAN_READ)
		return false;
	bool is = plan->refused == NULL && plan->unshared == NULL && ss_limits_has(plan);
	ss_plan_free(plan);
	return is;
}

void ss_limits_start(const char *state_root, const struct ss_plan_owner *owner)
{
	char program[] = SS_LIMITS_PROGRAM, keep[] = "keep", root[SS_LIMITS_PATH_SIZE], job[16], uid[16], node[256];
	char path[] = "PATH=/usr/bin:/bin", *environment[] = { path, NULL };
	char *arguments[] = { program, keep, root, job, uid, node, NULL };
	posix_spawn_file_actions_t files;
	pid_t pid;

	if (!is_needed(state_root, owner))
		return;
	(void)snprintf(root, sizeof root, "%s", state_root);
	(void)snprintf(job, sizeof job, "%u", owner->job);
	(void)snprintf(uid, sizeof uid, "%u", owner->uid);
	(void)snprintf(node, sizeof node, "%s", owner->node ? owner->node : "-");
	if (posix_spawn_file_actions_init(&files) != 0)
		return;
	for (int fd = 0; fd < 3; fd++)
		(void)posix_spawn_file_actions_addopen(&files, fd, "/dev/null", O_RDWR, 0);
	/* it forks the keeper, which becomes nobody's child here, and ends when the keeper listens, or when another one does */
	int rc = posix_spawn(&pid, program, &files, NULL, arguments, environment);
	while (rc == 0 && waitpid(pid, NULL, 0) < 0)
		rc = errno == EINTR ? 0 : -1;
	(void)posix_spawn_file_actions_destroy(&files);
}
