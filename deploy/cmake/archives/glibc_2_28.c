// Makes a program that is built with Debian 12's glibc run with that of 2018:
// each newer symbol is replaced by its older version, or defined here.
// glibc 2.34 moved libpthread, libdl and librt into libc with new versions; the
// programs name those libraries, of which newer systems have empty ones. All
// definitions are hidden: libraries that a program loads use the system's own.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))
// OLD(result, name, version, (parameters), (arguments)): calls that version.
#define OLD(result, name, version, parameters, arguments)     \
  result old_##name parameters;                               \
  __asm__(".symver old_" #name ", " #name "@GLIBC_" version); \
  HIDDEN result name parameters { return old_##name arguments; }

OLD(double, exp, "2.2.5", (double x), (x))
OLD(double, exp2, "2.2.5", (double x), (x))
OLD(double, log, "2.2.5", (double x), (x))
OLD(double, log2, "2.2.5", (double x), (x))
OLD(double, pow, "2.2.5", (double x, double y), (x, y))

OLD(void*, dlopen, "2.2.5", (const char* file, int mode), (file, mode))
OLD(void*, dlsym, "2.2.5", (void* library, const char* name), (library, name))
OLD(char*, dlerror, "2.2.5", (void), ())

OLD(int, pthread_create, "2.2.5",
    (pthread_t * thread, const pthread_attr_t* attributes, void* (*run)(void*),
     void* argument),
    (thread, attributes, run, argument))
OLD(int, pthread_join, "2.2.5", (pthread_t thread, void** result),
    (thread, result))
OLD(int, pthread_once, "2.2.5", (pthread_once_t * once, void (*run)(void)),
    (once, run))
OLD(int, pthread_key_create, "2.2.5", (pthread_key_t * key, void (*end)(void*)),
    (key, end))
OLD(int, __pthread_key_create, "2.2.5",
    (pthread_key_t * key, void (*end)(void*)), (key, end))
OLD(int, pthread_key_delete, "2.2.5", (pthread_key_t key), (key))
OLD(int, pthread_detach, "2.2.5", (pthread_t thread), (thread))
OLD(int, pthread_rwlock_rdlock, "2.2.5", (pthread_rwlock_t * lock), (lock))
OLD(int, pthread_rwlock_wrlock, "2.2.5", (pthread_rwlock_t * lock), (lock))
OLD(int, pthread_rwlock_unlock, "2.2.5", (pthread_rwlock_t * lock), (lock))
OLD(void*, pthread_getspecific, "2.2.5", (pthread_key_t key), (key))
OLD(int, pthread_setspecific, "2.2.5", (pthread_key_t key, const void* value),
    (key, value))
OLD(int, pthread_attr_setstacksize, "2.2.5",
    (pthread_attr_t * attributes, size_t size), (attributes, size))
OLD(int, pthread_getcpuclockid, "2.2.5", (pthread_t thread, clockid_t* clock),
    (thread, clock))
OLD(int, pthread_setname_np, "2.12", (pthread_t thread, const char* name),
    (thread, name))
OLD(int, pthread_sigmask, "2.2.5",
    (int how, const sigset_t* set, sigset_t* before), (how, set, before))

OLD(int, timer_create, "2.3.3",
    (clockid_t clock, struct sigevent* event, timer_t* timer),
    (clock, event, timer))
OLD(int, timer_delete, "2.3.3", (timer_t timer), (timer))
OLD(int, timer_settime, "2.3.3",
    (timer_t timer, int flags, const struct itimerspec* value,
     struct itimerspec* before),
    (timer, flags, value, before))

int old_fxstat(int version, int file, struct stat* to);
int old_fxstat64(int version, int file, struct stat64* to);
int old_xstat(int version, const char* path, struct stat* to);
int old_lxstat(int version, const char* path, struct stat* to);
__asm__(".symver old_fxstat, __fxstat@GLIBC_2.2.5");
__asm__(".symver old_fxstat64, __fxstat64@GLIBC_2.2.5");
__asm__(".symver old_xstat, __xstat@GLIBC_2.2.5");
__asm__(".symver old_lxstat, __lxstat@GLIBC_2.2.5");
enum { kStatOfKernel = 1 };  // _STAT_VER of x86-64
HIDDEN int fstat(int file, struct stat* to) {
  return old_fxstat(kStatOfKernel, file, to);
}
HIDDEN int fstat64(int file, struct stat64* to) {
  return old_fxstat64(kStatOfKernel, file, to);
}
HIDDEN int stat(const char* path, struct stat* to) {
  return old_xstat(kStatOfKernel, path, to);
}
HIDDEN int lstat(const char* path, struct stat* to) {
  return old_lxstat(kStatOfKernel, path, to);
}

HIDDEN pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

HIDDEN uint32_t arc4random(void) {
  uint32_t number;
  while (getrandom(&number, sizeof(number), 0) != sizeof(number)) {
  }
  return number;
}

static int Holds(struct dl_phdr_info* info, size_t size, void* context) {
  struct dl_find_object* found = context;
  const char* const address = found->dlfo_map_start;
  int holds = 0;
  (void)size;
  found->dlfo_eh_frame = NULL;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    char* const begin = (char*)info->dlpi_addr + part->p_vaddr;
    holds |= part->p_type == PT_LOAD && begin <= address &&
             address < begin + part->p_memsz;
    if (part->p_type == PT_GNU_EH_FRAME) found->dlfo_eh_frame = begin;
  }
  return holds && found->dlfo_eh_frame != NULL;
}

// libgcc calls this to find an exception's frames.
HIDDEN int _dl_find_object(void* address, struct dl_find_object* found) {
  found->dlfo_map_start = address;
  return dl_iterate_phdr(Holds, found) ? 0 : -1;
}

// libstdc++ counts references without atomics if this is not 0.
HIDDEN char __libc_single_threaded = 0;

HIDDEN const char* sigabbrev_np(int signal) {
  static const char* const kNames[] = {
      [SIGHUP] = "HUP",   [SIGINT] = "INT",   [SIGQUIT] = "QUIT",
      [SIGILL] = "ILL",   [SIGTRAP] = "TRAP", [SIGABRT] = "ABRT",
      [SIGBUS] = "BUS",   [SIGFPE] = "FPE",   [SIGKILL] = "KILL",
      [SIGUSR1] = "USR1", [SIGSEGV] = "SEGV", [SIGUSR2] = "USR2",
      [SIGPIPE] = "PIPE", [SIGALRM] = "ALRM", [SIGTERM] = "TERM",
  };
  const int count = sizeof(kNames) / sizeof(kNames[0]);
  return signal > 0 && signal < count ? kNames[signal] : NULL;
}

// Waits by the wall clock, as libstdc++ did before glibc 2.30.
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition,
                                  pthread_mutex_t* mutex, clockid_t clock,
                                  const struct timespec* until) {
  struct timespec now, wall;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &wall);
  wall.tv_sec += until->tv_sec - now.tv_sec;
  wall.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (wall.tv_nsec >= 1000000000) {
    ++wall.tv_sec;
    wall.tv_nsec -= 1000000000;
  } else if (wall.tv_nsec < 0) {
    --wall.tv_sec;
    wall.tv_nsec += 1000000000;
  }
  return pthread_cond_timedwait(condition, mutex, &wall);
}
