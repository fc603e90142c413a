/* Dropout on a CPU, whose random numbers are a function of a seed and of the number's place.
 *
 * PyTorch draws them one after the other, which takes longer than all that a layer computes. Here
 * every place has a number of its own: its place, stirred together with the seed. Nothing has to be
 * kept for the gradient, for the same numbers are drawn again, and threads need not wait for each
 * other.
 */
#include "places.h"

#define INLINE static inline __attribute__((always_inline))

/* Places beyond 2^32 begin a block of numbers of its own. */
INLINE void drop(const float *from, const float *base, int64_t begin, int64_t end,
                 const Dropout *dropout, float *to) {
    uint32_t seed = dropout->seed, threshold = dropout->threshold;
    uint32_t second = dropout->second_seed ^ stirred((uint32_t)(begin >> 32));
    float factor = dropout->factor;
    for (int64_t i = begin; i < end; i++) {
        uint32_t number = stirred(stirred((uint32_t)i + seed) ^ second);
        float kept = number >= threshold ? from[i] * factor : 0.0f;
        to[i] = base ? base[i] + kept : kept;
    }
}

/* Dropout of `count` numbers, added to `base` unless that is NULL. */
void dropped(const float *from, const float *base, int64_t count, const Dropout *dropout,
             float *to, int64_t threads) {
    const int64_t block = 1 << 13; /* a divisor of 2^32 */
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t begin = 0; begin < count; begin += block) {
        int64_t end = begin + block < count ? begin + block : count;
        if (base)
            drop(from, base, begin, end, dropout, to);
        else
            drop(from, (const float *)0, begin, end, dropout, to);
    }
}
