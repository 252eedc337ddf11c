// Preloaded under a process: counts what it changes in files, and at one chosen change kills it in the middle of a
// write (1), or has no space left from there on (2), as a full disk.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static long left = -1;  // changes until it happens; below zero: never
static int what = 0;
static bool happened = false;

extern "C" void disk_plan(long changes, int kind) {
    left = changes;
    what = kind;
    happened = false;
}

extern "C" int disk_happened() { return happened; }

static bool due(int fd) {
    struct stat status;
    if (left < 0 || (fd >= 0 && (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)))) return false;
    if (left > 0) return --left == 0 && (happened = true);
    return happened;
}

template <class F> static F real(const char *name) { return reinterpret_cast<F>(dlsym(RTLD_NEXT, name)); }

template <class F> static ssize_t changed(int fd, size_t size, F write) {
    if (!due(fd)) return write(size);
    if (what == 2) {
        errno = ENOSPC;
        return -1;
    }
    write(size / 2);
    raise(SIGKILL);
    return -1;
}

extern "C" ssize_t write(int fd, const void *data, size_t size) {
    static const auto next = real<ssize_t (*)(int, const void *, size_t)>("write");
    return changed(fd, size, [=](size_t n) { return next(fd, data, n); });
}

extern "C" ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    static const auto next = real<ssize_t (*)(int, const void *, size_t, off_t)>("pwrite");
    return changed(fd, size, [=](size_t n) { return next(fd, data, n, at); });
}

extern "C" ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    static const auto next = real<ssize_t (*)(int, const void *, size_t, off64_t)>("pwrite64");
    return changed(fd, size, [=](size_t n) { return next(fd, data, n, at); });
}

// Renaming, deleting and shortening need no space, but a process may die before any of them.

static void die_if_due(int fd) {
    if (what == 1 && due(fd)) raise(SIGKILL);
}

extern "C" int ftruncate(int fd, off_t size) {
    static const auto next = real<int (*)(int, off_t)>("ftruncate");
    die_if_due(fd);
    return next(fd, size);
}

extern "C" int ftruncate64(int fd, off64_t size) {
    static const auto next = real<int (*)(int, off64_t)>("ftruncate64");
    die_if_due(fd);
    return next(fd, size);
}

extern "C" int rename(const char *from, const char *to) {
    static const auto next = real<int (*)(const char *, const char *)>("rename");
    die_if_due(-1);
    return next(from, to);
}

extern "C" int unlink(const char *path) {
    static const auto next = real<int (*)(const char *)>("unlink");
    die_if_due(-1);
    return next(path);
}
