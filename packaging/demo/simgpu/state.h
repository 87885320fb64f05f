/* Reader of the state folder of the simulated GPUs for the NVML half. The format is described at the top of state.c. */
#ifndef SIMGPU_STATE_H
#define SIMGPU_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/* NVML_DEVICE_UUID_BUFFER_SIZE, NVML_DEVICE_NAME_V2_BUFFER_SIZE, NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE in nvidia-ml-py. */
#define UUID_SIZE 80
#define NAME_SIZE 96
#define BUS_ID_SIZE 32
/* NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE and NVML_SYSTEM_NVML_VERSION_BUFFER_SIZE there. */
#define VERSION_SIZE 80

/* Largest number of MIG instances of a card, and the length of a profile's name. */
#define MAX_MIG_DEVICES 7
#define PROFILE_SIZE 32
#define NO_INSTANCE (-1)

/* Longest list of cgroups of a client. */
#define CGROUPS_SIZE 256

/* More than any node has, and above the limit of Slurm's gpu plugin. */
#define MAX_GPUS 64

/* Largest number of CPUs in a state file; the kernel's limit on x86-64. */
#define MAX_CPUS 8192

/* NVML process lists that contain MPS clients. */
enum mps_lists { MPS_IN_BOTH, MPS_IN_MPS_LIST, MPS_IN_COMPUTE_LIST };

/* NVML's answer about the memory of a card. */
enum memory_info { MEMORY_TOLD, MEMORY_ZERO, MEMORY_NOT_SUPPORTED };

/* Accounting mode of a card. */
enum accounting { ACCOUNTING_OFF, ACCOUNTING_ON, ACCOUNTING_NOT_SUPPORTED };

/* Activity counters a client may state besides SM and memory load; the order of `counter_words` in state.c. */
enum counter {
    COUNTER_OCCUPANCY,
    COUNTER_TENSOR,
    COUNTER_DRAM,
    COUNTER_FP64,
    COUNTER_FP32,
    COUNTER_FP16,
    COUNTER_COUNT
};

/* How the driver limits the memory of a cgroup: it has no such functions; switched off; by its own books; by the kernel's
 * controller dmem, or as if the kernel had it. */
enum memory_limits { LIMITS_MISSING, LIMITS_OFF, LIMITS_MISC, LIMITS_DMEM };

/* The driver that the host pretends to have. */
struct driver {
    char version[VERSION_SIZE];
    char nvml_version[VERSION_SIZE];
    unsigned int cuda;
    enum memory_limits memory_limits;
};

/* A MIG instance; without profile: none. */
struct mig_instance {
    char profile[PROFILE_SIZE];
    char uuid[UUID_SIZE];
    unsigned int gpu_instance, compute_instance;
    uint64_t memory_bytes;
};

/* A card, or with `instance` one of its MIG instances, whose uuid, name and memory stand in place of the card's. */
struct gpu {
    int index;
    int instance; /* number of the MIG instance; NO_INSTANCE: the card */
    struct mig_instance instances[MAX_MIG_DEVICES];
    char card_uuid[UUID_SIZE];
    bool old_mig_ids;
    char uuid[UUID_SIZE];
    char name[NAME_SIZE];
    char bus_id[BUS_ID_SIZE];
    uint64_t memory_bytes;
    unsigned int minor;
    unsigned int compute_mode;
    unsigned int cc_major, cc_minor;
    enum mps_lists mps_lists;
    enum memory_info memory_info;
    enum accounting accounting;
    bool mig;
    bool lost;
    bool hang;
    bool detail_list;
    /* Value in the file; -1: none. */
    long long power_mw, energy_mj, temperature_c;
    /* Power when idle and with all SMs busy, in milliwatts; -1: not stated. Exponent of the load, in percent. */
    long long idle_mw, max_mw;
    unsigned int power_exponent;
    bool cpus_known;
    unsigned char cpus[MAX_CPUS / 8];
};

struct client {
    unsigned int pid;
    uint64_t memory_bytes;
    unsigned int sm_percent;
    unsigned int memory_percent;
    unsigned int util_percent; /* time with a kernel running; the SM load unless the client says otherwise */
    bool mps;
    int instance; /* number of its MIG instance; NO_INSTANCE: none */
    char cgroups[CGROUPS_SIZE]; /* numbers of its cgroup and of those above it, separated by commas; empty: unknown */
    int counters[COUNTER_COUNT]; /* percent; -1: not stated */
};

/* Clients in order of pid; `item` is owned by the list. The card's own load is the sum of what they ask for, at most
 * 100; above that each client's figures are its part of the card, so that they do not add up to more. */
struct client_list {
    struct client *item;
    size_t count, room;
    unsigned int sm_percent, memory_percent, util_percent;
};

/* True if NVIDIA's kernel driver is loaded: the simulation must not be used next to it. */
bool state_real_driver_loaded(void);

/* True if the state folder exists and can be read. */
bool state_present(void);

/* Reads the driver's file; version 0.0 if it is missing. */
void state_read_driver(struct driver *driver);

/* Opens the state folder; -1 without one. */
int state_open_folder(void);

/* Opens the folder's lock and takes it; -1 with errno. Closing it gives it back. */
int state_lock(int folder);

/* Reads a whole small file into `text`, ended by '\0'; its length, or -1. */
ssize_t state_read_file(int folder, const char *name, char *text, size_t size, struct stat *info);

/* Writes a whole small file under another name and renames it, readable by all; 0 or an errno value. */
int state_write_file(int folder, const char *name, const char *text);

/* Parses a decimal number without sign or blanks; values above `limit` become `limit`. */
bool state_parse_number(const char *text, uint64_t limit, uint64_t *number);

/* Number of GPUs: gpu0, gpu1, ... up to the first one missing. */
unsigned int state_gpu_count(void);

/* Reads one GPU; false if it does not exist. */
bool state_read_gpu(int index, struct gpu *gpu);

/* Makes the record of a card that of one of its MIG instances; false if it does not exist. */
bool state_take_instance(struct gpu *gpu, int instance);

/* Changes the compute mode (0, 2, 3); 0 or an errno value. */
int state_set_compute_mode(int index, unsigned int mode);

/* Turns accounting mode on or off; 0 or an errno value. Off forgets all accounted processes of the card. */
int state_set_accounting(int index, bool on);

/* Forgets the accounted processes of a card. */
void state_clear_accounted(int index);

/* What the card keeps of one process: ended, or still with a context. */
struct accounted {
    unsigned int pid;
    bool running;
    uint64_t began_us, seen_us, busy_us, peak_bytes;
};

/* Reads at most `room` accounted processes of a GPU, the oldest first; returns their number. */
size_t state_read_accounted(int index, struct accounted *item, size_t room);

/* Power of the card at that SM load, in milliwatts; -1: its file has neither a power nor a power model. */
long long state_power_mw(const struct gpu *gpu, unsigned int sm_percent);

/* Energy of the card since it was made, in millijoules; -1: unknown. It never decreases. */
long long state_energy_mj(const struct gpu *gpu, unsigned int sm_percent);

/* Reads the live clients of a GPU; false if out of memory. The caller frees the list in both cases. */
bool state_read_clients(const struct gpu *gpu, struct client_list *list);
void state_free_clients(struct client_list *list);

#endif
