/* A step of one decoder block in eight bits, on a CPU with AVX-512 VNNI.
 *
 * With the few rows that one sentence has, a step takes less time than the twenty calls from Python
 * that it is made of. Here it is one: attention to what was written, attention to the source and
 * the feed-forward layer, each with its residual connection and its norm, by the products of
 * int8_products.c and the attention of int8_attention.c.
 */
#include <math.h>

#include "int8.h"

enum { LANES = 16 };

/* A layer norm: `weight` and `bias` are d numbers. */
typedef struct {
    const float *weight, *bias;
    double epsilon;
} Norm;

typedef struct {
    int64_t heads, width, pre_norm;
    Weight qkv, out, query, cross_out, inner, outer;
    Norm norm, cross_norm, feed_forward_norm;
} Block;

/* What rows remember: numbers and scales as int8_attention.c has them, and the mask over `slots`
 * slots; of what was written, the mask is a part of one for `beam` rows of `mask_slots` each. */
typedef struct {
    int8_t *kept;
    float *scales;
    const float *mask;
    int64_t slots, beam, mask_slots, seen, first;
} Memory;

/* Memory for what comes up on the way. */
typedef struct {
    float *before, *wide, *attended, *output, *scores;
    uint8_t *bytes;
} Room;

/* Sums in as many parts as a vector has lanes, so that they are found side by side. */
static float sum(const float *parts) {
    float total = 0.0f;
    for (int lane = 0; lane < LANES; lane++) total += parts[lane];
    return total;
}

/* Rows of d numbers, each with a mean of 0 and a variance of 1 before weight and bias. */
static void normalise(const Norm *norm, const float *from, int64_t rows, int64_t d, float *to) {
    for (int64_t r = 0; r < rows; r++, from += d, to += d) {
        float parts[LANES] = {0};
        int64_t whole = d - d % LANES;
        for (int64_t i = 0; i < whole; i += LANES)
            for (int lane = 0; lane < LANES; lane++) parts[lane] += from[i + lane];
        for (int64_t i = whole; i < d; i++) parts[0] += from[i];
        float mean = sum(parts) / (float)d;
        for (int lane = 0; lane < LANES; lane++) parts[lane] = 0.0f;
        for (int64_t i = 0; i < whole; i += LANES)
            for (int lane = 0; lane < LANES; lane++) {
                float apart = from[i + lane] - mean;
                parts[lane] += apart * apart;
            }
        for (int64_t i = whole; i < d; i++) parts[0] += (from[i] - mean) * (from[i] - mean);
        float factor = 1.0f / sqrtf(sum(parts) / (float)d + (float)norm->epsilon);
        for (int64_t i = 0; i < d; i++)
            to[i] = (from[i] - mean) * factor * norm->weight[i] + norm->bias[i];
    }
}

/* What a layer reads: the states, or their norm where that comes first. */
static const float *input_of(const Block *block, const Norm *norm, const float *states,
                             int64_t rows, Room *room) {
    if (!block->pre_norm) return states;
    normalise(norm, states, rows, block->qkv.in, room->before);
    return room->before;
}

/* The residual connection, and the norm where it comes last. */
static void add(const Block *block, const Norm *norm, float *states, int64_t rows, Room *room) {
    int64_t d = block->qkv.in;
    for (int64_t i = 0; i < rows * d; i++) room->output[i] += states[i];
    if (block->pre_norm)
        for (int64_t i = 0; i < rows * d; i++) states[i] = room->output[i];
    else
        normalise(norm, room->output, rows, d, states);
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* A number of bytes rounded up, so that what follows lies on a border of 64. */
static int64_t rounded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* Lays the room out from `at` on; gives back the bytes that it takes. */
static int64_t lay_out(const Block *block, int64_t rows, int64_t slots, uint8_t *at, Room *laid) {
    int64_t d = block->qkv.in, most = larger(block->inner.out, block->out.in);
    int64_t sizes[] = {rows * d, rows * larger(block->qkv.out, block->inner.out),
                       rows * block->out.in, rows * d, group() * slots};
    float **places[] = {&laid->before, &laid->wide, &laid->attended, &laid->output, &laid->scores};
    int64_t used = 0;
    for (int i = 0; i < 5; i++) {
        *places[i] = (float *)(at + used);
        used += rounded(sizes[i] * (int64_t)sizeof(float));
    }
    laid->bytes = at + used;
    return used + room(rows, larger(d, most));
}

/* The bytes of room that a step needs for so many rows, each of which looks at so many slots. */
int64_t block_room(const Block *block, int64_t rows, int64_t slots) {
    Room laid;
    return lay_out(block, rows, slots, (uint8_t *)0, &laid);
}

/* States (b, open, d), in place; `at` is room, on a border of 64 bytes. */
void block_step(const Block *block, float *states, int64_t b, int64_t open, const Memory *written,
                const Memory *source, uint8_t *at) {
    int64_t rows = b * open;
    Room laid;
    lay_out(block, rows, larger(written->seen, source->slots), at, &laid);

    const float *before = input_of(block, &block->norm, states, rows, &laid);
    multiply(&block->qkv, before, rows, laid.bytes, laid.wide);
    attend_written(laid.wide, b, open, block->heads, block->width, written->first, written->mask,
                   written->beam, written->mask_slots, written->seen, written->slots,
                   written->kept, written->scales, laid.attended, laid.scores);
    multiply(&block->out, laid.attended, rows, laid.bytes, laid.output);
    add(block, &block->norm, states, rows, &laid);

    before = input_of(block, &block->cross_norm, states, rows, &laid);
    multiply(&block->query, before, rows, laid.bytes, laid.wide);
    attend_source(laid.wide, b, open, block->heads, block->width, source->mask, source->slots,
                  source->kept, source->scales, laid.attended, laid.scores);
    multiply(&block->cross_out, laid.attended, rows, laid.bytes, laid.output);
    add(block, &block->cross_norm, states, rows, &laid);

    before = input_of(block, &block->feed_forward_norm, states, rows, &laid);
    multiply(&block->inner, before, rows, laid.bytes, laid.wide);
    multiply(&block->outer, laid.wide, rows, laid.bytes, laid.output);
    add(block, &block->feed_forward_norm, states, rows, &laid);
}
