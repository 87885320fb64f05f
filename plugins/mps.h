/* Whether the MPS daemon that a task is sent to is there. */
#ifndef SLURM_SHARE_MPS_H
#define SLURM_SHARE_MPS_H

#include <stddef.h>
#include <stdint.h>

/* 0, or -1 and a reason in `why`. CUDA itself says nothing where the daemon is gone: the program goes on without it, with the
 * whole GPU and without its memory cap.
 *
 * Looked at: the daemon's socket is a socket, and its lock file is locked, as the daemon does for its life (measured with the
 * control daemons of 535, 550 and 555), by a process of that user with the daemon's name. No connection is made: the daemon
 * serves one at a time, and eight tasks that knock at once would shut out the hooks, which ask it for its servers.
 *
 * Not covered: a daemon that is stopped or hangs still holds its lock; a server that fails is seen by the Prolog, which has
 * started one before. A private /tmp or /dev/shm of the job (job_container/tmpfs) does not hide the folder under /run, but a
 * private /dev/shm hides the client's shared memory from a server outside the job, and nothing here notices. */
int ss_mps_check(const char *pipe_folder, uint32_t uid, char *why, size_t size);

#endif
