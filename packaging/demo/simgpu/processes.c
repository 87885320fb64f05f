/* SIMULATED NVML, the processes on a GPU: PIDs, memory, utilisation. */
#include "nvml_types.h"

#include <string.h>

/* NVML_PROCESS_MODE_*: which processes a list has. */
enum process_list { COMPUTE_LIST = 0, GRAPHICS_LIST = 1, MPS_LIST = 2, WHOLE_LIST = 3 };

/* nvidia-smi shows MPS clients as "M+C", that is, in both lists; `mps_lists` in the gpu file changes that, so that a
 * reader can be tested with each. */
static bool is_listed(const struct gpu *gpu, const struct client *client, enum process_list list)
{
    if (list == WHOLE_LIST)
        return true;
    if (list == GRAPHICS_LIST)
        return false; /* there is no graphics process */
    if (!client->mps)
        return list == COMPUTE_LIST;
    return list == COMPUTE_LIST ? gpu->mps_lists != MPS_IN_MPS_LIST : gpu->mps_lists != MPS_IN_COMPUTE_LIST;
}

/* NVML's convention: *count is the capacity on entry and the number of processes on return; too small a capacity gives
 * INSUFFICIENT_SIZE, and callers ask for the number with capacity 0. `put` writes process number `slot`. */
static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned int *count, void *infos, enum process_list list,
                                   void (*put)(void *infos, unsigned int slot, const struct gpu *gpu,
                                               const struct client *client))
{
    struct client_list clients;
    struct gpu gpu;
    unsigned int room, listed = 0;
    nvmlReturn_t result = nvml_device(device, &gpu);

    if (result != NVML_SUCCESS)
        return result;
    if (!count || (*count && !infos))
        return NVML_ERROR_INVALID_ARGUMENT;
    room = *count;
    result = nvml_clients(&gpu, &clients);
    for (size_t i = 0; i < clients.count; i++) {
        if (!is_listed(&gpu, &clients.item[i], list))
            continue;
        if (listed < room)
            put(infos, listed, &gpu, &clients.item[i]);
        listed++;
    }
    state_free_clients(&clients);
    if (result != NVML_SUCCESS)
        return result;
    *count = listed;
    return listed > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static void put_v1(void *infos, unsigned int slot, const struct gpu *gpu, const struct client *client)
{
    (void)gpu;
    ((nvmlProcessInfo_v1_t *)infos)[slot] = (nvmlProcessInfo_v1_t){client->pid, client->memory_bytes};
}

static unsigned int gpu_instance_of(const struct gpu *gpu, const struct client *client)
{
    return client->instance == NO_INSTANCE ? NOT_A_MIG_INSTANCE : gpu->instances[client->instance].gpu_instance;
}

static unsigned int compute_instance_of(const struct gpu *gpu, const struct client *client)
{
    return client->instance == NO_INSTANCE ? NOT_A_MIG_INSTANCE : gpu->instances[client->instance].compute_instance;
}

/* Versions 2 and 3 have the same layout. */
static void put_v3(void *infos, unsigned int slot, const struct gpu *gpu, const struct client *client)
{
    ((nvmlProcessInfo_v3_t *)infos)[slot] = (nvmlProcessInfo_v3_t){
        client->pid, client->memory_bytes, gpu_instance_of(gpu, client), compute_instance_of(gpu, client)};
}

#define LIST_FUNCTION(name, list, put)                                                                                 \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *infos)                                           \
    {                                                                                                                  \
        return list_processes(device, count, infos, list, put);                                                        \
    }

LIST_FUNCTION(nvmlDeviceGetComputeRunningProcesses, COMPUTE_LIST, put_v1)
LIST_FUNCTION(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE_LIST, put_v3)
LIST_FUNCTION(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE_LIST, put_v3)
LIST_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses, MPS_LIST, put_v1)
LIST_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS_LIST, put_v3)
LIST_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS_LIST, put_v3)

/* There is no graphics process. */
static nvmlReturn_t no_graphics(nvmlDevice_t device, unsigned int *count)
{
    struct gpu gpu;
    nvmlReturn_t result = nvml_device(device, &gpu);

    if (result != NVML_SUCCESS)
        return result;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *count, void *infos)
{
    (void)infos;
    return no_graphics(device, count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, void *infos)
{
    (void)infos;
    return no_graphics(device, count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, void *infos)
{
    (void)infos;
    return no_graphics(device, count);
}

/* Hopper and newer. Protected memory is that of confidential computing, which is off. */
static void put_detail(void *infos, unsigned int slot, const struct gpu *gpu, const struct client *client)
{
    ((nvmlProcessDetail_v1_t *)infos)[slot] = (nvmlProcessDetail_v1_t){
        client->pid, client->memory_bytes, gpu_instance_of(gpu, client), compute_instance_of(gpu, client), 0};
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
    struct gpu gpu;
    nvmlReturn_t result = nvml_device(device, &gpu);

    if (result != NVML_SUCCESS)
        return result;
    if (!gpu.detail_list || gpu.cc_major < 9)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!list || list->mode > WHOLE_LIST)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (list->version != STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return list_processes(device, &list->numProcArrayEntries, list->procArray, (enum process_list)list->mode,
                          put_detail);
}

/* ---- Utilisation per process: only of busy ones, as in the real library. `smUtil` is a part of the time, not of
 * the multiprocessors. ---- */

static bool is_active(const struct client *client)
{
    return client->util_percent || client->memory_percent;
}

/* The clients of a GPU with per-process utilisation (not under MIG), newer than `since` (microseconds). */
static nvmlReturn_t active_clients(nvmlDevice_t device, unsigned long long since, struct client_list *clients,
                                   unsigned int *active)
{
    struct gpu gpu;
    nvmlReturn_t result = nvml_device(device, &gpu);

    memset(clients, 0, sizeof *clients);
    *active = 0;
    if (result != NVML_SUCCESS)
        return result;
    if (gpu.mig)
        return NVML_ERROR_NOT_SUPPORTED;
    result = nvml_clients(&gpu, clients);
    for (size_t i = 0; i < clients->count; i++)
        *active += is_active(&clients->item[i]);
    if (result == NVML_SUCCESS && (!*active || since >= nvml_now_us()))
        return NVML_ERROR_NOT_FOUND;
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long since)
{
    struct client_list clients;
    unsigned int active, room, slot = 0;
    unsigned long long now = nvml_now_us();
    nvmlReturn_t result = active_clients(device, since, &clients, &active);

    if (result == NVML_SUCCESS && !count)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        room = *count;
        *count = active;
        if (!samples || active > room)
            result = NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for (size_t i = 0; result == NVML_SUCCESS && i < clients.count; i++) {
        const struct client *client = &clients.item[i];

        if (is_active(client))
            samples[slot++] = (nvmlProcessUtilizationSample_t){
                .pid = client->pid,
                .timeStamp = now,
                .smUtil = client->util_percent,
                .memUtil = client->memory_percent,
            };
    }
    state_free_clients(&clients);
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
    struct client_list clients;
    unsigned int active, room, slot = 0;
    unsigned long long now = nvml_now_us();
    nvmlReturn_t result;

    if (!info)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != STRUCT_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    result = active_clients(device, info->lastSeenTimeStamp, &clients, &active);
    if (result == NVML_SUCCESS) {
        room = info->processSamplesCount;
        info->processSamplesCount = active;
        if (!info->procUtilArray || active > room)
            result = NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for (size_t i = 0; result == NVML_SUCCESS && i < clients.count; i++) {
        const struct client *client = &clients.item[i];

        if (is_active(client))
            info->procUtilArray[slot++] = (nvmlProcessUtilizationInfo_v1_t){
                .timeStamp = now,
                .pid = client->pid,
                .smUtil = client->util_percent,
                .memUtil = client->memory_percent,
            };
    }
    if (result == NVML_SUCCESS)
        info->lastSeenTimeStamp = now;
    state_free_clients(&clients);
    return result;
}
