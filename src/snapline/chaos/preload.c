/* Stands between one process and the C library: files below SNAPLINE_CHAOS_ROOT may fail, be slow, or hang, and the wall clock be wrong; or the
   process dies at a change to them that is told by its number.

   What is wrong is told by numbers in a file that is shared with whoever runs chaos (preload.py). Only files that this process opens below
   the root are concerned; sockets and logs are not. Two lists are kept in SNAPLINE_CHAOS_JOURNAL of what no sync has made durable yet:
   `+ PATH` a name that was given, `w SIZE PATH` a file that was written, with its length at its last sync, `= PATH` all of that is durable.
   After a power cut they say what may be lost. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { EIO_, FULL, FAILED_SYNC, SLOW_US, HANG_STORE, HANG_STOP, SKEW_NS, DRIFT_PPM, DRIFT_FROM_NS, UNKNOWN_PER_MILLE, CHANGES, DIE_AT, HANG_LOOP, FIELDS };

#define FDS 4096
enum { FOREIGN, CLEAN, DIRTY };

static volatile int64_t none[FIELDS], *control = none;
static const char *root;
static size_t root_length;
static int journal = -1;
static unsigned char files[FDS]; /* of each descriptor: is it one of ours, and was it written since its last sync? */

static void *found(void **known, const char *name) { return *known ? *known : (*known = dlsym(RTLD_NEXT, name)); }

#define REAL(name) ((__typeof__(&name))found(&real_##name, #name))
#define KEEP(name) static void *real_##name

KEEP(open); KEEP(openat); KEEP(close); KEEP(read); KEEP(pread64); KEEP(preadv64); KEEP(write); KEEP(writev); KEEP(pwrite64); KEEP(pwritev64);
KEEP(fsync); KEEP(fdatasync); KEEP(linkat); KEEP(mkdir); KEEP(clock_gettime); KEEP(rename); KEEP(unlinkat); KEEP(ftruncate64);

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("SNAPLINE_CHAOS_CONTROL"), *list = getenv("SNAPLINE_CHAOS_JOURNAL");
  root = getenv("SNAPLINE_CHAOS_ROOT");
  root_length = root ? strlen(root) : 0;
  int fd = path ? REAL(open)(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *memory = mmap(NULL, sizeof(int64_t) * FIELDS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory != MAP_FAILED) control = memory;
  REAL(close)(fd);
  if (list) journal = REAL(open)(list, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static int is_ours(const char *path) { return root_length && path && !strncmp(path, root, root_length); }

static int tracked(int fd) { return fd >= 0 && fd < FDS && files[fd] != FOREIGN; }

static void pause_us(int64_t us) {
  struct timespec rest = {us / 1000000, us % 1000000 * 1000};
  while (nanosleep(&rest, &rest) && errno == EINTR) {}
}

/* What every call on a file of ours suffers: 0, or the error it ends with. */
static int suffer(void) {
  while (control[HANG_STORE]) pause_us(5000);
  if (control[SLOW_US]) pause_us(control[SLOW_US]);
  return control[EIO_] ? EIO : 0;
}

/* Just before something changes: the last moment at which the process may die with what was there before. */
static void change(void) {
  int64_t number = __atomic_add_fetch(&control[CHANGES], 1, __ATOMIC_RELAXED);
  if (number == control[DIE_AT]) kill(getpid(), SIGKILL);
}

static int suffer_write(void) {
  change();
  int error = suffer();
  return error ? error : control[FULL] ? ENOSPC : 0;
}

static void note(const char *word, const char *path) {
  char line[PATH_MAX + 64];
  int length = snprintf(line, sizeof line, "%s%s\n", word, path);
  if (journal >= 0 && length < (int)sizeof line) (void)!REAL(write)(journal, line, length);
}

static ssize_t path_of(int fd, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, PATH_MAX - 1);
  path[length < 0 ? 0 : length] = 0;
  return length;
}

static void note_fd(int fd, const char *word) {
  char path[PATH_MAX];
  if (journal >= 0 && path_of(fd, path) > 0 && is_ours(path) && !strstr(path, " (deleted)")) note(word, path);
}

static void note_written(int fd) {
  struct stat known;
  char word[32];
  if (files[fd] == DIRTY || journal < 0) return;
  files[fd] = DIRTY;
  if (fstat(fd, &known)) return;
  snprintf(word, sizeof word, "w %lld ", (long long)known.st_size);
  note_fd(fd, word);
}

#define CHECK(error) do { int error_ = (error); if (error_) { errno = error_; return -1; } } while (0)

static int opened(int fd, int flags) {
  if (fd >= 0 && fd < FDS) files[fd] = flags & O_PATH ? FOREIGN : CLEAN;
  return fd;
}

int openat(int at, const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
  va_end(more);
  if (!is_ours(path)) return REAL(openat)(at, path, flags, mode);
  CHECK(flags & (O_CREAT | O_TMPFILE) && !(flags & O_DIRECTORY && (flags & O_TMPFILE) != O_TMPFILE) ? suffer_write() : suffer());
  int is_new = flags & O_CREAT && access(path, F_OK);
  int fd = opened(REAL(openat)(at, path, flags, mode), flags);
  if (fd >= 0 && is_new) note("+ ", path);
  return fd;
}

int open(const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
  va_end(more);
  return is_ours(path) ? openat(AT_FDCWD, path, flags, mode) : REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));
int openat64(int at, const char *path, int flags, ...) __attribute__((alias("openat")));

int close(int fd) {
  if (tracked(fd)) files[fd] = FOREIGN;
  return REAL(close)(fd);
}

#define READING(name, arguments, values) \
  ssize_t name arguments { if (tracked(fd)) CHECK(suffer()); return REAL(name) values; }
READING(read, (int fd, void *to, size_t size), (fd, to, size))
READING(pread64, (int fd, void *to, size_t size, off64_t at), (fd, to, size, at))
READING(preadv64, (int fd, const struct iovec *to, int count, off64_t at), (fd, to, count, at))
ssize_t pread(int fd, void *to, size_t size, off_t at) { return pread64(fd, to, size, at); }
ssize_t preadv(int fd, const struct iovec *to, int count, off_t at) { return preadv64(fd, to, count, at); }

#define WRITING(name, arguments, values) \
  ssize_t name arguments { if (tracked(fd)) { CHECK(suffer_write()); note_written(fd); } return REAL(name) values; }
WRITING(write, (int fd, const void *from, size_t size), (fd, from, size))
WRITING(writev, (int fd, const struct iovec *from, int count), (fd, from, count))
WRITING(pwrite64, (int fd, const void *from, size_t size, off64_t at), (fd, from, size, at))
WRITING(pwritev64, (int fd, const struct iovec *from, int count, off64_t at), (fd, from, count, at))
ssize_t pwrite(int fd, const void *from, size_t size, off_t at) { return pwrite64(fd, from, size, at); }
ssize_t pwritev(int fd, const struct iovec *from, int count, off_t at) { return pwritev64(fd, from, count, at); }

static int synced(int fd, int result) {
  if (tracked(fd) && !result) {
    files[fd] = CLEAN;
    note_fd(fd, "= ");
  }
  return result;
}

int fsync(int fd) {
  if (tracked(fd)) { change(); CHECK(suffer()); CHECK(control[FAILED_SYNC] ? EIO : 0); }
  return synced(fd, REAL(fsync)(fd));
}

int fdatasync(int fd) {
  if (tracked(fd)) { change(); CHECK(suffer()); CHECK(control[FAILED_SYNC] ? EIO : 0); }
  return synced(fd, REAL(fdatasync)(fd));
}

#define NAME_BYTES (2 * PATH_MAX + 2)

static void name_at(int at, const char *name, char *path) {
  size_t length = 0;
  if (name[0] != '/' && at >= 0) length = path_of(at, path), path[length++] = '/';
  snprintf(path + length, PATH_MAX, "%s", name);
}

int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
  char path[NAME_BYTES];
  name_at(to_at, to, path);
  if (is_ours(path)) CHECK(suffer_write());
  int result = REAL(linkat)(from_at, from, to_at, to, flags);
  if (!result && is_ours(path)) note("+ ", path);
  return result;
}

int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int at, const char *name, int flags) {
  char path[NAME_BYTES];
  name_at(at, name, path);
  if (is_ours(path)) change();
  return REAL(unlinkat)(at, name, flags);
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }

int ftruncate64(int fd, off64_t size) {
  if (tracked(fd)) change();
  return REAL(ftruncate64)(fd, size);
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int mkdir(const char *path, mode_t mode) {
  if (is_ours(path)) CHECK(suffer_write());
  return REAL(mkdir)(path, mode);
}

int rename(const char *from, const char *to) {
  if (is_ours(to)) CHECK(suffer_write());
  return REAL(rename)(from, to);
}

/* The wall clock only: whoever waits does so by the monotonic one. */

static int64_t wrong_by_ns(void) {
  struct timespec now;
  if (!control[DRIFT_PPM]) return control[SKEW_NS];
  REAL(clock_gettime)(CLOCK_MONOTONIC, &now);
  int64_t passed_us = (now.tv_sec * 1000000000LL + now.tv_nsec - control[DRIFT_FROM_NS]) / 1000;
  return control[SKEW_NS] + passed_us * control[DRIFT_PPM] / 1000;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = REAL(clock_gettime)(clock, now);
  if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    int64_t ns = now->tv_sec * 1000000000LL + now->tv_nsec + wrong_by_ns();
    now->tv_sec = ns / 1000000000LL;
    now->tv_nsec = ns % 1000000000LL;
  }
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *to) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (to) *to = exact.tv_sec;
  return exact.tv_sec;
}
