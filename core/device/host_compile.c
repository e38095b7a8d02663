/* host_compile.c - the system's C compiler as the kernel compiler.
 *
 * Source goes to a private folder, the compiler is run on it (no shell), the
 * shared object is read back as the image. The folder is removed. The image is
 * loaded from an anonymous file in memory whose descriptor stays open as long
 * as the module: the loader knows objects by name, and the name is the
 * descriptor's.
 *
 * Flags. Nothing that may change a value: no fast-math; contraction off.
 * -fno-math-errno and -fno-trapping-math only drop side effects of operations
 * (errno, exception flags) that kernels cannot see. No automatic vectors: gcc 12
 * fuses a product and a pair of alternating additions into vfmaddsub in spite of
 * -ffp-contract=off (test_host.c has such a kernel). Objects are for this very
 * CPU (-march=native), which is why device_info.compiler holds a digest of its
 * features.
 *
 * With the race check the object is compiled with the thread sanitizer's
 * instrumentation but linked without its library: host_check.c answers the
 * calls. Compiling and linking are two runs for that.
 */
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/host.h"

enum { FLAGS_MAX = 40, SOURCE_LIMIT = 1 << 26, MESSAGE_LIMIT = 800 };

extern char **environ;

static const char *const flags_always[] = {"-fPIC",
                                           "-march=native",
                                           "-std=gnu11",
                                           "-DELPIS_HOST",
                                           "-fwrapv",
                                           "-fno-plt",
                                           "-fno-strict-aliasing",
                                           "-ffp-contract=off",
                                           "-fno-math-errno",
                                           "-fno-trapping-math",
                                           "-Werror=implicit-function-declaration",
                                           NULL};
static const char *const flags_fast[] = {"-O3", "-fno-tree-vectorize", "-fno-tree-slp-vectorize",
                                         NULL};
#if defined(__SANITIZE_THREAD__)
/* The program's own sanitizer would answer the calls: sentinels only. */
static const char *const flags_check[] = {"-O1", "-DELPIS_CHECK", NULL};
#else
static const char *const flags_check[] = {"-O1", "-DELPIS_CHECK", "-fsanitize=thread", NULL};
#endif

struct device_module {
    void *library;
    int file;
    struct device_function *functions;
    char name[96];
};

/* ---- running a program */

/* Runs arguments[0] (searched in PATH), output and errors into `file`. Exit status, or -1. */
static int run_program(const char *const *arguments, const char *file)
{
    posix_spawn_file_actions_t actions;
    pid_t process;
    int status = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, file, O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    int spawned = posix_spawnp(&process, arguments[0], &actions, NULL,
                               (char *const *)(uintptr_t)arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (spawned != 0)
        return -1;
    while (waitpid(process, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void folder_name(const char *folder, const char *file, char path[4096])
{
    snprintf(path, 4096, "%s/%s", folder, file);
}

/* ---- the compiler */

char *host_compiler_find(char version[96])
{
    const char *wanted = getenv("ELPIS_CC");
    const char *names[] = {wanted && *wanted ? wanted : "cc", "gcc", "clang"};
    struct error ignored;
    char *folder = NULL;
    struct buffer text = {0};
    char path[4096], *found = NULL;
    if (file_make_scratch(&folder, &ignored) != 0)
        return NULL;
    folder_name(folder, "messages", path);
    for (size_t i = 0; i < COUNT_OF(names) && !found; i++) {
        const char *arguments[] = {names[i], "--version", NULL};
        if (run_program(arguments, path) != 0 || file_read(&text, path, 1 << 16, &ignored) != 0)
            continue;
        text.data[strcspn(text.data, "\n")] = 0;
        snprintf(version, 96, "%s", text.data);
        found = memory_copy_text(slice_of(names[i]));
    }
    buffer_free(&text);
    file_remove_tree(folder);
    memory_free(folder);
    return found;
}

static void add_flag_texts(struct buffer *text, const char *const *flags)
{
    for (; *flags; flags++)
        buffer_format(text, "%s ", *flags);
}

/* Of what decides the code beside the source: our flags, and the lines of /proc/cpuinfo that say
 * what -march=native means. */
void host_cpu_digest(char text[17])
{
    static const char *const keys[] = {"cpu family", "model",           "flags",       "Features",
                                       "CPU part",   "CPU implementer", "CPU variant", "stepping"};
    struct buffer kept = {0};
    add_flag_texts(&kept, flags_always);
    add_flag_texts(&kept, flags_fast);
    add_flag_texts(&kept, flags_check);
    char *line = NULL, full[65];
    size_t capacity = 0;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && getline(&line, &capacity, file) > 1)
        for (size_t i = 0; i < COUNT_OF(keys); i++)
            if (strncmp(line, keys[i], strlen(keys[i])) == 0)
                buffer_add_text(&kept, line);
    if (file)
        fclose(file);
    free(line);
    digest_text(digest_of(kept.data, kept.size), full);
    snprintf(text, 17, "%.16s", full);
    buffer_free(&kept);
}

static int compile_failed(const struct host_device *device, const char *name, int status,
                          const char *message_file, struct error *error)
{
    struct buffer text = {0};
    struct error ignored;
    if (file_read(&text, message_file, 1 << 20, &ignored) != 0)
        buffer_add_text(&text, "no message");
    if (text.size > MESSAGE_LIMIT)
        text.data[MESSAGE_LIMIT] = 0;
    error_set(error, ERROR_DEVICE, "kernel %s: %s ended with status %d:\n%s", name,
              device->compiler_path, status, text.data);
    buffer_free(&text);
    return -1;
}

static u32 add_flags(const char **arguments, u32 count, const char *const *flags)
{
    for (; *flags; flags++)
        arguments[count++] = *flags;
    return count;
}

static int compile_in(const struct host_device *device, const char *folder, struct slice source,
                      const char *name, struct buffer *image, struct error *error)
{
    char text[4096], object[4096], shared[4096], messages[4096];
    folder_name(folder, "kernel.c", text);
    folder_name(folder, "kernel.o", object);
    folder_name(folder, "kernel.so", shared);
    folder_name(folder, "messages", messages);
    if (file_write_atomic(text, source.data, source.size, error) != 0)
        return -1;
    const char *compile[FLAGS_MAX] = {device->compiler_path};
    u32 count = add_flags(compile, 1, flags_always);
    count = add_flags(compile, count, device->check ? flags_check : flags_fast);
    count = add_flags(compile, count, (const char *const[]){"-c", "-o", object, text, NULL});
    compile[count] = NULL;
    const char *link[] = {device->compiler_path, "-shared", "-o", shared, object, NULL};
    int status = run_program(compile, messages);
    if (status == 0)
        status = run_program(link, messages);
    if (status != 0)
        return compile_failed(device, name, status, messages, error);
    return file_read(image, shared, SOURCE_LIMIT, error);
}

int host_compile(struct device *base, struct slice source, const char *name, struct buffer *image,
                 struct error *error)
{
    struct host_device *device = (struct host_device *)base;
    char *folder = NULL;
    if (file_make_scratch(&folder, error) != 0) { /* without it none could be looked for either */
        error_prefix(error, "host compiler");
        error->code = ERROR_DEVICE;
        return -1;
    }
    int status = device->compiler_path
                     ? compile_in(device, folder, source, name, image, error)
                     : error_set(error, ERROR_DEVICE,
                                 "kernel %s: no C compiler found (tried cc, gcc, clang): install "
                                 "one or name it in ELPIS_CC",
                                 name);
    file_remove_tree(folder);
    memory_free(folder);
    return status;
}

/* ---- modules */

static int write_image(int file, const void *image, size_t size)
{
    const char *at = image;
    while (size > 0) {
        ssize_t written = write(file, at, size);
        if (written <= 0)
            return -1;
        at += written;
        size -= (size_t)written;
    }
    return 0;
}

int host_module_load(struct device *device, const void *image, size_t size, const char *name,
                     struct device_module **module, struct error *error)
{
    (void)device;
    char path[64];
    int file = memfd_create("elpis-kernel", MFD_CLOEXEC);
    if (file < 0 || write_image(file, image, size) != 0) {
        error_set(error, ERROR_DEVICE, "kernel %s: cannot hold its object of %zu bytes: %s", name,
                  size, strerror(errno));
        goto fail;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        error_set(error, ERROR_DEVICE, "kernel %s: the loader refuses its object: %s", name,
                  dlerror());
        goto fail;
    }
    *module = memory_alloc(sizeof **module);
    (*module)->library = library;
    (*module)->file = file;
    snprintf((*module)->name, sizeof(*module)->name, "%s", name);
    return 0;
fail:
    if (file >= 0)
        close(file);
    return -1;
}

void host_module_unload(struct device *device, struct device_module *module)
{
    (void)device;
    while (module->functions) {
        struct device_function *next = module->functions->next;
        memory_free(module->functions);
        module->functions = next;
    }
    dlclose(module->library);
    close(module->file);
    memory_free(module);
}

int host_function_get(struct device *device, struct device_module *module, const char *name,
                      const struct device_geometry *geometry, struct device_function **function,
                      struct error *error)
{
    (void)device;
    host_entry *entry;
    void *symbol = dlsym(module->library, name);
    if (!symbol)
        return error_set(error, ERROR_DEVICE, "kernel object %s: expected the entry %s, found none",
                         module->name, name);
    memcpy(&entry, &symbol, sizeof entry);
    struct device_function *made = memory_alloc(sizeof *made);
    *made = (struct device_function){
        .next = module->functions, .module = module, .entry = entry, .geometry = *geometry};
    snprintf(made->name, sizeof made->name, "%s", name);
    module->functions = made;
    *function = made;
    return 0;
}
