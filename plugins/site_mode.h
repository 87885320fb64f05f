/* Whether the site shares GPUs in a partition: `mode` in config.toml, as the Prolog reads it. Nothing here knows Slurm.
 *
 * A step without a plan is refused where it says "on", and runs unshared elsewhere. What this reader does not understand, such as
 * inline tables and strings of several lines, it passes over: SS_MODE_UNKNOWN, and the step runs as where nothing is shared. */
#ifndef SLURM_SHARE_SITE_MODE_H
#define SLURM_SHARE_SITE_MODE_H

#include <stdint.h>

enum ss_mode { SS_MODE_UNKNOWN, SS_MODE_OFF, SS_MODE_OBSERVE, SS_MODE_ON };

struct ss_site_mode {
	enum ss_mode mode;
	int64_t changed_s; /* Unix time of the file's last change */
};

/* Of the text of config.toml, for jobs of `partition` (NULL or empty: not known). */
enum ss_mode ss_site_mode_parse(const char *text, const char *partition);

/* Of the file. SS_MODE_OBSERVE, the default, where there is none. */
void ss_site_mode_read(const char *path, const char *partition, struct ss_site_mode *found);

#endif
