/* SIMULATED NVML, MIG instances: simgpu-init --mig makes them, state.c describes them. As in the real library an instance
 * has a handle of its own, with UUID, name, memory and processes; what belongs to the whole card is not supported. */
#include "nvml_types.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    unsigned int multiprocessorCount;
    unsigned int sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
    unsigned int gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

/* Multiprocessors of a seventh of a card. */
#define MULTIPROCESSORS_OF_SLICE 16

/* Reads the card of a handle; a MIG instance is refused. */
static nvmlReturn_t read_card(nvmlDevice_t device, const void *answer, struct gpu *gpu)
{
    nvmlReturn_t result = nvml_device(device, gpu);

    if (result != NVML_SUCCESS)
        return result;
    if (!answer)
        return NVML_ERROR_INVALID_ARGUMENT;
    return gpu->instance == NO_INSTANCE ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* Reads the MIG instance of a handle; a card is refused. */
static nvmlReturn_t read_instance(nvmlDevice_t device, const void *answer, struct gpu *gpu)
{
    nvmlReturn_t result = nvml_device(device, gpu);

    if (result != NVML_SUCCESS)
        return result;
    return answer && gpu->instance != NO_INSTANCE ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    struct gpu gpu;
    nvmlReturn_t result = read_card(device, current, &gpu);

    if (result == NVML_SUCCESS && !pending)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *current = *pending = gpu.mig;
    return result;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    struct gpu gpu;
    nvmlReturn_t result = read_card(device, count, &gpu);

    if (result == NVML_SUCCESS)
        *count = gpu.mig ? MAX_MIG_DEVICES : 0;
    return result;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *instance)
{
    struct gpu gpu;
    nvmlReturn_t result = read_card(device, instance, &gpu);

    if (result != NVML_SUCCESS)
        return result;
    if (index >= MAX_MIG_DEVICES)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gpu.mig)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!state_take_instance(&gpu, (int)index))
        return NVML_ERROR_NOT_FOUND;
    *instance = nvml_handle(gpu.index, (int)index);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_instance)
{
    struct gpu gpu;
    nvmlReturn_t result = nvml_device(device, &gpu);

    if (result == NVML_SUCCESS && !is_instance)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *is_instance = gpu.instance != NO_INSTANCE;
    return result;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *card)
{
    struct gpu gpu;
    nvmlReturn_t result = read_instance(device, card, &gpu);

    if (result == NVML_SUCCESS)
        *card = nvml_handle(gpu.index, NO_INSTANCE);
    return result;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *number)
{
    struct gpu gpu;
    nvmlReturn_t result = read_instance(device, number, &gpu);

    if (result == NVML_SUCCESS)
        *number = gpu.instances[gpu.instance].gpu_instance;
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *number)
{
    struct gpu gpu;
    nvmlReturn_t result = read_instance(device, number, &gpu);

    if (result == NVML_SUCCESS)
        *number = gpu.instances[gpu.instance].compute_instance;
    return result;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    struct gpu gpu;
    unsigned int slices = 0;
    nvmlReturn_t result = read_instance(device, attributes, &gpu);

    if (result != NVML_SUCCESS)
        return result;
    (void)sscanf(gpu.instances[gpu.instance].profile, "%1ug.", &slices);
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessorCount = slices * MULTIPROCESSORS_OF_SLICE;
    attributes->gpuInstanceSliceCount = attributes->computeInstanceSliceCount = slices;
    attributes->memorySizeMB = gpu.memory_bytes >> 20;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    return nvmlDeviceGetAttributes_v2(device, attributes);
}

static bool has_id(const struct gpu *card, int number, const char *id)
{
    struct gpu gpu = *card;

    if (!state_take_instance(&gpu, number))
        return false;
    if (!strcmp(gpu.uuid, id))
        return true;
    gpu = *card;
    gpu.old_mig_ids = !gpu.old_mig_ids;
    return state_take_instance(&gpu, number) && !strcmp(gpu.uuid, id);
}

nvmlReturn_t nvml_find_instance(const char *id, nvmlDevice_t *device)
{
    struct gpu gpu;

    if (!nvml_initialised())
        return NVML_ERROR_UNINITIALIZED;
    for (int i = 0; i < MAX_GPUS && state_read_gpu(i, &gpu); i++) {
        for (int number = 0; number < MAX_MIG_DEVICES; number++) {
            if (!has_id(&gpu, number, id))
                continue;
            *device = nvml_handle(i, number);
            return gpu.lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}
