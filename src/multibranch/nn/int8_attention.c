/* Attention over keys and values in eight bits, for decoding on a CPU.
 *
 * A step's attention computes little and reads much: the keys and values of all that was read, in
 * every layer. In eight bits they take a quarter of the memory. Vectors of w numbers are rounded
 * one by one, each with a scale of its own: x = scale * n, n from -127 to 127.
 *
 * For each sentence and head, `kept` holds the keys and then, h heads further, the values of
 * `slots` slots, a multiple of 16: (b, 2, h, slots * w). Values lie slot by slot, (slots, w); keys
 * in blocks of as many slots as a vector has LANES, (slots / LANES, w, LANES): so many scores at
 * once. `scales` is (b, 2, h, slots). w is a multiple of 16. Masks hold 0 where a row looks, and
 * -infinity where it does not; every row looks somewhere. `scores` is room for (GROUP, slots) numbers.
 *
 * Vectors are those of GCC and Clang, of LANES numbers: 16 with AVX-512, 8 with AVX2.
 * pyproject.toml has this file compiled for both; int8_attention.py takes the one that the machine
 * can run.
 */
#include <immintrin.h>
#include <math.h>

#include "int8.h"
#include "vectors.h"

/* Rows, and vectors of each, that are held in registers. */
enum { GROUP = 5, WIDE = LANES == 16 ? 4 : 2 };

/* What one sentence keeps for one head. */
typedef struct {
    int8_t *keys, *values;
    float *key_scales, *value_scales;
} Head;

/* GCC would go number by number without these instructions by name, here and in `narrow`. */
INLINE Floats widen(const int8_t *from) {
#ifdef __AVX512F__
    __m128i bytes = _mm_loadu_si128((const __m128i *)from);
    return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#else
    __m128i bytes = _mm_loadl_epi64((const __m128i *)from);
    return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
#endif
}

/* Whole numbers from -127 to 127 as bytes. */
INLINE void narrow(Floats numbers, int8_t *to) {
#ifdef __AVX512F__
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(_mm512_cvttps_epi32((__m512)numbers)));
#else
    __m256i wholes = _mm256_cvttps_epi32((__m256)numbers);
    __m128i high = _mm256_extracti128_si256(wholes, 1);
    __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(wholes), high);
    _mm_storel_epi64((__m128i *)to, _mm_packs_epi16(halves, halves));
#endif
}

/* Write `width` numbers in eight bits, `stride` bytes apart; gives back their scale, which is no
 * number where one of them is none. */
INLINE float round_vector(const float *numbers, int64_t width, int8_t *to, int64_t stride) {
    Wholes most = {0}; /* bits without the sign, among which what is no number is the largest */
    for (int64_t w = 0; w < width; w += LANES) {
        Wholes here = (Wholes)load(numbers + w) & 0x7fffffff, more = here > most;
        most = (more & here) | (~more & most);
    }
    for (int lane = 1; lane < LANES; lane++) most[0] = most[lane] > most[0] ? most[lane] : most[0];
    float magnitude = ((Floats)most)[0] + 1e-30f;
    float factor = 127.0f / magnitude;
    for (int64_t w = 0; w < width; w += LANES) {
        int8_t rounded[LANES];
        narrow(nearest(load(numbers + w) * factor), stride == 1 ? to + w : rounded);
        if (stride != 1)
            for (int lane = 0; lane < LANES; lane++) to[(w + lane) * stride] = rounded[lane];
    }
    return magnitude / 127.0f;
}

INLINE Head head_of(int8_t *kept, float *scales, int64_t sentence, int64_t heads, int64_t head,
                    int64_t slots, int64_t width) {
    int64_t key = (sentence * 2 * heads + head) * slots, value = key + heads * slots;
    return (Head){kept + key * width, kept + value * width, scales + key, scales + value};
}

INLINE void keep(Head head, int64_t slot, const float *key, const float *value, int64_t width) {
    int8_t *block = head.keys + slot / LANES * LANES * width + slot % LANES;
    head.key_scales[slot] = round_vector(key, width, block, LANES);
    head.value_scales[slot] = round_vector(value, width, head.values + slot * width, 1);
}

/* A group of rows: softmax of their queries' products with the keys, times the values. Query, mask
 * and output of a row lie so many numbers behind those of the one before; scores is room for
 * (group, seen) numbers. */
INLINE void attend(Head head, const float *query, int64_t query_stride, const float *mask,
                   int64_t mask_stride, float *output, int64_t output_stride, int group,
                   int64_t seen, int64_t width, float *scores) {
    Floats top[GROUP], total[GROUP];
    for (int g = 0; g < group; g++) top[g] = (Floats){0} - INFINITY;
    for (int64_t first = 0; first < seen; first += LANES) {
        Floats products[GROUP];
        for (int g = 0; g < group; g++) products[g] = (Floats){0};
        const int8_t *block = head.keys + first * width;
        for (int64_t w = 0; w < width; w++) {
            Floats key = widen(block + w * LANES);
            for (int g = 0; g < group; g++) products[g] += query[g * query_stride + w] * key;
        }
        Floats scale = load(head.key_scales + first);
        for (int g = 0; g < group; g++) {
            Floats score = products[g] * scale + load(mask + g * mask_stride + first);
            top[g] = larger(score, top[g]);
            store(scores + g * seen + first, score);
        }
    }
    float factor[GROUP];
    for (int g = 0; g < group; g++) {
        float most = largest(top[g]);
        total[g] = (Floats){0};
        for (int64_t first = 0; first < seen; first += LANES) {
            Floats weight = exponential(load(scores + g * seen + first) - most);
            total[g] += weight;
            store(scores + g * seen + first, weight * load(head.value_scales + first));
        }
        factor[g] = 1.0f / sum(total[g]);
    }
    for (int64_t from = 0; from < width; from += WIDE * LANES) {
        int64_t parts = (width - from) / LANES < WIDE ? (width - from) / LANES : WIDE;
        Floats sums[GROUP][WIDE];
        for (int g = 0; g < group; g++)
            for (int part = 0; part < WIDE; part++) sums[g][part] = (Floats){0};
        for (int64_t slot = 0; slot < seen; slot++) {
            const int8_t *value = head.values + slot * width + from;
            for (int part = 0; part < WIDE; part++) { /* a known number of times: in registers */
                if (part >= parts) break;
                Floats numbers = widen(value + part * LANES);
                for (int g = 0; g < group; g++) sums[g][part] += scores[g * seen + slot] * numbers;
            }
        }
        for (int g = 0; g < group; g++)
            for (int part = 0; part < parts; part++)
                store(output + g * output_stride + from + part * LANES, sums[g][part] * factor[g]);
    }
}

/* The same for any number of rows, with the size of a group known to the compiler. */
INLINE void attend_all(Head head, const float *query, int64_t query_stride, const float *mask,
                       int64_t mask_stride, float *output, int64_t output_stride, int64_t rows,
                       int64_t seen, int64_t width, float *scores) {
    for (int64_t row = 0; row < rows; row += GROUP) {
#define ATTEND(group)                                                                             \
    attend(head, query + row * query_stride, query_stride, mask + row * mask_stride, mask_stride, \
           output + row * output_stride, output_stride, group, seen, width, scores)
        switch (rows - row) {
            case 1: ATTEND(1); break;
            case 2: ATTEND(2); break;
            case 3: ATTEND(3); break;
            case 4: ATTEND(4); break;
            default: ATTEND(GROUP);
        }
    }
}

/* How many slots a block of keys has. */
int lanes(void) { return LANES; }

/* How many rows, each with scores of its own, are worked on at a time. */
int group(void) { return GROUP; }

/* Keys and values of the sources, projected (b, s, 2, h, w), into kept and scales. */
void keep_source(const float *projected, int64_t b, int64_t s, int64_t heads, int64_t width,
                 int64_t slots, int8_t *kept, float *scales) {
    for (int64_t i = 0; i < b; i++)
        for (int64_t slot = 0; slot < s; slot++)
            for (int64_t h = 0; h < heads; h++) {
                const float *key = projected + (((i * s + slot) * 2) * heads + h) * width;
                Head head = head_of(kept, scales, i, heads, h, slots, width);
                keep(head, slot, key, key + heads * width, width);
            }
}

/* query (b, rows, h, w), mask (b, slots) -> output (b, rows, h, w). */
void attend_source(const float *query, int64_t b, int64_t rows, int64_t heads, int64_t width,
                   const float *mask, int64_t slots, int8_t *kept, float *scales, float *output,
                   float *scores) {
    int64_t stride = heads * width;
    for (int64_t i = 0; i < b; i++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = i * rows * stride + h * width;
            Head head = head_of(kept, scales, i, heads, h, slots, width);
            attend_all(head, query + at, stride, mask + i * slots, 0, output + at, stride, rows,
                       slots, width, scores);
        }
}

/* qkv (b, rows, 3, h, w), mask (b, beam, mask_slots) -> output (b, rows, h, w).
 *
 * Keys and values go into the slots from `first` on, one a row; `seen` slots are then looked at. */
void attend_written(const float *qkv, int64_t b, int64_t rows, int64_t heads, int64_t width,
                    int64_t first, const float *mask, int64_t beam, int64_t mask_slots,
                    int64_t seen, int64_t slots, int8_t *kept, float *scales, float *output,
                    float *scores) {
    int64_t stride = heads * width;
    for (int64_t i = 0; i < b; i++)
        for (int64_t h = 0; h < heads; h++) {
            const float *query = qkv + i * rows * 3 * stride + h * width;
            Head head = head_of(kept, scales, i, heads, h, slots, width);
            for (int64_t row = 0; row < rows; row++) {
                const float *key = query + row * 3 * stride + stride;
                keep(head, first + row, key, key + stride, width);
            }
            attend_all(head, query, 3 * stride, mask + i * beam * mask_slots, mask_slots,
                       output + i * rows * stride + h * width, stride, rows, seen, width, scores);
        }
}
