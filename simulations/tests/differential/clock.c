/* The clock of a redis-server under test: microseconds since 1970, which the test writes into the
 * file that TEST_CLOCK names. Preloaded; monotonic clocks stay as they are. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_us(void) {
    static volatile uint64_t *clock_us;
    if (!clock_us) {
        const char *path = getenv("TEST_CLOCK");
        int fd = path ? open(path, O_RDONLY) : -1;
        void *page = mmap(NULL, sizeof *clock_us, PROT_READ, MAP_SHARED, fd, 0);
        if (page == MAP_FAILED) abort();
        clock_us = page;
    }
    return *clock_us;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    (void)zone;
    uint64_t us = now_us();
    tv->tv_sec = us / 1000000;
    tv->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *seconds) {
    time_t now = now_us() / 1000000;
    if (seconds) *seconds = now;
    return now;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
    if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE) return syscall(SYS_clock_gettime, id, ts);
    uint64_t us = now_us();
    ts->tv_sec = us / 1000000;
    ts->tv_nsec = us % 1000000 * 1000;
    return 0;
}
