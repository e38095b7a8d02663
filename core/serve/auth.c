/* auth.c - who may ask: the bearer key, and names of this machine.
 *
 * The key file is held to the rules of an SSH key: a regular file (no link), mode
 * 0400 or 0600. Keys are compared by digest, so the time of a comparison tells
 * neither the place of a difference nor the length.
 */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "serve/internal.h"

enum { KEY_LONGEST = 4096 };

static int check_file(int file, const char *path, struct error *error)
{
    struct stat status;
    if (fstat(file, &status) < 0)
        return error_set(error, ERROR_USAGE, "%s: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return error_set(error, ERROR_USAGE, "key file %s is not a regular file", path);
    u32 mode = status.st_mode & 07777;
    if (mode != 0400 && mode != 0600)
        return error_set(error, ERROR_USAGE,
                         "key file %s has mode %04o, expected 0400 or 0600: run chmod 600 %s", path,
                         mode, path);
    return 0;
}

/* Checks size bytes of key, cutting one line end at the end of the file. */
static int check_text(char *key, ssize_t size, const char *path, struct error *error)
{
    if (size > 0 && key[size - 1] == '\n')
        size--;
    if (size > 0 && key[size - 1] == '\r')
        size--;
    if (size < 1 || size > KEY_LONGEST)
        return error_set(error, ERROR_USAGE,
                         "key file %s must hold one line of 1 to %d printable characters", path,
                         KEY_LONGEST);
    for (ssize_t i = 0; i < size; i++)
        if (key[i] < 0x21 || key[i] > 0x7e)
            return error_set(error, ERROR_USAGE,
                             "key file %s: byte %zd is not a printable ASCII character", path, i);
    key[size] = 0;
    return 0;
}

int key_read(char *key, const char *path, struct error *error)
{
    char text[KEY_LONGEST + 3]; /* the longest key, CR, LF, and one byte too many */
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return error_set(error, ERROR_USAGE, "key file %s cannot be opened: %s", path,
                         errno == ELOOP ? "it is a symbolic link" : strerror(errno));
    int status = check_file(file, path, error);
    ssize_t size = status < 0 ? 0 : read(file, text, sizeof text);
    close(file);
    if (status < 0 || check_text(text, size, path, error) < 0)
        return -1;
    memcpy(key, text, strlen(text) + 1);
    sodium_memzero(text, sizeof text);
    return 0;
}

bool key_matches(const char *key, struct slice authorization)
{
    const struct slice scheme = SLICE("Bearer ");
    if (authorization.size < scheme.size ||
        strncasecmp(authorization.data, scheme.data, scheme.size) != 0)
        return false;
    struct digest expected = digest_of(key, strlen(key));
    struct digest given = digest_of(authorization.data + scheme.size,
                                    authorization.size - scheme.size);
    return sodium_memcmp(expected.bytes, given.bytes, sizeof expected.bytes) == 0;
}

/* Cuts ":port" off; false when what follows the name is no port. */
static bool cut_port(struct slice *host)
{
    size_t from = 0;
    if (host->size && host->data[0] == '[')
        while (from < host->size && host->data[from] != ']')
            from++;
    const char *colon = memchr(host->data + from, ':', host->size - from);
    if (!colon)
        return true;
    size_t name = (size_t)(colon - host->data);
    for (size_t i = name + 1; i < host->size; i++)
        if (host->data[i] < '0' || host->data[i] > '9')
            return false;
    host->size = name;
    return true;
}

/* 127.a.b.c with three more decimal numbers. */
static bool is_loopback_v4(struct slice host)
{
    char text[16];
    struct in_addr address;
    if (host.size >= sizeof text)
        return false;
    memcpy(text, host.data, host.size);
    text[host.size] = 0;
    return uv_inet_pton(AF_INET, text, &address) == 0 && *(const u8 *)&address == 127;
}

bool host_is_loopback(struct slice host)
{
    const struct slice name = SLICE("localhost");
    if (!cut_port(&host))
        return false;
    if (host.size == name.size && strncasecmp(host.data, name.data, name.size) == 0)
        return true;
    return slice_equal(host, SLICE("[::1]")) || is_loopback_v4(host);
}
