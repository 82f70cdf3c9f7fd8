/* Fails, or ends the process at, the n-th call that touches a folder: open, write, truncate, fsync, rename, link,
   close, mkdir, unlink.

   Loaded by LD_PRELOAD. fcco_arm(folder, at, error) begins to count: the call number `at` (from 1) fails with `error`, or
   ends the process by SIGKILL where that is -1; 0: count alone. fcco_calls(letters, size) gives how many there were, and a
   letter for each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define MOST 4096
static char folder[MOST];
static int at, error, calls, armed;
static char letters[MOST];
static char ours[MOST]; /* file numbers of the folder's files */

#define REAL(name, type) \
    static __typeof__(type) real; \
    if (!real) real = (__typeof__(type))dlsym(RTLD_NEXT, name)

void fcco_arm(const char *path, int number, int code) {
    strncpy(folder, path, MOST - 1);
    memset(ours, 0, sizeof ours);
    memset(letters, 0, sizeof letters);
    at = number;
    error = code;
    calls = 0;
    armed = 1;
}

int fcco_calls(char *into, int size) {
    armed = 0;
    strncpy(into, letters, size - 1);
    return calls;
}

static int is_ours(const char *path) { return armed && path && strncmp(path, folder, strlen(folder)) == 0; }
static int is_open(int fd) { return armed && fd >= 0 && fd < MOST && ours[fd]; }

/* Whether the call is to fail. */
static int fails(char letter) {
    if (calls < MOST - 1) letters[calls] = letter;
    calls++;
    if (calls != at) return 0;
    if (error == -1) {
        raise(SIGKILL);
        for (;;) pause();
    }
    errno = error;
    return 1;
}

static int noted(int fd) {
    if (fd >= 0 && fd < MOST) ours[fd] = 1;
    return fd;
}

#define OPEN(NAME) \
    int NAME(const char *path, int flags, ...) { \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list list; \
            va_start(list, flags); \
            mode = va_arg(list, mode_t); \
            va_end(list); \
        } \
        REAL(#NAME, int (*)(const char *, int, ...)); \
        if (!is_ours(path)) return real(path, flags, mode); \
        if (fails('o')) return -1; \
        return noted(real(path, flags, mode)); \
    }
OPEN(open)
OPEN(open64)

ssize_t write(int fd, const void *bytes, size_t size) {
    REAL("write", ssize_t (*)(int, const void *, size_t));
    if (is_open(fd) && fails('w')) {
        /* A full disk takes a part; a call that was interrupted has done nothing. */
        if (size > 1 && error != EINTR) real(fd, bytes, size / 2);
        errno = error;
        return -1;
    }
    return real(fd, bytes, size);
}

/* As databases write: at a place. */
#define PWRITE(NAME, OFFSET) \
    ssize_t NAME(int fd, const void *bytes, size_t size, OFFSET offset) { \
        REAL(#NAME, ssize_t (*)(int, const void *, size_t, OFFSET)); \
        if (is_open(fd) && fails('w')) { \
            if (size > 1 && error != EINTR) real(fd, bytes, size / 2, offset); \
            errno = error; \
            return -1; \
        } \
        return real(fd, bytes, size, offset); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define TRUNCATE(NAME, OFFSET) \
    int NAME(int fd, OFFSET size) { \
        REAL(#NAME, int (*)(int, OFFSET)); \
        if (is_open(fd) && fails('t')) return -1; \
        return real(fd, size); \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

int fdatasync(int fd) {
    REAL("fdatasync", int (*)(int));
    if (is_open(fd) && fails('s')) return -1;
    return real(fd);
}

int link(const char *from, const char *to) {
    REAL("link", int (*)(const char *, const char *));
    if (is_ours(to) && fails('l')) return -1;
    return real(from, to);
}

int symlink(const char *from, const char *to) {
    REAL("symlink", int (*)(const char *, const char *));
    if (is_ours(to) && fails('l')) return -1;
    return real(from, to);
}

int fsync(int fd) {
    REAL("fsync", int (*)(int));
    if (is_open(fd) && fails('s')) return -1;
    return real(fd);
}

int close(int fd) {
    REAL("close", int (*)(int));
    if (!is_open(fd)) return real(fd);
    int failed = fails('c'), code = errno;
    ours[fd] = 0;
    int result = real(fd);
    if (failed) {
        errno = code;
        return -1;
    }
    return result;
}

int rename(const char *from, const char *to) {
    REAL("rename", int (*)(const char *, const char *));
    if (is_ours(to) && fails('r')) return -1;
    return real(from, to);
}

int mkdir(const char *path, mode_t mode) {
    REAL("mkdir", int (*)(const char *, mode_t));
    if (is_ours(path) && fails('m')) return -1;
    return real(path, mode);
}

int unlink(const char *path) {
    REAL("unlink", int (*)(const char *));
    if (is_ours(path) && fails('u')) return -1;
    return real(path);
}
