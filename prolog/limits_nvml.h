/* The driver's limits of the device memory of a cgroup, through NVML (driver 615). */
#ifndef SLURM_SHARE_LIMITS_NVML_H
#define SLURM_SHARE_LIMITS_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NVML_NO_LIMIT UINT64_MAX /* NVML_DEVICE_MEMORY_LIMIT_MAX */

struct memory_limits {
	uint64_t soft, hard; /* bytes; soft: the part that the cgroup is sure of */
};

/* Open the driver's library, once. Return -1 with the reason. */
int nvml_open(char *why, size_t size);

bool nvml_is_open(void);

/* Set both limits of a cgroup (its folder) on a GPU, and read them back. Return -1 with the reason. */
int nvml_set(const char *uuid, const char *folder, const struct memory_limits *limits, char *why, size_t size);

/* Read the limits of a cgroup on a GPU; a cgroup without limits has soft 0 and hard NVML_NO_LIMIT. */
int nvml_get(const char *uuid, const char *folder, struct memory_limits *limits, char *why, size_t size);

#endif
