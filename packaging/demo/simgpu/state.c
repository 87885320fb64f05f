/* SIMULATED GPUs: reads the state folder. Nothing here ever touches hardware.
 *
 * The folder is $SIMGPU_STATE, by default /run/simgpu. simgpu-init makes it, root owns it, every user can read it:
 *
 *   README              says that the GPUs are simulated, and marks the folder as made by simgpu-init
 *   lock                flock(2) on it guards every allocation of memory and every change of a gpu file
 *   driver              what the driver is, in lines `key=value` (simdriver.py): release, version, nvml, cuda,
 *                       mps_clients, memory_limits
 *   gpu0, gpu1, ...     one file per GPU, without a gap; lines `key=value`, `#` starts a comment line, the last line
 *                       of a key wins (so `echo lost=1 >>gpu0` is a way to change one):
 *       uuid=GPU-5131...      full UUID                                  required
 *       name=TEXT             NVML's name of the card                    Simulated GPU
 *       memory_mib=N          memory of the card                         1024
 *       memory_info=WORD      NVML's answer about the card's memory:     told
 *                             told; zero (0 bytes, and success); none
 *                             (not supported, as unified memory has it)
 *       bus=DOMAIN:BUS:DEV.F  PCI address, hexadecimal                   00000000:<index + 1>:00.0
 *       minor=N               number of /dev/nvidiaN                     index
 *       cc=MAJOR.MINOR        compute capability; GPM from 9.0           9.0
 *       sms=N                 multiprocessors                            by cc
 *       chunks=N              chunks for static partitions of MPS        by cc and sms
 *       accounting=WORD       accounting mode: 0, 1, none (not           0
 *                             supported)
 *       compute_mode=N        0 default, 2 prohibited, 3 exclusive       0
 *       mig=0|1               MIG mode on                                0
 *       mig0=... to mig6=     a MIG instance: GPU instance, compute      none
 *                             instance, memory in MiB, profile, UUID,
 *                             with blanks between; no value: none
 *       mig_ids=old           instances are called MIG-<UUID of the      MIG-<UUID>
 *                             card>/<GPU instance>/<compute instance>,
 *                             as by drivers before 470
 *       lost=0|1              the card has fallen off the bus            0
 *       hang=0|1              the driver does not answer: a query about  0
 *                             the card waits until this is 0 again
 *       cpus=0-3,8            CPUs close to the card                     all of the host
 *       mps_lists=WORD        NVML lists that name an MPS client:        both
 *                             both, mps, compute
 *       detail_list=0|1       NVML lists all processes in one answer     1 from cc 9.0 on
 *       idle_w=N, max_w=N     power when idle, and with all SMs busy     power: not supported
 *       power_exponent_percent=N   between the two the power is          35
 *                             idle + (max - idle) x sm ^ (N / 100)
 *       power_w=N             fixed power in watts                       follows the load
 *       energy_j=N            fixed energy counter in joules             follows the load
 *       temperature_c=N       in degrees Celsius                         not supported
 *   clients/            mode 1777; one file per process and GPU, written under another name and renamed:
 *       <pid>.<gpu index>.<start time>    start time: field 22 of /proc/<pid>/stat. One line of `key=value` words:
 *       used=BYTES            memory held on the card                    required
 *       sm=PERCENT            SM load                                    0
 *       util=PERCENT          part of the time in which its kernels run  as sm
 *       mem=PERCENT           memory controller load                     0
 *       mps=PID               its MPS server, 0: none                    0
 *       mig=N                 number of its MIG instance                 none
 *       cg=N,N,...            inode numbers of its cgroup (v2) and of    unknown
 *                             those above it, in that order
 *       occupancy= tensor= dram= fp64= fp32= fp16=   PERCENT of the GPM counters of these names; unknown if absent
 *       want_sm= want_dram= want_util=   PERCENT that it would use alone, if neighbours slow it down (simwork.py)
 *       clash=NUMBER      the kind of work that slows it down more than the load explains (simwork.py)
 *   memory_limits/      one file per GPU and cgroup with a limit, see memory_limits.c
 *   ended/              mode 1777; one empty file, with the name of a client file, for each MPS client that the driver
 *                       has ended to give its memory to a process within its guaranteed part; it counts no longer
 *   routes/             mode 1777; which cgroups' processes a daemon of MPS wants (simroutes.py)
 *   mps_choices         manners of MPS that a test chooses (simmps_common.py)
 *   energy0, energy1, ...   mode 0666; one line `at=NANOSECONDS uj=MICROJOULES sm=PERCENT`: energy of the card up to a
 *                       time of CLOCK_MONOTONIC, and its SM load since then. Each change of a load, and each query of
 *                       the energy, updates it under flock(2) on the file. A working task confirms its load once a
 *                       second; a load not confirmed for longer has ended with its task, by kill -9: from then on the
 *                       load of the live tasks counts. Any user can write wrong values to it.
 *
 * A client counts only while a process with that PID and start time lives and is no zombie, and only if its file
 * belongs to the owner of that process or to root. So kill -9 frees the memory, and no user can state the load of
 * another's process. A stopped process (SIGSTOP) keeps its memory and has no load. A file is ignored if it is no regular file, too
 * long, incomplete (no newline at the end) or invalid; values beyond the card's are limited to it. simgpu.py reads and
 * writes the same format.
 */
#define _GNU_SOURCE
#include "state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_STATE "/run/simgpu"
#define GPU_FILE_SIZE 16384
#define DRIVER_FILE_SIZE 4096
#define CLIENT_LINE_SIZE 512
#define PROC_STAT_SIZE 1024
#define ENERGY_LINE_SIZE 128

/* With 52 W idle and 275 W at most, the simulated energy of 60 trainings one at a time comes within 5 % of the measured
 * 33.2 MJ on four A100 (Yousefzadeh 2025, Table 6.6). simgpu-init writes the two figures of power. */
#define DEFAULT_POWER_EXPONENT 35

/* How long an unconfirmed load counts (simgpu.py, LOST_CHECK_INTERVAL_S). */
#define CONFIRMED_US 1000000
#define ENERGY_LOCK_TRIES 100
#define ENERGY_LOCK_PAUSE_US 1000

/* The test of the refusal builds the library with another file. */
#ifndef REAL_DRIVER_FILE
#define REAL_DRIVER_FILE "/proc/driver/nvidia/version"
#endif

static const char *const counter_words[COUNTER_COUNT] = {
    [COUNTER_OCCUPANCY] = "occupancy", [COUNTER_TENSOR] = "tensor", [COUNTER_DRAM] = "dram",
    [COUNTER_FP64] = "fp64",           [COUNTER_FP32] = "fp32",     [COUNTER_FP16] = "fp16",
};

static const char *state_folder(void)
{
    const char *folder = secure_getenv("SIMGPU_STATE");

    return folder && *folder ? folder : DEFAULT_STATE;
}

int state_open_folder(void)
{
    return open(state_folder(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

bool state_real_driver_loaded(void)
{
    return access(REAL_DRIVER_FILE, F_OK) == 0;
}

bool state_present(void)
{
    int folder = state_open_folder();

    if (folder < 0)
        return false;
    close(folder);
    return true;
}

/* -1 if it is missing, no regular file, or longer than the
 * buffer. O_NONBLOCK: a fifo that a user put into the folder must not block us. */
ssize_t state_read_file(int folder, const char *name, char *text, size_t size, struct stat *info)
{
    size_t length = 0;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

    if (fd < 0)
        return -1;
    if (fstat(fd, info) || !S_ISREG(info->st_mode)) {
        close(fd);
        return -1;
    }
    while (length < size) {
        ssize_t got = read(fd, text + length, size - length);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            close(fd);
            return -1;
        }
        if (got == 0)
            break;
        length += (size_t)got;
    }
    close(fd);
    if (length == size)
        return -1;
    text[length] = '\0';
    return (ssize_t)length;
}

bool state_parse_number(const char *text, uint64_t limit, uint64_t *number)
{
    uint64_t value = 0;

    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        if (value < UINT64_MAX / 10)
            value = value * 10 + (uint64_t)(*text - '0');
        else
            value = UINT64_MAX;
    }
    *number = value < limit ? value : limit;
    return true;
}

static bool parse_unsigned(const char *text, unsigned int limit, unsigned int *number)
{
    uint64_t value;

    if (!state_parse_number(text, limit, &value))
        return false;
    *number = (unsigned int)value;
    return true;
}

/* ---- The driver ---- */

static void set_driver_value(struct driver *driver, const char *key, const char *value)
{
    if (!strcmp(key, "version"))
        snprintf(driver->version, sizeof driver->version, "%s", value);
    else if (!strcmp(key, "nvml"))
        snprintf(driver->nvml_version, sizeof driver->nvml_version, "%s", value);
    else if (!strcmp(key, "cuda"))
        (void)parse_unsigned(value, INT32_MAX, &driver->cuda);
    else if (!strcmp(key, "memory_limits"))
        driver->memory_limits = !strcmp(value, "dmem")   ? LIMITS_DMEM
                                : !strcmp(value, "misc") ? LIMITS_MISC
                                                         : LIMITS_OFF;
}

void state_read_driver(struct driver *driver)
{
    char text[DRIVER_FILE_SIZE], *rest = text, *line;
    struct stat info;
    int folder = state_open_folder();

    memset(driver, 0, sizeof *driver);
    snprintf(driver->version, sizeof driver->version, "0.0-simulated");
    snprintf(driver->nvml_version, sizeof driver->nvml_version, "0.0-simulated");
    if (folder < 0)
        return;
    if (state_read_file(folder, "driver", text, sizeof text, &info) < 0)
        rest = NULL;
    close(folder);
    while ((line = strsep(&rest, "\n"))) {
        char *value = strchr(line, '=');

        if (!value)
            continue;
        *value++ = '\0';
        set_driver_value(driver, line, value);
    }
}

/* ---- GPUs ---- */

/* Parses "0-3,8" into the bit set; CPUs beyond MAX_CPUS are ignored. */
static void parse_cpus(const char *text, struct gpu *gpu)
{
    memset(gpu->cpus, 0, sizeof gpu->cpus);
    gpu->cpus_known = true;
    while (*text) {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;

        if (end == text)
            return;
        text = end;
        if (*text == '-') {
            last = strtoul(text + 1, &end, 10);
            if (end == text + 1)
                return;
            text = end;
        }
        for (unsigned long cpu = first; cpu <= last && cpu < MAX_CPUS; cpu++)
            gpu->cpus[cpu / 8] |= (unsigned char)(1u << (cpu % 8));
        if (*text == ',')
            text++;
    }
}

static void set_instance(struct mig_instance *instance, const char *value)
{
    unsigned int mib;

    memset(instance, 0, sizeof *instance);
    if (sscanf(value, "%9u %9u %9u %31s %79s", &instance->gpu_instance, &instance->compute_instance, &mib,
               instance->profile, instance->uuid) != 5)
        memset(instance, 0, sizeof *instance);
    else
        instance->memory_bytes = (uint64_t)mib << 20;
}

static void set_gpu_value(struct gpu *gpu, const char *key, char *value)
{
    unsigned int number = 0;
    uint64_t mib = 0, joules = 0;

    if (!strcmp(key, "uuid"))
        snprintf(gpu->uuid, sizeof gpu->uuid, "%s", value);
    else if (!strcmp(key, "name"))
        snprintf(gpu->name, sizeof gpu->name, "%s", value);
    else if (!strcmp(key, "bus"))
        snprintf(gpu->bus_id, sizeof gpu->bus_id, "%s", value);
    else if (!strcmp(key, "cpus"))
        parse_cpus(value, gpu);
    else if (!strcmp(key, "cc"))
        (void)sscanf(value, "%3u.%3u", &gpu->cc_major, &gpu->cc_minor);
    else if (!strcmp(key, "mps_lists"))
        gpu->mps_lists = !strcmp(value, "mps")       ? MPS_IN_MPS_LIST
                         : !strcmp(value, "compute") ? MPS_IN_COMPUTE_LIST
                                                     : MPS_IN_BOTH;
    else if (!strcmp(key, "memory_mib") && state_parse_number(value, UINT64_MAX >> 20, &mib))
        gpu->memory_bytes = mib << 20;
    else if (!strcmp(key, "memory_info"))
        gpu->memory_info = !strcmp(value, "zero")   ? MEMORY_ZERO
                           : !strcmp(value, "none") ? MEMORY_NOT_SUPPORTED
                                                    : MEMORY_TOLD;
    else if (!strcmp(key, "accounting"))
        gpu->accounting = !strcmp(value, "1")      ? ACCOUNTING_ON
                          : !strcmp(value, "none") ? ACCOUNTING_NOT_SUPPORTED
                                                   : ACCOUNTING_OFF;
    else if (!strcmp(key, "minor"))
        (void)parse_unsigned(value, UINT32_MAX, &gpu->minor);
    else if (!strcmp(key, "compute_mode"))
        (void)parse_unsigned(value, 3, &gpu->compute_mode);
    else if (!strncmp(key, "mig", 3) && key[3] >= '0' && key[3] < '0' + MAX_MIG_DEVICES && !key[4])
        set_instance(&gpu->instances[key[3] - '0'], value);
    else if (!strcmp(key, "mig_ids"))
        gpu->old_mig_ids = !strcmp(value, "old");
    else if (!strcmp(key, "mig") && parse_unsigned(value, 1, &number))
        gpu->mig = number;
    else if (!strcmp(key, "lost") && parse_unsigned(value, 1, &number))
        gpu->lost = number;
    else if (!strcmp(key, "hang") && parse_unsigned(value, 1, &number))
        gpu->hang = number;
    else if (!strcmp(key, "idle_w") && parse_unsigned(value, 1000000, &number))
        gpu->idle_mw = 1000LL * number;
    else if (!strcmp(key, "max_w") && parse_unsigned(value, 1000000, &number))
        gpu->max_mw = 1000LL * number;
    else if (!strcmp(key, "power_exponent_percent") && parse_unsigned(value, 1000, &number))
        gpu->power_exponent = number;
    else if (!strcmp(key, "detail_list") && parse_unsigned(value, 1, &number))
        gpu->detail_list = number;
    else if (!strcmp(key, "power_w") && parse_unsigned(value, 1000000, &number))
        gpu->power_mw = 1000LL * number;
    else if (!strcmp(key, "energy_j") && state_parse_number(value, INT64_MAX / 1000, &joules))
        gpu->energy_mj = 1000LL * (long long)joules;
    else if (!strcmp(key, "temperature_c") && parse_unsigned(value, 1000, &number))
        gpu->temperature_c = number;
}

static bool read_gpu_at(int folder, int index, struct gpu *gpu)
{
    char name[32], text[GPU_FILE_SIZE];
    struct stat info;

    snprintf(name, sizeof name, "gpu%d", index);
    if (state_read_file(folder, name, text, sizeof text, &info) < 0)
        return false;

    memset(gpu, 0, sizeof *gpu);
    gpu->index = index;
    gpu->instance = NO_INSTANCE;
    gpu->minor = (unsigned int)index;
    gpu->memory_bytes = (uint64_t)1024 << 20;
    gpu->cc_major = 9;
    gpu->detail_list = true;
    gpu->power_mw = gpu->energy_mj = gpu->temperature_c = gpu->idle_mw = gpu->max_mw = -1;
    gpu->power_exponent = DEFAULT_POWER_EXPONENT;
    snprintf(gpu->name, sizeof gpu->name, "Simulated GPU");
    snprintf(gpu->bus_id, sizeof gpu->bus_id, "00000000:%02X:00.0", (unsigned int)index + 1);

    char *rest = text, *line;
    while ((line = strsep(&rest, "\n"))) {
        char *value = strchr(line, '=');

        if (*line == '#' || !value)
            continue;
        *value++ = '\0';
        set_gpu_value(gpu, line, value);
    }
    snprintf(gpu->card_uuid, sizeof gpu->card_uuid, "%s", gpu->uuid);
    return gpu->uuid[0] != '\0';
}

bool state_take_instance(struct gpu *gpu, int instance)
{
    const struct mig_instance *taken = &gpu->instances[instance];
    char name[NAME_SIZE];

    if (!gpu->mig || !*taken->profile)
        return false;
    gpu->instance = instance;
    snprintf(name, sizeof name, "%.58s MIG %s", gpu->name, taken->profile);
    memcpy(gpu->name, name, sizeof name);
    if (gpu->old_mig_ids)
        snprintf(gpu->uuid, sizeof gpu->uuid, "MIG-%.48s/%u/%u", gpu->card_uuid, taken->gpu_instance,
                 taken->compute_instance);
    else
        snprintf(gpu->uuid, sizeof gpu->uuid, "%s", taken->uuid);
    gpu->memory_bytes = taken->memory_bytes;
    return true;
}

bool state_read_gpu(int index, struct gpu *gpu)
{
    int folder;
    bool found;

    if (index < 0 || index >= MAX_GPUS)
        return false;
    folder = state_open_folder();
    if (folder < 0)
        return false;
    found = read_gpu_at(folder, index, gpu);
    close(folder);
    return found;
}

unsigned int state_gpu_count(void)
{
    unsigned int count = 0;
    struct gpu gpu;
    int folder = state_open_folder();

    if (folder < 0)
        return 0;
    while (count < MAX_GPUS && read_gpu_at(folder, (int)count, &gpu))
        count++;
    close(folder);
    return count;
}

static int write_whole(int fd, const char *text, size_t length)
{
    while (length) {
        ssize_t done = write(fd, text, length);

        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return errno;
        text += done;
        length -= (size_t)done;
    }
    return 0;
}

static int write_aside(int folder, const char *name, const char *text, size_t length, mode_t mode)
{
    char aside[64];
    int error, fd;

    snprintf(aside, sizeof aside, ".%.48s~", name);
    fd = openat(folder, aside, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return errno;
    error = write_whole(fd, text, length);
    if (!error && fchmod(fd, mode))
        error = errno;
    close(fd);
    if (!error && renameat(folder, aside, folder, name))
        error = errno;
    if (error)
        (void)unlinkat(folder, aside, 0);
    return error;
}

int state_write_file(int folder, const char *name, const char *text)
{
    return write_aside(folder, name, text, strlen(text), 0644);
}

int state_lock(int folder)
{
    int lock = openat(folder, "lock", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

    if (lock >= 0 && flock(lock, LOCK_EX)) {
        int error = errno;

        close(lock);
        errno = error;
        return -1;
    }
    return lock;
}

/* Replaces the compute_mode lines of the file by one; writes a temporary file and renames it, so that readers see the
 * whole. */
static int rewrite_key(int folder, const char *name, const char *key, unsigned int number)
{
    char text[GPU_FILE_SIZE], fresh[GPU_FILE_SIZE + 32];
    struct stat info;
    size_t length = 0;

    if (state_read_file(folder, name, text, sizeof text, &info) < 0)
        return ENOENT;
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n"))) {
        if (*line && (strncmp(line, key, strlen(key)) || line[strlen(key)] != '='))
            length += (size_t)snprintf(fresh + length, sizeof fresh - length, "%s\n", line);
    }
    length += (size_t)snprintf(fresh + length, sizeof fresh - length, "%s=%u\n", key, number);

    return write_aside(folder, name, fresh, length, info.st_mode & 0777);
}

static int set_key(int index, const char *key, unsigned int number)
{
    char name[32];
    int error, lock, folder = state_open_folder();

    if (folder < 0)
        return errno;
    lock = state_lock(folder);
    if (lock < 0) {
        error = errno;
    } else {
        snprintf(name, sizeof name, "gpu%d", index);
        error = rewrite_key(folder, name, key, number);
        close(lock);
    }
    close(folder);
    return error;
}

int state_set_compute_mode(int index, unsigned int mode)
{
    return set_key(index, "compute_mode", mode);
}

int state_set_accounting(int index, bool on)
{
    if (!on)
        state_clear_accounted(index);
    return set_key(index, "accounting", on);
}

/* ---- Clients ---- */

/* Splits "<pid>.<gpu>.<start time>"; accepts only the form that simgpu.py writes, so that a client has one name. */
static bool parse_client_name(const char *name, unsigned int *pid, unsigned int *gpu, uint64_t *start)
{
    char canonical[64];
    unsigned long long start_time;

    if (strlen(name) >= sizeof canonical || sscanf(name, "%9u.%9u.%19llu", pid, gpu, &start_time) != 3)
        return false;
    *start = start_time;
    snprintf(canonical, sizeof canonical, "%u.%u.%llu", *pid, *gpu, start_time);
    return *pid && !strcmp(canonical, name);
}

/* True while the process `pid` that started at `start` (clock ticks after boot) lives; its owner goes to `owner`, and
 * whether SIGSTOP holds it to `stopped`.
 * The file's owner is the process's effective user, or root where the process may not be dumped (proc(5)). */
static bool process_lives(unsigned int pid, uint64_t start, uid_t *owner, bool *stopped)
{
    char path[32], text[PROC_STAT_SIZE];
    struct stat info;
    unsigned long long started;
    char state;

    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    if (state_read_file(AT_FDCWD, path, text, sizeof text, &info) < 0)
        return false;
    /* The process chooses field 2, which may have blanks and brackets: continue after the last bracket. */
    const char *after_name = strrchr(text, ')');
    if (!after_name || sscanf(after_name + 1,
                              " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                              &state, &started) != 2)
        return false;
    *owner = info.st_uid;
    *stopped = state == 'T';
    return state != 'Z' && state != 'X' && started == start;
}

static bool parse_client_line(char *line, const struct gpu *gpu, struct client *client)
{
    bool used_known = false, util_known = false;
    char *rest = line, *word;

    for (int i = 0; i < COUNTER_COUNT; i++)
        client->counters[i] = -1;
    while ((word = strsep(&rest, " "))) {
        char *value = strchr(word, '=');
        unsigned int number;

        if (!value)
            return false;
        *value++ = '\0';
        if (!strcmp(word, "used")) {
            if (!state_parse_number(value, gpu->memory_bytes, &client->memory_bytes))
                return false;
            used_known = true;
        } else if (!strcmp(word, "sm")) {
            if (!parse_unsigned(value, 100, &client->sm_percent))
                return false;
        } else if (!strcmp(word, "util")) {
            if (!parse_unsigned(value, 100, &client->util_percent))
                return false;
            util_known = true;
        } else if (!strcmp(word, "mem")) {
            if (!parse_unsigned(value, 100, &client->memory_percent))
                return false;
        } else if (!strcmp(word, "mps")) {
            if (!parse_unsigned(value, UINT32_MAX, &number))
                return false;
            client->mps = number != 0;
        } else if (!strcmp(word, "mig")) {
            if (!parse_unsigned(value, MAX_MIG_DEVICES - 1, &number))
                return false;
            client->instance = (int)number;
        } else if (!strcmp(word, "cg")) {
            snprintf(client->cgroups, sizeof client->cgroups, "%s", value);
        } else {
            for (int i = 0; i < COUNTER_COUNT; i++) {
                if (strcmp(word, counter_words[i]))
                    continue;
                if (!parse_unsigned(value, 100, &number))
                    return false;
                client->counters[i] = (int)number;
            }
        }
    }
    if (!util_known)
        client->util_percent = client->sm_percent;
    return used_known;
}

/* A stopped process keeps its memory and computes nothing. */
static void stop_client(struct client *client)
{
    client->sm_percent = client->memory_percent = client->util_percent = 0;
    for (int i = 0; i < COUNTER_COUNT; i++)
        client->counters[i] = client->counters[i] < 0 ? -1 : 0;
}

/* Whether the driver has ended a client whose process belongs to `owner` (simlimits.py). */
static bool has_been_ended(int clients, const char *name, uid_t owner)
{
    char path[96];
    struct stat info;

    snprintf(path, sizeof path, "../ended/%.64s", name);
    return !fstatat(clients, path, &info, AT_SYMLINK_NOFOLLOW) && (info.st_uid == owner || info.st_uid == 0);
}

static bool read_client(int folder, const char *name, const struct gpu *gpu, struct client *client)
{
    char line[CLIENT_LINE_SIZE];
    unsigned int pid, index;
    uint64_t start;
    uid_t owner;
    struct stat info;
    ssize_t length;
    bool stopped;

    /* Check the name first, so that dead clients and those of other GPUs cost no open(2). */
    if (!parse_client_name(name, &pid, &index, &start) || index != (unsigned int)gpu->index ||
        !process_lives(pid, start, &owner, &stopped))
        return false;
    length = state_read_file(folder, name, line, sizeof line, &info);
    if (length < 1 || (info.st_uid != owner && info.st_uid != 0) || has_been_ended(folder, name, owner))
        return false;
    if (line[length - 1] != '\n' || strlen(line) != (size_t)length)
        return false;
    line[length - 1] = '\0';
    memset(client, 0, sizeof *client);
    client->pid = pid;
    client->instance = NO_INSTANCE;
    if (!parse_client_line(line, gpu, client) || (gpu->instance != NO_INSTANCE && gpu->instance != client->instance))
        return false;
    if (stopped)
        stop_client(client);
    return true;
}

static int compare_pids(const void *left, const void *right)
{
    const struct client *a = left, *b = right;

    return (a->pid > b->pid) - (a->pid < b->pid);
}

static bool append_client(struct client_list *list, const struct client *client)
{
    if (list->count == list->room) {
        size_t room = list->room ? list->room * 2 : 64;
        struct client *item = reallocarray(list->item, room, sizeof *item);

        if (!item)
            return false;
        list->item = item;
        list->room = room;
    }
    list->item[list->count++] = *client;
    return true;
}

/* Returns the part of `asked` percent that a card can give if `sum` percent are asked in all. */
static unsigned int part_of_card(unsigned int asked, uint64_t sum)
{
    unsigned int part;

    if (sum <= 100 || !asked)
        return asked;
    part = (unsigned int)(asked * (uint64_t)100 / sum);
    return part ? part : 1;
}

static void share_out_load(struct client_list *list)
{
    uint64_t sm = 0, memory = 0, util = 0;

    for (size_t i = 0; i < list->count; i++) {
        sm += list->item[i].sm_percent;
        util += list->item[i].util_percent;
        memory += list->item[i].memory_percent;
    }
    for (size_t i = 0; i < list->count; i++) {
        list->item[i].sm_percent = part_of_card(list->item[i].sm_percent, sm);
        list->item[i].util_percent = part_of_card(list->item[i].util_percent, util);
        list->item[i].memory_percent = part_of_card(list->item[i].memory_percent, memory);
    }
    list->sm_percent = sm < 100 ? (unsigned int)sm : 100;
    list->util_percent = util < 100 ? (unsigned int)util : 100;
    list->memory_percent = memory < 100 ? (unsigned int)memory : 100;
}

bool state_read_clients(const struct gpu *gpu, struct client_list *list)
{
    struct dirent *entry;
    bool complete = true;
    DIR *names;
    int clients, folder = state_open_folder();

    memset(list, 0, sizeof *list);
    if (folder < 0)
        return true;
    clients = openat(folder, "clients", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    close(folder);
    if (clients < 0)
        return true;
    names = fdopendir(clients);
    if (!names) {
        close(clients);
        return false;
    }
    while (complete && (entry = readdir(names))) {
        struct client client;

        if (read_client(clients, entry->d_name, gpu, &client))
            complete = append_client(list, &client);
    }
    closedir(names);
    if (list->count)
        qsort(list->item, list->count, sizeof *list->item, compare_pids);
    share_out_load(list);
    return complete;
}

void state_free_clients(struct client_list *list)
{
    free(list->item);
    memset(list, 0, sizeof *list);
}

/* ---- Accounted processes: what simgpu.py has written about each one ---- */

/* Calls `use` with the name of each file of a GPU; it returns false to end the loop. */
static void for_accounted(int index, bool (*use)(int folder, const char *name, void *data), void *data)
{
    struct dirent *entry;
    unsigned int pid, gpu;
    uint64_t start;
    DIR *names;
    int accounted, folder = state_open_folder();

    if (folder < 0)
        return;
    accounted = openat(folder, "accounted", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    close(folder);
    names = accounted < 0 ? NULL : fdopendir(accounted);
    if (!names) {
        if (accounted >= 0)
            close(accounted);
        return;
    }
    while ((entry = readdir(names))) {
        if (parse_client_name(entry->d_name, &pid, &gpu, &start) && gpu == (unsigned int)index &&
            !use(accounted, entry->d_name, data))
            break;
    }
    closedir(names);
}

static bool remove_accounted(int folder, const char *name, void *data)
{
    (void)data;
    (void)unlinkat(folder, name, 0);
    return true;
}

void state_clear_accounted(int index)
{
    for_accounted(index, remove_accounted, NULL);
}

struct accounted_list {
    struct accounted *item;
    size_t count, room;
};

static bool read_accounted(int folder, const char *name, void *data)
{
    struct accounted_list *list = data;
    struct accounted *one = &list->item[list->count];
    char line[CLIENT_LINE_SIZE];
    unsigned int gpu, ended;
    struct stat info;
    uint64_t start;
    bool stopped;
    uid_t owner;

    if (list->count == list->room)
        return false;
    if (!parse_client_name(name, &one->pid, &gpu, &start) ||
        state_read_file(folder, name, line, sizeof line, &info) < 1 ||
        sscanf(line, "began_us=%" SCNu64 " seen_us=%" SCNu64 " ended=%1u busy_us=%" SCNu64 " peak=%" SCNu64,
               &one->began_us, &one->seen_us, &ended, &one->busy_us, &one->peak_bytes) != 5)
        return true;
    /* A killed process had its context until a second after its last note, at most. */
    one->running = !ended && process_lives(one->pid, start, &owner, &stopped);
    list->count++;
    return true;
}

static int compare_accounted(const void *left, const void *right)
{
    const struct accounted *a = left, *b = right;

    return (a->began_us > b->began_us) - (a->began_us < b->began_us);
}

size_t state_read_accounted(int index, struct accounted *item, size_t room)
{
    struct accounted_list list = {item, 0, room};

    for_accounted(index, read_accounted, &list);
    if (list.count)
        qsort(item, list.count, sizeof *item, compare_accounted);
    return list.count;
}

/* ---- Power and energy ---- */

/* By the model only: `power_w` sets the driver's answer, not the power of the load. */
static double model_power_mw(const struct gpu *gpu, unsigned int sm_percent)
{
    double more = (double)(gpu->max_mw > gpu->idle_mw ? gpu->max_mw - gpu->idle_mw : 0);

    return (double)gpu->idle_mw + (sm_percent ? more * pow(sm_percent / 100.0, gpu->power_exponent / 100.0) : 0.0);
}

static bool has_power_model(const struct gpu *gpu)
{
    return gpu->idle_mw >= 0 && gpu->max_mw >= 0;
}

long long state_power_mw(const struct gpu *gpu, unsigned int sm_percent)
{
    if (gpu->power_mw >= 0)
        return gpu->power_mw;
    return has_power_model(gpu) ? (long long)model_power_mw(gpu, sm_percent) : -1;
}

static int64_t monotonic_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Opens the file and locks it if that succeeds soon: a process that was stopped while it held the lock must not block
 * queries. `writable` tells whether the result may be written. */
static int open_energy(const struct gpu *gpu, bool *writable)
{
    char name[32];
    int fd, folder = state_open_folder();

    if (folder < 0)
        return -1;
    snprintf(name, sizeof name, "energy%d", gpu->index);
    *writable = true;
    fd = openat(folder, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        *writable = false;
        fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    }
    close(folder);
    for (int i = 0; fd >= 0 && *writable && flock(fd, LOCK_EX | LOCK_NB); i++) {
        if (i == ENERGY_LOCK_TRIES)
            *writable = false;
        usleep(ENERGY_LOCK_PAUSE_US);
    }
    return fd;
}

long long state_energy_mj(const struct gpu *gpu, unsigned int sm_percent)
{
    char line[ENERGY_LINE_SIZE + 1];
    int64_t at, uj, now, passed_us, confirmed_us;
    unsigned int before;
    ssize_t length;
    bool writable;
    int fd;

    if (gpu->energy_mj >= 0)
        return gpu->energy_mj;
    if (!has_power_model(gpu) || (fd = open_energy(gpu, &writable)) < 0)
        return -1;
    length = pread(fd, line, ENERGY_LINE_SIZE, 0);
    line[length < 0 ? 0 : length] = '\0';
    if (sscanf(line, "at=%" SCNd64 " uj=%" SCNd64 " sm=%3u", &at, &uj, &before) != 3 || uj < 0 || before > 100) {
        close(fd);
        return -1;
    }
    now = monotonic_ns();
    passed_us = now > at ? (now - at) / 1000 : 0;
    confirmed_us = passed_us < CONFIRMED_US ? passed_us : CONFIRMED_US;
    uj += (int64_t)(model_power_mw(gpu, before) * (double)confirmed_us / 1000.0 +
                    model_power_mw(gpu, sm_percent) * (double)(passed_us - confirmed_us) / 1000.0);
    if (writable) {
        /* A fixed length, so that no rest of a longer line remains. */
        char fresh[ENERGY_LINE_SIZE + 1];

        snprintf(fresh, sizeof fresh, "at=%020" PRId64 " uj=%020" PRId64 " sm=%03u\n", now, uj, sm_percent);
        (void)!pwrite(fd, fresh, strlen(fresh), 0);
    }
    close(fd);
    return uj / 1000;
}
