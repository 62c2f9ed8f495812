/* Lets one operation on files below one folder fail, whoever calls it: Python, SQLite, anything that goes through libc.

   cc -shared -fPIC -o shim.so shim.c; LD_PRELOAD=shim.so. The process arms it itself: sapo_arm(folder, at, kind), where
   `at` counts operations from 1 (0: count only) and kind is an errno, or 0: half of the bytes are written, then it is killed,
   or -1: half of the bytes are written, then it is the disk that is full. sapo_count(): operations since it was armed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static size_t folder_length;
static int armed, count, kind;

void sapo_arm(const char *path, int at, int what) {
    strncpy(folder, path, sizeof folder - 1);
    folder_length = strlen(folder);
    armed = at;
    kind = what;
    count = 0;
}

int sapo_count(void) { return count; }

static int below(int fd) {
    char link[64], target[PATH_MAX];
    if (!folder_length) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t got = readlink(link, target, sizeof target - 1);
    return got > 0 && (size_t)got >= folder_length && !strncmp(target, folder, folder_length);
}

static int named(const char *path) { return folder_length && !strncmp(path, folder, folder_length); }

/* 0: go on. 1: fail with errno. 2: write half first. */
static int now(int writes) {
    int number = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    if (!armed || number != armed) return 0;
    if (kind > 0) {
        errno = kind;
        return 1;
    }
    if (writes) return 2;
    if (!kind) kill(getpid(), SIGKILL);
    errno = ENOSPC;
    return 1;
}

static ssize_t after_half(ssize_t done) {
    if (!kind) kill(getpid(), SIGKILL);
    if (done > 0) return done; /* a short write, as the system may; what follows meets the full disk */
    errno = ENOSPC;
    return -1;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int full(void) { return armed && kind == -1 && count >= armed; }

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    if (!below(fd)) return real(fd, data, size);
    int what = now(1);
    if (what == 1 || (what == 0 && full() && count == armed + 1)) { errno = what == 1 ? errno : ENOSPC; return -1; }
    return what ? after_half(real(fd, data, size / 2)) : real(fd, data, size);
}

static ssize_t at_offset(ssize_t (*real)(int, const void *, size_t, off_t), int fd, const void *data, size_t size, off_t at) {
    if (!below(fd)) return real(fd, data, size, at);
    int what = now(1);
    if (what == 1 || (what == 0 && full() && count == armed + 1)) { errno = what == 1 ? errno : ENOSPC; return -1; }
    return what ? after_half(real(fd, data, size / 2, at)) : real(fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    return at_offset(real, fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    return at_offset(real, fd, data, size, at);
}

int fsync(int fd) {
    REAL(fsync);
    return below(fd) && now(0) ? -1 : real(fd);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    return below(fd) && now(0) ? -1 : real(fd);
}

int ftruncate(int fd, off_t size) {
    REAL(ftruncate);
    return below(fd) && now(0) ? -1 : real(fd, size);
}

int ftruncate64(int fd, off_t size) {
    static int (*real)(int, off_t);
    if (!real) real = dlsym(RTLD_NEXT, "ftruncate64");
    return below(fd) && now(0) ? -1 : real(fd, size);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return named(to) && now(0) ? -1 : real(from, to);
}

static int makes(int flags) { return flags & (O_CREAT | O_TRUNC); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        static int (*real)(const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        int mode = makes(flags) ? va_arg(rest, int) : 0; \
        va_end(rest); \
        if (!real) real = dlsym(RTLD_NEXT, #name); \
        if (makes(flags) && named(path) && now(0)) return -1; \
        return real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
