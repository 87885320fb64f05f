/* Ask the job's keeper of memory limits (prolog/limits.c), which is root, to limit the device memory of this process's cgroup.
 *
 * A request and its answer are one datagram each, of printable ASCII:
 *
 *     check                            whether `enter` can be asked for here
 *     task SLOT                        limit the task's own cgroup by the plan: on each GPU the cap of a slot there
 *     enter NAME UUID=SOFT:HARD ...    move this process to a cgroup NAME below its task's, with these limits in MiB
 *     over                             of root: a task of the caller's step has ended
 *     end                              of root: remove all limits, and end
 *
 * The answer is SS_LIMITS_DONE, or SS_LIMITS_NOT and the reason. */
#ifndef SLURM_SHARE_LIMITS_CLIENT_H
#define SLURM_SHARE_LIMITS_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

#define SS_LIMITS_DONE "ok"
#define SS_LIMITS_NOT "no "

enum { SS_LIMITS_MESSAGE_SIZE = 2048, SS_LIMITS_ANSWER_MS = 10000 };

/* Return whether a keeper listens there. */
bool ss_limits_is_there(const char *socket_path);

/* Ask, and wait SS_LIMITS_ANSWER_MS for the answer. `socket_path`: the keeper's. Return -1 with the reason in `why`. */
int ss_limits_ask(const char *socket_path, const char *request, char *why, size_t size);

#endif
