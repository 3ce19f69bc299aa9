/* Produce: how many requests, and which latency, at a number of connections and requests in flight.
 *
 *   connection 0 --[P requests in flight]--> partition 0        closed loop: an answer lets the next one go
 *   connection 1 --[P requests in flight]--> partition 1 ...    open loop (--rate): the clock does, and latency
 *                                                               counts from when the request was due
 *
 * A request is one prepared frame of which only the correlation id changes. Small frames lie P times in a row,
 * so that several answers lead to one send; large ones go out as [12 own bytes, the shared rest].
 * Checked: correlation order, error codes, base offsets that rise per connection and are given once per
 * partition (a bitmap), and at the end that the log holds every acknowledged record.
 */
#include "kload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OWN_BYTES = 12, /* up to and with the correlation id */
       IN_BYTES = 1 << 16, SHARED_FROM_BYTES = 1 << 16, EVENTS_MAX = 256,
       /* acks=0: frames written per wake-up, so that one connection cannot keep the others from their turn */
       UNANSWERED_BURST = 64 };

struct connection {
    int fd, partition;
    uint64_t queued, answered; /* frames since the start */
    uint64_t sent_bytes;       /* position in the endless stream of frames */
    uint64_t *due_ns;          /* by slot = frame % in_flight */
    uint8_t *ring;             /* in_flight whole frames, or in_flight heads of OWN_BYTES */
    int64_t last_base;
    bool wants_out, is_dead;
    size_t in_length;
    uint8_t in[IN_BYTES];
};

struct partition {
    struct buffer frame;
    size_t records_at;
    int64_t start;  /* end of the log before the run */
    uint64_t acked; /* batches */
    uint64_t sent;
    uint64_t *seen; /* one bit a batch, by (base - start) / batch_records */
    uint64_t seen_words;
};

static struct connection **connections;
static struct partition *partitions;
static struct phases phases;
static int epoll_fd, batch_records, alive;
static bool is_shared; /* frames too large to copy per slot */
static uint64_t in_flight_total;

void build_produce(struct buffer *b, int partition, int count, int value_bytes, size_t *records_at) {
    bool is_flexible = opt.produce_version >= 9;
    struct buffer batch = {0};
    put_batch(&batch, count, value_bytes);
    begin_request(b, KEY_PRODUCE, opt.produce_version, 0, is_flexible);
    if (is_flexible) {
        put_uvarint(b, 0); /* no transaction */
        put_i16(b, opt.acks);
        put_i32(b, 30000);
        put_uvarint(b, 2);
        put_compact_string(b, opt.topic);
        put_uvarint(b, 2);
        put_i32(b, partition);
        put_uvarint(b, batch.length + 1);
    } else {
        put_i16(b, -1); /* no transaction */
        put_i16(b, opt.acks);
        put_i32(b, 30000);
        put_i32(b, 1);
        put_string(b, opt.topic);
        put_i32(b, 1);
        put_i32(b, partition);
        put_i32(b, (int64_t)batch.length);
    }
    *records_at = b->length;
    put_bytes(b, batch.data, batch.length);
    if (is_flexible)
        put_bytes(b, "\0\0\0", 3); /* tagged fields of partition, topic and request */
    end_request(b);
    free(batch.data);
}

int64_t read_produce_answer(struct cursor *c, int partition) {
    int error = 0;
    int64_t base = try_produce_answer(c, partition, &error);
    if (base < 0 && error != 0)
        wrong("Produce: error %d", error);
    return base;
}

int64_t try_produce_answer(struct cursor *c, int partition, int *error_code) {
    bool is_flexible = opt.produce_version >= 9, is_ours;
    int64_t topics, count;
    if (is_flexible) {
        skip_tagged_fields(c); /* of the header */
        topics = (int64_t)get_uvarint(c) - 1;
        is_ours = skip_compact_string(c, opt.topic);
        count = (int64_t)get_uvarint(c) - 1;
    } else {
        topics = get_i32(c);
        is_ours = skip_string(c, opt.topic);
        count = get_i32(c);
    }
    int index = get_i32(c), error = get_i16(c);
    int64_t base = get_i64(c);
    get_i64(c);          /* log append time */
    if (opt.produce_version >= 5)
        get_i64(c);      /* log start offset; the rest explains errors, and is of no use without one */
    if (c->bad || topics != 1 || count != 1 || !is_ours || index != partition) {
        wrong("a Produce answer that cannot be read");
        return -1;
    }
    *error_code = error;
    return error == 0 ? base : -1;
}

static void mark_seen(struct connection *connection, int64_t base) {
    struct partition *p = &partitions[connection->partition];
    int64_t distance = base - p->start;
    if (base <= connection->last_base)
        wrong("base offset %lld after %lld on one connection", (long long)base, (long long)connection->last_base);
    connection->last_base = base;
    if (distance < 0 || distance % batch_records) {
        wrong("base offset %lld is no place for a batch of %d records", (long long)base, batch_records);
        return;
    }
    uint64_t bit = (uint64_t)(distance / batch_records), word = bit / 64;
    if (word >= p->seen_words) {
        uint64_t words = (word + 1024) * 2;
        if (words > 1ull << 30) {
            wrong("base offset %lld is far beyond what was sent", (long long)base);
            return;
        }
        p->seen = must_realloc(p->seen, words * 8);
        memset(p->seen + p->seen_words, 0, (words - p->seen_words) * 8);
        p->seen_words = words;
    }
    if (p->seen[word] >> bit % 64 & 1) {
        result.duplicates++;
        wrong("base offset %lld was given twice", (long long)base);
    }
    p->seen[word] |= 1ull << bit % 64;
}

static void drop(struct connection *connection, const char *why) {
    if (connection->is_dead)
        return;
    wrong("connection lost: %s", why);
    connection->is_dead = true;
    result.unanswered += connection->queued - connection->answered;
    in_flight_total -= connection->queued - connection->answered;
    alive--;
    net_close(connection->fd);
}

static void count_finished(uint64_t due_ns, uint64_t now) {
    uint64_t counted_at = opt.rate > 0 ? due_ns : now; /* open loop: what was due in the interval counts */
    if (!is_measured(&phases, counted_at))
        return;
    result.requests++;
    if (opt.acks != 0)
        hist_record(&result.latency, now - due_ns);
}

static size_t frame_bytes(const struct connection *connection) {
    return partitions[connection->partition].frame.length;
}

static ssize_t send_some(struct connection *connection) {
    size_t frame = frame_bytes(connection);
    uint64_t number = connection->sent_bytes / frame, at = connection->sent_bytes % frame;
    uint64_t slot = number % (uint64_t)opt.in_flight;
    if (is_shared) {
        uint8_t *own = connection->ring + slot * OWN_BYTES;
        struct iovec parts[2] = {{own + at, at < OWN_BYTES ? OWN_BYTES - at : 0}, {0}};
        size_t shared_from = at < OWN_BYTES ? OWN_BYTES : at;
        parts[1].iov_base = partitions[connection->partition].frame.data + shared_from;
        parts[1].iov_len = frame - shared_from;
        return net_send_parts(connection->fd, parts + (at >= OWN_BYTES), at < OWN_BYTES ? 2 : 1);
    }
    uint64_t open = connection->queued - number, until_wrap = (uint64_t)opt.in_flight - slot;
    uint64_t frames = open < until_wrap ? open : until_wrap;
    return net_send(connection->fd, connection->ring + slot * frame + at, frames * frame - at);
}

/* Writes what is queued; asks for EPOLLOUT only while the socket takes no more. */
static void flush(struct connection *connection) {
    size_t frame = frame_bytes(connection);
    bool is_full = false;
    while (!is_full && connection->sent_bytes < connection->queued * frame) {
        ssize_t n = send_some(connection);
        if (n < 0 && errno != EAGAIN && errno != EINTR) {
            drop(connection, strerror(errno));
            return;
        }
        is_full = n < 0 && errno == EAGAIN;
        connection->sent_bytes += n > 0 ? (uint64_t)n : 0;
    }
    if (opt.acks == 0) { /* nobody answers: sent is finished */
        uint64_t now = now_ns();
        for (; connection->answered < connection->sent_bytes / frame; connection->answered++) {
            count_finished(connection->due_ns[connection->answered % (uint64_t)opt.in_flight], now);
            in_flight_total--;
        }
    }
    bool wants_out = is_full || (opt.acks == 0 && opt.rate <= 0);
    if (wants_out != connection->wants_out) {
        connection->wants_out = wants_out;
        watch(epoll_fd, connection->fd, EPOLLIN | (wants_out ? EPOLLOUT : 0), connection, false);
    }
}

static void queue_one(struct connection *connection, uint64_t due_ns) {
    uint64_t slot = connection->queued % (uint64_t)opt.in_flight;
    size_t stride = is_shared ? OWN_BYTES : frame_bytes(connection);
    set_i32(connection->ring + slot * stride + CORRELATION_AT, (int32_t)connection->queued);
    connection->due_ns[slot] = due_ns;
    connection->queued++;
    partitions[connection->partition].sent++;
    in_flight_total++;
}

static bool has_room(const struct connection *connection) {
    return !connection->is_dead && connection->queued - connection->answered < (uint64_t)opt.in_flight;
}

/* Closed loop: fill up to the number in flight. */
static void refill(struct connection *connection, uint64_t now) {
    int burst = opt.acks == 0 ? UNANSWERED_BURST : opt.in_flight;
    while (has_room(connection) && burst-- > 0 && now < phases.measure_to)
        queue_one(connection, now);
    flush(connection);
}

static void take_answer(struct connection *connection, struct cursor *c, uint64_t now) {
    if (connection->answered == connection->queued) {
        drop(connection, "an answer that nobody asked for");
        return;
    }
    int32_t wanted = (int32_t)connection->answered, got = get_i32(c);
    if (got != wanted) {
        wrong("correlation id %d answered with %d", wanted, got);
        drop(connection, "answers out of order");
        return;
    }
    uint64_t due = connection->due_ns[connection->answered % (uint64_t)opt.in_flight];
    connection->answered++;
    in_flight_total--;
    int64_t base = read_produce_answer(c, connection->partition);
    if (base < 0)
        return;
    partitions[connection->partition].acked++;
    mark_seen(connection, base);
    count_finished(due, now);
}

static void take_some(struct connection *connection) {
    ssize_t n = net_recv(connection->fd, connection->in + connection->in_length, IN_BYTES - connection->in_length);
    if (n <= 0) {
        if (n == 0 || (errno != EAGAIN && errno != EINTR))
            drop(connection, n ? strerror(errno) : "closed by the broker");
        return;
    }
    uint64_t now = now_ns();
    connection->in_length += (size_t)n;
    size_t at = 0;
    while (!connection->is_dead && connection->in_length - at >= 4) {
        struct cursor c = {connection->in + at, connection->in + connection->in_length, false};
        int32_t length = get_i32(&c);
        if (length < 4 || length > IN_BYTES - 4) {
            drop(connection, "an answer of impossible length");
            return;
        }
        if (c.end - c.at < length)
            break;
        c.end = c.at + length;
        take_answer(connection, &c, now);
        at += 4 + (size_t)length;
    }
    connection->in_length -= at;
    memmove(connection->in, connection->in + at, connection->in_length);
    if (!connection->is_dead && opt.rate <= 0)
        refill(connection, now);
}

static void on_readable(struct connection *connection) {
    do
        take_some(connection);
    while (!connection->is_dead && connection->in_length < IN_BYTES && net_has_more(connection->fd));
}

static void prepare_partitions(int control) {
    partitions = must_alloc(sizeof *partitions * (size_t)opt.partitions);
    for (int i = 0; i < opt.partitions; i++) {
        build_produce(&partitions[i].frame, i, batch_records, opt.record_bytes, &partitions[i].records_at);
        partitions[i].start = list_offset(control, i, OFFSET_LATEST);
    }
    is_shared = partitions[0].frame.length > SHARED_FROM_BYTES
        || partitions[0].frame.length * (size_t)opt.in_flight > 1 << 20;
}

static void open_connections(void) {
    connections = must_alloc(sizeof *connections * (size_t)opt.connections);
    for (int i = 0; i < opt.connections; i++) {
        struct connection *c = connections[i] = must_alloc(sizeof *c);
        c->partition = i % opt.partitions;
        c->last_base = -1;
        c->due_ns = must_alloc(sizeof *c->due_ns * (size_t)opt.in_flight);
        size_t stride = is_shared ? OWN_BYTES : frame_bytes(c);
        c->ring = must_alloc(stride * (size_t)opt.in_flight);
        for (int slot = 0; slot < opt.in_flight; slot++)
            memcpy(c->ring + (size_t)slot * stride, partitions[c->partition].frame.data, stride);
        c->fd = connect_blocking();
        set_nonblocking(c->fd);
        watch(epoll_fd, c->fd, EPOLLIN, c, true);
        alive++;
    }
}

/* Open loop: sends what is due, on whichever connection has room; what finds none keeps its due time.
 * Returns when the next request is due. */
static uint64_t issue_due(uint64_t now, uint64_t *issued) {
    static int turn;
    double interval_ns = 1e9 * batch_records / opt.rate;
    for (;;) {
        uint64_t due = phases.start + (uint64_t)(interval_ns * (double)*issued);
        if (due >= phases.measure_to)
            return UINT64_MAX;
        if (due > now)
            return due;
        struct connection *c = NULL;
        for (int tried = 0; tried < opt.connections && !c; tried++) {
            struct connection *candidate = connections[turn++ % opt.connections];
            c = has_room(candidate) ? candidate : NULL;
        }
        if (!c)
            return UINT64_MAX; /* an answer wakes us */
        if (is_measured(&phases, due))
            hist_record(&result.lateness, now - due);
        queue_one(c, due);
        flush(c);
        (*issued)++;
    }
}

/* Due so far and not answered, when the interval begins and when it ends: what grows is more than the broker can. */
static void note_backlog(uint64_t now, uint64_t issued) {
    if (opt.rate <= 0)
        return;
    int64_t answered = (int64_t)(issued - in_flight_total);
    double per_ns = opt.rate / batch_records / 1e9;
    if (!phases.begun && now >= phases.measure_from)
        result.backlog_begin = (int64_t)((double)(phases.measure_from - phases.start) * per_ns) - answered;
    if (!phases.ended && now >= phases.measure_to)
        result.backlog_end = (int64_t)((double)(phases.measure_to - phases.start) * per_ns) - answered;
}

static void drive(void) {
    struct epoll_event events[EVENTS_MAX];
    uint64_t issued = 0;
    phases_start(&phases);
    for (int i = 0; i < opt.connections && opt.rate <= 0; i++)
        refill(connections[i], now_ns());
    while (alive > 0) {
        uint64_t now = now_ns(), next_due = UINT64_MAX;
        note_backlog(now, issued);
        phases_step(&phases, now);
        if (opt.rate > 0)
            next_due = issue_due(now, &issued);
        if (now >= phases.measure_to && (in_flight_total == 0 || now >= phases.drain_to))
            break;
        uint64_t phase = next_phase_ns(&phases, now);
        int n = wait_events(epoll_fd, events, EVENTS_MAX, next_due < phase ? next_due : phase);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c->is_dead && events[i].events & ~EPOLLOUT)
                on_readable(c);
            if (!c->is_dead && events[i].events & EPOLLOUT)
                opt.acks == 0 && opt.rate <= 0 ? refill(c, now_ns()) : flush(c);
        }
    }
    phases_step(&phases, phases.measure_to); /* every connection lost: close the books all the same */
}

/* The log must have grown by what was acknowledged, and by no more than what was sent. */
static void check_log(int control) {
    uint64_t deadline = now_ns() + (uint64_t)(opt.drain * 1e9);
    for (int i = 0; i < opt.partitions; i++) {
        struct partition *p = &partitions[i];
        uint64_t wanted = (opt.acks == 0 ? p->sent : p->acked) * (uint64_t)batch_records;
        uint64_t grown = (uint64_t)(list_offset(control, i, OFFSET_LATEST) - p->start);
        while (grown < wanted && opt.acks == 0 && now_ns() < deadline) { /* still in the broker's queues */
            nap_ms(2);
            grown = (uint64_t)(list_offset(control, i, OFFSET_LATEST) - p->start);
        }
        if (grown < wanted) {
            result.lost += wanted - grown;
            wrong("partition %d grew by %llu records of %llu", i, (unsigned long long)grown,
                  (unsigned long long)wanted);
        }
        if (grown > p->sent * (uint64_t)batch_records)
            wrong("partition %d grew by %llu records, more than were sent", i, (unsigned long long)grown);
    }
}

void run_produce(void) {
    batch_records = opt.batch_records;
    int control = connect_blocking();
    prepare_topic(control);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    prepare_partitions(control);
    open_connections();
    drive();
    for (int i = 0; i < opt.connections; i++)
        if (!connections[i]->is_dead) {
            result.unanswered += connections[i]->queued - connections[i]->answered;
            net_close(connections[i]->fd);
        }
    net_close(control); /* it may have been idle for longer than a broker tolerates */
    control = connect_blocking();
    check_log(control);
    net_close(control);
    result.records = result.requests * (uint64_t)batch_records;
    result.bytes = result.requests * (partitions[0].frame.length - partitions[0].records_at);
    if (opt.produce_version >= 9)
        result.bytes -= result.requests * 3; /* the tagged fields behind the batch */
}

/* Fills the topic with batches until its log holds the bytes asked for, then leaves it for fetch runs. */
void run_prepare(void) {
    int control = connect_blocking();
    prepare_topic(control);
    struct buffer answer = {0};
    uint64_t from = now_ns();
    for (int i = 0; i < opt.partitions; i++) {
        struct buffer frame = {0};
        size_t records_at;
        build_produce(&frame, i, opt.batch_records, opt.record_bytes, &records_at);
        int64_t batch_bytes = (int64_t)(frame.length - records_at), share = opt.fill_bytes / opt.partitions;
        int64_t end = list_offset(control, i, OFFSET_LATEST), start = list_offset(control, i, OFFSET_EARLIEST);
        int64_t have = (end - start) / opt.batch_records * batch_bytes;
        for (; have < share; have += batch_bytes) {
            struct cursor c = call(control, &frame, &answer);
            if (read_produce_answer(&c, i) < 0)
                die(1, "prepare: %s", result.first_error);
            result.requests++;
            result.records += (uint64_t)opt.batch_records;
            result.bytes += (uint64_t)batch_bytes;
        }
        free(frame.data);
    }
    result.seconds = (double)(now_ns() - from) / 1e9;
    net_close(control);
}

void run_delete(void) {
    int control = connect_blocking();
    delete_topic(control);
    net_close(control);
}
