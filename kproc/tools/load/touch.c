/* Many partitions: what it takes to make them, to use each for the first time, and to hear of all of them.
 *
 *   CreateTopics of N partitions ... answered          create_seconds; not there when it was made before; above 5,000
 *                                                      CreatePartitions for the rest
 *   Metadata until every one has a leader              leaders_seconds, from the same start
 *   one record to each, one request at a time          latency: the first touch opens files
 *   Metadata of the whole topic, METADATA_ROUNDS times metadata
 *
 * Every partition must give its record the same offset: all of them were touched equally often before.
 */
#include "kload.h"

#include <stdlib.h>
#include <unistd.h>

enum { METADATA_ROUNDS = 5 };

/* Asks again while the broker says that the leader does not know of it yet: Kafka shows leaders before that. */
static int64_t touch(int fd, int partition, struct buffer *frame, struct buffer *answer) {
    uint64_t asked = now_ns(), deadline = asked + SETUP_SECONDS_MAX * 1000000000ull;
    size_t records_at;
    int error = 0;
    build_produce(frame, partition, opt.batch_records, opt.record_bytes, &records_at);
    for (;;) {
        struct cursor c = call(fd, frame, answer);
        int64_t base = try_produce_answer(&c, partition, &error);
        if (base >= 0) {
            hist_record(&result.latency, now_ns() - asked);
            result.requests++;
            return base;
        }
        if (!may_pass(error) || now_ns() > deadline) {
            wrong("Produce to partition %d: error %d", partition, error);
            result.lost++;
            return -1;
        }
        nap_ms(1);
    }
}

void run_touch(void) {
    struct buffer frame = {0}, answer = {0};
    struct phases phases;
    int fd = connect_blocking();
    uint64_t from = now_ns();
    create_topic(fd);
    result.create_seconds = (double)(now_ns() - from) / 1e9;
    prepare_topic(fd); /* it is there: this waits for the leaders */
    result.leaders_seconds = (double)(now_ns() - from) / 1e9;
    opt.warmup = 0;
    phases_start(&phases);
    phases_step(&phases, phases.start);
    int64_t expected = touch(fd, 0, &frame, &answer);
    for (int i = 1; i < opt.partitions; i++) {
        int64_t base = touch(fd, i, &frame, &answer);
        if (base >= 0 && base != expected)
            wrong("partition %d gave offset %lld, the first %lld", i, (long long)base, (long long)expected);
    }
    phases.measure_to = now_ns(); /* as long as it took */
    phases_step(&phases, phases.measure_to);
    for (int i = 0; i < METADATA_ROUNDS; i++) {
        uint64_t asked = now_ns();
        if (!has_leaders(fd))
            wrong("Metadata: a partition without a leader");
        hist_record(&result.metadata, now_ns() - asked);
    }
    result.records = result.requests;
    net_close(fd);
    free(frame.data);
    free(answer.data);
}
