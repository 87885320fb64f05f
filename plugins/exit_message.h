/* A sentence at the end of a job's own output, when the shell that wrote it has ended.
 *
 * slurmstepd does not show a plugin where the job's output goes, and slurm_spank_log() there ends in slurmd's log: so the forked
 * shell sends its stderr back, before it becomes the user's program, through a socket that waits until the end. */
#ifndef SLURM_SHARE_LAST_WORD_H
#define SLURM_SHARE_LAST_WORD_H

struct ss_exit_message {
	int to_parent, from_task; /* -1: there is none */
};

#define SS_NO_EXIT_MESSAGE ((struct ss_exit_message){ -1, -1 })

/* Before the fork; where it fails there will be no sentence. */
void ss_exit_message_open(struct ss_exit_message *sockets);

/* In the forked task: stderr goes to the parent. */
void ss_exit_message_send(struct ss_exit_message *sockets);

/* In the parent, once, after the task has ended. Never blocks: not on a full pipe, a terminal that nobody reads, or a task that
 * died before it had sent anything; then the sentence is lost. */
void ss_exit_message_log(struct ss_exit_message *sockets, const char *sentence);

/* As soon as the task has ended, said or not: until then the task's stderr is open here, and whoever reads it waits. */
void ss_exit_message_close(struct ss_exit_message *sockets);

#endif
