/* SIMULATED NVML: libnvidia-ml.so.1 over the state folder (state.c). Names, driver version and error texts
 * contain "simulated". Unknown values are "not supported" (unsupported.c). */
#define _GNU_SOURCE
#include "nvml_types.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Interval at which a query about a hanging card checks whether it still hangs. */
#define HANG_CHECK_US 20000

/* The handle of GPU i is the address of devices[i * HANDLES], those of its MIG instances follow. Its content is never
 * read. */
#define HANDLES (1 + MAX_MIG_DEVICES)
static const struct simulated_device devices[MAX_GPUS * HANDLES];

/* nvmlInit may be called more than once, from any thread. */
static atomic_int users;

/* ---- Init, versions, errors ---- */

bool nvml_initialised(void)
{
    return atomic_load(&users) > 0;
}

unsigned long long nvml_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
}

/* Fails next to a real driver and without a state folder, which counts as no driver. */
nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    if (state_real_driver_loaded())
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    if (!state_present())
        return NVML_ERROR_DRIVER_NOT_LOADED;
    atomic_fetch_add(&users, 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
    int before = atomic_load(&users);

    do {
        if (before <= 0)
            return NVML_ERROR_UNINITIALIZED;
    } while (!atomic_compare_exchange_weak(&users, &before, before - 1));
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized (simulated)";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument (simulated)";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported (simulated)";
    case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions (simulated)";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found (simulated)";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size (simulated)";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded (simulated: no state folder, run simgpu-init)";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost (simulated)";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "a real NVIDIA driver is loaded: the simulated library refuses to stand in for it";
    case NVML_ERROR_MEMORY:
        return "Insufficient Memory (simulated)";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "Argument Version Mismatch (simulated)";
    case NVML_ERROR_UNKNOWN:
        break;
    }
    return "Unknown Error (simulated)";
}

static nvmlReturn_t copy_text(const char *text, char *buffer, unsigned int size)
{
    size_t needed = strlen(text) + 1;

    if (!buffer)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (needed > size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(buffer, text, needed);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    struct driver driver;

    if (!nvml_initialised())
        return NVML_ERROR_UNINITIALIZED;
    state_read_driver(&driver);
    return copy_text(driver.version, version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    struct driver driver;

    state_read_driver(&driver);
    return copy_text(driver.nvml_version, version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    struct driver driver;

    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    state_read_driver(&driver);
    *version = (int)driver.cuda;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

/* The path with which the process was started, from the kernel; cut to the buffer. */
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    char path[32], command[PATH_MAX];
    ssize_t got;
    int fd;

    if (!nvml_initialised())
        return NVML_ERROR_UNINITIALIZED;
    if (!name || !length)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NVML_ERROR_NOT_FOUND;
    got = read(fd, command, sizeof command - 1);
    close(fd);
    if (got < 0)
        return NVML_ERROR_NOT_FOUND;
    command[got] = '\0';
    snprintf(name, length, "%s", command);
    return NVML_SUCCESS;
}

/* ---- Finding a device ---- */

nvmlDevice_t nvml_handle(int index, int instance)
{
    return &devices[index * HANDLES + 1 + instance];
}

nvmlReturn_t nvml_device(nvmlDevice_t device, struct gpu *gpu)
{
    int place = (int)(device - devices), instance = place % HANDLES - 1;

    if (!nvml_initialised())
        return NVML_ERROR_UNINITIALIZED;
    for (;;) {
        if (device < devices || device >= devices + MAX_GPUS * HANDLES || !state_read_gpu(place / HANDLES, gpu) ||
            (instance != NO_INSTANCE && !state_take_instance(gpu, instance)))
            return NVML_ERROR_INVALID_ARGUMENT;
        if (!gpu->hang)
            break;
        usleep(HANG_CHECK_US);
    }
    return gpu->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvml_clients(const struct gpu *gpu, struct client_list *list)
{
    return state_read_clients(gpu, list) ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    if (!nvml_initialised())
        return NVML_ERROR_UNINITIALIZED;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = state_gpu_count();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    struct gpu gpu;
    nvmlReturn_t result;

    if (!device || index >= MAX_GPUS)
        return nvml_initialised() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    result = nvml_device(nvml_handle((int)index, NO_INSTANCE), &gpu);
    if (result == NVML_SUCCESS)
        *device = nvml_handle((int)index, NO_INSTANCE);
    return result;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static bool same_uuid(const struct gpu *gpu, const char *uuid)
{
    return !strcmp(gpu->uuid, uuid);
}

/* Domain, bus and device as numbers: callers write the domain with four digits or with eight. */
static bool parse_bus_id(const char *bus_id, unsigned int place[3])
{
    return sscanf(bus_id, "%8x:%8x:%8x", &place[0], &place[1], &place[2]) == 3;
}

static bool same_bus_id(const struct gpu *gpu, const char *bus_id)
{
    unsigned int have[3], want[3];

    return parse_bus_id(gpu->bus_id, have) && parse_bus_id(bus_id, want) && !memcmp(have, want, sizeof have);
}

static nvmlReturn_t find_device(bool (*same)(const struct gpu *, const char *), const char *text, nvmlDevice_t *device)
{
    struct gpu gpu;

    if (!nvml_initialised())
        return NVML_ERROR_UNINITIALIZED;
    if (!text || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < MAX_GPUS && state_read_gpu(i, &gpu); i++) {
        if (!same(&gpu, text))
            continue;
        *device = nvml_handle(i, NO_INSTANCE);
        return gpu.lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    if (uuid && device && !strncmp(uuid, "MIG-", 4))
        return nvml_find_instance(uuid, device);
    return find_device(same_uuid, uuid, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    return find_device(same_bus_id, bus_id, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return find_device(same_bus_id, bus_id, device);
}

/* ---- Identity of a device ---- */

/* Reads the GPU of `device` into `gpu`; returns from the function with the error code if that or `answer` fails. */
#define READ_DEVICE(answer)                                                                                            \
    struct gpu gpu;                                                                                                    \
    nvmlReturn_t found = nvml_device(device, &gpu);                                                                    \
    if (found != NVML_SUCCESS)                                                                                         \
        return found;                                                                                                  \
    if (!(answer))                                                                                                     \
        return NVML_ERROR_INVALID_ARGUMENT

/* The same for what only a whole card has. */
#define READ_CARD(answer)                                                                                              \
    READ_DEVICE(answer);                                                                                               \
    if (gpu.instance != NO_INSTANCE)                                                                                   \
    return NVML_ERROR_NOT_SUPPORTED

/* Of a MIG instance: its number on its card. */
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    READ_DEVICE(index);
    *index = (unsigned int)(gpu.instance == NO_INSTANCE ? gpu.index : gpu.instance);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    READ_CARD(minor);
    *minor = gpu.minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    READ_DEVICE(name);
    return copy_text(gpu.name, name, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    READ_DEVICE(uuid);
    return copy_text(gpu.uuid, uuid, length);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    READ_CARD(major && minor);
    *major = (int)gpu.cc_major;
    *minor = (int)gpu.cc_minor;
    return NVML_SUCCESS;
}

/* NVML_DEVICE_ARCH_* of the compute capability; "unknown" if it is not listed here. */
nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture)
{
    READ_DEVICE(architecture);
    switch (gpu.cc_major * 10 + gpu.cc_minor) {
    case 70:
        *architecture = 5; /* Volta */
        break;
    case 75:
        *architecture = 6; /* Turing */
        break;
    case 80:
    case 86:
        *architecture = 7; /* Ampere */
        break;
    case 89:
        *architecture = 8; /* Ada */
        break;
    case 90:
        *architecture = 9; /* Hopper */
        break;
    case 100:
        *architecture = 10; /* Blackwell */
        break;
    default:
        *architecture = 0xFFFFFFFFu;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    unsigned int place[3] = {0, 0, 0};

    READ_DEVICE(pci);
    memset(pci, 0, sizeof *pci);
    (void)parse_bus_id(gpu.bus_id, place);
    pci->domain = place[0];
    pci->bus = place[1];
    pci->device = place[2];
    snprintf(pci->busId, sizeof pci->busId, "%.31s", gpu.bus_id);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", place[0] & 0xFFFF, place[1] & 0xFF,
             place[2] & 0xFF);
    return NVML_SUCCESS;
}

/* The older layouts end in four reserved words where newer ones have busId. */
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t whole;
    nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &whole);

    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
    return result;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return nvmlDeviceGetPciInfo_v2(device, pci);
}

static bool is_close_cpu(const struct gpu *gpu, long cpu, long host_cpus)
{
    if (gpu->cpus_known)
        return cpu < MAX_CPUS && (gpu->cpus[cpu / 8] >> (cpu % 8) & 1);
    return cpu < host_cpus;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *cpu_set)
{
    const long word_bits = (long)(sizeof *cpu_set * CHAR_BIT);
    long host_cpus = sysconf(_SC_NPROCESSORS_CONF);

    READ_DEVICE(cpu_set && words && words <= MAX_CPUS);
    memset(cpu_set, 0, words * sizeof *cpu_set);
    for (long cpu = 0; cpu < (long)words * word_bits && cpu < MAX_CPUS; cpu++) {
        if (is_close_cpu(&gpu, cpu, host_cpus))
            cpu_set[cpu / word_bits] |= 1ul << (cpu % word_bits);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *cpu_set,
                                                 unsigned int scope)
{
    (void)scope;
    return nvmlDeviceGetCpuAffinity(device, words, cpu_set);
}

/* ---- Memory and utilisation ---- */

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct client_list clients;
    nvmlReturn_t result;
    uint64_t used = 0;

    READ_DEVICE(memory);
    if (gpu.memory_info == MEMORY_NOT_SUPPORTED)
        return NVML_ERROR_NOT_SUPPORTED;
    if (gpu.memory_info == MEMORY_ZERO) {
        memset(memory, 0, sizeof *memory);
        return NVML_SUCCESS;
    }
    result = nvml_clients(&gpu, &clients);
    /* Limited to the card's size while adding, so that the sum cannot overflow. */
    for (size_t i = 0; i < clients.count; i++) {
        uint64_t room = gpu.memory_bytes - used;

        used += clients.item[i].memory_bytes < room ? clients.item[i].memory_bytes : room;
    }
    state_free_clients(&clients);
    memory->total = gpu.memory_bytes;
    memory->used = used;
    memory->free = gpu.memory_bytes - used;
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t plain;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &plain);

    if (!memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != STRUCT_VERSION(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (result == NVML_SUCCESS) {
        READ_DEVICE(memory);
        result = nvml_limit_memory(&gpu, &plain);
    }
    if (result != NVML_SUCCESS)
        return result;
    memory->total = plain.total;
    memory->reserved = 0;
    memory->free = plain.free;
    memory->used = plain.used;
    return NVML_SUCCESS;
}

/* A card in MIG mode has no utilisation as a whole, as with the real library. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    struct client_list clients;
    nvmlReturn_t result;

    READ_DEVICE(utilization);
    if (gpu.mig)
        return NVML_ERROR_NOT_SUPPORTED;
    result = nvml_clients(&gpu, &clients);
    utilization->gpu = clients.util_percent;
    utilization->memory = clients.memory_percent;
    state_free_clients(&clients);
    return result;
}

/* ---- Power and temperature, from the GPU's file; with a power model, power and energy follow the load ---- */

/* The present SM load, for the power model. */
static nvmlReturn_t read_sm_load(const struct gpu *gpu, unsigned int *sm_percent)
{
    struct client_list clients;
    nvmlReturn_t result = nvml_clients(gpu, &clients);

    *sm_percent = clients.sm_percent;
    state_free_clients(&clients);
    return result;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    unsigned int sm_percent;
    nvmlReturn_t result;
    long long power;

    READ_CARD(milliwatts);
    result = read_sm_load(&gpu, &sm_percent);
    if (result != NVML_SUCCESS)
        return result;
    power = state_power_mw(&gpu, sm_percent);
    if (power < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *milliwatts = (unsigned int)power;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules)
{
    unsigned int sm_percent;
    nvmlReturn_t result;
    long long energy;

    READ_CARD(millijoules);
    result = read_sm_load(&gpu, &sm_percent);
    if (result != NVML_SUCCESS)
        return result;
    energy = state_energy_mj(&gpu, sm_percent);
    if (energy < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *millijoules = (unsigned long long)energy;
    return NVML_SUCCESS;
}

/* The largest power is the limit. */
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    READ_CARD(milliwatts);
    if (gpu.max_mw < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *milliwatts = (unsigned int)gpu.max_mw;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    return nvmlDeviceGetEnforcedPowerLimit(device, milliwatts);
}

/* Sensor 0 is the GPU; there is no other. */
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
    READ_CARD(celsius && sensor == 0);
    if (gpu.temperature_c < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *celsius = (unsigned int)gpu.temperature_c;
    return NVML_SUCCESS;
}

/* ---- Modes ---- */

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode)
{
    READ_DEVICE(mode);
    *mode = gpu.compute_mode;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned int mode)
{
    READ_DEVICE(mode <= NVML_COMPUTEMODE_EXCLUSIVE_PROCESS);
    if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD)
        return NVML_ERROR_NOT_SUPPORTED;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    switch (state_set_compute_mode(gpu.index, mode)) {
    case 0:
        return NVML_SUCCESS;
    case EACCES:
    case EPERM:
    case EROFS:
        return NVML_ERROR_NO_PERMISSION;
    default:
        return NVML_ERROR_UNKNOWN;
    }
}

/* Each field has its own code, and each is "not supported". */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    READ_DEVICE(values && count > 0);
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)nvml_now_us();
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        values[i].value.ullVal = 0;
    }
    return NVML_SUCCESS;
}
