/* SIMULATED NVML, GPM: activity counters of a whole GPU, Hopper (compute capability 9.0) and newer.
 * A sample has the values that the clients state at that moment; a metric is the mean of two samples. Counters that a
 * busy client does not state (occupancy, pipes, DRAM) are "not supported". */
#include "nvml_types.h"

#include <stdlib.h>
#include <string.h>

#define GPM_FIRST_CC_MAJOR 9
#define METRICS_GET_VERSION 1
#define SUPPORT_VERSION 1

/* NVML_GPM_METRIC_* */
enum {
    METRIC_GRAPHICS_UTIL = 1,
    METRIC_SM_UTIL = 2,
    METRIC_SM_OCCUPANCY = 3,
    METRIC_ANY_TENSOR_UTIL = 5,
    METRIC_DRAM_BW_UTIL = 10,
    METRIC_FP64_UTIL = 11,
    METRIC_FP32_UTIL = 12,
    METRIC_FP16_UTIL = 13
};

typedef struct gpm_sample {
    unsigned int sm_percent, util_percent;
    int counters[COUNTER_COUNT]; /* percent; -1: unknown */
} *nvmlGpmSample_t;

typedef struct {
    unsigned int version, isSupportedDevice;
} nvmlGpmSupport_t;

typedef struct {
    unsigned int metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    struct {
        const char *shortName, *longName, *unit;
    } metricInfo;
} nvmlGpmMetric_t;

/* The array's length differs between releases (98 and 477 seen, version 1 both): only numMetrics entries are touched. */
typedef struct {
    unsigned int version, numMetrics;
    nvmlGpmSample_t sample1, sample2;
    nvmlGpmMetric_t metrics[];
} nvmlGpmMetricsGet_t;

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    struct gpu gpu;
    nvmlReturn_t result = nvml_device(device, &gpu);

    if (result != NVML_SUCCESS)
        return result;
    if (!support)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (support->version != SUPPORT_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = gpu.cc_major >= GPM_FIRST_CC_MAJOR;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    if (!sample)
        return NVML_ERROR_INVALID_ARGUMENT;
    *sample = calloc(1, sizeof **sample);
    return *sample ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    free(sample);
    return NVML_SUCCESS;
}

/* A counter is known if every busy client of the card states it; on an idle card it is 0. */
static int sum_counter(const struct client_list *clients, enum counter which)
{
    int sum = 0;

    for (size_t i = 0; i < clients->count; i++) {
        const struct client *client = &clients->item[i];

        if (client->counters[which] >= 0)
            sum += client->counters[which];
        else if (client->sm_percent)
            return -1;
        if (sum > 100)
            sum = 100;
    }
    return sum;
}

static nvmlReturn_t take_sample(const struct gpu *gpu, nvmlGpmSample_t sample)
{
    struct client_list clients;
    nvmlReturn_t result;

    if (!sample)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->cc_major < GPM_FIRST_CC_MAJOR)
        return NVML_ERROR_NOT_SUPPORTED;
    result = nvml_clients(gpu, &clients);
    sample->sm_percent = clients.sm_percent;
    sample->util_percent = clients.util_percent;
    for (int i = 0; i < COUNTER_COUNT; i++)
        sample->counters[i] = sum_counter(&clients, (enum counter)i);
    state_free_clients(&clients);
    return result;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    struct gpu gpu;
    nvmlReturn_t result = nvml_device(device, &gpu);

    return result == NVML_SUCCESS ? take_sample(&gpu, sample) : result;
}

/* Takes the handle of the card, and the driver's number of the GPU instance. */
nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpu_instance, nvmlGpmSample_t sample)
{
    struct gpu gpu;
    nvmlReturn_t result = nvml_device(device, &gpu);

    if (result != NVML_SUCCESS)
        return result;
    for (int i = 0; gpu.instance == NO_INSTANCE && i < MAX_MIG_DEVICES; i++) {
        if (gpu.instances[i].gpu_instance == gpu_instance && state_take_instance(&gpu, i))
            return take_sample(&gpu, sample);
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

/* Returns the value of a metric in one sample; -1: unknown. */
static int sample_value(const struct gpm_sample *sample, unsigned int metric)
{
    switch (metric) {
    case METRIC_GRAPHICS_UTIL:
        return (int)sample->util_percent;
    case METRIC_SM_UTIL:
        return (int)sample->sm_percent;
    case METRIC_SM_OCCUPANCY:
        return sample->counters[COUNTER_OCCUPANCY];
    case METRIC_ANY_TENSOR_UTIL:
        return sample->counters[COUNTER_TENSOR];
    case METRIC_DRAM_BW_UTIL:
        return sample->counters[COUNTER_DRAM];
    case METRIC_FP64_UTIL:
        return sample->counters[COUNTER_FP64];
    case METRIC_FP32_UTIL:
        return sample->counters[COUNTER_FP32];
    case METRIC_FP16_UTIL:
        return sample->counters[COUNTER_FP16];
    default:
        return -1;
    }
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request)
{
    if (!nvml_initialised())
        return NVML_ERROR_UNINITIALIZED;
    if (!request || !request->sample1 || !request->sample2)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (request->version != METRICS_GET_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    for (unsigned int i = 0; i < request->numMetrics; i++) {
        nvmlGpmMetric_t *metric = &request->metrics[i];
        int first = sample_value(request->sample1, metric->metricId);
        int second = sample_value(request->sample2, metric->metricId);
        bool known = first >= 0 && second >= 0;

        metric->nvmlReturn = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        metric->value = known ? (first + second) / 2.0 : 0.0;
        metric->metricInfo.shortName = "simulated";
        metric->metricInfo.longName = "simulated";
        metric->metricInfo.unit = "%";
    }
    return NVML_SUCCESS;
}
