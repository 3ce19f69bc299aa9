/* Fetch: how fast a prepared topic leaves the page cache, at a limit of bytes per answer.
 *
 *   index pass (unmeasured): the whole topic is read once, every CRC checked, every batch's place noted
 *   then   connection i <==[one Fetch in flight]== partition i % partitions, round and round
 *
 * How the answers are read (--read):
 *   skip  the head and the first batch header are read, the rest is dropped inside the kernel (MSG_TRUNC): the
 *         generator then costs next to nothing and the broker's own limit shows
 *   copy  everything is copied to user space, as a client does, and every batch header checked
 *   crc   copy, and every CRC checked
 * The index pass tells in each case where the next request has to begin.
 */
#include "kload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS_MAX = 256, HEAD_BYTES_MAX = 1024, INDEX_FETCH_BYTES = 8 << 20,
       /* A varint length and an absent aborted list make a flexible head shorter than the longest by this. */
       HEAD_SLACK = 16 };

struct log_index {
    int64_t *base;     /* first offset of batch i; base[count] is the end of the log */
    int64_t *position; /* bytes in front of batch i; position[count] is the size */
    int64_t count, capacity;
};

struct connection {
    int fd, partition;
    int64_t batch; /* index of the batch that is asked for */
    int32_t correlation;
    struct buffer request;
    size_t sent;
    uint64_t asked_ns;
    bool is_dead, is_open; /* is_open: a request is out */
    uint8_t head[HEAD_BYTES_MAX];
    size_t got;   /* bytes of the answer so far, with its length field */
    size_t total; /* 0 until the length field is here */
    uint8_t *body; /* whole answer: copy and crc */
    size_t body_capacity;
};

static struct log_index *indexes;
static struct connection *connections;
static struct phases phases;
static int epoll_fd, alive;
static int64_t batches_left; /* once: of all connections; the interval ends with the last */
static size_t head_bytes_max; /* length field to the end of the first batch header */

void build_fetch(struct buffer *b, int first, int count, const int64_t *offsets, int max_wait_ms) {
    bool is_flexible = opt.fetch_version >= 12;
    begin_request(b, KEY_FETCH, opt.fetch_version, 0, is_flexible);
    put_i32(b, -1);
    put_i32(b, max_wait_ms);
    put_i32(b, 1);
    put_i32(b, opt.fetch_bytes);
    put_i8(b, 0);   /* read uncommitted */
    put_i32(b, 0);  /* no fetch session */
    put_i32(b, -1);
    if (is_flexible) {
        put_uvarint(b, 2);
        put_compact_string(b, opt.topic);
        put_uvarint(b, (uint64_t)count + 1);
    } else {
        put_i32(b, 1);
        put_string(b, opt.topic);
        put_i32(b, count);
    }
    for (int i = 0; i < count; i++) {
        put_i32(b, first + i);
        put_i32(b, -1); /* leader epoch unknown */
        put_i64(b, offsets[i]);
        if (is_flexible)
            put_i32(b, -1); /* last fetched epoch */
        put_i64(b, -1); /* log start: for replicas */
        put_i32(b, opt.fetch_bytes);
        if (is_flexible)
            put_uvarint(b, 0);
    }
    if (is_flexible) {
        put_uvarint(b, 0);                /* tagged fields of the topic */
        put_uvarint(b, 1);                /* nothing forgotten */
        put_uvarint(b, 1);                /* no rack */
        put_uvarint(b, 0);
    } else {
        put_i32(b, 0);
        put_string(b, "");
    }
    end_request(b);
}

size_t fetch_offset_at(void) {
    size_t fixed = 4 + 10 + strlen("kload") + 4 + 4 + 4 + 4 + 1 + 4 + 4 + strlen(opt.topic);
    return opt.fetch_version >= 12 ? fixed + 1 + 1 + 1 + 1 + 4 + 4 : fixed + 4 + 2 + 4 + 4 + 4;
}

/* Reads the head of an answer up to the records; false when it is wrong. *records_bytes may be 0. */
static bool read_head(struct cursor *c, int partition, int64_t *records_bytes) {
    bool is_flexible = opt.fetch_version >= 12, is_ours;
    int64_t topics, count, aborted;
    if (is_flexible)
        skip_tagged_fields(c);
    get_i32(c); /* throttle */
    int error = get_i16(c);
    get_i32(c); /* session */
    if (is_flexible) {
        topics = (int64_t)get_uvarint(c) - 1;
        is_ours = topics != 1 || skip_compact_string(c, opt.topic);
        count = (int64_t)get_uvarint(c) - 1;
    } else {
        topics = get_i32(c);
        is_ours = topics != 1 || skip_string(c, opt.topic);
        count = get_i32(c);
    }
    if (error != 0 || topics != 1 || count != 1 || !is_ours || c->bad) {
        wrong("Fetch: error %d, %lld topics, %lld partitions", error, (long long)topics, (long long)count);
        return false;
    }
    int index = get_i32(c), partition_error = get_i16(c);
    get_bytes(c, 24); /* high watermark, last stable offset, log start */
    aborted = is_flexible ? (int64_t)get_uvarint(c) - 1 : get_i32(c);
    get_i32(c); /* preferred read replica */
    *records_bytes = is_flexible ? (int64_t)get_uvarint(c) - 1 : get_i32(c);
    if (partition_error != 0 || index != partition || aborted > 0 || c->bad) {
        wrong("Fetch of partition %d: error %d for %d", partition, partition_error, index);
        return false;
    }
    *records_bytes = *records_bytes < 0 ? 0 : *records_bytes;
    return true;
}

/* ---- the index pass ------------------------------------------------------------------------------------- */

static void note_batch(struct log_index *index, const struct batch *batch) {
    if (index->count + 1 >= index->capacity) {
        index->capacity = (index->capacity + 512) * 2;
        index->base = must_realloc(index->base, sizeof(int64_t) * (size_t)index->capacity);
        index->position = must_realloc(index->position, sizeof(int64_t) * (size_t)index->capacity);
    }
    int64_t here = index->count ? index->position[index->count] : 0;
    index->base[index->count] = batch->base_offset;
    index->position[index->count] = here;
    index->count++;
    index->base[index->count] = batch->base_offset + batch->last_offset_delta + 1;
    index->position[index->count] = here + batch->bytes;
}

static void index_partition(int control, int partition) {
    struct log_index *index = &indexes[partition];
    struct buffer request = {0}, answer = {0};
    int64_t next = list_offset(control, partition, OFFSET_EARLIEST);
    int64_t end = list_offset(control, partition, OFFSET_LATEST);
    int limit = opt.fetch_bytes;
    if (next == end)
        die(1, "partition %d of %s is empty: run the prepare mode first", partition, opt.topic);
    opt.fetch_bytes = INDEX_FETCH_BYTES;
    while (next < end) {
        build_fetch(&request, partition, 1, &next, 1000);
        struct cursor c = call(control, &request, &answer);
        int64_t bytes = 0, before = next;
        if (!read_head(&c, partition, &bytes) || bytes > c.end - c.at)
            die(1, "index pass: %s", result.first_error);
        for (struct batch batch; bytes >= BATCH_HEADER_BYTES; bytes -= batch.bytes) {
            if (!read_batch_header(c.at, (size_t)bytes, &batch))
                die(1, "index pass: %s", result.first_error);
            if (batch.bytes > bytes)
                break; /* cut at the limit, as Kafka does; it comes again, whole */
            if (batch.base_offset != next || !has_right_crc(c.at, &batch))
                die(1, "index pass: batch at %lld, expected %lld; %s", (long long)batch.base_offset,
                    (long long)next, result.first_error);
            note_batch(index, &batch);
            next = batch.base_offset + batch.last_offset_delta + 1;
            get_bytes(&c, batch.bytes);
        }
        if (next == before)
            die(1, "index pass: nothing at offset %lld of partition %d", (long long)next, partition);
    }
    opt.fetch_bytes = limit;
    free(request.data);
    free(answer.data);
}

/* How many batches from `from` on are whole within `bytes`. */
static int64_t batches_within(const struct log_index *index, int64_t from, int64_t bytes) {
    int64_t wanted = index->position[from] + bytes, low = from, high = index->count;
    while (low < high) { /* the last i with position[i] <= wanted */
        int64_t middle = (low + high + 1) / 2;
        if (index->position[middle] <= wanted)
            low = middle;
        else
            high = middle - 1;
    }
    return low - from;
}

/* ---- the measured part ---------------------------------------------------------------------------------- */

static void drop(struct connection *c, const char *why) {
    if (c->is_dead)
        return;
    wrong("connection lost: %s", why);
    c->is_dead = true;
    result.unanswered += c->is_open;
    alive--;
    net_close(c->fd);
}

static void ask(struct connection *c) {
    struct log_index *index = &indexes[c->partition];
    bool is_at_end = c->batch >= index->count;
    if (is_at_end)
        c->batch = 0;
    c->asked_ns = now_ns();
    if (c->asked_ns >= phases.measure_to || (is_at_end && opt.is_once)) {
        c->is_open = false;
        return;
    }
    c->is_open = true;
    c->got = c->total = 0;
    set_i32(c->request.data + CORRELATION_AT, ++c->correlation);
    set_i64(c->request.data + fetch_offset_at(), index->base[c->batch]);
    ssize_t n = net_send(c->fd, c->request.data, c->request.length);
    if (n != (ssize_t)c->request.length) /* a hundred bytes into an empty socket buffer */
        drop(c, n < 0 ? strerror(errno) : "a request went out in part");
}

/* Every batch header of a copied answer, and its CRC when asked for. */
static void check_batches(struct connection *c, const uint8_t *at, int64_t bytes) {
    int64_t expected = indexes[c->partition].base[c->batch];
    for (struct batch batch; bytes >= BATCH_HEADER_BYTES; at += batch.bytes, bytes -= batch.bytes) {
        if (!read_batch_header(at, (size_t)bytes, &batch))
            return;
        if (batch.base_offset != expected)
            wrong("batch at offset %lld, expected %lld", (long long)batch.base_offset, (long long)expected);
        if (batch.bytes > bytes || (opt.read_mode == READ_CRC && !has_right_crc(at, &batch)))
            return;
        expected = batch.base_offset + batch.last_offset_delta + 1;
    }
}

static void finish_answer(struct connection *c) {
    uint64_t now = now_ns();
    const uint8_t *data = opt.read_mode == READ_SKIP ? c->head : c->body;
    size_t here = opt.read_mode == READ_SKIP && c->total > head_bytes_max ? head_bytes_max : c->total;
    struct cursor cursor = {data + 4, data + here, false};
    int64_t bytes = 0;
    int32_t correlation = get_i32(&cursor);
    if (correlation != c->correlation) {
        wrong("correlation id %d answered with %d", c->correlation, correlation);
        drop(c, "answers out of order");
        return;
    }
    if (!read_head(&cursor, c->partition, &bytes)) {
        drop(c, "a wrong Fetch answer");
        return;
    }
    int64_t whole = batches_within(&indexes[c->partition], c->batch, bytes);
    struct batch first;
    if (whole == 0 || !read_batch_header(cursor.at, (size_t)(cursor.end - cursor.at), &first)
        || first.base_offset != indexes[c->partition].base[c->batch]) {
        wrong("offset %lld was answered with %lld bytes and no whole batch that begins there",
              (long long)indexes[c->partition].base[c->batch], (long long)bytes);
        drop(c, "a wrong Fetch answer");
        return;
    }
    if (opt.read_mode != READ_SKIP)
        check_batches(c, cursor.at, bytes);
    if (is_measured(&phases, now)) {
        result.requests++;
        result.bytes += (uint64_t)bytes;
        result.records += (uint64_t)(indexes[c->partition].base[c->batch + whole]
                                     - indexes[c->partition].base[c->batch]);
        hist_record(&result.latency, now - c->asked_ns);
    }
    c->batch += whole;
    batches_left -= whole;
    if (opt.is_once && batches_left <= 0)
        phases.measure_to = now + 1; /* everything was read: the interval ends here */
    ask(c);
}

/* Where the next bytes go: the head, then the void (NULL) or the copy. */
static uint8_t *destination(struct connection *c, size_t *room) {
    size_t wanted = c->total ? c->total : head_bytes_max;
    if (opt.read_mode != READ_SKIP && c->total) {
        if (c->body_capacity < c->total) {
            c->body = must_realloc(c->body, c->total);
            c->body_capacity = c->total;
        }
        if (c->got <= head_bytes_max)
            memcpy(c->body, c->head, c->got);
        *room = wanted - c->got;
        return c->body + c->got;
    }
    size_t head = wanted < head_bytes_max ? wanted : head_bytes_max;
    *room = c->got < head ? head - c->got : wanted - c->got;
    return c->got < head ? c->head + c->got : NULL;
}

static void on_readable(struct connection *c) {
    for (;;) {
        size_t room;
        uint8_t *to = destination(c, &room);
        ssize_t n = net_recv(c->fd, to, room);
        if (n <= 0) {
            if (n == 0 || (errno != EAGAIN && errno != EINTR))
                drop(c, n ? strerror(errno) : "closed by the broker");
            return;
        }
        c->got += (size_t)n;
        if (!c->total && c->got >= 4) {
            struct cursor length_cursor = {c->head, c->head + 4, false};
            int32_t length = get_i32(&length_cursor);
            if (length < 4 || length > FRAME_BYTES_MAX) {
                drop(c, "an answer of impossible length");
                return;
            }
            c->total = 4 + (size_t)length;
            if (c->got > c->total) {
                drop(c, "more bytes than the answer has");
                return;
            }
        }
        if (c->total && c->got == c->total) {
            finish_answer(c);
            return; /* level-triggered: the next answer wakes us, and others get their turn */
        }
    }
}

static void open_connections(void) {
    connections = must_alloc(sizeof *connections * (size_t)opt.connections);
    for (int i = 0; i < opt.connections; i++) {
        struct connection *c = &connections[i];
        int64_t zero = 0;
        c->partition = i % opt.partitions;
        /* Spread over the log: readers in step would be served from one another's cache lines. */
        c->batch = opt.is_once ? 0 : indexes[c->partition].count * i / opt.connections;
        batches_left += indexes[c->partition].count;
        build_fetch(&c->request, c->partition, 1, &zero, 500);
        c->fd = connect_blocking();
        set_nonblocking(c->fd);
        watch(epoll_fd, c->fd, EPOLLIN, c, true);
        alive++;
    }
}

void run_fetch(void) {
    int control = connect_blocking();
    prepare_topic(control);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    indexes = must_alloc(sizeof *indexes * (size_t)opt.partitions);
    for (int i = 0; i < opt.partitions; i++)
        index_partition(control, i);
    net_close(control);
    head_bytes_max = 4 + 64 + strlen(opt.topic) + HEAD_SLACK + BATCH_HEADER_BYTES;
    open_connections();
    if (opt.is_held) {
        char line[16];
        say_held();
        if (!fgets(line, sizeof line, stdin))
            die(1, "whoever was told that all is ready said nothing");
    }
    phases_start(&phases);
    for (int i = 0; i < opt.connections; i++)
        ask(&connections[i]);
    struct epoll_event events[EVENTS_MAX];
    while (alive > 0) {
        uint64_t now = now_ns();
        int open = 0;
        phases_step(&phases, now);
        for (int i = 0; i < opt.connections && now >= phases.measure_to; i++)
            open += !connections[i].is_dead && connections[i].is_open;
        if (now >= phases.measure_to && (open == 0 || now >= phases.drain_to)) {
            result.unanswered += (uint64_t)open;
            break;
        }
        int n = wait_events(epoll_fd, events, EVENTS_MAX, next_phase_ns(&phases, now));
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c->is_dead && c->is_open)
                on_readable(c);
            else if (!c->is_dead && events[i].events & (EPOLLHUP | EPOLLERR))
                drop(c, "closed by the broker");
        }
    }
    phases_step(&phases, phases.measure_to);
}
