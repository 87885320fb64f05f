/* Write a sentence at the end of a job's output, after its shell has ended.
 *
 * slurmstepd does not tell a plugin where the job's output goes, and slurm_spank_log() writes to slurmd's log then. So the forked
 * shell sends its stderr to slurmstepd through a socket before it executes the user's program. */
#ifndef SLURM_SHARE_EXIT_MESSAGE_H
#define SLURM_SHARE_EXIT_MESSAGE_H

struct ss_exit_message {
	int to_parent, from_task; /* -1: closed */
};

#define SS_NO_EXIT_MESSAGE ((struct ss_exit_message){ -1, -1 })

/* Open the sockets, before the fork. If that fails, there will be no sentence. */
void ss_exit_message_open(struct ss_exit_message *sockets);

/* In the forked task: send stderr to the parent. */
void ss_exit_message_send(struct ss_exit_message *sockets);

/* In the parent, once, after the task has ended: write the sentence. Never blocks: on a full pipe, a terminal that nobody reads, or
 * after a task that died before it sent its stderr, the sentence is lost. */
void ss_exit_message_log(struct ss_exit_message *sockets, const char *sentence);

/* Close the sockets. Call it as soon as the task has ended: until then the task's stderr is open here, and its reader waits. */
void ss_exit_message_close(struct ss_exit_message *sockets);

#endif
