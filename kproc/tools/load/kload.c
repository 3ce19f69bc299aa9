/* kload: a load generator for Kafka-protocol brokers on this machine. See kload.h for the map.
 *
 *   kload MODE --bootstrap 127.0.0.1:9092 [options]
 *
 * Prints one JSON object on stdout. Exit status: 0 all answers right, 1 something was wrong (see "errors" and
 * "first_error"), 2 usage, 3 stuck. Only loopback addresses are accepted.
 */
#include "kload.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SECONDS_MAX = 600, STUCK_SECONDS = 120 };

struct options opt;
struct results result;

static const char *const mode_names[] = {"produce", "fetch",   "latency", "tail", "churn",
                                        "idle",    "prepare", "delete",  "touch"};
static void (*const mode_runs[])(void) = {run_produce, run_fetch,   run_latency, run_latency, run_churn,
                                          run_idle,    run_prepare, run_delete,  run_touch};
static const char *const read_names[] = {"skip", "copy", "crc"};
static const char *const no_yes[] = {"no", "yes"};
enum { MODE_COUNT = 9, READ_COUNT = 3 };

static const char usage[] =
    "usage: kload produce|fetch|latency|tail|churn|idle|prepare|delete|touch --bootstrap 127.0.0.1:PORT [options]\n"
    "  --topic NAME --partitions N --topic-config NAME=VALUE   created when it is not there (kload, 1)\n"
    "  --connections N (1)   --in-flight N per connection (1; latency: 1000; tail: 8)\n"
    "  --consumers N (1): latency and tail, each reads everything\n"
    "  --record-bytes N (100)  --batch-records N (1)  --batch-bytes N: as many records as fit\n"
    "  --batch-file FILE: one record batch made elsewhere; produce and prepare send it as it is\n"
    "  --acks 0|1|-1 (1)  --produce-version 3..12 (7)  --fetch-version 11|12 (11)\n"
    "  --fetch-bytes N per answer (1048576)  --read skip|copy|crc (skip)\n"
    "  --once yes: fetch ends with the log   --hold yes: fetch waits for a line on stdin before it begins\n"
    "  --fill-bytes N: prepare until the topic's log holds them (268435456)\n"
    "  --tls CA.pem: TLS, and the broker's certificate is one of these authorities' (a build with OpenSSL)\n"
    "  --rate RECORDS_PER_SECOND: open loop (produce: closed loop without; latency: 1000)\n"
    "  --seconds S (4)  --warmup S (1)  --drain S (5)  --pids A,B,C: read their CPU over the interval\n";

/* ---- shared with the modes ------------------------------------------------------------------------------ */

void wrong(const char *format, ...) {
    va_list arguments;
    if (result.errors++ > 0)
        return;
    va_start(arguments, format);
    vsnprintf(result.first_error, sizeof result.first_error, format, arguments);
    va_end(arguments);
}

void die(int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("kload: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(status);
}

void *must_realloc(void *old, size_t bytes) {
    void *p = realloc(old, bytes);
    if (!p)
        die(1, "no memory for %zu bytes", bytes);
    return p;
}

void *must_alloc(size_t bytes) { return memset(must_realloc(NULL, bytes ? bytes : 1), 0, bytes); }

/* ---- histogram ------------------------------------------------------------------------------------------ */

enum { STEPS = 1 << HIST_STEPS_LOG2 };

void hist_record(struct histogram *h, uint64_t ns) {
    /* Values below 2 * STEPS have a bucket each; above, the top 8 bits choose it. */
    int shift = 63 - __builtin_clzll(ns | 1) - HIST_STEPS_LOG2;
    size_t bucket = shift <= 0 ? ns : ((size_t)shift << HIST_STEPS_LOG2) + (ns >> shift);
    size_t last = sizeof h->buckets / sizeof h->buckets[0] - 1;
    h->buckets[bucket < last ? bucket : last]++;
    h->min = h->count == 0 || ns < h->min ? ns : h->min;
    h->max = ns > h->max ? ns : h->max;
    h->sum += ns;
    h->count++;
}

/* The highest value that shares the bucket: a percentile must not look better than it was. */
static uint64_t bucket_top(size_t bucket) {
    if (bucket < 2 * STEPS)
        return bucket;
    size_t shift = (bucket >> HIST_STEPS_LOG2) - 1;
    return ((bucket - (shift << HIST_STEPS_LOG2)) + 1) << shift;
}

static uint64_t percentile(const struct histogram *h, double fraction) {
    uint64_t wanted = (uint64_t)(fraction * (double)h->count + 0.9999999), seen = 0;
    size_t last = sizeof h->buckets / sizeof h->buckets[0];
    for (size_t i = 0; i < last; i++)
        if ((seen += h->buckets[i]) >= wanted && seen > 0)
            return bucket_top(i) < h->max ? bucket_top(i) : h->max;
    return h->max;
}

/* ---- options -------------------------------------------------------------------------------------------- */

static double number(const char *name, const char *text, double low, double high) {
    char *end;
    double v = strtod(text, &end);
    if (*end || end == text || !(v >= low && v <= high))
        die(2, "--%s %s: a number from %g to %g is wanted", name, text, low, high);
    return v;
}

static int choice(const char *what, const char *text, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (!strcmp(text, names[i]))
            return i;
    die(2, "%s %s is not known\n%s", what, text, usage);
}

static void parse_address(char *text) {
    char *colon = strrchr(text, ':');
    if (!colon)
        die(2, "--bootstrap %s: HOST:PORT is wanted", text);
    *colon = 0;
    opt.address.sin_family = AF_INET;
    opt.address.sin_port = htons((uint16_t)number("bootstrap", colon + 1, 1, 65535));
    const char *host = strcmp(text, "localhost") ? text : "127.0.0.1";
    if (inet_pton(AF_INET, host, &opt.address.sin_addr) != 1 || ntohl(opt.address.sin_addr.s_addr) >> 24 != 127)
        die(2, "--bootstrap %s: only loopback addresses (127.x.x.x, localhost)", text);
}

static void parse_pids(char *text) {
    char *rest = NULL;
    for (char *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        if (opt.pid_count == PIDS_MAX)
            die(2, "more than %d pids", PIDS_MAX);
        opt.pids[opt.pid_count++] = (int)number("pids", one, 1, 1 << 30);
    }
}

static void set_option(const char *name, char *text) {
    static const struct {
        const char *name;
        int *value;
        double low, high;
    } integers[] = {
        {"partitions", &opt.partitions, 1, 100000},   {"connections", &opt.connections, 1, 100000},
        {"consumers", &opt.consumers, 1, 10000},
        {"in-flight", &opt.in_flight, 1, 65536},      {"record-bytes", &opt.record_bytes, 0, 64 << 20},
        {"batch-records", &opt.batch_records, 1, 1 << 24}, {"batch-bytes", &opt.batch_bytes, 100, 64 << 20},
        {"acks", &opt.acks, -1, 1},                   {"produce-version", &opt.produce_version, 3, 12},
        {"fetch-version", &opt.fetch_version, 11, 12}, {"fetch-bytes", &opt.fetch_bytes, 1, FRAME_BYTES_MAX / 2},
    };
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++)
        if (!strcmp(name, integers[i].name)) {
            *integers[i].value = (int)number(name, text, integers[i].low, integers[i].high);
            return;
        }
    if (!strcmp(name, "topic"))
        opt.topic = text;
    else if (!strcmp(name, "bootstrap"))
        parse_address(text);
    else if (!strcmp(name, "pids"))
        parse_pids(text);
    else if (!strcmp(name, "read"))
        opt.read_mode = choice("--read", text, read_names, READ_COUNT);
    else if (!strcmp(name, "once"))
        opt.is_once = choice("--once", text, no_yes, 2);
    else if (!strcmp(name, "hold"))
        opt.is_held = choice("--hold", text, no_yes, 2);
    else if (!strcmp(name, "tls"))
        opt.tls = text;
    else if (!strcmp(name, "batch-file"))
        opt.batch_file = text;
    else if (!strcmp(name, "rate"))
        opt.rate = number(name, text, 0.1, 1e7);
    else if (!strcmp(name, "seconds"))
        opt.seconds = number(name, text, 0.05, SECONDS_MAX);
    else if (!strcmp(name, "warmup"))
        opt.warmup = number(name, text, 0, SECONDS_MAX);
    else if (!strcmp(name, "drain"))
        opt.drain = number(name, text, 0, SECONDS_MAX);
    else if (!strcmp(name, "fill-bytes"))
        opt.fill_bytes = (int64_t)number(name, text, 1, 1e12);
    else if (!strcmp(name, "topic-config") && strchr(text, '=') && opt.topic_config_count < TOPIC_CONFIGS_MAX)
        opt.topic_configs[opt.topic_config_count++] = text;
    else
        die(2, "--%s %s is not known\n%s", name, text, usage);
}

static void parse_options(int argc, char **argv) {
    opt = (struct options){.topic = "kload", .partitions = 1, .connections = 1, .consumers = 1, .record_bytes = 100, .acks = 1,
                           .produce_version = 7, .fetch_version = 11, .fetch_bytes = 1 << 20,
                           .fill_bytes = 256 << 20, .seconds = 4, .warmup = 1, .drain = 5};
    if (argc < 2)
        die(2, "a mode is wanted\n%s", usage);
    opt.mode = (enum mode)choice("mode", argv[1], mode_names, MODE_COUNT);
    for (int i = 2; i < argc; i += 2) {
        if (strncmp(argv[i], "--", 2) || i + 1 == argc)
            die(2, "%s: --name value is wanted\n%s", argv[i], usage);
        set_option(argv[i] + 2, argv[i + 1]);
    }
    if (opt.address.sin_port == 0)
        die(2, "--bootstrap is wanted\n%s", usage);
    if (opt.batch_bytes)
        opt.batch_records = records_for_bytes(opt.batch_bytes, opt.record_bytes);
    if (opt.batch_file && opt.mode != MODE_PRODUCE && opt.mode != MODE_PREPARE)
        die(2, "--batch-file is for produce and prepare");
    if (opt.batch_file)
        opt.batch_records = load_batch_file();
    opt.batch_records = opt.batch_records ? opt.batch_records : 1;
    opt.is_frugal = opt.mode == MODE_IDLE;
    opt.in_flight = opt.in_flight ? opt.in_flight : opt.mode == MODE_LATENCY ? 1000 : opt.mode == MODE_TAIL ? 8 : 1;
    if (opt.mode == MODE_LATENCY && opt.rate <= 0)
        opt.rate = 1000;
    if (opt.mode == MODE_PREPARE)
        opt.acks = 1; /* filling without asking would not know when it is done */
}

/* ---- report --------------------------------------------------------------------------------------------- */

static void print_histogram(const char *name, const struct histogram *h) {
    static const struct {
        const char *name;
        double fraction;
    } wanted[] = {{"p50", .5}, {"p90", .9}, {"p99", .99}, {"p999", .999}};
    if (h->count == 0)
        return;
    printf(",\"%s\":{\"count\":%llu,\"min\":%.1f,\"mean\":%.1f", name, (unsigned long long)h->count,
           (double)h->min / 1e3, (double)h->sum / (double)h->count / 1e3);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        printf(",\"%s\":%.1f", wanted[i].name, (double)percentile(h, wanted[i].fraction) / 1e3);
    printf(",\"max\":%.1f,\"buckets_ns\":[", (double)h->max / 1e3);
    const char *comma = "";
    for (size_t i = 0; i < sizeof h->buckets / sizeof h->buckets[0]; i++)
        if (h->buckets[i]) { /* the highest value of the bucket, and how many */
            printf("%s[%llu,%llu]", comma, (unsigned long long)bucket_top(i), (unsigned long long)h->buckets[i]);
            comma = ",";
        }
    printf("]}");
}

static void print_text(const char *name, const char *text) {
    printf(",\"%s\":\"", name);
    for (; *text; text++)
        if (*text >= ' ' && *text < 127)
            printf(*text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    printf("\"");
}

static void print_results(void) {
    double seconds = result.seconds > 0 ? result.seconds : 1;
    printf("{\"mode\":\"%s\",\"loop\":\"%s\"", mode_names[opt.mode], opt.rate > 0 ? "open" : "closed");
    print_text("topic", opt.topic);
    printf(",\"consumers\":%d", opt.consumers);
    printf(",\"connections\":%d,\"in_flight\":%d,\"partitions\":%d,\"record_bytes\":%d,\"batch_records\":%d",
           opt.connections, opt.in_flight, opt.partitions, opt.record_bytes, opt.batch_records);
    printf(",\"acks\":%d,\"produce_version\":%d,\"fetch_version\":%d,\"fetch_bytes\":%d,\"read\":\"%s\"", opt.acks,
           opt.produce_version, opt.fetch_version, opt.fetch_bytes, read_names[opt.read_mode]);
    printf(",\"rate\":%g,\"warmup\":%g,\"seconds\":%.4f", opt.rate, opt.warmup, result.seconds);
    printf(",\"requests\":%llu,\"records\":%llu,\"bytes\":%llu", (unsigned long long)result.requests,
           (unsigned long long)result.records, (unsigned long long)result.bytes);
    printf(",\"requests_per_second\":%.1f,\"records_per_second\":%.1f,\"megabytes_per_second\":%.3f",
           (double)result.requests / seconds, (double)result.records / seconds,
           (double)result.bytes / seconds / 1e6);
    print_histogram("latency_us", &result.latency);
    if (result.has_ack_latency)
        print_histogram("ack_latency_us", &result.ack_latency);
    print_histogram("late_us", &result.lateness);
    print_histogram("metadata_us", &result.metadata);
    if (opt.rate > 0)
        printf(",\"backlog_begin\":%lld,\"backlog_end\":%lld", (long long)result.backlog_begin,
               (long long)result.backlog_end);
    if (opt.mode == MODE_TOUCH)
        printf(",\"create_seconds\":%.4f,\"leaders_seconds\":%.4f", result.create_seconds, result.leaders_seconds);
    printf(",\"errors\":%llu,\"lost\":%llu,\"duplicates\":%llu,\"unanswered\":%llu,\"connections_failed\":%llu",
           (unsigned long long)result.errors, (unsigned long long)result.lost,
           (unsigned long long)result.duplicates, (unsigned long long)result.unanswered,
           (unsigned long long)result.connections_failed);
    if (result.errors)
        print_text("first_error", result.first_error);
    print_cpu(stdout);
    printf("}\n");
}

static void on_alarm(int signal_number) {
    static const char text[] = "kload: stuck: no end long after the run should have been over\n";
    (void)signal_number;
    _exit(write(2, text, sizeof text - 1) < 0 ? 4 : 3);
}

int main(int argc, char **argv) {
    struct rlimit files;
    parse_options(argc, argv);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    signal(SIGALRM, on_alarm);
    signal(SIGPIPE, SIG_IGN);
    alarm((unsigned)(opt.warmup + opt.seconds + opt.drain) + STUCK_SECONDS);
    mode_runs[opt.mode]();
    if (result.unanswered > 0 && result.errors == 0)
        wrong("%llu requests were not answered in time", (unsigned long long)result.unanswered);
    print_results();
    return result.errors > 0;
}
