/* Dropout by random numbers that are a function of a place: each has its own, whoever asks when. */
#include <stdint.h>

/* What is drawn below the threshold, of 2^32, is dropped; all else is multiplied by `factor`. */
typedef struct {
    uint32_t seed, second_seed, threshold;
    float factor;
} Dropout;

/* Every bit of the result depends on all of x: a bijection that was searched for that. `type` is a
 * number of 32 bits, or a vector of them. */
#define STIRRED(name, type)                                          \
    static inline __attribute__((always_inline)) type name(type x) { \
        x = (x ^ (x >> 16)) * 0x7feb352du;                           \
        x = (x ^ (x >> 15)) * 0x846ca68bu;                           \
        return x ^ (x >> 16);                                        \
    }

STIRRED(stirred, uint32_t)
