/* Loaded with LD_PRELOAD: the $FAIL_AT-th write or sync of a file in $FAIL_FOLDER fails as $FAIL_HOW says: ENOSPC, EIO or EINTR
   (nothing is written), short (half is written, and said so), torn (half is written, and the process is killed). Every later one
   works, unless $FAIL_STAYS is set. When it fails, and at the end, the number of writes so far is in $FAIL_COUNT. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;

__attribute__((destructor)) static void tell(void) {
    char text[32];
    const char *name = getenv("FAIL_COUNT");
    int fd = name && calls ? syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    if (fd >= 0) syscall(SYS_write, fd, text, snprintf(text, sizeof text, "%ld", calls));
}

static int inside(int fd) {
    char link[64], path[PATH_MAX];
    const char *folder = getenv("FAIL_FOLDER");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = folder ? readlink(link, path, sizeof path - 1) : -1;
    return size > 0 && !strncmp(path, folder, strlen(folder));
}

/* What is to be done with this call: 0 as always, -1 fail, 1 half of it. */
static int fault(int fd) {
    if (!inside(fd)) return 0;
    long number = ++calls, at = atol(getenv("FAIL_AT") ?: "0");
    const char *how = getenv("FAIL_HOW") ?: "";
    if (!at || (getenv("FAIL_STAYS") ? number < at : number != at)) return 0;
    if (number == at) tell();
    if (!strcmp(how, "short") || !strcmp(how, "torn")) return 1;
    errno = !strcmp(how, "ENOSPC") ? ENOSPC : !strcmp(how, "EINTR") ? EINTR : EIO;
    return -1;
}

static long end(long done) {
    const char *how = getenv("FAIL_HOW");
    if (how && !strcmp(how, "torn")) kill(getpid(), SIGKILL);
    return done;
}

ssize_t write(int fd, const void *data, size_t length) {
    int what = fault(fd);
    if (what < 0) return -1;
    return what ? end(syscall(SYS_write, fd, data, length / 2 + 1 > length ? length : length / 2 + 1)) : syscall(SYS_write, fd, data, length);
}
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t at) {
    int what = fault(fd);
    if (what < 0) return -1;
    return what ? end(syscall(SYS_pwrite64, fd, data, length / 2 + 1 > length ? length : length / 2 + 1, at)) : syscall(SYS_pwrite64, fd, data, length, at);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t at) { return pwrite64(fd, data, length, at); }
ssize_t writev(int fd, const struct iovec *parts, int count) {
    int what = fault(fd);
    if (what < 0) return -1;
    return what ? end(syscall(SYS_writev, fd, parts, count > 1 ? count / 2 : 1)) : syscall(SYS_writev, fd, parts, count);
}
/* A sync or a cut that fails, or is the end of the process; it cannot be half done. */
static int other(int fd, long call, off64_t length) {
    int what = fault(fd);
    if (what < 0) return -1;
    if (what > 0) end(0);
    return syscall(call, fd, length);
}
int fsync(int fd) { return other(fd, SYS_fsync, 0); }
int fdatasync(int fd) { return other(fd, SYS_fdatasync, 0); }
int ftruncate64(int fd, off64_t length) { return other(fd, SYS_ftruncate, length); }
int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }
