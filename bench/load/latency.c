/* Produce-to-consume latency in an open loop.
 *
 *   clock --due--> producer connection ==Produce, one record==> broker ==long-poll Fetch==> consumer connection
 *                  record value: [due time i64][sequence i64][filler]                       now - due time
 *
 * The due time is when the record should have left, not when it did: a broker that stalls for 10 ms delays the
 * ten records that were due meanwhile too, and a loop that waits for it would never notice (coordinated
 * omission). Sequences per partition must arrive dense: a gap is a loss, a step back a duplicate.
 */
#include "kload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STAMP_BYTES = 16, LONG_POLL_MS = 500, PENDING_MAX = 1 << 16, OUT_BYTES_MAX = 64 << 20 };

struct inbox {
    int fd;
    struct buffer bytes; /* one answer, from its length field on, as far as it has come */
    size_t wanted;       /* 4 until the length is known */
};

struct partition {
    struct buffer frame;
    size_t records_at, value_at;
    int64_t sent, consumed; /* records */
};

struct pending {
    uint64_t due_ns;
    int partition;
};

static struct partition *partitions;
static int64_t *next_offsets;
static struct phases phases;
static int epoll_fd;
static struct inbox producer, consumer;
static struct pending pending[PENDING_MAX];
static uint64_t sent_total, acked_total, consumed_total;
static struct buffer out, fetch;
static size_t out_at;
static bool producer_wants_out, is_over;
static int32_t fetch_correlation;

static void give_up(const char *who, const char *why) {
    wrong("%s lost: %s", who, why);
    is_over = true;
}

/* Reads until one whole answer is there; false while it is not. */
static bool receive(struct inbox *in, const char *who) {
    for (;;) {
        if (in->bytes.capacity < in->wanted) {
            in->bytes.capacity = in->wanted;
            in->bytes.data = must_realloc(in->bytes.data, in->wanted);
        }
        ssize_t n = recv(in->fd, in->bytes.data + in->bytes.length, in->wanted - in->bytes.length, 0);
        if (n <= 0) {
            if (n == 0 || (errno != EAGAIN && errno != EINTR))
                give_up(who, n ? strerror(errno) : "closed by the broker");
            return false;
        }
        in->bytes.length += (size_t)n;
        if (in->bytes.length < in->wanted)
            continue;
        if (in->wanted > 4)
            return true;
        struct cursor c = {in->bytes.data, in->bytes.data + 4, false};
        int32_t length = get_i32(&c);
        if (length < 4 || length > FRAME_BYTES_MAX) {
            give_up(who, "an answer of impossible length");
            return false;
        }
        in->wanted = 4 + (size_t)length;
    }
}

static struct cursor take(struct inbox *in) {
    struct cursor c = {in->bytes.data + 4, in->bytes.data + in->wanted, false};
    in->bytes.length = 0;
    in->wanted = 4;
    return c;
}

/* ---- the producing side --------------------------------------------------------------------------------- */

static void flush_out(void) {
    while (out_at < out.length) {
        ssize_t n = send(producer.fd, out.data + out_at, out.length - out_at, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR) {
            give_up("the producer connection", strerror(errno));
            return;
        }
        if (n < 0 && errno == EAGAIN)
            break;
        out_at += n > 0 ? (size_t)n : 0;
    }
    bool is_full = out_at < out.length;
    if (!is_full)
        out_at = out.length = 0;
    if (is_full != producer_wants_out) {
        producer_wants_out = is_full;
        watch(epoll_fd, producer.fd, EPOLLIN | (is_full ? EPOLLOUT : 0), &producer, false);
    }
}

static void send_record(uint64_t due) {
    int index = (int)(sent_total % (uint64_t)opt.partitions);
    struct partition *p = &partitions[index];
    uint8_t *frame = p->frame.data, *batch = frame + p->records_at;
    struct cursor length_cursor = {batch + 8, batch + 12, false};
    size_t batch_bytes = 12 + (size_t)get_i32(&length_cursor);
    set_i32(frame + CORRELATION_AT, (int32_t)sent_total);
    set_i64(frame + p->value_at, (int64_t)due);
    set_i64(frame + p->value_at + 8, p->sent);
    set_i32(batch + BATCH_CRC_AT, crc32c(batch + BATCH_CRC_FROM, batch_bytes - BATCH_CRC_FROM));
    pending[sent_total % PENDING_MAX] = (struct pending){due, index};
    p->sent++;
    sent_total++;
    put_bytes(&out, frame, p->frame.length);
}

/* Sends all that is due; returns when the next record is. */
static uint64_t send_due(uint64_t now) {
    uint64_t due;
    for (;; ) {
        due = phases.start + (uint64_t)(1e9 / opt.rate * (double)sent_total);
        if (due >= phases.measure_to) {
            due = UINT64_MAX;
            break;
        }
        if (due > now)
            break;
        if ((opt.acks != 0 && sent_total - acked_total >= (uint64_t)opt.in_flight) || out.length > OUT_BYTES_MAX) {
            due = UINT64_MAX; /* an answer or a writable socket wakes us; the record keeps its due time */
            break;
        }
        if (is_measured(&phases, due))
            hist_record(&result.lateness, now - due);
        send_record(due);
    }
    flush_out();
    return due;
}

static void on_acknowledgement(uint64_t now) {
    struct cursor c = take(&producer);
    int32_t got = get_i32(&c);
    if (acked_total == sent_total || got != (int32_t)acked_total) {
        wrong("correlation id %d where %d was due", got, (int32_t)acked_total);
        give_up("the producer connection", "answers out of order");
        return;
    }
    struct pending *of = &pending[acked_total++ % PENDING_MAX];
    if (read_produce_answer(&c, of->partition) >= 0 && is_measured(&phases, of->due_ns))
        hist_record(&result.ack_latency, now - of->due_ns);
}

/* ---- the consuming side --------------------------------------------------------------------------------- */

static void send_fetch(void) {
    build_fetch(&fetch, 0, opt.partitions, next_offsets, LONG_POLL_MS);
    set_i32(fetch.data + CORRELATION_AT, ++fetch_correlation);
    ssize_t n = send(consumer.fd, fetch.data, fetch.length, MSG_NOSIGNAL);
    if (n != (ssize_t)fetch.length)
        give_up("the consumer connection", n < 0 ? strerror(errno) : "a request went out in part");
}

static void consume_value(int index, const uint8_t *value, int64_t bytes, uint64_t now) {
    struct partition *p = &partitions[index];
    if (bytes < STAMP_BYTES) {
        wrong("a record of %lld bytes that is not ours", (long long)bytes);
        return;
    }
    struct cursor c = {value, value + STAMP_BYTES, false};
    uint64_t due = (uint64_t)get_i64(&c);
    int64_t sequence = get_i64(&c);
    if (sequence < p->consumed) {
        result.duplicates++;
        wrong("record %lld of partition %d came again", (long long)sequence, index);
        return;
    }
    if (sequence > p->consumed)
        wrong("record %lld of partition %d came after %lld", (long long)sequence, index, (long long)p->consumed - 1);
    p->consumed = sequence + 1;
    consumed_total++;
    if (is_measured(&phases, due)) {
        result.requests++;
        hist_record(&result.latency, now - due);
    }
}

static void consume_batch(int index, const uint8_t *data, const struct batch *batch, uint64_t now) {
    struct cursor c = {data + BATCH_HEADER_BYTES, data + batch->bytes, false};
    if (batch->base_offset != next_offsets[index])
        wrong("batch at offset %lld, expected %lld", (long long)batch->base_offset, (long long)next_offsets[index]);
    if (!has_right_crc(data, batch))
        return;
    for (int i = 0; i < batch->count && !c.bad; i++) {
        struct cursor record = c;
        int64_t length = get_varint(&record);
        record.end = record.at + length > record.end ? record.end : record.at + length;
        get_i8(&record);
        get_varint(&record); /* timestamp delta */
        get_varint(&record); /* offset delta */
        int64_t key = get_varint(&record);
        get_bytes(&record, key > 0 ? key : 0);
        int64_t bytes = get_varint(&record);
        const uint8_t *value = get_bytes(&record, bytes);
        if (!record.bad)
            consume_value(index, value, bytes, now);
        get_varint(&c);
        get_bytes(&c, length);
    }
    next_offsets[index] = batch->base_offset + batch->last_offset_delta + 1;
}

static void consume_partition(struct cursor *c, uint64_t now) {
    bool is_flexible = opt.fetch_version >= 12;
    int index = get_i32(c), error = get_i16(c);
    get_bytes(c, 24);
    int64_t aborted = is_flexible ? (int64_t)get_uvarint(c) - 1 : get_i32(c);
    get_i32(c);
    int64_t bytes = is_flexible ? (int64_t)get_uvarint(c) - 1 : get_i32(c);
    const uint8_t *at = get_bytes(c, bytes > 0 ? bytes : 0);
    if (is_flexible)
        skip_tagged_fields(c);
    if (c->bad || error != 0 || aborted > 0 || index < 0 || index >= opt.partitions) {
        wrong("Fetch of partition %d: error %d", index, error);
        is_over = true;
        return;
    }
    for (struct batch batch; bytes >= BATCH_HEADER_BYTES; at += batch.bytes, bytes -= batch.bytes) {
        if (!read_batch_header(at, (size_t)bytes, &batch) || batch.bytes > bytes)
            return;
        consume_batch(index, at, &batch, now);
    }
}

static void on_records(uint64_t now) {
    struct cursor c = take(&consumer);
    bool is_flexible = opt.fetch_version >= 12;
    if (get_i32(&c) != fetch_correlation) {
        give_up("the consumer connection", "answers out of order");
        return;
    }
    if (is_flexible)
        skip_tagged_fields(&c);
    get_i32(&c);
    int error = get_i16(&c);
    get_i32(&c);
    if (error != 0 || c.bad) {
        wrong("Fetch: error %d", error);
        is_over = true;
        return;
    }
    /* An empty long poll may name no topic at all. */
    int64_t topics = is_flexible ? (int64_t)get_uvarint(&c) - 1 : get_i32(&c);
    if (topics == 1) {
        bool is_ours = is_flexible ? skip_compact_string(&c, opt.topic) : skip_string(&c, opt.topic);
        int64_t count = is_flexible ? (int64_t)get_uvarint(&c) - 1 : get_i32(&c);
        if (!is_ours)
            wrong("a Fetch answer for another topic");
        for (; count > 0 && !c.bad && !is_over; count--)
            consume_partition(&c, now);
    }
    if (!is_over)
        send_fetch();
}

/* ---- the run -------------------------------------------------------------------------------------------- */

static void open_inbox(struct inbox *in) {
    in->fd = connect_blocking();
    in->wanted = 4;
    set_nonblocking(in->fd);
    watch(epoll_fd, in->fd, EPOLLIN, in, true);
}

static void set_up(void) {
    int control = connect_blocking();
    prepare_topic(control);
    partitions = must_alloc(sizeof *partitions * (size_t)opt.partitions);
    next_offsets = must_alloc(sizeof *next_offsets * (size_t)opt.partitions);
    for (int i = 0; i < opt.partitions; i++) {
        struct partition *p = &partitions[i];
        struct buffer batch = {0};
        size_t value_in_batch = put_batch(&batch, 1, opt.record_bytes);
        free(batch.data);
        build_produce(&p->frame, i, 1, opt.record_bytes, &p->records_at);
        p->value_at = p->records_at + value_in_batch;
        next_offsets[i] = list_offset(control, i, OFFSET_LATEST);
    }
    close(control);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    open_inbox(&producer);
    open_inbox(&consumer);
    /* The default 50 us by which the kernel may round a timer would be most of what we measure. */
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
}

void run_latency(void) {
    struct epoll_event events[4];
    if (opt.record_bytes < STAMP_BYTES)
        die(2, "latency needs records of at least %d bytes", STAMP_BYTES);
    if (opt.in_flight > PENDING_MAX)
        die(2, "latency allows at most %d in flight", PENDING_MAX);
    result.has_ack_latency = opt.acks != 0;
    set_up();
    send_fetch();
    phases_start(&phases);
    while (!is_over) {
        uint64_t now = now_ns();
        phases_step(&phases, now);
        uint64_t due = send_due(now), phase = next_phase_ns(&phases, now);
        bool is_done = consumed_total >= sent_total && (opt.acks == 0 || acked_total == sent_total);
        if (now >= phases.measure_to && (is_done || now >= phases.drain_to))
            break;
        int n = wait_events(epoll_fd, events, 4, due < phase ? due : phase);
        for (int i = 0; i < n && !is_over; i++) {
            if (events[i].data.ptr == &consumer) {
                while (!is_over && receive(&consumer, "the consumer connection"))
                    on_records(now_ns());
            } else {
                if (events[i].events & EPOLLOUT)
                    flush_out();
                while (!is_over && receive(&producer, "the producer connection"))
                    on_acknowledgement(now_ns());
            }
        }
    }
    phases_step(&phases, phases.measure_to);
    result.records = result.requests;
    result.bytes = result.requests * (uint64_t)opt.record_bytes;
    result.lost = sent_total - consumed_total;
    result.unanswered = opt.acks == 0 ? 0 : sent_total - acked_total;
}
