/* Record batches v2, as a client writes and checks them.
 *
 *   0 base_offset i64 | 8 batch_length i32 | 12 leader_epoch i32 | 16 magic i8 | 17 crc u32 |
 *   21 attributes i16 | 23 last_offset_delta i32 | 27 base_timestamp i64 | 35 max_timestamp i64 |
 *   43 producer_id i64 | 51 producer_epoch i16 | 53 base_sequence i32 | 57 record_count i32 | 61 records
 *
 * The CRC covers 21 to the end, so the broker may stamp offset and epoch without touching it, and a generator
 * may send one prepared batch for ever.
 */
#include "kload.h"

#include <errno.h>
#include <string.h>

#define CRC32C_POLYNOMIAL 0x82f63b78u /* reflected */

static uint32_t crc_by_table(uint32_t crc, const uint8_t *data, size_t length) {
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t v = i;
            for (int bit = 0; bit < 8; bit++)
                v = v & 1 ? v >> 1 ^ CRC32C_POLYNOMIAL : v >> 1;
            table[i] = v;
        }
    while (length--)
        crc = crc >> 8 ^ table[(crc ^ *data++) & 0xff];
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc_by_instruction(uint32_t crc, const uint8_t *data, size_t length) {
    uint64_t wide = crc;
    for (; length >= 8; length -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    while (length--)
        crc = __builtin_ia32_crc32qi(crc, *data++);
    return crc;
}
#endif

uint32_t crc32c(const uint8_t *data, size_t length) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return ~crc_by_instruction(~0u, data, length);
#endif
    return ~crc_by_table(~0u, data, length);
}

static int varint_bytes(int64_t v) {
    uint64_t zigzag = ((uint64_t)v << 1) ^ (uint64_t)(v >> 63);
    int n = 1;
    while (zigzag >= 0x80) {
        zigzag >>= 7;
        n++;
    }
    return n;
}

/* attributes, timestamp delta 0, offset delta, null key, value length, value, no headers */
static int record_body_bytes(int index, int value_bytes) {
    return 1 + 1 + varint_bytes(index) + 1 + varint_bytes(value_bytes) + value_bytes + 1;
}

int records_for_bytes(int batch_bytes, int value_bytes) {
    int64_t total = BATCH_HEADER_BYTES;
    int count = 0;
    for (;; count++) {
        int body = record_body_bytes(count, value_bytes);
        total += varint_bytes(body) + body;
        if (total > batch_bytes)
            return count > 0 ? count : 1;
    }
}

static struct buffer file_batch;

int load_batch_file(void) {
    FILE *file = fopen(opt.batch_file, "rb");
    uint8_t bytes[1 << 14];
    if (!file)
        die(2, "--batch-file %s: %s", opt.batch_file, strerror(errno));
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, file)) > 0;)
        put_bytes(&file_batch, bytes, n);
    fclose(file);
    struct batch batch;
    if (!read_batch_header(file_batch.data, file_batch.length, &batch) || batch.bytes != (int64_t)file_batch.length
        || !has_right_crc(file_batch.data, &batch))
        die(2, "--batch-file %s: not one whole record batch; %s", opt.batch_file, result.first_error);
    return batch.count;
}

size_t put_batch(struct buffer *b, int count, int value_bytes) {
    if (opt.batch_file) {
        put_bytes(b, file_batch.data, file_batch.length);
        return 0;
    }
    size_t from = b->length, first_value = 0;
    int64_t stamp = wall_ms();
    put_i64(b, 0);
    put_i32(b, 0); /* batch_length, below */
    put_i32(b, -1);
    put_i8(b, 2);
    put_i32(b, 0); /* crc, below */
    put_i16(b, 0);
    put_i32(b, count - 1);
    put_i64(b, stamp);
    put_i64(b, stamp);
    put_i64(b, -1);
    put_i16(b, -1);
    put_i32(b, -1);
    put_i32(b, count);
    uint64_t noise = 0x9e3779b97f4a7c15ull; /* xorshift: text-like zeros would flatter whoever compresses */
    for (int i = 0; i < count; i++) {
        put_varint(b, record_body_bytes(i, value_bytes));
        put_i8(b, 0);
        put_varint(b, 0);
        put_varint(b, i);
        put_varint(b, -1);
        put_varint(b, value_bytes);
        if (i == 0)
            first_value = b->length;
        for (int at = 0; at < value_bytes; at += 8) {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            put_bytes(b, &noise, (size_t)(value_bytes - at < 8 ? value_bytes - at : 8));
        }
        put_varint(b, 0);
    }
    set_i32(b->data + from + 8, (int64_t)(b->length - from - 12));
    set_i32(b->data + from + BATCH_CRC_AT,
            crc32c(b->data + from + BATCH_CRC_FROM, b->length - from - BATCH_CRC_FROM));
    return first_value;
}

bool read_batch_header(const uint8_t *data, size_t length, struct batch *out) {
    struct cursor c = {data, data + length, false};
    out->base_offset = get_i64(&c);
    out->bytes = 12 + (int64_t)get_i32(&c);
    get_i32(&c);
    int magic = get_i8(&c);
    get_i32(&c);
    out->attributes = get_i16(&c);
    out->last_offset_delta = get_i32(&c);
    get_bytes(&c, 8 + 8 + 8 + 2 + 4);
    out->count = get_i32(&c);
    if (c.bad || magic != 2 || out->bytes < BATCH_HEADER_BYTES || out->count < 1) {
        wrong("no record batch v2 where one should begin (magic %d, %lld bytes, %d records)", magic,
              (long long)out->bytes, out->count);
        return false;
    }
    return true;
}

bool has_right_crc(const uint8_t *data, const struct batch *batch) {
    struct cursor c = {data + BATCH_CRC_AT, data + BATCH_CRC_FROM, false};
    uint32_t stored = (uint32_t)get_i32(&c);
    if (stored == crc32c(data + BATCH_CRC_FROM, (size_t)batch->bytes - BATCH_CRC_FROM))
        return true;
    wrong("the batch at offset %lld has a wrong CRC", (long long)batch->base_offset);
    return false;
}
