/* Loaded before libc (LD_PRELOAD): writes down, in order, what a process does to the files of the folder $RECORD_FOLDER, to $RECORD_TO.
 *
 * A record is one line, `what number at length path`, and then `length` bytes as they were written:
 *   create   the file was made            write    bytes at an offset         cut      its length is now `at`
 *   begin    a sync was asked for         end      the same sync returned     remove   the file was removed
 * `number` pairs the begin and the end of a sync, so that what others write while it is under way does not pass for durable.
 * Writes are made under one lock, so their order here is the order in which they happened.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILES_MAX 65536

static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static char *path_of[FILES_MAX];
static const char *folder;
static size_t folder_length;
static int to = -1;
static long syncs;

static void put(const void *bytes, size_t length) {
    for (const char *rest = bytes; length;) {
        ssize_t put = syscall(SYS_write, to, rest, length);
        if (put <= 0) abort();
        rest += put;
        length -= put;
    }
}

static void record(const char *what, long number, long at, const void *bytes, size_t length, const char *path) {
    char line[4400];
    int size = snprintf(line, sizeof line, "%s %ld %ld %zu %s\n", what, number, at, length, path);
    if (size <= 0 || size >= (int)sizeof line) abort();
    put(line, size);
    if (length) put(bytes, length);
}

__attribute__((constructor)) static void begin(void) {
    folder = getenv("RECORD_FOLDER");
    const char *name = getenv("RECORD_TO");
    if (!folder || !name) return;
    folder_length = strlen(folder);
    to = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (to < 0) abort();
}

static int is_ours(const char *path) {
    return to >= 0 && path && !strncmp(path, folder, folder_length) && (path[folder_length] == '/' || !path[folder_length]);
}

static const char *ours(int file) { return file >= 0 && file < FILES_MAX ? path_of[file] : NULL; }

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int opened(int file, const char *path, int flags, int was_there) {
    if (file < 0 || file >= FILES_MAX || !is_ours(path)) return file;
    free(path_of[file]);
    path_of[file] = strdup(path);
    if (!was_there) record("create", 0, 0, NULL, 0, path);
    else if (flags & O_TRUNC) record("cut", 0, 0, NULL, 0, path);
    return file;
}

#define OPEN(name)                                                       \
    int name(const char *path, int flags, ...) {                         \
        REAL(name);                                                      \
        va_list rest;                                                    \
        va_start(rest, flags);                                           \
        mode_t mode = va_arg(rest, mode_t);                              \
        va_end(rest);                                                    \
        if (!is_ours(path)) return real(path, flags, mode);              \
        pthread_mutex_lock(&order);                                      \
        int was_there = syscall(SYS_faccessat, AT_FDCWD, path, F_OK) == 0; \
        int file = opened(real(path, flags, mode), path, flags, was_there); \
        pthread_mutex_unlock(&order);                                    \
        return file;                                                     \
    }
OPEN(open)
OPEN(open64)

int close(int file) {
    REAL(close);
    if (!ours(file)) return real(file);
    pthread_mutex_lock(&order);
    free(path_of[file]);
    path_of[file] = NULL;
    int answer = real(file);
    pthread_mutex_unlock(&order);
    return answer;
}

#define PWRITE(name, offset)                                                       \
    ssize_t name(int file, const void *bytes, size_t length, offset at) {          \
        REAL(name);                                                                \
        if (!ours(file)) return real(file, bytes, length, at);                     \
        pthread_mutex_lock(&order);                                                \
        ssize_t put = real(file, bytes, length, at);                               \
        if (put > 0) record("write", 0, at, bytes, put, ours(file));               \
        pthread_mutex_unlock(&order);                                              \
        return put;                                                                \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t write(int file, const void *bytes, size_t length) {
    REAL(write);
    if (!ours(file)) return real(file, bytes, length);
    pthread_mutex_lock(&order);
    struct stat now;
    off_t at = fcntl(file, F_GETFL) & O_APPEND ? (fstat(file, &now), now.st_size) : lseek(file, 0, SEEK_CUR);
    ssize_t put = real(file, bytes, length);
    if (put > 0) record("write", 0, at, bytes, put, ours(file));
    pthread_mutex_unlock(&order);
    return put;
}

#define TRUNCATE(name, offset)                                         \
    int name(int file, offset length) {                                \
        REAL(name);                                                    \
        if (!ours(file)) return real(file, length);                    \
        pthread_mutex_lock(&order);                                    \
        int answer = real(file, length);                               \
        if (!answer) record("cut", 0, length, NULL, 0, ours(file));    \
        pthread_mutex_unlock(&order);                                  \
        return answer;                                                 \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define SYNC(name)                                                          \
    int name(int file) {                                                    \
        REAL(name);                                                         \
        if (!ours(file)) return real(file);                                 \
        pthread_mutex_lock(&order);                                         \
        long number = ++syncs;                                              \
        char *path = strdup(ours(file));                                    \
        record("begin", number, 0, NULL, 0, path);                          \
        pthread_mutex_unlock(&order);                                       \
        int answer = real(file);                                            \
        pthread_mutex_lock(&order);                                         \
        if (!answer) record("end", number, 0, NULL, 0, path);               \
        pthread_mutex_unlock(&order);                                       \
        free(path);                                                         \
        return answer;                                                      \
    }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
    REAL(unlink);
    if (!is_ours(path)) return real(path);
    pthread_mutex_lock(&order);
    int answer = real(path);
    if (!answer) record("remove", 0, 0, NULL, 0, path);
    pthread_mutex_unlock(&order);
    return answer;
}
