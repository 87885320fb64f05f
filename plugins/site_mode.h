/* Read the site's `mode` for a partition from config.toml, as the Prolog does. This module does not depend on Slurm.
 *
 * A step without a plan is refused if the mode is "on"; else it runs unshared. This reader ignores TOML that it does not support,
 * such as inline tables and multi-line strings. With SS_MODE_UNKNOWN the step runs unshared. */
#ifndef SLURM_SHARE_SITE_MODE_H
#define SLURM_SHARE_SITE_MODE_H

#include <stdint.h>

enum ss_mode { SS_MODE_UNKNOWN, SS_MODE_OFF, SS_MODE_OBSERVE, SS_MODE_ON };

struct ss_site_mode {
	enum ss_mode mode;
	int64_t changed_s; /* Unix time of the file's last change */
};

/* Return the mode in the text of config.toml for jobs of `partition` (NULL or empty: not known). */
enum ss_mode ss_site_mode_parse(const char *text, const char *partition);

/* Read the mode from the file; SS_MODE_OBSERVE, the default, if there is none. */
void ss_site_mode_read(const char *path, const char *partition, struct ss_site_mode *found);

#endif
