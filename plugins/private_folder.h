/* Return whether the job has a folder of its own where the node has one (job_container.conf, namespace.yaml). */
#ifndef SLURM_SHARE_PRIVATE_FOLDER_H
#define SLURM_SHARE_PRIVATE_FOLDER_H

#include <stdbool.h>

#define SS_OWN_MOUNTS "/proc/self/mountinfo"

/* Return whether the file system that is seen at `path` is a part of another one, mounted at that folder or at one above it: so
 * Slurm's plugins lay a folder of the job over one of the node. A file system of its own, such as the state folder's tmpfs on the
 * node, is mounted with its own root. `mounts`: /proc/self/mountinfo. False where that cannot be read. */
bool ss_is_private_folder(const char *path, const char *mounts);

#endif
