/* Produce-to-consume latency in an open loop, and the throughput of consumers at the log's end in a closed one.
 *
 *   clock --due--> producer connection ==Produce, one batch==> broker ==long-poll Fetch==> consumer 0..C-1
 *                  first value: [due time i64][sequence i64][filler]                        now - due time
 *
 *   tail: no clock; a batch leaves while fewer than --in-flight are on their way to the slowest consumer
 *
 * Each consumer reads everything, on a connection of its own. A batch counts as one request for each of them.
 * The due time is when the record should have left, not when it did: a broker that stalls for 10 ms delays the
 * ten records that were due meanwhile too, and a loop that waits for it would never notice (coordinated
 * omission). Sequences per partition must arrive dense: a gap is a loss, a step back a duplicate. Every consumer looks
 * at each batch's header and stamp; the first checks the CRC as well (200 times the same bytes would be our CPU).
 */
#include "kload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STAMP_BYTES = 16, LONG_POLL_MS = 500, PENDING_MAX = 1 << 16, OUT_BYTES_MAX = 64 << 20,
       EVENTS_MAX = 256 };

struct inbox {
    int fd;
    struct buffer bytes; /* one answer, from its length field on, as far as it has come */
    size_t wanted;       /* 4 until the length is known */
};

struct partition {
    struct buffer frame;
    size_t records_at, value_at;
    int64_t sent; /* batches */
};

struct consumer {
    struct inbox in; /* first: the event's tag is either */
    int64_t *next_offsets, *next_sequences; /* by partition */
    uint64_t consumed;                      /* batches */
    struct buffer fetch;
    int32_t correlation;
};

struct pending {
    uint64_t due_ns;
    int partition;
};

static struct partition *partitions;
static struct phases phases;
static int epoll_fd;
static struct inbox producer;
static struct consumer *consumers;
static struct pending pending[PENDING_MAX];
static uint64_t sent_total, acked_total, consumed_total; /* batches; consumed: by all together */
static struct buffer out;
static size_t out_at;
static bool producer_wants_out, is_over;

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
        ssize_t n = net_recv(in->fd, in->bytes.data + in->bytes.length, in->wanted - in->bytes.length);
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
        ssize_t n = net_send(producer.fd, out.data + out_at, out.length - out_at);
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

static uint64_t slowest_consumed(void) {
    uint64_t least = consumers[0].consumed;
    for (int i = 1; i < opt.consumers; i++)
        least = consumers[i].consumed < least ? consumers[i].consumed : least;
    return least;
}

/* Sends all that is due; returns when the next record is. */
static uint64_t send_due(uint64_t now) {
    uint64_t due, window = (uint64_t)opt.in_flight;
    for (;; ) {
        due = opt.rate > 0 ? phases.start + (uint64_t)(1e9 * opt.batch_records / opt.rate * (double)sent_total) : now;
        if (due >= phases.measure_to) {
            due = UINT64_MAX;
            break;
        }
        if (due > now)
            break;
        bool is_full = opt.acks != 0 && sent_total - acked_total >= window;
        is_full |= opt.rate <= 0 && sent_total - slowest_consumed() >= window;
        if (is_full || out.length > OUT_BYTES_MAX) {
            due = UINT64_MAX; /* an answer or a writable socket wakes us; the record keeps its due time */
            break;
        }
        if (opt.rate > 0 && is_measured(&phases, due))
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

static void send_fetch(struct consumer *to) {
    build_fetch(&to->fetch, 0, opt.partitions, to->next_offsets, LONG_POLL_MS);
    set_i32(to->fetch.data + CORRELATION_AT, ++to->correlation);
    ssize_t n = net_send(to->in.fd, to->fetch.data, to->fetch.length);
    if (n != (ssize_t)to->fetch.length)
        give_up("a consumer connection", n < 0 ? strerror(errno) : "a request went out in part");
}

/* The stamp in the value of a batch's first record. */
static bool read_stamp(const uint8_t *data, const struct batch *batch, uint64_t *due, int64_t *sequence) {
    struct cursor record = {data + BATCH_HEADER_BYTES, data + batch->bytes, false};
    get_varint(&record); /* length */
    get_i8(&record);
    get_varint(&record); /* timestamp delta */
    get_varint(&record); /* offset delta */
    int64_t key = get_varint(&record);
    get_bytes(&record, key > 0 ? key : 0);
    int64_t bytes = get_varint(&record);
    *due = (uint64_t)get_i64(&record);
    *sequence = get_i64(&record);
    if (!record.bad && bytes == opt.record_bytes && batch->count == opt.batch_records)
        return true;
    wrong("a batch of %d records, the first of %lld bytes, that is not ours", batch->count, (long long)bytes);
    return false;
}

static void consume_batch(struct consumer *by, int index, const uint8_t *data, const struct batch *batch,
                          uint64_t now) {
    uint64_t due;
    int64_t sequence;
    if (batch->base_offset != by->next_offsets[index])
        wrong("batch at offset %lld, expected %lld", (long long)batch->base_offset,
              (long long)by->next_offsets[index]);
    by->next_offsets[index] = batch->base_offset + batch->last_offset_delta + 1;
    if ((by == consumers && !has_right_crc(data, batch)) || !read_stamp(data, batch, &due, &sequence))
        return;
    if (sequence < by->next_sequences[index]) {
        result.duplicates++;
        wrong("batch %lld of partition %d came again", (long long)sequence, index);
        return;
    }
    if (sequence > by->next_sequences[index])
        wrong("batch %lld of partition %d came after %lld", (long long)sequence, index,
              (long long)by->next_sequences[index] - 1);
    by->next_sequences[index] = sequence + 1;
    by->consumed++;
    consumed_total++;
    if (is_measured(&phases, opt.rate > 0 ? due : now)) {
        result.requests++;
        result.records += (uint64_t)batch->count;
        result.bytes += (uint64_t)batch->bytes;
        hist_record(&result.latency, now - due);
    }
}

static void consume_partition(struct consumer *by, struct cursor *c, uint64_t now) {
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
        consume_batch(by, index, at, &batch, now);
    }
}

static void on_records(struct consumer *by, uint64_t now) {
    struct cursor c = take(&by->in);
    bool is_flexible = opt.fetch_version >= 12;
    if (get_i32(&c) != by->correlation) {
        give_up("a consumer connection", "answers out of order");
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
            consume_partition(by, &c, now);
    }
    if (!is_over)
        send_fetch(by);
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
    consumers = must_alloc(sizeof *consumers * (size_t)opt.consumers);
    for (int i = 0; i < opt.consumers; i++) {
        consumers[i].next_offsets = must_alloc(sizeof(int64_t) * (size_t)opt.partitions);
        consumers[i].next_sequences = must_alloc(sizeof(int64_t) * (size_t)opt.partitions);
    }
    for (int i = 0; i < opt.partitions; i++) {
        struct partition *p = &partitions[i];
        struct buffer batch = {0};
        size_t value_in_batch = put_batch(&batch, opt.batch_records, opt.record_bytes);
        free(batch.data);
        build_produce(&p->frame, i, opt.batch_records, opt.record_bytes, &p->records_at);
        p->value_at = p->records_at + value_in_batch;
        consumers[0].next_offsets[i] = list_offset(control, i, OFFSET_LATEST);
        for (int other = 1; other < opt.consumers; other++)
            consumers[other].next_offsets[i] = consumers[0].next_offsets[i];
    }
    net_close(control);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    open_inbox(&producer);
    for (int i = 0; i < opt.consumers; i++)
        open_inbox(&consumers[i].in);
    /* The default 50 us by which the kernel may round a timer would be most of what we measure. */
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
}

/* Due so far and not consumed by the slowest, when the interval begins and when it ends. */
static void note_backlog(uint64_t now) {
    double per_ns = opt.rate / opt.batch_records / 1e9;
    if (opt.rate > 0 && !phases.begun && now >= phases.measure_from)
        result.backlog_begin =
            (int64_t)((double)(phases.measure_from - phases.start) * per_ns) - (int64_t)slowest_consumed();
    if (opt.rate > 0 && !phases.ended && now >= phases.measure_to)
        result.backlog_end =
            (int64_t)((double)(phases.measure_to - phases.start) * per_ns) - (int64_t)slowest_consumed();
}

void run_latency(void) {
    struct epoll_event events[EVENTS_MAX];
    if (opt.record_bytes < STAMP_BYTES)
        die(2, "latency needs records of at least %d bytes", STAMP_BYTES);
    if (opt.mode == MODE_TAIL)
        opt.rate = 0;
    if (opt.in_flight > PENDING_MAX)
        die(2, "latency allows at most %d in flight", PENDING_MAX);
    if (opt.mode == MODE_TAIL && opt.acks == 0)
        die(2, "tail needs acknowledgements: --acks 1 or -1");
    result.has_ack_latency = opt.acks != 0;
    set_up();
    for (int i = 0; i < opt.consumers; i++)
        send_fetch(&consumers[i]);
    phases_start(&phases);
    while (!is_over) {
        uint64_t now = now_ns();
        note_backlog(now);
        phases_step(&phases, now);
        uint64_t due = send_due(now), phase = next_phase_ns(&phases, now);
        uint64_t wanted = sent_total * (uint64_t)opt.consumers;
        bool is_done = consumed_total >= wanted && (opt.acks == 0 || acked_total == sent_total);
        if (now >= phases.measure_to && (is_done || now >= phases.drain_to))
            break;
        int n = wait_events(epoll_fd, events, EVENTS_MAX, due < phase ? due : phase);
        for (int i = 0; i < n && !is_over; i++) {
            if (events[i].data.ptr != &producer) {
                struct consumer *by = events[i].data.ptr;
                while (!is_over && receive(&by->in, "a consumer connection"))
                    on_records(by, now_ns());
            } else {
                if (events[i].events & EPOLLOUT)
                    flush_out();
                while (!is_over && receive(&producer, "the producer connection"))
                    on_acknowledgement(now_ns());
            }
        }
    }
    phases_step(&phases, phases.measure_to);
    result.lost = sent_total * (uint64_t)opt.consumers - consumed_total;
    if (result.lost > 0)
        wrong("%llu batches were not consumed", (unsigned long long)result.lost);
    result.unanswered = opt.acks == 0 ? 0 : sent_total - acked_total;
}
