/* Attention over packed sequences in float32, forwards and backwards, for training on a CPU.
 *
 * A batch is many short sequences, one behind the other: those of queries are the tokens from
 * queries[i] to queries[i + 1], those of their keys from keys[i] to keys[i + 1]. For every sequence
 * and head
 *
 *     P = softmax(Q K' / sqrt(w)),    O = c (M * P) V
 *
 * where c is the factor of the head, 0 for one that is dropped, and M that of dropout: 0 or
 * 1 / (1 - rate), by a random number of the query, the head and the key. Backwards P and M are
 * computed anew:
 *
 *     dV = c (M * P)' dO,     dP = M * c dO V',     dS = P * (dP - rows' sums of P * dP),
 *     dQ = dS K / sqrt(w),    dK = dS' Q / sqrt(w)
 *
 * Nothing is padded but to whole vectors of keys, and sequences and heads are shared out among
 * threads: none adds to what another one adds to, so that their number changes no result.
 *
 * Rows of w numbers, a multiple of 16, lie `stride` numbers apart, those of the heads of a token
 * one behind the other. Gradients lie as what they are gradients of; the output is (n, h, w). What
 * belongs to no sequence, or sees no key, is left as it is: zeros.
 */
#include <math.h>
#include <omp.h>

#include "places.h"
#include "vectors.h"

#define UNROLL _Pragma("GCC unroll 16") /* a block is to be held in registers */

/* Queries that are worked on at a time, and vectors of each, that registers have room for; queries
 * whose weights are kept until keys and values receive their gradients. */
enum { GROUP = LANES == 16 ? 6 : 4, WIDE = 2, CHUNK = 48 };

/* One sequence of one head: t queries, s keys. The first query's row is number `first` of the
 * output's (n, h), and each one after it `heads` further. */
typedef struct {
    const float *q, *k, *v;
    int64_t q_stride, kv_stride, t, s, width, causal, first, heads;
    float factor, scale;
    Dropout dropout;
} Part;

INLINE int64_t whole_vectors(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

/* A block of LANES rows as LANES columns. */
INLINE void transpose(Floats block[LANES]) {
    UNROLL
    for (int apart = 1; apart < LANES; apart *= 2)
        UNROLL
        for (int row = 0; row < LANES; row++) {
            if (row & apart) continue;
            Floats a = block[row], b = block[row + apart];
#ifdef __clang__
            for (int lane = 0; lane < LANES; lane++)
                if (lane & apart)
                    block[row][lane] = b[lane - apart];
                else
                    block[row + apart][lane] = a[lane + apart];
#else
            Wholes upper, lower;
            for (int lane = 0; lane < LANES; lane++) {
                upper[lane] = lane & apart ? LANES + lane - apart : lane;
                lower[lane] = lane & apart ? LANES + lane : lane + apart;
            }
            block[row] = __builtin_shuffle(a, b, upper);
            block[row + apart] = __builtin_shuffle(a, b, lower);
#endif
        }
}

/* Rows (count, width) as columns (width, room); room is count in whole vectors, filled with 0. */
static void turn(const float *rows, int64_t stride, int64_t count, int64_t width, float *to) {
    int64_t room = whole_vectors(count);
    for (int64_t first = 0; first < count; first += LANES)
        for (int64_t w = 0; w < width; w += LANES) {
            Floats block[LANES];
            UNROLL
            for (int lane = 0; lane < LANES; lane++)
                block[lane] = first + lane < count ? load(rows + (first + lane) * stride + w)
                                                   : (Floats){0};
            transpose(block);
            UNROLL
            for (int lane = 0; lane < LANES; lane++)
                store(to + (w + lane) * room + first, block[lane]);
        }
}

/* The products of some rows with turned ones: a vector of them, beginning with number `first`. */
INLINE void multiply(int group, const float *rows, int64_t stride, const float *turned,
                     int64_t room, int64_t first, int64_t width, Floats products[GROUP]) {
    for (int g = 0; g < group; g++) products[g] = (Floats){0};
    for (int64_t w = 0; w < width; w++) {
        Floats column = load(turned + w * room + first);
        for (int g = 0; g < group; g++) products[g] += rows[g * stride + w] * column;
    }
}

/* Sums of rows, each times a weight of its own: to[g] = factor * sum of weights[g, j] * rows[j].
 * Weights lie `across` numbers apart from sum to sum, and `along` from row to row. */
INLINE void mix(int group, const float *weights, int64_t across, int64_t along, int64_t count,
                const float *rows, int64_t stride, int64_t width, float factor, int add, float *to,
                int64_t to_stride) {
    for (int64_t w = 0; w < width; w += WIDE * LANES) {
        int parts = width - w < WIDE * LANES ? 1 : WIDE; /* of two, as long as WIDE is 2 */
        Floats sums[GROUP][WIDE];
        for (int g = 0; g < group; g++)
            for (int part = 0; part < WIDE; part++) sums[g][part] = (Floats){0};
        for (int64_t j = 0; j < count; j++)
            for (int part = 0; part < WIDE; part++) {
                if (part >= parts) break;
                Floats numbers = load(rows + j * stride + w + part * LANES);
                for (int g = 0; g < group; g++)
                    sums[g][part] += weights[g * across + j * along] * numbers;
            }
        for (int g = 0; g < group; g++)
            for (int part = 0; part < parts; part++) {
                float *here = to + g * to_stride + w + part * LANES;
                Floats found = sums[g][part] * factor;
                store(here, add ? load(here) + found : found);
            }
    }
}

/* Do `what`, with the number of rows known to the compiler. */
#define IN_GROUPS(left, what)            \
    switch (left) {                      \
        case 1: what(1); break;          \
        case 2: what(2); break;          \
        case 3: what(3); break;          \
        case 4: what(4); break;          \
        case 5: what(GROUP < 5 ? GROUP : 5); break; \
        default: what(GROUP);            \
    }

/* How many keys the last of some queries sees. */
INLINE int64_t seen_by(const Part *part, int64_t last) {
    return part->causal && last + 1 < part->s ? last + 1 : part->s;
}

typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));

STIRRED(all_stirred, Bits)

/* M for a query and LANES keys. */
INLINE Floats kept(const Part *part, int64_t row, int64_t key) {
    const Dropout *dropout = &part->dropout;
    uint32_t query = stirred((uint32_t)(part->first + row * part->heads) ^ dropout->seed);
    Bits places;
    for (int lane = 0; lane < LANES; lane++) places[lane] = lane;
    places = all_stirred((places + (query + (uint32_t)key)) ^ dropout->second_seed);
    Wholes stays = (Wholes)(all_stirred(places) >= dropout->threshold);
    return choose(stays, (Floats){0} + dropout->factor, (Floats){0});
}

/* P becomes M * P. */
INLINE void drop(int group, const Part *part, int64_t row, int64_t room, int64_t seen,
                 float *weights) {
    for (int g = 0; g < group; g++)
        for (int64_t first = 0; first < seen; first += LANES) {
            float *here = weights + g * room + first;
            store(here, load(here) * kept(part, row + g, first));
        }
}

/* The weights (group, room) of some queries, from number `row` on, for their first `seen` keys. */
INLINE void weigh(int group, const Part *part, int64_t row, const float *keys, int64_t room,
                  int64_t seen, float *weights) {
    Wholes place;
    Floats top[GROUP], total[GROUP];
    for (int lane = 0; lane < LANES; lane++) place[lane] = lane;
    for (int g = 0; g < group; g++) top[g] = (Floats){0} - INFINITY;
    for (int64_t first = 0; first < seen; first += LANES) {
        Floats products[GROUP];
        multiply(group, part->q + row * part->q_stride, part->q_stride, keys, room, first,
                 part->width, products);
        for (int g = 0; g < group; g++) {
            int32_t end = (int32_t)(seen_by(part, row + g) - first);
            Floats score = choose(place < end, products[g] * part->scale, (Floats){0} - INFINITY);
            top[g] = larger(score, top[g]);
            store(weights + g * room + first, score);
        }
    }
    for (int g = 0; g < group; g++) {
        float most = largest(top[g]);
        total[g] = (Floats){0};
        for (int64_t first = 0; first < seen; first += LANES) {
            Floats weight = exponential(load(weights + g * room + first) - most);
            total[g] += weight;
            store(weights + g * room + first, weight);
        }
        float share = 1.0f / sum(total[g]);
        for (int64_t first = 0; first < seen; first += LANES)
            store(weights + g * room + first, load(weights + g * room + first) * share);
    }
}

static void attend_part(const Part *part, float *output, int64_t stride, float *at) {
    int64_t room = whole_vectors(part->s);
    float *keys = at, *weights = keys + part->width * room;
    turn(part->k, part->kv_stride, part->s, part->width, keys);
    for (int64_t row = 0; row < part->t; row += GROUP) {
        int64_t left = part->t - row < GROUP ? part->t - row : GROUP;
        int64_t seen = seen_by(part, row + left - 1);
#define ATTEND(group)                                                                       \
    weigh(group, part, row, keys, room, seen, weights);                                     \
    if (part->dropout.threshold) drop(group, part, row, room, seen, weights);               \
    mix(group, weights, room, 1, seen, part->v, part->kv_stride, part->width, part->factor, 0, \
        output + row * stride, stride)
        IN_GROUPS(left, ATTEND)
    }
}

/* From weights P the changes dS / sqrt(w), with which gradients of keys and queries are sums. */
INLINE void differ(int group, const Part *part, int64_t row, const float *grad, int64_t stride,
                   const float *values, int64_t room, int64_t seen, const float *weights,
                   float *changes) {
    Floats total[GROUP];
    for (int g = 0; g < group; g++) total[g] = (Floats){0};
    for (int64_t first = 0; first < seen; first += LANES) {
        Floats products[GROUP];
        multiply(group, grad, stride, values, room, first, part->width, products);
        for (int g = 0; g < group; g++) {
            if (part->dropout.threshold) products[g] *= kept(part, row + g, first);
            total[g] += products[g] * load(weights + g * room + first);
            store(changes + g * room + first, products[g]);
        }
    }
    for (int g = 0; g < group; g++) {
        float mean = sum(total[g]);
        for (int64_t first = 0; first < seen; first += LANES) {
            Floats change = load(changes + g * room + first) - mean;
            store(changes + g * room + first,
                  change * load(weights + g * room + first) * (part->factor * part->scale));
        }
    }
}

static void differentiate_part(const Part *part, const float *grad, int64_t stride, float *of_q,
                               float *of_k, float *of_v, float *at) {
    int64_t room = whole_vectors(part->s), width = part->width;
    float *keys = at, *values = keys + width * room;
    float *weights = values + width * room, *changes = weights + CHUNK * room;
    turn(part->k, part->kv_stride, part->s, width, keys);
    turn(part->v, part->kv_stride, part->s, width, values);
    for (int64_t begin = 0; begin < part->t; begin += CHUNK) {
        int64_t rows = part->t - begin < CHUNK ? part->t - begin : CHUNK;
        int64_t most = seen_by(part, begin + rows - 1);
        for (int64_t row = begin; row < begin + rows; row += GROUP) {
            int64_t left = begin + rows - row < GROUP ? begin + rows - row : GROUP;
            int64_t seen = seen_by(part, row + left - 1);
            float *here = weights + (row - begin) * room, *change = changes + (row - begin) * room;
            const float *of_output = grad + row * stride;
#define DIFFER(group)                                                                       \
    weigh(group, part, row, keys, room, seen, here);                                        \
    differ(group, part, row, of_output, stride, values, room, seen, here, change);          \
    if (part->dropout.threshold) drop(group, part, row, room, seen, here);                  \
    mix(group, change, room, 1, seen, part->k, part->kv_stride, width, 1.0f, 0,             \
        of_q + row * part->q_stride, part->q_stride)
            IN_GROUPS(left, DIFFER)
            for (int64_t g = 0; g < left; g++) /* what these queries do not see, later ones do */
                for (int64_t key = whole_vectors(seen); key < most; key++)
                    here[g * room + key] = change[g * room + key] = 0.0f;
        }
        const float *queries = part->q + begin * part->q_stride, *of_output = grad + begin * stride;
        for (int64_t key = 0; key < most; key += GROUP) {
            int64_t left = most - key < GROUP ? most - key : GROUP, to = key * part->kv_stride;
#define SPREAD(group)                                                                       \
    mix(group, changes + key, 1, room, rows, queries, part->q_stride, width, 1.0f, 1, of_k + to, \
        part->kv_stride);                                                                   \
    mix(group, weights + key, 1, room, rows, of_output, stride, width, part->factor, 1,     \
        of_v + to, part->kv_stride)
            IN_GROUPS(left, SPREAD)
        }
    }
}

/* How many numbers of room a thread needs, where no sequence has more keys. */
int64_t packed_room(int64_t longest, int64_t width, int64_t backwards) {
    int64_t rows = backwards ? 2 * (width + CHUNK) : width + GROUP;
    return rows * whole_vectors(longest);
}

/* The length of the longest sequence. */
int64_t packed_longest(const int32_t *boundaries, int64_t sequences) {
    int64_t longest = 0;
    for (int64_t i = 0; i < sequences; i++) {
        int64_t length = boundaries[i + 1] - boundaries[i];
        longest = length > longest ? length : longest;
    }
    return longest;
}

/* The tokens, (n, ...), of queries, keys and values; where each sequence begins; and so on. */
typedef struct {
    const float *q, *k, *v;
    int64_t q_stride, kv_stride;
    const int32_t *queries, *keys;
    int64_t sequences, heads, width, causal;
    const float *factors; /* (h,), or NULL: all 1 */
    float *room;
    int64_t room_each, threads;
    Dropout dropout;
} Batch;

/* Item number `item` of sequences * heads; whether there is anything to do. */
INLINE int part_of(const Batch *batch, int64_t item, Part *part) {
    int64_t i = item / batch->heads, h = item % batch->heads;
    int64_t query = batch->queries[i], key = batch->keys[i], at = h * batch->width;
    *part = (Part){
        .q = batch->q + query * batch->q_stride + at,
        .k = batch->k + key * batch->kv_stride + at,
        .v = batch->v + key * batch->kv_stride + at,
        .q_stride = batch->q_stride,
        .kv_stride = batch->kv_stride,
        .t = batch->queries[i + 1] - query,
        .s = batch->keys[i + 1] - key,
        .width = batch->width,
        .causal = batch->causal,
        .first = query * batch->heads + h,
        .heads = batch->heads,
        .factor = batch->factors ? batch->factors[h] : 1.0f,
        .scale = 1.0f / sqrtf((float)batch->width),
        .dropout = batch->dropout,
    };
    return part->t && part->s && part->factor != 0.0f;
}

/* output (n, h, w), zeros before */
void packed_attend(const Batch *batch, float *output) {
    int64_t stride = batch->heads * batch->width;
#pragma omp parallel for num_threads(batch->threads) schedule(dynamic, 4)
    for (int64_t item = 0; item < batch->sequences * batch->heads; item++) {
        Part part;
        if (!part_of(batch, item, &part)) continue;
        attend_part(&part, output + part.first * part.width, stride,
                    batch->room + omp_get_thread_num() * batch->room_each);
    }
}

/* grad (n, h, w) -> of_q, of_k and of_v, which lie as q, k and v do, zeros before */
void packed_differentiate(const Batch *batch, const float *grad, float *of_q, float *of_k,
                          float *of_v) {
    int64_t stride = batch->heads * batch->width;
#pragma omp parallel for num_threads(batch->threads) schedule(dynamic, 4)
    for (int64_t item = 0; item < batch->sequences * batch->heads; item++) {
        Part part;
        if (!part_of(batch, item, &part)) continue;
        differentiate_part(&part, grad + part.first * part.width, stride,
                           of_q + (part.q - batch->q), of_k + (part.k - batch->k),
                           of_v + (part.v - batch->v),
                           batch->room + omp_get_thread_num() * batch->room_each);
    }
}
