#include "limits_nvml.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "../plugins/common.h"

#define LIBRARY "libnvidia-ml.so.1"
#define SET "nvmlDeviceSetMemoryLimits_v1"
#define GET "nvmlDeviceGetMemoryLimits_v1"

/* nvml.h: nvmlReturn_t. Get answers both for a cgroup without limits: the first one with the dmem controller. */
enum { NVML_SUCCESS = 0, NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6 };

/* nvml.h of CUDA 13.4: nvmlSetMemoryLimits_v1_t and nvmlGetMemoryLimits_v1_t, as nvidia-ml-py 13.615 has them. */
struct set_limits {
	const char *name_space;
	unsigned long long soft, hard;
};
struct get_limits {
	const char *name_space;
	unsigned long long soft, hard, used;
};

static bool is_open;
static struct {
	int (*init)(unsigned int);
	int (*handle)(const char *, void **);
	int (*set)(void *, struct set_limits *);
	int (*get)(void *, struct get_limits *);
	const char *(*error)(int);
} nvml;

/* ISO C has no conversion from an object's pointer to a function's; POSIX asks dlsym(3) to give one. */
static bool find(void *library, const char *name, void *function)
{
	void *found = dlsym(library, name);

	memcpy(function, &found, sizeof found);
	return found != NULL;
}

static int failed(const char *call, int code, char *why, size_t size)
{
	return ss_fail(why, size, "%s: %s", call, nvml.error(code));
}

int nvml_open(char *why, size_t size)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

	if (library == NULL)
		return ss_fail(why, size, "the driver's library cannot be loaded: %s", dlerror());
	if (!find(library, "nvmlInitWithFlags", &nvml.init) || !find(library, "nvmlDeviceGetHandleByUUID", &nvml.handle) ||
	    !find(library, "nvmlErrorString", &nvml.error))
		return ss_fail(why, size, LIBRARY " is not the driver's");
	if (!find(library, SET, &nvml.set) || !find(library, GET, &nvml.get))
		return ss_fail(why, size, "the driver has no memory limits for cgroups (" LIBRARY " lacks " SET ")");
	int code = nvml.init(0);
	is_open = code == NVML_SUCCESS;
	return is_open ? 0 : failed("nvmlInit", code, why, size);
}

bool nvml_is_open(void)
{
	return is_open;
}

static int handle_of(const char *uuid, void **handle, char *why, size_t size)
{
	int code = nvml.handle(uuid, handle);

	return code == NVML_SUCCESS ? 0 : failed("nvmlDeviceGetHandleByUUID", code, why, size);
}

static int get(void *handle, const char *folder, struct memory_limits *limits, char *why, size_t size)
{
	struct get_limits found = { .name_space = folder };
	int code = nvml.get(handle, &found);

	*limits = (struct memory_limits){ 0, NVML_NO_LIMIT };
	if (code == NVML_NOT_SUPPORTED || code == NVML_NOT_FOUND)
		return 0;
	if (code != NVML_SUCCESS)
		return failed(GET, code, why, size);
	*limits = (struct memory_limits){ found.soft, found.hard };
	return 0;
}

int nvml_get(const char *uuid, const char *folder, struct memory_limits *limits, char *why, size_t size)
{
	void *handle = NULL;

	return handle_of(uuid, &handle, why, size) != 0 ? -1 : get(handle, folder, limits, why, size);
}

int nvml_set(const char *uuid, const char *folder, const struct memory_limits *limits, char *why, size_t size)
{
	struct set_limits wanted = { folder, limits->soft, limits->hard };
	struct memory_limits found;
	void *handle = NULL;

	if (handle_of(uuid, &handle, why, size) != 0)
		return -1;
	int code = nvml.set(handle, &wanted);
	if (code != NVML_SUCCESS)
		return failed(SET, code, why, size);
	if (get(handle, folder, &found, why, size) != 0)
		return -1;
	if (found.hard != limits->hard || found.soft != limits->soft)
		return ss_fail(why, size, "the driver took the limit of %llu MiB and now says %llu MiB",
			       (unsigned long long)limits->hard >> 20, (unsigned long long)found.hard >> 20);
	return 0;
}
