/* libraries.c - where NVIDIA's libraries lie, and what to say when they do not.
 *
 * A search is a list of folders times a list of names. A name in a folder is tried only if the
 * file is there, so that "not found" and "found, but broken" stay two different sentences: the
 * first broken file's own error is kept and reported if nothing else opens. A broken file in
 * the folder that the user named ends the search at once: silently taking another would hide
 * what was asked for.
 */
#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/libraries.h"

struct library_name {
    const char *file;
    u32 major; /* 0 = the name carries no version */
};

struct library_traits {
    const char *what, *install;
    struct library_name names[3];
};

static const struct library_traits traits[] = {
    [LIBRARY_DRIVER] = {"the NVIDIA driver",
                        "install the NVIDIA driver, or use --device host",
                        {{"libcuda.so.1", 0}}},
    [LIBRARY_NVRTC] =
        {"NVRTC, the CUDA run-time compiler",
         "install it (pip install nvidia-cuda-nvrtc, or the CUDA toolkit) or name its "
         "folder with --cuda-libraries",
         {{"libnvrtc.so.13", 13}, {"libnvrtc.so.12", 12}}},
    [LIBRARY_CUBLASLT] = {"cuBLASLt",
                          "install it (pip install nvidia-cublas, or the CUDA toolkit) or name its "
                          "folder with --cuda-libraries",
                          {{"libcublasLt.so.13", 13}, {"libcublasLt.so.12", 12}}},
    [LIBRARY_NVML] = {"NVML, NVIDIA's management library",
                      "it comes with the NVIDIA driver",
                      {{"libnvidia-ml.so.1", 0}}},
};

/* Patterns of glob(7). Python wheels put libraries under nvidia/<package>/lib. */
static const char *const usual_folders[] = {
    "/usr/local/cuda/lib64",
    "/usr/local/cuda-1[23]*/lib64",
    "/opt/cuda/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/python3*/*-packages/nvidia/*/lib",
    "/usr/local/lib/python3*/*-packages/nvidia/*/lib",
    "/opt/*/lib/python3*/site-packages/nvidia/*/lib",
};

/* Under a folder that an environment variable names. */
static const struct {
    const char *variable, *below;
} named_folders[] = {
    {"CUDA_HOME", "lib64"},
    {"CUDA_PATH", "lib64"},
    {"VIRTUAL_ENV", "lib/python3*/site-packages/nvidia/*/lib"},
    {"CONDA_PREFIX", "lib"},
    {"CONDA_PREFIX", "lib/python3*/site-packages/nvidia/*/lib"},
    {"HOME", ".local/lib/python3*/site-packages/nvidia/*/lib"},
};

struct search {
    const struct library_traits *traits;
    u32 newest_major;
    struct library *library;
    char broken[700]; /* the first file that is there and does not load, and why */
    bool too_new;     /* a version the driver cannot run was passed over */
};

static void resolved_path(struct library *library, const char *opened_as)
{
    struct link_map *map = NULL;
    const char *path = opened_as;
    if (dlinfo(library->handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name[0])
        path = map->l_name;
    snprintf(library->path, sizeof library->path, "%s", path);
}

/* NVRTC opens its builtins by bare name; loading them first from the same folder makes a
 * folder outside the loader's path work. */
static void preload_builtins(const char *folder, u32 major)
{
    char pattern[600];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/libnvrtc-builtins.so.%u*", folder, major);
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++)
            dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_GLOBAL);
        globfree(&found);
    }
}

static bool open_file(struct search *search, const char *folder, const struct library_name *name)
{
    char path[600];
    snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "", name->file);
    if (*folder && access(path, F_OK) != 0)
        return false;
    if (search->newest_major && name->major > search->newest_major) {
        search->too_new |= *folder != 0;
        return false;
    }
    if (*folder && search->traits == &traits[LIBRARY_NVRTC])
        preload_builtins(folder, name->major);
    search->library->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!search->library->handle) {
        const char *reason = dlerror();
        if (*folder && !search->broken[0])
            snprintf(search->broken, sizeof search->broken, "%s", reason ? reason : path);
        return false;
    }
    resolved_path(search->library, path);
    return true;
}

/* folder "" is the loader's own path. */
static bool open_in_folder(struct search *search, const char *folder)
{
    for (size_t i = 0; i < COUNT_OF(search->traits->names); i++)
        if (search->traits->names[i].file && open_file(search, folder, &search->traits->names[i]))
            return true;
    return false;
}

static bool open_in_pattern(struct search *search, const char *pattern)
{
    glob_t found;
    bool opened = false;
    if (glob(pattern, 0, NULL, &found) != 0)
        return false;
    for (size_t i = found.gl_pathc; i-- > 0 && !opened;) /* highest version first */
        opened = open_in_folder(search, found.gl_pathv[i]);
    globfree(&found);
    return opened;
}

/* A list of folders as in PATH. */
static bool open_in_list(struct search *search, const char *list)
{
    bool opened = false;
    char *copy = memory_copy_text(slice_of(list)), *rest = copy, *folder;
    while (!opened && (folder = strsep(&rest, ":")) != NULL)
        opened = *folder && open_in_folder(search, folder);
    memory_free(copy);
    return opened;
}

static bool open_beside_program(struct search *search)
{
    char path[500];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return false;
    path[length] = 0;
    char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return false;
    *slash = 0;
    return open_in_folder(search, path);
}

static bool open_in_usual(struct search *search)
{
    for (size_t i = 0; i < COUNT_OF(named_folders); i++) {
        char pattern[700];
        const char *root = getenv(named_folders[i].variable);
        if (!root || !*root)
            continue;
        snprintf(pattern, sizeof pattern, "%s/%s", root, named_folders[i].below);
        if (open_in_pattern(search, pattern))
            return true;
    }
    for (size_t i = 0; i < COUNT_OF(usual_folders); i++)
        if (open_in_pattern(search, usual_folders[i]))
            return true;
    return false;
}

static int not_opened(const struct search *search, struct error *error)
{
    const struct library_traits *t = search->traits;
    if (search->broken[0])
        return error_set(error, ERROR_DEVICE, "%s cannot be loaded: %s; reinstall it", t->what,
                         search->broken);
    if (search->too_new)
        return error_set(
            error, ERROR_DEVICE,
            "%s: found only a version newer than the driver, which runs up to CUDA %u; "
            "update the driver or install version %u",
            t->what, search->newest_major, search->newest_major);
    return error_set(error, ERROR_DEVICE, "%s (%s) was not found; %s", t->what, t->names[0].file,
                     t->install);
}

int library_open(struct library *library, enum library_kind kind, const char *folder,
                 u32 newest_major, struct error *error)
{
    struct search search = {&traits[kind], newest_major, library, "", false};
    const char *variable = getenv("ELPIS_CUDA_LIBRARIES");
    memset(library, 0, sizeof *library);
    if (folder && *folder && open_in_folder(&search, folder))
        return 0;
    if (search.broken[0])
        return not_opened(&search, error);
    if (variable && open_in_list(&search, variable))
        return 0;
    if (search.broken[0])
        return not_opened(&search, error);
    if (open_beside_program(&search) || open_in_folder(&search, "") || open_in_usual(&search))
        return 0;
    return not_opened(&search, error);
}

int library_symbols(const struct library *library, const struct library_symbol *symbols,
                    size_t count, struct error *error)
{
    for (size_t i = 0; i < count; i++) {
        *symbols[i].address = dlsym(library->handle, symbols[i].name);
        if (!*symbols[i].address)
            return error_set(error, ERROR_DEVICE,
                             "%s is too old: it has no function %s; CUDA 12.0 or later is needed",
                             library->path, symbols[i].name);
    }
    return 0;
}
