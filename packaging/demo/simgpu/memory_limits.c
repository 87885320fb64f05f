/* SIMULATED NVML, limits of the device memory of a cgroup, which drivers have from release 615 on. On older ones the two
 * functions are missing, as in their library.
 *
 * Of the two back ends of the driver, `dmem` nests: a limit of a cgroup holds for all cgroups below it, and a soft limit
 * is booked on all cgroups above it until it is set to 0, also if its cgroup is removed before. `misc` does not nest: a
 * limit holds for the processes of that very cgroup.
 *
 * In the state folder, memory_limits/<gpu index>.<inode number of the cgroup> has the line
 *     soft=BYTES hard=BYTES path=PATH
 * The inode number, which cgroup v2 uses once only, is the cgroup's name for readers in other namespaces. A file whose
 * cgroup is gone has no effect, and is removed by the next call that sets a limit. simgpu.py obeys the limits.
 *
 * Not known from a real driver, and decided here: a cgroup of v1 is "not supported", a soft limit above the hard one an
 * invalid argument, and what NVML's second memory structure says of the used memory inside a limited cgroup. */
#define _GNU_SOURCE
#include "nvml_types.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#define CGROUP2_MAGIC 0x63677270 /* CGROUP2_SUPER_MAGIC of linux/magic.h */
#define LIMIT_LINE_SIZE (PATH_MAX + 128)
#define UNLIMITED UINT64_MAX
#define DMEM_CAPACITY "/sys/fs/cgroup/dmem.capacity"

struct limits {
    uint64_t soft, hard;
};

static const struct limits no_limits = {0, UNLIMITED};

static bool has_limits(const struct limits *limits)
{
    return limits->soft || limits->hard != UNLIMITED;
}

/* ---- Cgroups ---- */

/* Opens a cgroup of v2; NOT_FOUND if it does not exist, NOT_SUPPORTED if it is none of v2. */
static nvmlReturn_t open_cgroup(const char *path, int *cgroup)
{
    struct statfs system;

    *cgroup = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*cgroup < 0)
        return NVML_ERROR_NOT_FOUND;
    if (!fstatfs(*cgroup, &system) && system.f_type == CGROUP2_MAGIC)
        return NVML_SUCCESS;
    close(*cgroup);
    return NVML_ERROR_NOT_SUPPORTED;
}

static uint64_t number_of(int cgroup)
{
    struct stat info;

    return fstat(cgroup, &info) ? 0 : (uint64_t)info.st_ino;
}

/* Opens the cgroup above, and closes this one; -1 for the first one below the root of the tree, as the root has no
 * limits. */
static int move_up(int cgroup)
{
    struct statfs system;
    int above = openat(cgroup, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool is_inside;

    close(cgroup);
    if (above < 0)
        return -1;
    /* Only cgroups that are not the root have this file. */
    is_inside = !fstatfs(above, &system) && system.f_type == CGROUP2_MAGIC && !faccessat(above, "cgroup.type", F_OK, 0);
    if (is_inside)
        return above;
    close(above);
    return -1;
}

/* The number of this process's own cgroup; 0: it has none of v2, or none that it can see. */
static uint64_t own_cgroup(void)
{
    char text[4096], path[PATH_MAX] = "";
    struct mntent *mount;
    struct stat info;
    char *own;
    FILE *mounts;

    if (state_read_file(AT_FDCWD, "/proc/self/cgroup", text, sizeof text, &info) < 0)
        return 0;
    own = !strncmp(text, "0::", 3) ? text : strstr(text, "\n0::");
    if (!own || !(mounts = setmntent("/proc/self/mounts", "re")))
        return 0;
    own = strchr(own, '/');
    while (own && !*path && (mount = getmntent(mounts))) {
        if (!strcmp(mount->mnt_type, "cgroup2"))
            snprintf(path, sizeof path, "%s%.*s", mount->mnt_dir, (int)strcspn(own, "\n"), own);
    }
    endmntent(mounts);
    return *path && !stat(path, &info) ? (uint64_t)info.st_ino : 0;
}

/* ---- The files ---- */

static int open_limits(int folder)
{
    return openat(folder, "memory_limits", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Finds `key=` at the start of a word and reads its number. */
static bool read_word(const char *line, const char *key, uint64_t *number)
{
    char digits[32];
    const char *found = strstr(line, key);

    if (!found || sscanf(found + strlen(key), "%31[0-9]", digits) != 1)
        return false;
    return state_parse_number(digits, UINT64_MAX, number);
}

static struct limits read_limits(int files, int gpu, uint64_t cgroup)
{
    char name[64], line[LIMIT_LINE_SIZE];
    struct limits limits = no_limits;
    struct stat info;

    snprintf(name, sizeof name, "%d.%" PRIu64, gpu, cgroup);
    if (state_read_file(files, name, line, sizeof line, &info) > 0 &&
        (!read_word(line, "soft=", &limits.soft) || !read_word(line, "hard=", &limits.hard)))
        return no_limits;
    return limits;
}

/* The path stands last in the line, so that it may have blanks. */
static int write_limits(int files, int gpu, int cgroup, const struct limits *limits)
{
    char name[64], link[64], path[PATH_MAX], line[LIMIT_LINE_SIZE];
    ssize_t length;

    snprintf(name, sizeof name, "%d.%" PRIu64, gpu, number_of(cgroup));
    if (!has_limits(limits))
        return unlinkat(files, name, 0) && errno != ENOENT ? errno : 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", cgroup);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return errno;
    path[length] = '\0';
    snprintf(line, sizeof line, "soft=%" PRIu64 " hard=%" PRIu64 " path=%s\n", limits->soft, limits->hard, path);
    return state_write_file(files, name, line);
}

/* Removes the files of cgroups that are gone. What they had booked on others stays there. */
static void forget_removed(int files)
{
    int listed = dup(files);
    DIR *names = listed < 0 ? NULL : fdopendir(listed);
    struct dirent *entry;

    if (!names) {
        if (listed >= 0)
            close(listed);
        return;
    }
    rewinddir(names);
    while ((entry = readdir(names))) {
        char line[LIMIT_LINE_SIZE], *path, *number = strchr(entry->d_name, '.');
        struct stat info;
        uint64_t cgroup;

        if (!number || number == entry->d_name || !state_parse_number(number + 1, UINT64_MAX, &cgroup) ||
            state_read_file(files, entry->d_name, line, sizeof line, &info) < 0 || !(path = strstr(line, "path=")))
            continue;
        path[strcspn(path, "\n")] = '\0';
        if (stat(path + strlen("path="), &info) || (uint64_t)info.st_ino != cgroup)
            (void)unlinkat(files, entry->d_name, 0);
    }
    closedir(names);
}

/* ---- Setting ---- */

/* Books the change of a soft limit on all cgroups above; takes over `cgroup`. */
static int book_above(int files, int gpu, int cgroup, uint64_t before, uint64_t after)
{
    int error = 0;

    while (!error && before != after && (cgroup = move_up(cgroup)) >= 0) {
        struct limits limits = read_limits(files, gpu, number_of(cgroup));

        if (after > before)
            limits.soft += after - before;
        else
            limits.soft -= before - after < limits.soft ? before - after : limits.soft;
        error = write_limits(files, gpu, cgroup, &limits);
    }
    if (cgroup >= 0)
        close(cgroup);
    return error;
}

static int set_limits(enum memory_limits kind, int gpu, int cgroup, const struct limits *limits)
{
    int error = 0, files, lock, folder = state_open_folder();

    if (folder < 0)
        return errno;
    files = open_limits(folder);
    lock = files < 0 ? -1 : state_lock(folder);
    if (lock < 0) {
        error = errno;
    } else {
        struct limits before = read_limits(files, gpu, number_of(cgroup));

        forget_removed(files);
        error = write_limits(files, gpu, cgroup, limits);
        if (!error && kind == LIMITS_DMEM) {
            int above = dup(cgroup);

            error = above < 0 ? errno : book_above(files, gpu, above, before.soft, limits->soft);
        }
        close(lock);
    }
    if (files >= 0)
        close(files);
    close(folder);
    return error;
}

/* What both functions ask of their arguments. */
static nvmlReturn_t check_call(nvmlDevice_t device, const void *limits, const char *path, struct gpu *gpu,
                               struct driver *driver)
{
    nvmlReturn_t result = nvml_device(device, gpu);

    if (result != NVML_SUCCESS)
        return result;
    if (!limits || !path)
        return NVML_ERROR_INVALID_ARGUMENT;
    state_read_driver(driver);
    if (gpu->mig || driver->memory_limits == LIMITS_MISSING || driver->memory_limits == LIMITS_OFF)
        return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* A kernel with the controller has its files in a cgroup only if the one above has given it on. On a kernel without it
 * the back end is pretended in every cgroup but the root, which has neither these files nor that of its type. */
static bool lacks_controller(int cgroup)
{
    return faccessat(cgroup, access(DMEM_CAPACITY, F_OK) ? "cgroup.type" : "dmem.max", F_OK, 0);
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, const nvmlSetMemoryLimits_v1_t *limits)
{
    struct gpu gpu;
    struct driver driver;
    struct limits wanted;
    int cgroup, error;
    nvmlReturn_t result = check_call(device, limits, limits ? limits->nameSpace : NULL, &gpu, &driver);

    if (result != NVML_SUCCESS)
        return result;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    wanted = (struct limits){limits->softLimit, limits->hardLimit};
    if (wanted.soft > gpu.memory_bytes) /* NVML_DEVICE_MEMORY_LIMIT_MAX too: all of the card */
        wanted.soft = gpu.memory_bytes;
    if (wanted.soft > wanted.hard)
        return NVML_ERROR_INVALID_ARGUMENT;
    result = open_cgroup(limits->nameSpace, &cgroup);
    if (result != NVML_SUCCESS)
        return result;
    if (driver.memory_limits == LIMITS_DMEM && lacks_controller(cgroup)) {
        close(cgroup);
        return NVML_ERROR_NOT_FOUND;
    }
    error = set_limits(driver.memory_limits, gpu.index, cgroup, &wanted);
    close(cgroup);
    return error ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

/* ---- Reading ---- */

/* Whether a client is in a cgroup: with `nests`, also in one below it. */
static bool is_in(const struct client *client, uint64_t cgroup, bool nests)
{
    char list[CGROUPS_SIZE], *rest = list, *word;

    snprintf(list, sizeof list, "%s", client->cgroups);
    while ((word = strsep(&rest, ","))) {
        uint64_t number;

        if (state_parse_number(word, UINT64_MAX, &number) && number == cgroup)
            return true;
        if (!nests)
            return false;
    }
    return false;
}

static nvmlReturn_t read_used(const struct gpu *gpu, uint64_t cgroup, bool nests, unsigned long long *used)
{
    struct client_list clients;
    nvmlReturn_t result = nvml_clients(gpu, &clients);

    *used = 0;
    for (size_t i = 0; i < clients.count; i++) {
        if (is_in(&clients.item[i], cgroup, nests))
            *used += clients.item[i].memory_bytes;
    }
    state_free_clients(&clients);
    return result;
}

static struct limits limits_of(const struct gpu *gpu, uint64_t cgroup)
{
    struct limits limits = no_limits;
    int folder = state_open_folder(), files = folder < 0 ? -1 : open_limits(folder);

    if (files >= 0) {
        limits = read_limits(files, gpu->index, cgroup);
        close(files);
    }
    if (folder >= 0)
        close(folder);
    return limits;
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *answer)
{
    struct gpu gpu;
    struct driver driver;
    struct limits limits;
    uint64_t number;
    int cgroup;
    nvmlReturn_t result = check_call(device, answer, answer ? answer->nameSpace : NULL, &gpu, &driver);

    if (result == NVML_SUCCESS)
        result = open_cgroup(answer->nameSpace, &cgroup);
    if (result != NVML_SUCCESS)
        return result;
    number = number_of(cgroup);
    limits = limits_of(&gpu, number);
    if (driver.memory_limits == LIMITS_DMEM && lacks_controller(cgroup))
        result = NVML_ERROR_NOT_FOUND;
    else if (driver.memory_limits == LIMITS_MISC && !has_limits(&limits))
        result = NVML_ERROR_NOT_SUPPORTED;
    close(cgroup);
    if (result != NVML_SUCCESS)
        return result;
    answer->softLimit = limits.soft;
    answer->hardLimit = limits.hard;
    return read_used(&gpu, number, driver.memory_limits == LIMITS_DMEM, &answer->currentUsed);
}

nvmlReturn_t nvml_limit_memory(const struct gpu *gpu, nvmlMemory_t *memory)
{
    struct driver driver;
    struct limits limits;
    uint64_t own;
    unsigned long long used;
    nvmlReturn_t result;

    state_read_driver(&driver);
    if (gpu->mig || driver.memory_limits < LIMITS_MISC || !(own = own_cgroup()))
        return NVML_SUCCESS;
    limits = limits_of(gpu, own);
    if (limits.hard >= memory->total)
        return NVML_SUCCESS;
    result = read_used(gpu, own, driver.memory_limits == LIMITS_DMEM, &used);
    memory->total = limits.hard;
    memory->used = used < limits.hard ? used : limits.hard;
    memory->free = memory->total - memory->used;
    return result;
}

/* ---- Older drivers ---- */

/* Makes a function of this library impossible to find by its name: a symbol without a value is none (dl-lookup.c of
 * glibc). The library has already been relocated, so its own calls are not concerned. */
static void hide(void *function)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    ElfW(Sym) *symbol;
    Dl_info where;

    if (!dladdr1(function, &where, (void **)&symbol, RTLD_DL_SYMENT) || !symbol)
        return;
    uintptr_t from = (uintptr_t)symbol & ~(page - 1), to = (uintptr_t)(symbol + 1);
    if (mprotect((void *)from, to - from, PROT_READ | PROT_WRITE))
        return;
    symbol->st_value = 0;
    (void)mprotect((void *)from, to - from, PROT_READ);
}

/* The driver is that of the moment in which a program loads the library. */
__attribute__((constructor)) static void hide_what_the_driver_lacks(void)
{
    struct driver driver;

    state_read_driver(&driver);
    if (driver.memory_limits != LIMITS_MISSING)
        return;
    hide((void *)nvmlDeviceSetMemoryLimits_v1);
    hide((void *)nvmlDeviceGetMemoryLimits_v1);
}
