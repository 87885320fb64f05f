/* Write a sentence at the end of a job's output, after its shell has ended.
 *
 * slurmstepd does not tell a plugin where the job's output goes, and slurm_spank_log() writes to slurmd's log then. So the forked
 * shell sends its stderr to slurmstepd through a socket before it executes the user's program.
 *
 * A file descriptor cannot be sent without a socket that is open from before the fork until after the task's end. So slurmstepd
 * itself opens it, before the callbacks that contain_spank moves to a child; such a child has copies. The sockets' identity is
 * checked before each use. */
#ifndef SLURM_SHARE_EXIT_MESSAGE_H
#define SLURM_SHARE_EXIT_MESSAGE_H

#include <stdint.h>

struct ss_exit_message {
	int to_parent, from_task; /* -1: closed */
	uint64_t identity[2];     /* the inodes of these sockets */
	uint32_t opener;          /* the process whose file descriptors they are */
};

#define SS_NO_EXIT_MESSAGE ((struct ss_exit_message){ -1, -1, { 0, 0 }, 0 })

/* Open the sockets, before the fork, in a callback that slurmstepd runs itself. If that fails, there will be no sentence. */
void ss_exit_message_open(struct ss_exit_message *sockets);

/* In the forked task: send stderr to the parent. */
void ss_exit_message_send(struct ss_exit_message *sockets);

/* In the parent or a child that shares its memory, once, after the task has ended: write the sentence. Never blocks: on a full pipe, a terminal that nobody reads, or
 * after a task that died before it sent its stderr, the sentence is lost. */
void ss_exit_message_log(struct ss_exit_message *sockets, const char *sentence);

/* Close the task's stderr, which is open here until then, so that its reader waits: call it as soon as the task has ended. In the
 * process that opened the sockets, close them as well. */
void ss_exit_message_close(struct ss_exit_message *sockets);

#endif
