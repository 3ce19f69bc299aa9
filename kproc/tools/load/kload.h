/* kload: what every part of the load generator shares.
 *
 *   kload (one thread, one epoll) ==== loopback TCP ==== broker under test
 *
 * One thread is enough because the generator must stay far lighter than the broker: it shares the machine with
 * it. Nothing here is specific to one broker; both sides of a comparison run the identical binary.
 *
 * Files: kload.c options and report · net.c sockets, clocks, phases · wire.c encoding and the set-up requests ·
 * tls.c what is sent and received, perhaps encrypted · batch.c record batches and CRC-32C · produce.c fetch.c latency.c churn.c touch.c the modes.
 */
#ifndef KLOAD_H
#define KLOAD_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/uio.h>

/* ---- options ------------------------------------------------------------------------------------------- */

enum mode { MODE_PRODUCE, MODE_FETCH, MODE_LATENCY, MODE_TAIL, MODE_CHURN, MODE_IDLE, MODE_PREPARE, MODE_DELETE,
            MODE_TOUCH };
enum read_mode { READ_SKIP, READ_COPY, READ_CRC };

#define PIDS_MAX 256
#define TOPIC_CONFIGS_MAX 16

struct options {
    enum mode mode;
    struct sockaddr_in address;
    const char *topic;
    const char *topic_configs[TOPIC_CONFIGS_MAX]; /* "name=value" */
    int topic_config_count;
    int partitions;
    int connections;
    int consumers; /* latency and tail: each reads everything */
    int in_flight;
    int record_bytes;  /* of the value; keys and headers are absent */
    int batch_records; /* 0: as many as fit into batch_bytes */
    int batch_bytes;
    const char *batch_file; /* one record batch, made elsewhere: compressed ones */
    int acks;
    int produce_version;
    int fetch_version;
    int fetch_bytes;
    int64_t fill_bytes; /* prepare: log bytes wanted in the topic */
    enum read_mode read_mode;
    bool is_held; /* fetch: say "held" when ready to begin, and wait for a line on stdin */
    bool is_once; /* fetch: no batch twice; the interval ends with the log */
    const char *tls; /* the authorities' certificates, as PEM; NULL: no TLS */
    bool is_frugal;  /* TLS: as little memory for each connection as there is */
    double rate;  /* records per second, 0: closed loop */
    double seconds, warmup, drain;
    int pids[PIDS_MAX]; /* processes whose CPU is read at both ends of the measured interval */
    int pid_count;
};

extern struct options opt;

/* ---- results (kload.c) --------------------------------------------------------------------------------- */

/* Log-linear like HdrHistogram: 128 steps an octave, so a value is kept within 0.8 %. */
#define HIST_STEPS_LOG2 7
#define HIST_OCTAVES 41 /* up to 2^47 ns: more than a day */
struct histogram {
    uint64_t count, sum, min, max;
    uint64_t buckets[HIST_OCTAVES << HIST_STEPS_LOG2];
};
void hist_record(struct histogram *h, uint64_t ns);

struct results {
    uint64_t requests, records, bytes; /* finished inside the measured interval, payload as batches */
    uint64_t errors;                   /* wrong answers of any kind */
    uint64_t lost;                     /* acknowledged or sent, and not in the log, or never consumed */
    uint64_t duplicates;               /* one base offset answered twice, or one record consumed twice */
    uint64_t unanswered;               /* still open when the drain time was over */
    uint64_t connections_failed;
    int64_t backlog_begin, backlog_end; /* open loop: due and not answered, at both ends of the interval */
    double create_seconds, leaders_seconds; /* touch */
    double seconds; /* length of the measured interval as it was */
    struct histogram latency;
    struct histogram ack_latency; /* latency mode: intended send to acknowledgement */
    struct histogram lateness;    /* open loop: intended to actual send, the generator's own share */
    struct histogram metadata;    /* touch: one Metadata of the whole topic */
    bool has_ack_latency;
    char first_error[256];
};

extern struct results result;

/* Counts a wrong answer; keeps the first description, which usually explains the rest. */
void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Stops the run: nothing sensible can be measured (no broker, no memory, usage). */
void die(int status, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
void *must_alloc(size_t bytes);
void *must_realloc(void *old, size_t bytes);

/* ---- sockets, clock, phases (net.c) -------------------------------------------------------------------- */

uint64_t now_ns(void);
int64_t wall_ms(void);
void nap_ms(int ms);
int connect_blocking(void);
int connect_nonblocking(int index_for_source); /* < 0 index: leave the source address to the kernel */
void set_nonblocking(int fd);
/* Tells whoever started us that everything is ready. */
void say_held(void);
void watch(int epoll_fd, int fd, uint32_t events, void *tag, bool is_new);
/* epoll_wait with a nanosecond deadline: an open loop at 10,000/s cannot live with milliseconds. */
int wait_events(int epoll_fd, struct epoll_event *events, int max, uint64_t deadline_ns);

/* Warm-up, then the measured interval, then the drain. `phases_step` is called with the time of every wake-up
 * and reads the CPU clocks exactly where the interval begins and ends. */
struct phases {
    uint64_t start, measure_from, measure_to, drain_to;
    bool begun, ended;
};
void phases_start(struct phases *p);
void phases_step(struct phases *p, uint64_t now);
static inline bool is_measured(const struct phases *p, uint64_t ns) {
    return ns >= p->measure_from && ns < p->measure_to;
}
uint64_t next_phase_ns(const struct phases *p, uint64_t now);
void print_cpu(FILE *out);

/* ---- sent and received (tls.c) -------------------------------------------------------------------------- */

void net_begin(int fd);     /* a socket that has been made: with --tls its session */
void net_handshake(int fd); /* of a blocking socket, at once; otherwise the first net_send does it */
ssize_t net_send(int fd, const void *data, size_t length);
ssize_t net_send_parts(int fd, const struct iovec *parts, int count);
ssize_t net_recv(int fd, void *to, size_t room); /* to NULL: into the void */
bool net_has_more(int fd);                       /* whether net_recv would find something although the socket is empty */
uint32_t net_wanted(void);                       /* after EAGAIN: EPOLLIN or EPOLLOUT */
void net_close(int fd);

/* ---- bytes (wire.c) ------------------------------------------------------------------------------------ */

struct buffer {
    uint8_t *data;
    size_t length, capacity;
};
void put_bytes(struct buffer *b, const void *data, size_t length);
void put_i8(struct buffer *b, int v);
void put_i16(struct buffer *b, int v);
void put_i32(struct buffer *b, int64_t v);
void put_i64(struct buffer *b, int64_t v);
void put_string(struct buffer *b, const char *s); /* int16 length */
void put_compact_string(struct buffer *b, const char *s);
void put_uvarint(struct buffer *b, uint64_t v);
void put_varint(struct buffer *b, int64_t v); /* zigzag */
void set_i16(uint8_t *p, int v);
void set_i32(uint8_t *p, int64_t v);
void set_i64(uint8_t *p, int64_t v);

/* A read position that remembers an overrun instead of checking at each call: look at `bad` at the end. */
struct cursor {
    const uint8_t *at, *end;
    bool bad;
};
int get_i8(struct cursor *c);
int get_i16(struct cursor *c);
int32_t get_i32(struct cursor *c);
int64_t get_i64(struct cursor *c);
uint64_t get_uvarint(struct cursor *c);
int64_t get_varint(struct cursor *c);
const uint8_t *get_bytes(struct cursor *c, int64_t length);
bool skip_string(struct cursor *c, const char *expected); /* int16 length; false when it differs */
bool skip_compact_string(struct cursor *c, const char *expected);
void skip_tagged_fields(struct cursor *c);

enum { UNKNOWN_TOPIC = 3, LEADER_NOT_AVAILABLE = 5, NOT_LEADER = 6, TOPIC_ALREADY_EXISTS = 36,
       SETUP_SECONDS_MAX = 100 };
static inline bool may_pass(int error) {
    return error == UNKNOWN_TOPIC || error == LEADER_NOT_AVAILABLE || error == NOT_LEADER;
}
enum { KEY_PRODUCE = 0, KEY_FETCH = 1, KEY_LIST_OFFSETS = 2, KEY_METADATA = 3, KEY_API_VERSIONS = 18,
       KEY_CREATE_TOPICS = 19, KEY_DELETE_TOPICS = 20, KEY_CREATE_PARTITIONS = 37 };
#define CORRELATION_AT 8 /* in a request: int32 length, int16 key, int16 version, then it */
#define FRAME_BYTES_MAX (256 << 20)

/* Starts a request with its length left open; end_request fills it in. */
void begin_request(struct buffer *b, int key, int version, int32_t correlation, bool is_flexible);
void end_request(struct buffer *b);
/* One request and its answer on a blocking socket; the cursor is past the correlation id. The bytes live in
 * `answer` until the next call with it. */
struct cursor call(int fd, struct buffer *request, struct buffer *answer);
void create_topic(int fd);
bool has_leaders(int fd); /* of every partition of the topic */
void prepare_topic(int fd);
void delete_topic(int fd);
enum { OFFSET_LATEST = -1, OFFSET_EARLIEST = -2 };
int64_t list_offset(int fd, int partition, int64_t timestamp);

/* ---- record batches (batch.c) -------------------------------------------------------------------------- */

#define BATCH_HEADER_BYTES 61
#define BATCH_CRC_AT 17
#define BATCH_CRC_FROM 21
uint32_t crc32c(const uint8_t *data, size_t length);
/* Appends one uncompressed batch of `count` equal records to `b`; returns the position of the first value. */
size_t put_batch(struct buffer *b, int count, int value_bytes);
int records_for_bytes(int batch_bytes, int value_bytes);
/* The whole --batch-file, checked; its record count. */
int load_batch_file(void);

struct batch {
    int64_t base_offset;
    int64_t bytes; /* of the whole batch in the log */
    int32_t count;
    int32_t last_offset_delta;
    int attributes;
};
/* Reads the batch header at `data`; false and a counted error when it is no whole, sound header. */
bool read_batch_header(const uint8_t *data, size_t length, struct batch *out);
bool has_right_crc(const uint8_t *data, const struct batch *batch);

/* ---- Produce and Fetch (produce.c, fetch.c) ------------------------------------------------------------ */

/* Builds a whole Produce frame; *records_at receives where the batch begins in it. */
void build_produce(struct buffer *b, int partition, int batch_records, int value_bytes, size_t *records_at);
/* Reads one Produce answer after the correlation id; the base offset, or -1 with the error counted. */
int64_t read_produce_answer(struct cursor *c, int partition);
/* The same, but an error code is handed to the caller, who may ask again, and not counted. */
int64_t try_produce_answer(struct cursor *c, int partition, int *error_code);
/* Builds a Fetch frame for all partitions from `first` on; offsets[i] goes to partition first + i. */
void build_fetch(struct buffer *b, int first, int count, const int64_t *offsets, int max_wait_ms);
/* Where the offset of the only partition of build_fetch(…, count = 1) stands in the frame. */
size_t fetch_offset_at(void);

void run_produce(void);
void run_fetch(void);
void run_latency(void); /* and tail */
void run_churn(void);
void run_idle(void);
void run_prepare(void);
void run_delete(void);
void run_touch(void);

#endif
