/* Types and constants of NVML's binary interface, as far as the simulation implements it.
 * Layouts and values follow pynvml.py of nvidia-ml-py 13.615.71 (BSD licence); no NVIDIA header is used. */
#ifndef SIMGPU_NVML_TYPES_H
#define SIMGPU_NVML_TYPES_H

#include "state.h"

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999
} nvmlReturn_t;

/* An entry in nvml.c's table; callers only pass it back to us. */
typedef const struct simulated_device {
    char place;
} *nvmlDevice_t;

/* The first word of a versioned structure: its size, and the version in the top byte. */
#define STRUCT_VERSION(type, version) ((unsigned int)sizeof(type) | (version##u << 24))

#define NOT_A_MIG_INSTANCE 0xFFFFFFFFu

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    const char *nameSpace; /* the cgroup's folder */
    unsigned long long softLimit, hardLimit;
} nvmlSetMemoryLimits_v1_t;

typedef struct {
    const char *nameSpace;
    unsigned long long softLimit, hardLimit, currentUsed;
} nvmlGetMemoryLimits_v1_t;

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[BUS_ID_SIZE];
} nvmlPciInfo_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v3_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
    unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
    unsigned int version, mode, numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;

typedef struct {
    unsigned int pid;
    unsigned long long timeStamp; /* microseconds since 1970 */
    unsigned int smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
    unsigned long long timeStamp;
    unsigned int pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
    unsigned int version, processSamplesCount;
    unsigned long long lastSeenTimeStamp;
    nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_v1_t;

typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned int valueType;
    nvmlReturn_t nvmlReturn;
    union {
        double dVal;
        unsigned long long ullVal;
    } value;
} nvmlFieldValue_t;

enum {
    NVML_COMPUTEMODE_DEFAULT = 0,
    NVML_COMPUTEMODE_EXCLUSIVE_THREAD = 1, /* removed in CUDA 8: refused as in the real library */
    NVML_COMPUTEMODE_PROHIBITED = 2,
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3
};

/* ---- shared by the files of the library ---- */

/* True between nvmlInit and the matching nvmlShutdown. */
bool nvml_initialised(void);

/* Reads the GPU of a handle: SUCCESS, or the code that every call on this handle must return. */
nvmlReturn_t nvml_device(nvmlDevice_t device, struct gpu *gpu);

/* The handle of a GPU, or of one of its MIG instances. */
nvmlDevice_t nvml_handle(int index, int instance);

/* Finds a MIG instance by its id, in the form of new drivers or old ones. */
nvmlReturn_t nvml_find_instance(const char *id, nvmlDevice_t *device);

/* Reads the live clients of a GPU; SUCCESS or MEMORY. The caller frees the list in both cases. */
nvmlReturn_t nvml_clients(const struct gpu *gpu, struct client_list *list);

/* Makes the memory of a card what a process sees whose own cgroup has a limit. */
nvmlReturn_t nvml_limit_memory(const struct gpu *gpu, nvmlMemory_t *memory);

/* Microseconds since 1970. */
unsigned long long nvml_now_us(void);

#endif
