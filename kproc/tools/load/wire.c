/* Bytes: big-endian fields in and out, and the few requests that set a run up.
 *
 * Set-up uses old, non-flexible versions that Kafka 4.3 still serves (Metadata v4, CreateTopics v2, ListOffsets
 * v1): they are the simplest to get right, and set-up is not measured.
 */
#include "kload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint8_t *grow(struct buffer *b, size_t length) {
    if (b->length + length > b->capacity) {
        b->capacity = (b->length + length) * 2;
        b->data = must_realloc(b->data, b->capacity);
    }
    b->length += length;
    return b->data + b->length - length;
}

void put_bytes(struct buffer *b, const void *data, size_t length) { memcpy(grow(b, length), data, length); }
void put_i8(struct buffer *b, int v) { *grow(b, 1) = (uint8_t)v; }
void put_i16(struct buffer *b, int v) { set_i16(grow(b, 2), v); }
void put_i32(struct buffer *b, int64_t v) { set_i32(grow(b, 4), v); }
void put_i64(struct buffer *b, int64_t v) { set_i64(grow(b, 8), v); }

void put_string(struct buffer *b, const char *s) {
    put_i16(b, (int)strlen(s));
    put_bytes(b, s, strlen(s));
}

void put_compact_string(struct buffer *b, const char *s) {
    put_uvarint(b, strlen(s) + 1);
    put_bytes(b, s, strlen(s));
}

void put_uvarint(struct buffer *b, uint64_t v) {
    while (v >= 0x80) {
        put_i8(b, (int)(v & 0x7f) | 0x80);
        v >>= 7;
    }
    put_i8(b, (int)v);
}

void put_varint(struct buffer *b, int64_t v) { put_uvarint(b, ((uint64_t)v << 1) ^ (uint64_t)(v >> 63)); }

void set_i16(uint8_t *p, int v) {
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

void set_i32(uint8_t *p, int64_t v) {
    uint32_t big = __builtin_bswap32((uint32_t)v);
    memcpy(p, &big, 4);
}

void set_i64(uint8_t *p, int64_t v) {
    uint64_t big = __builtin_bswap64((uint64_t)v);
    memcpy(p, &big, 8);
}

const uint8_t *get_bytes(struct cursor *c, int64_t length) {
    static const uint8_t zeros[16];
    if (length < 0 || length > c->end - c->at) {
        c->bad = true;
        c->at = c->end;
        return zeros;
    }
    c->at += length;
    return c->at - length;
}

int get_i8(struct cursor *c) { return (int8_t)*get_bytes(c, 1); }

int get_i16(struct cursor *c) {
    const uint8_t *p = get_bytes(c, 2);
    return (int16_t)(p[0] << 8 | p[1]);
}

int32_t get_i32(struct cursor *c) {
    uint32_t v;
    memcpy(&v, get_bytes(c, 4), 4);
    return (int32_t)__builtin_bswap32(v);
}

int64_t get_i64(struct cursor *c) {
    uint64_t v;
    memcpy(&v, get_bytes(c, 8), 8);
    return (int64_t)__builtin_bswap64(v);
}

uint64_t get_uvarint(struct cursor *c) {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = *get_bytes(c, 1);
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return v;
    }
    c->bad = true;
    return 0;
}

int64_t get_varint(struct cursor *c) {
    uint64_t v = get_uvarint(c);
    return (int64_t)(v >> 1) ^ -(int64_t)(v & 1);
}

static bool skip_text(struct cursor *c, int64_t length, const char *expected) {
    const uint8_t *text = get_bytes(c, length);
    return !c->bad && (!expected || ((size_t)length == strlen(expected) && !memcmp(text, expected, (size_t)length)));
}

bool skip_string(struct cursor *c, const char *expected) {
    int length = get_i16(c);
    return length < 0 ? expected == NULL : skip_text(c, length, expected); /* -1: null */
}

bool skip_compact_string(struct cursor *c, const char *expected) {
    uint64_t length = get_uvarint(c);
    return length == 0 ? expected == NULL : skip_text(c, (int64_t)length - 1, expected); /* 0: null */
}

void skip_tagged_fields(struct cursor *c) {
    for (uint64_t left = get_uvarint(c); left > 0 && !c->bad; left--) {
        get_uvarint(c);
        get_bytes(c, (int64_t)get_uvarint(c));
    }
}

void begin_request(struct buffer *b, int key, int version, int32_t correlation, bool is_flexible) {
    b->length = 0;
    put_i32(b, 0);
    put_i16(b, key);
    put_i16(b, version);
    put_i32(b, correlation);
    put_string(b, "kload"); /* the client id stays an int16 string in every header version */
    if (is_flexible)
        put_uvarint(b, 0);
}

void end_request(struct buffer *b) { set_i32(b->data, (int64_t)b->length - 4); }

static void write_all(int fd, const uint8_t *data, size_t length) {
    while (length > 0) {
        ssize_t n = net_send(fd, data, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            die(1, "the broker closed the set-up connection while it was sent a request: %s", strerror(errno));
        data += n;
        length -= (size_t)n;
    }
}

static void read_all(int fd, uint8_t *data, size_t length) {
    while (length > 0) {
        ssize_t n = net_recv(fd, data, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            die(1, "the broker closed the set-up connection instead of answering: %s",
                n ? strerror(errno) : "end of stream");
        data += n;
        length -= (size_t)n;
    }
}

struct cursor call(int fd, struct buffer *request, struct buffer *answer) {
    write_all(fd, request->data, request->length);
    uint8_t head[4];
    read_all(fd, head, 4);
    struct cursor length_cursor = {head, head + 4, false};
    int32_t length = get_i32(&length_cursor);
    if (length < 4 || length > FRAME_BYTES_MAX)
        die(1, "an answer of %d bytes", length);
    answer->length = 0;
    uint8_t *body = grow(answer, (size_t)length);
    read_all(fd, body, (size_t)length);
    struct cursor c = {body, body + length, false};
    struct cursor sent = {request->data + CORRELATION_AT, request->data + CORRELATION_AT + 4, false};
    int32_t wanted = get_i32(&sent), got = get_i32(&c);
    if (wanted != got)
        die(1, "correlation id %d answered with %d", wanted, got);
    return c;
}

/* Kafka refuses a request that would make more than 10,000 records of metadata: larger topics are made in steps. */
enum { PARTITIONS_A_REQUEST_MAX = 5000 };

static int at_most(int count, int limit) {
    return count < limit ? count : limit;
}

/* The error of the one topic in an answer; what asked is for the message when it cannot be read. */
static int topic_error(struct cursor *c, const char *what) {
    get_i32(c); /* throttle */
    int topics = get_i32(c);
    bool is_ours = skip_string(c, opt.topic);
    int error = get_i16(c);
    if (c->bad || topics != 1 || !is_ours)
        die(1, "%s: an answer that cannot be read", what);
    return error;
}

static void create_partitions(int fd, int count) {
    struct buffer request = {0}, answer = {0};
    begin_request(&request, KEY_CREATE_PARTITIONS, 1, 7, false);
    put_i32(&request, 1);
    put_string(&request, opt.topic);
    put_i32(&request, count);
    put_i32(&request, -1); /* no manual assignment */
    put_i32(&request, SETUP_SECONDS_MAX * 1000);
    put_i8(&request, 0); /* not validate-only */
    end_request(&request);
    struct cursor c = call(fd, &request, &answer);
    int error = topic_error(&c, "CreatePartitions");
    if (error != 0)
        die(1, "CreatePartitions up to %d: error %d", count, error);
    free(request.data);
    free(answer.data);
}

void create_topic(int fd) {
    struct buffer request = {0}, answer = {0};
    int made = at_most(opt.partitions, PARTITIONS_A_REQUEST_MAX);
    begin_request(&request, KEY_CREATE_TOPICS, 2, 1, false);
    put_i32(&request, 1);
    put_string(&request, opt.topic);
    put_i32(&request, made);
    put_i16(&request, 1); /* replication factor */
    put_i32(&request, 0); /* no manual assignment */
    put_i32(&request, opt.topic_config_count);
    for (int i = 0; i < opt.topic_config_count; i++) {
        const char *equals = strchr(opt.topic_configs[i], '=');
        size_t name_length = (size_t)(equals - opt.topic_configs[i]);
        put_i16(&request, (int)name_length);
        put_bytes(&request, opt.topic_configs[i], name_length);
        put_string(&request, equals + 1);
    }
    put_i32(&request, SETUP_SECONDS_MAX * 1000);
    put_i8(&request, 0); /* not validate-only */
    end_request(&request);
    struct cursor c = call(fd, &request, &answer);
    int error = topic_error(&c, "CreateTopics");
    if (error != 0 && error != TOPIC_ALREADY_EXISTS)
        die(1, "CreateTopics: error %d", error);
    free(request.data);
    free(answer.data);
    while (error == 0 && made < opt.partitions) {
        made = at_most(opt.partitions, made + PARTITIONS_A_REQUEST_MAX);
        create_partitions(fd, made);
    }
}

/* True when every partition of the topic has a leader. */
bool has_leaders(int fd) {
    struct buffer request = {0}, answer = {0};
    begin_request(&request, KEY_METADATA, 4, 2, false);
    put_i32(&request, 1);
    put_string(&request, opt.topic);
    put_i8(&request, 0); /* no automatic creation */
    end_request(&request);
    struct cursor c = call(fd, &request, &answer);
    get_i32(&c); /* throttle */
    for (int left = get_i32(&c); left > 0 && !c.bad; left--) {
        get_i32(&c);
        skip_string(&c, NULL);
        get_i32(&c);
        skip_string(&c, NULL);
    }
    skip_string(&c, NULL); /* cluster id */
    get_i32(&c);           /* controller */
    int topics = get_i32(&c), error = get_i16(&c);
    bool is_ours = skip_string(&c, opt.topic);
    get_i8(&c);
    int partitions = get_i32(&c), ready = 0;
    for (int left = partitions; left > 0 && !c.bad; left--) {
        int partition_error = get_i16(&c);
        get_i32(&c);
        int leader = get_i32(&c); /* there also when it is not known yet */
        ready += partition_error == 0 && leader >= 0;
        for (int list = 0; list < 2; list++) /* replicas, in-sync replicas */
            get_bytes(&c, 4 * (int64_t)get_i32(&c));
    }
    if (c.bad || topics != 1 || !is_ours)
        die(1, "Metadata: an answer that cannot be read");
    free(request.data);
    free(answer.data);
    bool is_growing = partitions < opt.partitions && partitions % PARTITIONS_A_REQUEST_MAX == 0;
    if (error == 0 && partitions != opt.partitions && !is_growing)
        die(1, "topic %s has %d partitions, not the %d asked for", opt.topic, partitions, opt.partitions);
    return error == 0 && ready == opt.partitions;
}

void prepare_topic(int fd) {
    create_topic(fd);
    /* Kafka answers CreateTopics before its own metadata cache shows the topic. */
    uint64_t deadline = now_ns() + SETUP_SECONDS_MAX * 1000000000ull;
    while (!has_leaders(fd)) {
        if (now_ns() > deadline)
            die(1, "topic %s has no leader after %d s", opt.topic, SETUP_SECONDS_MAX);
        nap_ms(5);
    }
}

void delete_topic(int fd) {
    struct buffer request = {0}, answer = {0};
    begin_request(&request, KEY_DELETE_TOPICS, 1, 4, false);
    put_i32(&request, 1);
    put_string(&request, opt.topic);
    put_i32(&request, 30000);
    end_request(&request);
    struct cursor c = call(fd, &request, &answer);
    int error = topic_error(&c, "DeleteTopics");
    if (error != 0)
        die(1, "DeleteTopics of %s: error %d", opt.topic, error);
    free(request.data);
    free(answer.data);
}

static int list_offset_once(int fd, int partition, int64_t timestamp, int64_t *offset) {
    struct buffer request = {0}, answer = {0};
    begin_request(&request, KEY_LIST_OFFSETS, 1, 3, false);
    put_i32(&request, -1);
    put_i32(&request, 1);
    put_string(&request, opt.topic);
    put_i32(&request, 1);
    put_i32(&request, partition);
    put_i64(&request, timestamp);
    end_request(&request);
    struct cursor c = call(fd, &request, &answer);
    int topics = get_i32(&c);
    bool is_ours = skip_string(&c, opt.topic);
    int partitions = get_i32(&c), index = get_i32(&c), error = get_i16(&c);
    get_i64(&c); /* timestamp */
    *offset = get_i64(&c);
    if (c.bad || topics != 1 || partitions != 1 || !is_ours || index != partition)
        die(1, "ListOffsets: an answer that cannot be read");
    free(request.data);
    free(answer.data);
    return error;
}

int64_t list_offset(int fd, int partition, int64_t timestamp) {
    uint64_t deadline = now_ns() + SETUP_SECONDS_MAX * 1000000000ull;
    for (;;) {
        int64_t offset;
        int error = list_offset_once(fd, partition, timestamp, &offset);
        if (error == 0)
            return offset;
        /* Kafka shows a new topic's leader before that leader knows of its partitions. */
        if (!may_pass(error) || now_ns() > deadline)
            die(1, "ListOffsets of partition %d: error %d", partition, error);
        nap_ms(5);
    }
}
