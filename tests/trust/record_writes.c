/* Loaded with LD_PRELOAD: every change of a file in $RECORD_FOLDER is appended to $RECORD_LOG, in order, with its data.
   A record: kind (W write, T truncate, S sync, U unlink, R rename), length of the name, offset, length of the data; name; data. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int record = -2;

static void put(const void *data, size_t length) { syscall(SYS_write, record, data, length); }

/* The name of a file in the folder, or NULL. */
static const char *inside(const char *path) {
    const char *folder = getenv("RECORD_FOLDER");
    size_t length = folder ? strlen(folder) : 0;
    return length && !strncmp(path, folder, length) && path[length] == '/' ? path + length + 1 : NULL;
}

static void note(char kind, const char *path, uint64_t offset, const void *data, uint64_t length) {
    const char *name = inside(path);
    if (!name || strstr(name, "-shm")) return;
    if (record == -2) record = syscall(SYS_openat, AT_FDCWD, getenv("RECORD_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    uint64_t numbers[3] = {strlen(name), offset, length};
    put(&kind, 1);
    put(numbers, sizeof numbers);
    put(name, numbers[0]);
    if (data) put(data, length);
}

static void note_fd(char kind, int fd, uint64_t offset, const void *data, uint64_t length) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return;
    path[size] = 0;
    note(kind, path, offset, data, length);
}

#define GUARDED(call, noted) \
    pthread_mutex_lock(&lock); \
    long done = (call); \
    if (done >= 0) { noted; } \
    pthread_mutex_unlock(&lock); \
    return done;

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t at) {
    GUARDED(syscall(SYS_pwrite64, fd, data, length, at), note_fd('W', fd, at, data, done))
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t at) { return pwrite64(fd, data, length, at); }
ssize_t write(int fd, const void *data, size_t length) {
    off64_t at = lseek64(fd, 0, SEEK_CUR);
    if (at >= 0 && fcntl(fd, F_GETFL) & O_APPEND) at = lseek64(fd, 0, SEEK_END);
    if (at < 0) return syscall(SYS_write, fd, data, length);
    GUARDED(syscall(SYS_write, fd, data, length), note_fd('W', fd, at, data, done))
}
int ftruncate64(int fd, off64_t length) { GUARDED(syscall(SYS_ftruncate, fd, length), note_fd('T', fd, length, NULL, 0)) }
int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }
int fsync(int fd) { GUARDED(syscall(SYS_fsync, fd), note_fd('S', fd, 0, NULL, 0)) }
int fdatasync(int fd) { GUARDED(syscall(SYS_fdatasync, fd), note_fd('S', fd, 0, NULL, 0)) }
int unlink(const char *path) { GUARDED(syscall(SYS_unlink, path), note('U', path, 0, NULL, 0)) }
int rename(const char *from, const char *to) {
    const char *name = inside(to);
    GUARDED(syscall(SYS_rename, from, to), if (name) note('R', from, 0, name, strlen(name)))
}
