/* LD_PRELOAD shim: fails the n-th call of one kind on files whose path holds a substring, steered by a shared file.
 * $NTH_CALL names a file of five 64-bit words, mapped by every process:
 *   0 kind that fails (see enum), 1 errno, 2 countdown (1: the next call fails; 0: none), 3 calls that failed,
 *   4 calls of that kind that were seen since the countdown was set.
 * $NTH_PATH is the substring. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE, SYNC, RENAME, UNLINK, TRUNCATE, READ };

static volatile long long *words(void) {
  static volatile long long *mapped;
  if (!mapped) {
    const char *path = getenv("NTH_CALL");
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open64");
    int fd = path ? real(path, O_RDWR) : -1;
    if (fd < 0) return NULL;
    void *at = mmap(NULL, 40, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return NULL;
    mapped = at;
  }
  return mapped;
}

static int fails(int kind, const char *path) {
  volatile long long *w = words();
  const char *wanted = getenv("NTH_PATH");
  if (!w || w[0] != kind || !wanted || !path || !strstr(path, wanted)) return 0;
  __sync_fetch_and_add(&w[4], 1);
  if (w[2] <= 0 || __sync_sub_and_fetch(&w[2], 1) != 0) return 0;
  __sync_fetch_and_add(&w[3], 1);
  errno = (int)w[1];
  return 1;
}

static int fails_fd(int kind, int fd) {
  volatile long long *w = words();
  if (!w || w[0] != kind) return 0;
  char link[64], path[1024];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return fails(kind, path);
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)

int open64(const char *path, int flags, ...) {
  va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more);
  if (fails(OPEN, path)) return -1;
  REAL(open64); return real(path, flags, mode);
}
int open(const char *path, int flags, ...) {
  va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more);
  if (fails(OPEN, path)) return -1;
  REAL(open); return real(path, flags, mode);
}
ssize_t pwritev64v2(int fd, const struct iovec *v, int n, off64_t at, int f) {
  if (fails_fd(WRITE, fd)) return -1;
  REAL(pwritev64v2); return real(fd, v, n, at, f);
}
ssize_t pwritev2(int fd, const struct iovec *v, int n, off_t at, int f) {
  if (fails_fd(WRITE, fd)) return -1;
  REAL(pwritev2); return real(fd, v, n, at, f);
}
ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t at) {
  if (fails_fd(WRITE, fd)) return -1;
  REAL(pwritev64); return real(fd, v, n, at);
}
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at) {
  if (fails_fd(WRITE, fd)) return -1;
  REAL(pwritev); return real(fd, v, n, at);
}
int fdatasync(int fd) {
  if (fails_fd(SYNC, fd)) return -1;
  REAL(fdatasync); return real(fd);
}
int rename(const char *from, const char *to) {
  if (fails(RENAME, from)) return -1;
  REAL(rename); return real(from, to);
}
int unlink(const char *path) {
  if (fails(UNLINK, path)) return -1;
  REAL(unlink); return real(path);
}
int ftruncate64(int fd, off64_t size) {
  if (fails_fd(TRUNCATE, fd)) return -1;
  REAL(ftruncate64); return real(fd, size);
}
int ftruncate(int fd, off_t size) {
  if (fails_fd(TRUNCATE, fd)) return -1;
  REAL(ftruncate); return real(fd, size);
}
ssize_t pread64(int fd, void *to, size_t n, off64_t at) {
  if (fails_fd(READ, fd)) return -1;
  REAL(pread64); return real(fd, to, n, at);
}
