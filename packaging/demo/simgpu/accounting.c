/* SIMULATED NVML, accounting mode: figures of processes that are kept after their end, per pid. As in the real library
 * only root turns it on or off, off forgets everything, and it is not there under MIG. */
#include "nvml_types.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As nvmlDeviceGetAccountingBufferSize of present drivers; with more processes the oldest go first. */
#define BUFFER_SIZE 4000

typedef struct {
    unsigned int gpuUtilization, memoryUtilization; /* percent of the process's time */
    unsigned long long maxMemoryUsage;              /* bytes */
    unsigned long long time;                        /* milliseconds; 0: it still runs */
    unsigned long long startTime;                   /* microseconds since 1970 */
    unsigned int isRunning;
    unsigned int reserved[5];
} nvmlAccountingStats_t;

static nvmlReturn_t accounting_device(nvmlDevice_t device, struct gpu *gpu)
{
    nvmlReturn_t result = nvml_device(device, gpu);

    if (result == NVML_SUCCESS && (gpu->mig || gpu->accounting == ACCOUNTING_NOT_SUPPORTED))
        return NVML_ERROR_NOT_SUPPORTED;
    return result;
}

nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, unsigned int *mode)
{
    struct gpu gpu;
    nvmlReturn_t result = accounting_device(device, &gpu);

    if (result == NVML_SUCCESS && !mode)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *mode = gpu.accounting == ACCOUNTING_ON;
    return result;
}

nvmlReturn_t nvmlDeviceSetAccountingMode(nvmlDevice_t device, unsigned int mode)
{
    struct gpu gpu;
    nvmlReturn_t result = accounting_device(device, &gpu);

    if (result != NVML_SUCCESS)
        return result;
    if (mode > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    return state_set_accounting(gpu.index, mode == 1) ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned int *size)
{
    struct gpu gpu;
    nvmlReturn_t result = accounting_device(device, &gpu);

    if (result == NVML_SUCCESS && !size)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *size = BUFFER_SIZE;
    return result;
}

nvmlReturn_t nvmlDeviceClearAccountingPids(nvmlDevice_t device)
{
    struct gpu gpu;
    nvmlReturn_t result = accounting_device(device, &gpu);

    if (result != NVML_SUCCESS)
        return result;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    state_clear_accounted(gpu.index);
    return NVML_SUCCESS;
}

/* Reads the accounted processes into a new array, which the caller frees. */
static nvmlReturn_t read_buffer(nvmlDevice_t device, struct accounted **item, size_t *count)
{
    struct gpu gpu;
    nvmlReturn_t result = accounting_device(device, &gpu);

    *item = NULL;
    *count = 0;
    if (result != NVML_SUCCESS || gpu.accounting != ACCOUNTING_ON)
        return result;
    *item = calloc(BUFFER_SIZE, sizeof **item);
    if (!*item)
        return NVML_ERROR_MEMORY;
    *count = state_read_accounted(gpu.index, *item, BUFFER_SIZE);
    return NVML_SUCCESS;
}

/* As for lists of processes: *count is the capacity on entry and the number on return. */
nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
    struct accounted *item;
    size_t found;
    nvmlReturn_t result = read_buffer(device, &item, &found);

    if (result == NVML_SUCCESS && (!count || (*count && !pids)))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        if (found > *count)
            result = NVML_ERROR_INSUFFICIENT_SIZE;
        for (size_t i = 0; result == NVML_SUCCESS && i < found; i++)
            pids[i] = item[i].pid;
        *count = (unsigned int)found;
    }
    free(item);
    return result;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats)
{
    struct accounted *item;
    size_t found;
    nvmlReturn_t result = read_buffer(device, &item, &found);

    if (result == NVML_SUCCESS && !stats)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        result = NVML_ERROR_NOT_FOUND;
    /* The newest one of a pid that was used again. */
    for (size_t i = found; result == NVML_ERROR_NOT_FOUND && i-- > 0;) {
        if (item[i].pid != pid)
            continue;
        unsigned long long passed_us = item[i].seen_us > item[i].began_us ? item[i].seen_us - item[i].began_us : 0;

        memset(stats, 0, sizeof *stats);
        stats->gpuUtilization = passed_us ? (unsigned int)(100 * item[i].busy_us / passed_us) : 0;
        if (stats->gpuUtilization > 100)
            stats->gpuUtilization = 100;
        stats->maxMemoryUsage = item[i].peak_bytes;
        stats->time = item[i].running ? 0 : passed_us / 1000;
        stats->startTime = item[i].began_us;
        stats->isRunning = item[i].running;
        result = NVML_SUCCESS;
    }
    free(item);
    return result;
}
