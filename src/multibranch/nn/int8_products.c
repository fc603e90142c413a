/* Products of states with a weight in eight bits, on a CPU with AVX-512 VNNI.
 *
 * Every row of the states (rows, in) is rounded with a least number and a scale of its own,
 * x = low + scale * n with n from 0 to 255; every row of the weight (out, in) with a scale of its
 * own, w = unit * m with m from -127 to 127. Then
 *
 *     sum of x * w = unit * (scale * sum of n * m + low * sum of m)
 *
 * whose last sum is known beforehand, and the one before it exact. What comes out for a row depends
 * on no other row.
 *
 * A weight lies in panels of PANEL outputs each, and in these four inputs after four inputs,
 * (out / PANEL, in / 4, PANEL, 4): a vector of 64 bytes is what one instruction takes. Zeros fill
 * the last panel and the last four. `units` are out scales, `totals` out times unit * sum of m,
 * `bias` is out numbers or NULL.
 */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "int8.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8") /* the sums must be found in registers, one by one */

/* Rows, and vectors of each, whose sums are held in registers; rows that are rounded at a time, few
 * enough to stay in the cache. */
enum { LANES = 16, VECTORS = 4, PANEL = VECTORS * LANES, ROWS = 6, BLOCK = 64 * ROWS };

/* Bytes from one rounded row to the next: whole vectors. */
INLINE int64_t stride_of(int64_t in) { return (in + LANES - 1) / LANES * LANES; }

/* Of so many numbers, those that a vector has room for. */
INLINE __mmask16 first(int64_t count) {
    return count >= LANES ? 0xffff : count > 0 ? (__mmask16)((1u << count) - 1) : 0;
}

/* A row as bytes; `to` has room for a multiple of LANES. What is infinite or no number makes its
 * whole row no numbers. */
INLINE void round_row(const float *row, int64_t in, uint8_t *to, float *scale, float *low) {
    const __m512 infinity = _mm512_set1_ps(INFINITY);
    __m512 least = infinity, most = -infinity;
    __mmask16 odd = 0;
    for (int64_t i = 0; i < in; i += LANES) {
        __mmask16 there = first(in - i);
        __m512 here = _mm512_maskz_loadu_ps(there, row + i);
        least = _mm512_mask_min_ps(least, there, least, here);
        most = _mm512_mask_max_ps(most, there, most, here);
        odd |= _mm512_cmp_ps_mask(_mm512_abs_ps(here), infinity, _CMP_NLT_UQ);
    }
    float bottom = _mm512_reduce_min_ps(least), span = _mm512_reduce_max_ps(most) - bottom;
    *scale = span / 255.0f;
    *low = odd ? NAN : bottom;
    __m512 factor = _mm512_set1_ps(span > 0.0f ? 255.0f / span : 0.0f);
    for (int64_t i = 0; i < in; i += LANES) {
        __m512 here = _mm512_maskz_loadu_ps(first(in - i), row + i);
        __m512i n = _mm512_cvtps_epi32((here - bottom) * factor); /* to the nearest */
        n = _mm512_max_epi32(n, _mm512_setzero_si512());
        _mm_storeu_si128((__m128i *)(to + i), _mm512_cvtusepi32_epi8(n));
    }
}

/* Sums of four products each, of bytes without and with a sign. Around the intrinsic of this name
 * GCC 12 copies the sums to memory and back. */
INLINE void accumulate(__m512i *sums, __m512i states, __m512i weights) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(states), "v"(weights));
}

/* So many rows, known to the compiler, times one panel. */
INLINE void multiply_rows(const Weight *weight, int64_t panel, const uint8_t *states,
                          int64_t stride, const float *scales, const float *lows, float *output,
                          int rows) {
    int64_t fours = (weight->in + 3) / 4;
    const int8_t *numbers = weight->panels + panel * fours * PANEL * 4;
    __m512i sums[ROWS][VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < VECTORS; v++) sums[r][v] = _mm512_setzero_si512();
    for (int64_t four = 0; four < fours; four++) {
        __m512i weights[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++)
            weights[v] = _mm512_loadu_si512(numbers + (four * VECTORS + v) * 64);
        UNROLL for (int r = 0; r < rows; r++) {
            int32_t bytes;
            memcpy(&bytes, states + r * stride + four * 4, 4);
            __m512i same = _mm512_set1_epi32(bytes);
            UNROLL for (int v = 0; v < VECTORS; v++) accumulate(&sums[r][v], same, weights[v]);
        }
    }
    UNROLL for (int v = 0; v < VECTORS; v++) {
        int64_t at = panel * PANEL + v * LANES;
        __mmask16 there = first(weight->out - at);
        __m512 unit = _mm512_maskz_loadu_ps(there, weight->units + at);
        __m512 total = _mm512_maskz_loadu_ps(there, weight->totals + at);
        __m512 bias = _mm512_setzero_ps();
        if (weight->bias) bias = _mm512_maskz_loadu_ps(there, weight->bias + at);
        UNROLL for (int r = 0; r < rows; r++) {
            __m512 found = _mm512_cvtepi32_ps(sums[r][v]) * unit;
            found = found * scales[r] + (total * lows[r] + bias);
            if (weight->relu) found = _mm512_max_ps(_mm512_setzero_ps(), found);
            _mm512_mask_storeu_ps(output + r * weight->out + at, there, found);
        }
    }
}

/* Whether this machine has the instructions. */
int runs_here(void) { return __builtin_cpu_supports("avx512vnni") != 0; }

/* The outputs of a panel. */
int panel(void) { return PANEL; }

/* Bytes of room that `multiply` needs for so many rows. */
int64_t room(int64_t rows, int64_t in) {
    return (rows < BLOCK ? rows : BLOCK) * (stride_of(in) + 2 * (int64_t)sizeof(float));
}

/* states (rows, in) -> output (rows, out), none of it negative where `relu`. */
void multiply(const Weight *weight, const float *states, int64_t rows, uint8_t *bytes,
              float *output) {
    int64_t in = weight->in, out = weight->out, stride = stride_of(in);
    for (int64_t start = 0; start < rows; start += BLOCK) {
        int64_t count = rows - start < BLOCK ? rows - start : BLOCK;
        float *scales = (float *)(bytes + count * stride), *lows = scales + count;
        for (int64_t r = 0; r < count; r++)
            round_row(states + (start + r) * in, in, bytes + r * stride, scales + r, lows + r);
        for (int64_t panel = 0; panel * PANEL < out; panel++)
            for (int64_t r = 0; r < count; r += ROWS) {
#define MULTIPLY(some)                                                                   \
    multiply_rows(weight, panel, bytes + r * stride, stride, scales + r, lows + r,      \
                  output + (start + r) * out, some)
                switch (count - r) {
                    case 1: MULTIPLY(1); break;
                    case 2: MULTIPLY(2); break;
                    case 3: MULTIPLY(3); break;
                    case 4: MULTIPLY(4); break;
                    case 5: MULTIPLY(5); break;
                    default: MULTIPLY(ROWS);
                }
            }
    }
}
