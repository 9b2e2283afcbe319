// Stands between the program and the C library (LD_PRELOAD), and does to the calls that change
// files below a directory what a full disk, a broken disk or a power button would do.
//
//   SHIM_DIR        count the calls below this directory
//   SHIM_ONLY       count only these kinds, as "open write fsync"
//   SHIM_LOG        append a line "kind path" for each one to this file, before it is made
//   SHIM_AT         the number of the first call that is touched, from 1
//   SHIM_UNTIL      the number of the last one [SHIM_AT]
//   SHIM_EVERY      touch every so-many-th of them [1]
//   SHIM_DO         kill, killed (after the call), short, wait, full, or the number of an error
//   SHIM_WHILE      "wait" waits as long as this file is there
//   SHIM_REALTIME   every reading of the clock is so many seconds after the one before; or "frozen"
//   SHIM_MONOTONIC  the same
//
// A disk that is full takes half of the first write, and then nothing.
//
// Replaced are the functions that Rust's standard library calls or may come to call. They make
// system calls: nobody has to look for the functions that were replaced.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum verdict { PASS, FAIL, SHORT, KILLED };

static const char *directory, *only, *action, *waits;
static long at, until, every;
static int log_file = -1;
static atomic_long calls;

static const char *text(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

static long number(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value ? atol(value) : otherwise;
}

__attribute__((constructor)) static void read_environment(void) {
    // A test that fails leaves no program behind.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    directory = text("SHIM_DIR");
    only = text("SHIM_ONLY");
    action = text("SHIM_DO");
    waits = text("SHIM_WHILE");
    at = number("SHIM_AT", 0);
    until = number("SHIM_UNTIL", at);
    every = number("SHIM_EVERY", 1);
    if (*text("SHIM_LOG"))
        log_file = syscall(SYS_openat, AT_FDCWD, text("SHIM_LOG"),
                           O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

static int is_below(const char *path) {
    size_t length = strlen(directory);
    return length && !strncmp(path, directory, length) && (!path[length] || path[length] == '/');
}

static void stop(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

// Counts a call on an absolute path. FAIL has set errno.
static enum verdict judge(const char *kind, const char *path) {
    if (!is_below(path) || (*only && !strstr(only, kind)))
        return PASS;
    long call = atomic_fetch_add(&calls, 1) + 1;
    char line[PATH_MAX + 16];
    int length = snprintf(line, sizeof line, "%s %s\n", kind, path);
    if (log_file >= 0)
        syscall(SYS_write, log_file, line, length);
    if (!at || call < at || call > until || (call - at) % every)
        return PASS;
    if (!strcmp(action, "kill"))
        stop();
    if (!strcmp(action, "killed"))
        return KILLED;
    if (!strcmp(action, "short"))
        return SHORT;
    if (!strcmp(action, "wait")) {
        while (!access(waits, F_OK))
            usleep(1000);
        return PASS;
    }
    int is_full = !strcmp(action, "full");
    if (is_full && call == at && !strcmp(kind, "write"))
        return SHORT;
    errno = is_full ? ENOSPC : atoi(action);
    return FAIL;
}

static enum verdict judge_file(const char *kind, int file) {
    char link[32], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return judge(kind, path);
}

static enum verdict judge_path(const char *kind, int base, const char *path) {
    char link[32] = "/proc/self/cwd", whole[2 * PATH_MAX] = "";
    if (*path != '/') {
        if (base != AT_FDCWD)
            snprintf(link, sizeof link, "/proc/self/fd/%d", base);
        ssize_t length = readlink(link, whole, PATH_MAX - 1);
        strcpy(whole + (length < 0 ? 0 : length), "/");
    }
    strncat(whole, path, PATH_MAX - 1);
    return judge(kind, whole);
}

// What a call gives that was not to fail.
static long done(enum verdict verdict, long result) {
    if (verdict == KILLED)
        stop();
    return result;
}

static size_t half_if_short(enum verdict verdict, size_t length) {
    return verdict == SHORT ? (length + 1) / 2 : length;
}

ssize_t write(int file, const void *bytes, size_t length) {
    enum verdict verdict = judge_file("write", file);
    length = half_if_short(verdict, length);
    return verdict == FAIL ? -1 : done(verdict, syscall(SYS_write, file, bytes, length));
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off64_t place) {
    enum verdict verdict = judge_file("write", file);
    length = half_if_short(verdict, length);
    return verdict == FAIL ? -1 : done(verdict, syscall(SYS_pwrite64, file, bytes, length, place));
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    enum verdict verdict = judge_file("write", file);
    count = half_if_short(verdict, count);
    return verdict == FAIL ? -1 : done(verdict, syscall(SYS_writev, file, parts, count));
}

// Nobody cuts the power: the disk need not be waited for, which would take most of the tests' time.
int fsync(int file) {
    enum verdict verdict = judge_file("fsync", file);
    return verdict == FAIL ? -1 : done(verdict, 0);
}

int fdatasync(int file) { return fsync(file); }

int ftruncate64(int file, off64_t length) {
    enum verdict verdict = judge_file("truncate", file);
    return verdict == FAIL ? -1 : done(verdict, syscall(SYS_ftruncate, file, length));
}

int rename(const char *from, const char *to) {
    enum verdict verdict = judge_path("rename", AT_FDCWD, from);
    if (verdict == FAIL)
        return -1;
    return done(verdict, syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
}

int mkdir(const char *path, mode_t mode) {
    enum verdict verdict = judge_path("mkdir", AT_FDCWD, path);
    return verdict == FAIL ? -1 : done(verdict, syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int unlinkat(int base, const char *path, int flags) {
    const char *kind = flags & AT_REMOVEDIR ? "rmdir" : "unlink";
    enum verdict verdict = judge_path(kind, base, path);
    return verdict == FAIL ? -1 : done(verdict, syscall(SYS_unlinkat, base, path, flags));
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

// To open a file changes something if that may create or empty it.
int openat64(int base, const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    enum verdict verdict = flags & (O_CREAT | O_TRUNC) ? judge_path("open", base, path) : PASS;
    return verdict == FAIL ? -1 : done(verdict, syscall(SYS_openat, base, path, flags, mode));
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    return openat64(AT_FDCWD, path, flags, mode);
}

// A clock that jumps whenever somebody looks, from the second time on.
int clock_gettime(clockid_t clock, struct timespec *time) {
    static atomic_long readings[2];
    const char *jump = clock == CLOCK_REALTIME    ? text("SHIM_REALTIME")
                       : clock == CLOCK_MONOTONIC ? text("SHIM_MONOTONIC")
                                                  : "";
    int result = syscall(SYS_clock_gettime, clock, time);
    if (!strcmp(jump, "frozen"))
        *time = (struct timespec){.tv_sec = 1700000000};
    else if (*jump)
        time->tv_sec += atol(jump) * atomic_fetch_add(&readings[clock == CLOCK_REALTIME], 1);
    return result;
}
