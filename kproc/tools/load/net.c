/* Sockets, the clock, and the phases of a run with the CPU clocks read at their borders. */
#define _GNU_SOURCE
#include "kload.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    if (clock_gettime(clock, &t) != 0)
        return 0;
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
int64_t wall_ms(void) { return (int64_t)(clock_ns(CLOCK_REALTIME) / 1000000); }

void nap_ms(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static int new_socket(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0)
        die(1, "socket: %s (raise the limit of open files?)", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

void say_held(void) {
    fputs("held\n", stderr);
    fflush(stderr);
}

void set_nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

int connect_blocking(void) {
    int fd = new_socket();
    if (connect(fd, (struct sockaddr *)&opt.address, sizeof opt.address) != 0)
        die(1, "connect to port %d: %s", ntohs(opt.address.sin_port), strerror(errno));
    net_begin(fd);
    net_handshake(fd);
    return fd;
}

int connect_nonblocking(int index_for_source) {
    int fd = new_socket(), on = 1;
    set_nonblocking(fd);
    if (index_for_source >= 0) {
        /* Every closed connection keeps its port for a minute: 28,000 ports of one address last four seconds.
         * All of 127/8 is ours, so sources take turns. */
        struct sockaddr_in source = {.sin_family = AF_INET};
        source.sin_addr.s_addr = htonl(0x7f000002u + (uint32_t)(index_for_source % 250));
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
        if (bind(fd, (struct sockaddr *)&source, sizeof source) != 0)
            die(1, "bind: %s", strerror(errno));
    }
    if (connect(fd, (struct sockaddr *)&opt.address, sizeof opt.address) != 0 && errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    net_begin(fd);
    return fd;
}

void watch(int epoll_fd, int fd, uint32_t events, void *tag, bool is_new) {
    struct epoll_event event = {.events = events, .data.ptr = tag};
    if (epoll_ctl(epoll_fd, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) != 0)
        die(1, "epoll_ctl: %s", strerror(errno));
}

int wait_events(int epoll_fd, struct epoll_event *events, int max, uint64_t deadline_ns) {
    uint64_t now = now_ns(), left = deadline_ns > now ? deadline_ns - now : 0;
    int n;
#ifdef SYS_epoll_pwait2
    struct timespec timeout = {(time_t)(left / 1000000000ull), (long)(left % 1000000000ull)};
    n = (int)syscall(SYS_epoll_pwait2, epoll_fd, events, max, &timeout, NULL, 0);
    if (n < 0 && errno == ENOSYS)
#endif
        n = epoll_wait(epoll_fd, events, max, (int)(left / 1000000ull));
    if (n < 0 && errno != EINTR)
        die(1, "epoll_wait: %s", strerror(errno));
    return n < 0 ? 0 : n;
}

/* ---- phases --------------------------------------------------------------------------------------------- */

static uint64_t own_cpu_ns;
static int64_t broker_cpu_ns[PIDS_MAX];
static uint64_t interval_from;

/* The kernel's id of another process's CPU clock: nanoseconds over all its threads, dead ones too, where
 * /proc/PID/stat counts hundredths of a second. */
static uint64_t process_cpu_ns(int pid) { return clock_ns((clockid_t)((~(unsigned)pid) << 3 | 2)); }

static void phase_begin(uint64_t now) {
    interval_from = now;
    own_cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < opt.pid_count; i++)
        broker_cpu_ns[i] = (int64_t)process_cpu_ns(opt.pids[i]);
}

static void phase_end(uint64_t now) {
    result.seconds = (double)(now - interval_from) / 1e9;
    own_cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - own_cpu_ns;
    for (int i = 0; i < opt.pid_count; i++) {
        uint64_t used = process_cpu_ns(opt.pids[i]);
        broker_cpu_ns[i] = used ? (int64_t)used - broker_cpu_ns[i] : -1; /* -1: it is gone */
        if (!used)
            wrong("process %d of the broker died during the run", opt.pids[i]);
    }
}

void phases_start(struct phases *p) {
    memset(p, 0, sizeof *p);
    p->start = now_ns();
    p->measure_from = p->start + (uint64_t)(opt.warmup * 1e9);
    p->measure_to = p->measure_from + (uint64_t)(opt.seconds * 1e9);
    p->drain_to = p->measure_to + (uint64_t)(opt.drain * 1e9);
}

void phases_step(struct phases *p, uint64_t now) {
    if (!p->begun && now >= p->measure_from) {
        p->begun = true;
        phase_begin(now);
    }
    if (!p->ended && now >= p->measure_to) {
        p->ended = true;
        phase_end(now);
    }
}

uint64_t next_phase_ns(const struct phases *p, uint64_t now) {
    return now < p->measure_from ? p->measure_from : now < p->measure_to ? p->measure_to : p->drain_to;
}

void print_cpu(FILE *out) {
    int64_t total = 0;
    fprintf(out, ",\"generator_cpu_seconds\":%.4f", (double)own_cpu_ns / 1e9);
    if (opt.pid_count == 0)
        return;
    fprintf(out, ",\"broker_cpu_by_pid\":{");
    for (int i = 0; i < opt.pid_count; i++) {
        fprintf(out, "%s\"%d\":%.4f", i ? "," : "", opt.pids[i], (double)broker_cpu_ns[i] / 1e9);
        total += broker_cpu_ns[i] > 0 ? broker_cpu_ns[i] : 0;
    }
    fprintf(out, "},\"broker_cpu_seconds\":%.4f", (double)total / 1e9);
}
