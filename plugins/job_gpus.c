#include "job_gpus.h"

#include <stdio.h>
#include <string.h>

#include "common.h"
#include "gres.h"
#include "names.h"

int ss_job_gpus_add(struct ss_job_gpus *job, const char *name, const char *gres)
{
	struct ss_gres found;

	if (name == NULL || ss_gres_read(gres, &found) != 0)
		return -1;
	if (job->nodes == 0 || found.gpus < job->least)
		job->least = found.gpus;
	if (found.gpus > 0 && (job->least_of_some == 0 || found.gpus < job->least_of_some))
		job->least_of_some = found.gpus;
	if (found.gpus > job->most)
		job->most = found.gpus;
	job->has_shards = job->has_shards || found.has_shards;
	job->nodes++;
	if (job->listed < SS_JOB_NODES_LISTED) {
		struct ss_job_node *node = &job->node[job->listed++];
		(void)snprintf(node->name, sizeof node->name, "%s", name);
		node->gpus = found.gpus;
	}
	return 0;
}

static void take_share(struct ss_job_gpus *job, const char *text, size_t length)
{
	struct ss_request request;
	char value[SS_CANONICAL_SIZE], sentence[SS_SENTENCE_SIZE];

	if (length >= sizeof value)
		return;
	(void)snprintf(value, sizeof value, "%.*s", (int)length, text);
	if (ss_request_parse(value, &request, sentence, sizeof sentence) == 0 && !request.off) {
		job->per_gpu = (uint32_t)request.per_gpu;
		memcpy(job->share, value, sizeof job->share);
	}
}

void ss_job_gpus_mark(struct ss_job_gpus *job, const char *admin_comment)
{
	static const char mark[] = SS_OPTION "=";

	for (const char *at = admin_comment; at != NULL && *at != '\0';) {
		size_t length = strcspn(at, ";");
		if (strncmp(at, mark, strlen(mark)) == 0)
			take_share(job, at + strlen(mark), length - strlen(mark));
		at += length + (at[length] == ';');
	}
}

void ss_job_gpus_mark_of_verdict(struct ss_job_gpus *job, const char *text)
{
	static const char verdict[] = SS_VERDICT "=", mark[] = "," SS_OPTION "=";

	for (const char *at = text; at != NULL && *at != '\0';) {
		size_t length = strcspn(at, ";");
		const char *share = strncmp(at, verdict, strlen(verdict)) == 0 ? strstr(at, mark) : NULL;
		if (share != NULL && share < at + length)
			take_share(job, share + strlen(mark), length - (size_t)(share - at) - strlen(mark));
		at += length + (at[length] == ';');
	}
}

/* Return whether the fields after a verdict's mode, such as ",runs=2,tasks=4" up to `end`, exclude this run. */
static bool is_over(const char *verdict, const char *end, uint32_t restarts)
{
	static const char runs[] = ",runs=";
	uint32_t most;

	for (const char *at = verdict; at < end; at += 1 + strcspn(at + 1, ",;")) {
		size_t length = 1 + strcspn(at + 1, ",;");
		if (length > strlen(runs) && strncmp(at, runs, strlen(runs)) == 0)
			return ss_number_parse(at + strlen(runs), length - strlen(runs), 0, 999999, &most) == 0 && restarts >= most;
	}
	return false;
}

void ss_job_gpus_hear(struct ss_job_gpus *job, const char *text, uint32_t restarts)
{
	static const char mark[] = SS_VERDICT "=", on[] = "on";

	for (const char *at = text; at != NULL && *at != '\0';) {
		size_t length = strcspn(at, ";");
		if (strncmp(at, mark, strlen(mark)) == 0) {
			const char *mode = at + strlen(mark), *end = at + length;
			size_t mode_length = strcspn(mode, ",;");
			if (mode_length != strlen(on) || strncmp(mode, on, mode_length) != 0 || is_over(mode + mode_length, end, restarts))
				job->per_gpu = 0;
		}
		at += length + (at[length] == ';');
	}
}

/* The fewest GPUs on the nodes that a list like n1,n3 names, and which node that is; NULL where it has brackets, or names no
 * node that we know. */
static const struct ss_job_node *fewest_of(const struct ss_job_gpus *job, const char *list)
{
	const struct ss_job_node *fewest = NULL;

	for (const char *at = list; *at != '\0';) {
		size_t length = strcspn(at, ",");
		const struct ss_job_node *named = NULL;
		for (uint32_t i = 0; i < job->listed && named == NULL; i++)
			if (strlen(job->node[i].name) == length && strncmp(job->node[i].name, at, length) == 0)
				named = &job->node[i];
		if (named == NULL)
			return NULL;
		if (fewest == NULL || named->gpus < fewest->gpus)
			fewest = named;
		at += length + (at[length] == ',');
	}
	return fewest;
}

/* "n1: 4 GPUs, n2: 2": one node for each number, in the job's order. */
static void describe(const struct ss_job_gpus *job, char *text, size_t size)
{
	size_t used = 0;
	uint32_t shown[4], kinds = 0;
	bool has_unit = false;

	text[0] = '\0';
	for (uint32_t i = 0; i < job->listed && used < size; i++) {
		const struct ss_job_node *node = &job->node[i];
		bool is_shown = false;
		for (uint32_t k = 0; k < kinds; k++)
			is_shown = is_shown || shown[k] == node->gpus;
		if (is_shown)
			continue;
		if (kinds == sizeof shown / sizeof *shown) {
			(void)snprintf(text + used, size - used, ", ...");
			return;
		}
		shown[kinds++] = node->gpus;
		int n = snprintf(text + used, size - used, "%s%s: ", kinds > 1 ? ", " : "", node->name);
		used += n > 0 ? (size_t)n : 0;
		if (used >= size)
			return;
		if (node->gpus == 0)
			n = snprintf(text + used, size - used, "none");
		else if (has_unit)
			n = snprintf(text + used, size - used, "%u", node->gpus);
		else
			n = snprintf(text + used, size - used, "%u GPU%s", node->gpus, node->gpus == 1 ? "" : "s");
		has_unit = has_unit || node->gpus > 0;
		used += n > 0 ? (size_t)n : 0;
	}
}

/* The nodes that the step is on: srun takes no more than it has tasks. */
static uint32_t nodes_of(const struct ss_spread *spread)
{
	uint32_t nodes = spread->said->nodes > 0 ? spread->said->nodes : spread->nodes;
	return spread->said->tasks > 0 && spread->said->tasks < nodes ? spread->said->tasks : nodes;
}

/* Check an srun on all nodes, which has the numbers of tasks and GPUs of the job's first node on each node. */
static int check_all(const struct ss_job_gpus *job, const struct ss_spread *spread, char *sentence, size_t size)
{
	char nodes[256], share[SS_CANONICAL_SIZE + 32] = "";

	/* with --gpus in the job Slurm itself distributes the tasks of srun -n */
	if (spread->said->says_tasks && spread->gpus <= job->least)
		return 0;
	describe(job, nodes, sizeof nodes);
	if (job->per_gpu > 0)
		(void)snprintf(share, sizeof share, "--" SS_OPTION "=%s ", job->share);
	return ss_fail(sentence, size,
		       "job %u has different numbers of GPUs on its nodes (%s), and one srun cannot give each node its own number "
		       "of tasks; submit it with the same number on each node (%s--gres=gpu:%u), or on nodes that are alike",
		       spread->job, nodes, share, job->least_of_some);
}

/* Check an srun on nodes that it names: it would wait for ever, without a message, for GPUs that a node does not have. */
static int check_some(const struct ss_job_gpus *job, const struct ss_spread *spread, char *sentence, size_t size)
{
	const struct ss_job_node *fewest = spread->said->node_list ? fewest_of(job, spread->said->node_list) : NULL;
	char way[64] = "--gres=none";

	if (fewest == NULL || fewest->gpus >= spread->gpus)
		return 0;
	if (fewest->gpus > 0 && job->per_gpu > 0 && !spread->said->says_tasks)
		(void)snprintf(way, sizeof way, "--gres=gpu:%u --ntasks-per-node=%u", fewest->gpus, job->per_gpu * fewest->gpus);
	else if (fewest->gpus > 0)
		(void)snprintf(way, sizeof way, "--gres=gpu:%u", fewest->gpus);
	return ss_fail(sentence, size,
		       "job %u has %u GPU%s on %s, and this srun asks for the %u of the job's first node (SLURM_GRES); add %s",
		       spread->job, fewest->gpus, fewest->gpus == 1 ? "" : "s", fewest->name, spread->gpus, way);
}

bool ss_job_gpus_matter(const struct ss_spread *spread)
{
	const struct ss_srun_arguments *said = spread->said;

	return spread->nodes > 1 && !said->says_gpus && !said->says_other_place &&
	       (nodes_of(spread) >= spread->nodes || said->node_list != NULL);
}

int ss_job_gpus_check(const struct ss_job_gpus *job, const struct ss_spread *spread, char *sentence, size_t size)
{
	if (job->least == job->most || !ss_job_gpus_matter(spread))
		return 0;
	if (nodes_of(spread) >= spread->nodes)
		return check_all(job, spread, sentence, size);
	return check_some(job, spread, sentence, size);
}
