/* support.h - what the tests of the cache share: children, the lines they print, file systems of
 * their own that are small or read-only.
 */
#ifndef ELPIS_TESTS_JIT_SUPPORT_H
#define ELPIS_TESTS_JIT_SUPPORT_H

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"

static pid_t test_process;

__attribute__((constructor)) static void remember_process(void)
{
    test_process = getpid();
}

static int saved_stderr = -1; /* while count_lines has it */

static void restore_stderr(void)
{
    if (saved_stderr < 0)
        return;
    fflush(stderr);
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    saved_stderr = -1;
}

/* Ends the test; in a child, which must not go on with the tests behind this one, the child. */
static void fail_here(const char *where, int line, const char *what)
{
    restore_stderr();
    if (getpid() == test_process)
        fail_msg("%s:%d: %s", where, line, what);
    dprintf(STDOUT_FILENO, "# child, %s:%d: %s\n", where, line, what);
    _exit(1);
}
#define CHECK(condition) ((condition) ? (void)0 : fail_here(__FILE__, __LINE__, #condition))

__attribute__((unused)) static void must(int status, const struct error *error)
{
    if (status != 0)
        fail_here(__FILE__, __LINE__, error->text);
}

__attribute__((unused)) static pid_t start_child(void (*body)(void))
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        body();
        _exit(0);
    }
    CHECK(child > 0);
    return child;
}

/* As waitpid has it: 0 = ended well. */
__attribute__((unused)) static int end_of(pid_t child)
{
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

/* Lines with `text` that `body` prints to stderr. It checks with CHECK, whose words stay. */
__attribute__((unused)) static int count_lines(void (*body)(void), const char *text)
{
    char line[2000];
    int count = 0;
    FILE *file = tmpfile();
    CHECK(file != NULL);
    fflush(stderr);
    saved_stderr = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    body();
    restore_stderr();
    rewind(file);
    while (fgets(line, sizeof line, file))
        count += strstr(line, text) != NULL;
    fclose(file);
    return count;
}

/* ---- file systems of a child's own */

/* In a user namespace of its own a process may mount, as its root: that is who `user` becomes. */
static bool become_root(unsigned user)
{
    char text[64];
    int file = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
    int size = snprintf(text, sizeof text, "0 %u 1", user);
    bool done = file >= 0 && write(file, text, (size_t)size) == size;
    if (file >= 0)
        close(file);
    return done;
}

/* Mounts are this process's alone afterwards; false = not allowed here. */
static bool own_mounts(void)
{
    const unsigned user = getuid();
    if (unshare(CLONE_NEWNS | (user ? CLONE_NEWUSER : 0)) != 0)
        return false;
    if (user && !become_root(user))
        return false;
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static bool mount_memory(const char *folder, unsigned kilobytes)
{
    char size[32];
    snprintf(size, sizeof size, "size=%uk,mode=700", kilobytes);
    return mount("tmpfs", folder, "tmpfs", 0, size) == 0;
}

static void make_read_only(const char *folder)
{
    CHECK(mount("tmpfs", folder, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL) == 0);
}

__attribute__((unused)) static void try_mounts(void)
{
    if (!own_mounts() || !mount_memory("/tmp", 64))
        _exit(1);
}

__attribute__((unused)) static bool may_mount(void)
{
    return end_of(start_child(try_mounts)) == 0;
}

/* For a child: `folder` becomes a file system of so many kilobytes. */
__attribute__((unused)) static void into_small_folder(const char *folder, unsigned kilobytes)
{
    CHECK(own_mounts() && mount_memory(folder, kilobytes));
}

#endif
