/* Check that a task's MPS daemon is alive. */
#ifndef SLURM_SHARE_MPS_H
#define SLURM_SHARE_MPS_H

#include <stddef.h>
#include <stdint.h>

/* Return 0, or -1 and a reason in `why`. Without its daemon a CUDA program does not fail: it runs without MPS, with the whole GPU
 * and without its memory cap.
 *
 * Checked are the daemon's socket, and its lock file, which the daemon locks while it runs (measured with the control daemons of
 * 535, 550 and 555): the holder must be a process of that user with the daemon's name. No connection is made: the daemon serves
 * one at a time, and several tasks at once would block the hooks, which ask it for its servers.
 *
 * Not detected: a daemon that is stopped or hangs, since it holds its lock; a server that fails after the Prolog has started it; a
 * private /dev/shm of the job (job_container/tmpfs), which hides the client's shared memory from a server outside the job. */
int ss_mps_check(const char *pipe_folder, uint32_t uid, char *why, size_t size);

#endif
