/* Connections: what coming and going costs, and what merely being there costs.
 *
 *   churn   N times over: connect, ApiVersions v0, answer, close            connections per second, latency each
 *   idle    N connections: one ApiVersions each, silence, one more each     who is still served, CPU meanwhile
 *
 * Idle prints the line "held" to stderr when all connections are open, so that whoever started us can look at
 * the broker's memory meanwhile.
 */
#include "kload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANSWER_BYTES_MAX = 16 << 10, EVENTS_MAX = 256 };

struct guest {
    int fd;
    bool is_sent;
    uint64_t started_ns;
    size_t got;
    uint8_t answer[ANSWER_BYTES_MAX];
};

static struct phases phases;
static int epoll_fd, opened;
static struct buffer hello;

static void build_hello(void) {
    begin_request(&hello, KEY_API_VERSIONS, 0, 77, false);
    end_request(&hello);
}

/* True when the answer is whole; a wrong one is counted. */
static bool is_answered(const struct guest *g) {
    struct cursor c = {g->answer, g->answer + g->got, false};
    int32_t length = get_i32(&c);
    if (g->got < 4 || (length <= ANSWER_BYTES_MAX - 4 && length >= 10 && g->got < 4 + (size_t)length))
        return false;
    int32_t correlation = get_i32(&c);
    int error = get_i16(&c), keys = get_i32(&c);
    if (g->got != 4 + (size_t)length || correlation != 77 || error != 0 || keys < 1)
        wrong("ApiVersions: error %d, %d keys, %d bytes", error, keys, length);
    return true;
}

static void open_guest(struct guest *g) {
    g->got = 0;
    g->is_sent = false;
    g->started_ns = now_ns();
    g->fd = connect_nonblocking(opened++);
    if (g->fd < 0) {
        result.connections_failed++;
        wrong("connect: %s", strerror(errno));
        return;
    }
    watch(epoll_fd, g->fd, EPOLLOUT, g, true);
}

static void fail_guest(struct guest *g, const char *why) {
    result.connections_failed++;
    wrong("a connection failed: %s", why);
    net_close(g->fd);
    g->fd = -1;
}

static void step_guest(struct guest *g) {
    if (!g->is_sent) {
        ssize_t n = net_send(g->fd, hello.data, hello.length);
        if (n < 0 && errno == EAGAIN) { /* the handshake goes on */
            watch(epoll_fd, g->fd, net_wanted(), g, false);
            return;
        }
        if (n != (ssize_t)hello.length) {
            fail_guest(g, n < 0 ? strerror(errno) : "a request went out in part");
            return;
        }
        g->is_sent = true;
        watch(epoll_fd, g->fd, EPOLLIN, g, false);
        return;
    }
    ssize_t n = net_recv(g->fd, g->answer + g->got, ANSWER_BYTES_MAX - g->got);
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN)
            fail_guest(g, n ? strerror(errno) : "closed by the broker");
        return;
    }
    g->got += (size_t)n;
    if (!is_answered(g))
        return;
    uint64_t now = now_ns();
    net_close(g->fd);
    g->fd = -1;
    if (is_measured(&phases, now)) {
        result.requests++;
        hist_record(&result.latency, now - g->started_ns);
    }
}

void run_churn(void) {
    struct guest *guests = must_alloc(sizeof *guests * (size_t)opt.connections);
    struct epoll_event events[EVENTS_MAX];
    int open = 0;
    build_hello();
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    phases_start(&phases);
    for (int i = 0; i < opt.connections; i++) {
        open_guest(&guests[i]);
        open += guests[i].fd >= 0;
    }
    while (open > 0) {
        uint64_t now = now_ns();
        phases_step(&phases, now);
        if (now >= phases.drain_to)
            break;
        int n = wait_events(epoll_fd, events, EVENTS_MAX, next_phase_ns(&phases, now));
        for (int i = 0; i < n; i++) {
            struct guest *g = events[i].data.ptr;
            step_guest(g);
            if (g->fd >= 0)
                continue;
            open--;
            if (now_ns() < phases.measure_to) {
                open_guest(g);
                open += g->fd >= 0;
            }
        }
    }
    phases_step(&phases, phases.measure_to);
    result.unanswered = (uint64_t)open;
}

/* On a blocking socket never more than is sure to come: TLS takes as much as it is asked for. */
static size_t answer_room(const struct guest *g) {
    struct cursor c = {g->answer, g->answer + g->got, false};
    int32_t length = g->got < 4 ? 0 : get_i32(&c);
    if (length < 0 || length > ANSWER_BYTES_MAX - 4)
        return 1; /* is_answered complains */
    return 4 + (size_t)length - g->got;
}

/* One ApiVersions on an open connection; if it fails, the connection is closed and counted. */
static void greet(int *fd) {
    static struct guest g;
    g.fd = *fd;
    g.got = 0;
    if (g.fd < 0)
        return;
    if (net_send(g.fd, hello.data, hello.length) != (ssize_t)hello.length) {
        fail_guest(&g, strerror(errno));
    } else
        do {
            ssize_t n = net_recv(g.fd, g.answer + g.got, answer_room(&g));
            if (n <= 0) {
                fail_guest(&g, n ? strerror(errno) : "closed by the broker");
                break;
            }
            g.got += (size_t)n;
        } while (!is_answered(&g));
    *fd = g.fd;
}

void run_idle(void) {
    /* Only fds are kept for each: 16 KB of answer times 10,000 connections would be ours, not the broker's. */
    int *fds = must_alloc(sizeof *fds * (size_t)opt.connections);
    struct timeval patience = {10, 0};
    build_hello();
    for (int i = 0; i < opt.connections; i++) {
        fds[i] = connect_blocking();
        setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        greet(&fds[i]); /* a connection is one once it was served: backlogs do not count */
    }
    say_held();
    phases_start(&phases);
    for (uint64_t now = now_ns(); now < phases.measure_to; now = now_ns()) {
        uint64_t left_ms;
        phases_step(&phases, now);
        left_ms = (next_phase_ns(&phases, now) - now) / 1000000 + 1;
        nap_ms(left_ms < 1000 ? (int)left_ms : 1000);
    }
    phases_step(&phases, phases.measure_to);
    for (int i = 0; i < opt.connections; i++) {
        uint64_t asked = now_ns();
        greet(&fds[i]);
        if (fds[i] >= 0) {
            hist_record(&result.latency, now_ns() - asked);
            result.requests++;
            net_close(fds[i]);
        }
    }
    free(fds);
}
