#include "limits_groups.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../plugins/common.h"

#define MOUNT "/sys/fs/cgroup"
#define HYBRID MOUNT "/unified"
#define DMEM "dmem"

enum { END_MS = 2000, PAUSE_MS = 2 };

struct group {
	char path[GROUP_PATH_SIZE]; /* relative to the mount */
	bool is_made;               /* by groups_enter */
	bool is_recovered;          /* its limits are not known */
	size_t gpus;
	struct gpu_limits gpu[GROUP_GPUS_MAX];
	struct group *next;
};

static struct {
	const char *root;
	bool has_dmem;
	char record[GROUP_PATH_SIZE];
	struct group *first;
	size_t groups;
	size_t gpus; /* that the record names */
	char gpu[GROUP_GPUS_MAX][UUID_SIZE];
} known;

static int write_file(const char *folder, const char *file, const char *text)
{
	char path[2 * GROUP_PATH_SIZE];

	(void)snprintf(path, sizeof path, "%s/%s", folder, file);
	int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -1;
	ssize_t written = write(fd, text, strlen(text));
	int saved = errno;
	(void)close(fd);
	errno = saved;
	return written < 0 ? -1 : 0;
}

/* Read a small file of the kernel as a string; empty if that is not possible. */
static void read_file(const char *folder, const char *file, char *text, size_t size)
{
	char path[2 * GROUP_PATH_SIZE];
	ssize_t length = -1;

	(void)snprintf(path, sizeof path, "%s%s%s", folder, *file ? "/" : "", file);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		length = read(fd, text, size - 1);
		(void)close(fd);
	}
	text[length > 0 ? length : 0] = '\0';
}

static bool has_word(const char *text, const char *word)
{
	size_t length = strlen(word);

	for (const char *at = text; (at = strstr(at, word)) != NULL; at += length)
		if ((at == text || at[-1] == ' ') && strchr(" \n", at[length]) != NULL)
			return true;
	return false;
}

static void folder_of(const char *path, char *folder)
{
	(void)snprintf(folder, 2 * GROUP_PATH_SIZE, "%s%s", known.root, path);
}

const char *groups_root(void)
{
	if (known.root == NULL)
		known.root = access(MOUNT "/cgroup.controllers", F_OK) == 0    ? MOUNT
			     : access(HYBRID "/cgroup.controllers", F_OK) == 0 ? HYBRID
									       : NULL;
	return known.root;
}

int groups_begin(const char *record, char *why, size_t size)
{
	char text[1024];

	if (groups_root() == NULL)
		return ss_fail(why, size, "this node has no cgroup v2");
	read_file(known.root, "cgroup.controllers", text, sizeof text);
	known.has_dmem = has_word(text, DMEM);
	if (known.has_dmem) { /* the driver uses it only if it has registered its memory there */
		read_file(known.root, "dmem.capacity", text, sizeof text);
		known.has_dmem = strstr(text, "nvidia/") != NULL;
	}
	(void)snprintf(known.record, sizeof known.record, "%s", record);
	return 0;
}

int groups_path_of(pid_t pid, char *path, size_t size)
{
	char file[64], text[4096];

	(void)snprintf(file, sizeof file, "/proc/%d/cgroup", (int)pid);
	read_file(file, "", text, sizeof text);
	for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
		if (strncmp(line, "0::/", 4) == 0 && strlen(line + 3) < size) {
			strcpy(path, line + 3);
			return 0;
		}
	return -1;
}

bool groups_is_task(const char *path, const char *prefix, size_t *step)
{
	static const char user[] = "/user/task_";
	size_t length = strlen(prefix);

	if (strncmp(path, prefix, length) != 0 || strncmp(path + length, "/step_", 6) != 0)
		return false;
	const char *rest = strchr(path + length + 1, '/');
	if (rest == NULL || strncmp(rest, user, sizeof user - 1) != 0)
		return false;
	*step = (size_t)(rest - path);
	rest += sizeof user - 1;
	return *rest != '\0' && rest[strspn(rest, "0123456789")] == '\0';
}

static struct group *find_group(const char *path)
{
	for (struct group *one = known.first; one != NULL; one = one->next)
		if (strcmp(one->path, path) == 0)
			return one;
	return NULL;
}

/* Write into the record what is about to be limited: if this process is killed, the Epilog still finds it. */
static int record(const char *kind, const char *path, char *why, size_t size)
{
	char line[GROUP_PATH_SIZE + 16];
	int length = snprintf(line, sizeof line, "%s %s\n", kind, path);

	int fd = open(known.record, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return ss_fail(why, size, "%s: %s", known.record, strerror(errno));
	off_t before = lseek(fd, 0, SEEK_END);
	ssize_t written = write(fd, line, (size_t)length);
	int saved = errno;
	if (written >= 0 && written < length && before >= 0) /* the next line would be appended to a part of this one */
		(void)!ftruncate(fd, before);
	(void)close(fd);
	return written == length ? 0 : ss_fail(why, size, "%s: %s", known.record, written < 0 ? strerror(saved) : "no space");
}

int groups_note_gpu(const char *uuid, char *why, size_t size)
{
	return record("gpu", uuid, why, size);
}

static struct group *new_group(const char *path, bool is_made)
{
	struct group *group = calloc(1, sizeof *group);

	if (group == NULL)
		return NULL;
	(void)snprintf(group->path, sizeof group->path, "%s", path);
	group->is_made = is_made;
	group->next = known.first;
	known.first = group;
	known.groups++;
	return group;
}

static bool is_there(const char *path)
{
	char folder[2 * GROUP_PATH_SIZE];

	folder_of(path, folder);
	return access(folder, F_OK) == 0;
}

void groups_recover(void)
{
	char line[GROUP_PATH_SIZE + 16];
	FILE *file = fopen(known.record, "re");

	while (file != NULL && fgets(line, sizeof line, file) != NULL) {
		char *value = strchr(line, ' ');
		if (value == NULL || strchr(value, '\n') == NULL)
			continue;
		*value++ = '\0';
		value[strcspn(value, "\n")] = '\0';
		if (strcmp(line, "gpu") == 0) {
			if (known.gpus < GROUP_GPUS_MAX && strlen(value) < UUID_SIZE)
				strcpy(known.gpu[known.gpus++], value);
		} else if (find_group(value) == NULL && is_there(value)) {
			struct group *group = new_group(value, strcmp(line, "made") == 0);
			if (group != NULL)
				group->is_recovered = true;
		}
	}
	if (file != NULL)
		(void)fclose(file);
}

static struct group *add_group(const char *path, bool is_made, char *why, size_t size)
{
	if (known.groups >= GROUPS_MAX) /* the job's user chooses their names */
		return ss_fail(why, size, "the job has %d cgroups with limits already", GROUPS_MAX), NULL;
	if (record(is_made ? "made" : "task", path, why, size) != 0)
		return NULL;
	struct group *group = new_group(path, is_made);
	if (group == NULL)
		(void)ss_fail(why, size, "no memory");
	return group;
}

static void forget_group(struct group *group)
{
	for (struct group **at = &known.first; *at != NULL; at = &(*at)->next)
		if (*at == group) {
			*at = group->next;
			free(group);
			known.groups--;
			return;
		}
}

/* Enable dmem from the mount down to the folder above `path`: Slurm does not know this controller. */
static int enable_dmem(const char *path, char *why, size_t size)
{
	char folder[2 * GROUP_PATH_SIZE], controllers[1024];

	if (!known.has_dmem)
		return 0;
	for (const char *at = path; at != NULL; at = strchr(at + 1, '/')) {
		(void)snprintf(folder, sizeof folder, "%s%.*s", known.root, (int)(at - path), path);
		read_file(folder, "cgroup.subtree_control", controllers, sizeof controllers);
		if (!has_word(controllers, DMEM) && write_file(folder, "cgroup.subtree_control", "+" DMEM) != 0)
			return ss_fail(why, size, "%s: the controller " DMEM " cannot be enabled: %s", folder, strerror(errno));
	}
	return 0;
}

/* Set the limits that are not set yet. A GPU that had limits and is not named any more keeps them. */
static int limit(struct group *group, const struct gpu_limits *gpus, size_t count, char *why, size_t size)
{
	char folder[2 * GROUP_PATH_SIZE];

	folder_of(group->path, folder);
	for (size_t i = 0; i < count; i++) {
		struct gpu_limits *own = NULL;
		for (size_t n = 0; n < group->gpus && own == NULL; n++)
			if (strcmp(group->gpu[n].uuid, gpus[i].uuid) == 0)
				own = &group->gpu[n];
		if (own != NULL && own->limits.soft == gpus[i].limits.soft && own->limits.hard == gpus[i].limits.hard)
			continue;
		if (own == NULL && group->gpus == GROUP_GPUS_MAX)
			return ss_fail(why, size, "more than %d GPUs", GROUP_GPUS_MAX);
		if (own == NULL)
			own = &group->gpu[group->gpus++];
		*own = gpus[i];
		if (nvml_set(gpus[i].uuid, folder, &gpus[i].limits, why, size) != 0) {
			own->limits.hard = 0; /* not known: set it again the next time */
			return -1;
		}
	}
	return 0;
}

int groups_limit_task(const char *path, const struct gpu_limits *gpus, size_t count, char *why, size_t size)
{
	struct group *group = find_group(path);

	if (group != NULL)
		return ss_fail(why, size, "the limits of this task are set already");
	if (enable_dmem(path, why, size) != 0)
		return -1;
	group = add_group(path, false, why, size);
	return group == NULL ? -1 : limit(group, gpus, count, why, size);
}

int groups_check(const char *path, const char *uuid, char *why, size_t size)
{
	char folder[2 * GROUP_PATH_SIZE];
	struct memory_limits limits;

	folder_of(path, folder);
	if (find_group(path) != NULL)
		return ss_fail(why, size, "this task has limits itself");
	if (enable_dmem(path, why, size) != 0 || nvml_get(uuid, folder, &limits, why, size) != 0)
		return -1;
	return limits.hard == NVML_NO_LIMIT ? 0 : ss_fail(why, size, "this task has limits itself");
}

static bool is_name(const char *name)
{
	size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");

	return length > 0 && length <= GROUP_NAME_MAX && name[length] == '\0';
}

static bool is_populated(const char *folder)
{
	char events[256];

	read_file(folder, "cgroup.events", events, sizeof events);
	return strstr(events, "populated 1") != NULL;
}

/* Give back what the group has reserved on a GPU: it stays booked after the end of the cgroup. */
static bool unreserve(const struct memory_limits *limits, const char *uuid, const char *folder)
{
	struct memory_limits none = { 0, limits->hard };
	char why[256];

	return limits->soft == 0 || nvml_set(uuid, folder, &none, why, sizeof why) == 0;
}

void groups_unreserve_idle(const char *but)
{
	char folder[2 * GROUP_PATH_SIZE];

	for (struct group *group = known.first; group != NULL; group = group->next) {
		bool is_reserved = false;
		for (size_t i = 0; i < group->gpus; i++)
			is_reserved = is_reserved || group->gpu[i].limits.soft > 0;
		folder_of(group->path, folder);
		if (!group->is_made || !is_reserved || (but != NULL && strcmp(group->path, but) == 0) || is_populated(folder))
			continue;
		for (size_t i = 0; i < group->gpus; i++)
			if (unreserve(&group->gpu[i].limits, group->gpu[i].uuid, folder))
				group->gpu[i].limits.soft = 0;
	}
}

int groups_enter(const char *path, const char *name, const struct asker *asker, const struct gpu_limits *gpus, size_t count, char *why,
		 size_t size)
{
	char own[GROUP_PATH_SIZE], folder[2 * GROUP_PATH_SIZE], number[16];
	const char *task = strrchr(path, '/') + 1; /* task_T: groups_is_task() */

	if (!is_name(name))
		return ss_fail(why, size, "'%.40s' is not the name of a group", name);
	int above = known.has_dmem ? (int)(task - 1 - path) : (int)strlen(path);
	if (snprintf(own, sizeof own, "%.*s/" GROUP_PREFIX "%s_%s", above, path, task + strlen("task_"), name) >= (int)sizeof own)
		return ss_fail(why, size, "the path of its cgroup is too long");
	folder_of(own, folder);
	groups_unreserve_idle(own);
	struct group *group = find_group(own);
	if (group == NULL) {
		if (enable_dmem(own, why, size) != 0)
			return -1;
		group = add_group(own, true, why, size);
		if (group == NULL)
			return -1;
	}
	if (mkdir(folder, 0755) != 0 && errno != EEXIST)
		return ss_fail(why, size, "%s: %s", folder, strerror(errno));
	if (limit(group, gpus, count, why, size) != 0)
		return -1;
	struct pollfd end = { asker->pidfd, POLLIN, 0 };
	if (poll(&end, 1, 0) != 0)
		return ss_fail(why, size, "the process that asked has ended");
	(void)snprintf(number, sizeof number, "%d", (int)asker->pid);
	return write_file(folder, "cgroup.procs", number) == 0 ? 0 : ss_fail(why, size, "%s/cgroup.procs: %s", folder, strerror(errno));
}

/* Kill what is in a folder and wait for its end, for END_MS at most. */
static void empty(const char *folder)
{
	(void)write_file(folder, "cgroup.kill", "1"); /* since Linux 5.14 */
	for (int64_t until = ss_now_ms() + END_MS; is_populated(folder) && ss_now_ms() < until; (void)poll(NULL, 0, PAUSE_MS))
		continue;
}

static bool unreserve_all(const struct group *group, const char *folder)
{
	struct memory_limits found;
	char why[256];
	bool is_well = true;

	if (!nvml_is_open()) /* without a driver nothing is reserved */
		return true;
	for (size_t i = 0; i < group->gpus; i++)
		is_well = unreserve(&group->gpu[i].limits, group->gpu[i].uuid, folder) && is_well;
	for (size_t i = 0; group->is_recovered && i < known.gpus; i++)
		is_well = nvml_get(known.gpu[i], folder, &found, why, sizeof why) == 0 && unreserve(&found, known.gpu[i], folder) &&
			  is_well;
	return is_well;
}

/* Return whether nothing of the group is left. */
static bool end_group(const struct group *group)
{
	char folder[2 * GROUP_PATH_SIZE];

	folder_of(group->path, folder);
	if (!is_there(group->path))
		return true;
	if (group->is_made)
		empty(folder);
	return unreserve_all(group, folder) && (!group->is_made || rmdir(folder) == 0 || errno == ENOENT);
}

/* Return whether a task that is not to be ended still runs in its folder. */
static bool is_in_use(const struct group *group, bool is_over)
{
	char folder[2 * GROUP_PATH_SIZE];

	folder_of(group->path, folder);
	return !group->is_made && !is_over && is_populated(folder);
}

size_t groups_end(const char *step, bool is_over)
{
	size_t length = step ? strlen(step) : 0, left = 0;
	struct group *next;

	for (struct group *one = known.first; one != NULL; one = next) {
		next = one->next;
		if (strncmp(one->path, step ? step : "", length) != 0 || (step != NULL && one->path[length] != '/'))
			continue;
		if (is_in_use(one, is_over))
			continue;
		if (end_group(one))
			forget_group(one);
		else
			left++;
	}
	return left;
}
