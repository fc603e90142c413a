/* Vectors of LANES float32 numbers, as GCC and Clang have them: 16 with AVX-512, 8 with AVX2. */
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#ifdef __AVX512F__
enum { LANES = 16 };
#else
enum { LANES = 8 };
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Wholes __attribute__((vector_size(4 * LANES)));

INLINE Floats load(const float *from) {
    Floats numbers;
    memcpy(&numbers, from, sizeof numbers);
    return numbers;
}

INLINE void store(float *to, Floats numbers) { memcpy(to, &numbers, sizeof numbers); }

INLINE Floats choose(Wholes which, Floats yes, Floats no) {
    return (Floats)((which & (Wholes)yes) | (~which & (Wholes)no));
}

INLINE Floats larger(Floats a, Floats b) { return choose(a > b, a, b); }

/* Of one half and the other, then of quarters, and so on: four steps instead of fifteen. */
INLINE float largest(Floats numbers) {
    float found[LANES];
    store(found, numbers);
    for (int half = LANES / 2; half; half /= 2)
        for (int lane = 0; lane < half; lane++)
            found[lane] = found[lane] > found[lane + half] ? found[lane] : found[lane + half];
    return found[0];
}

INLINE float sum(Floats numbers) {
    float total[LANES];
    store(total, numbers);
    for (int half = LANES / 2; half; half /= 2)
        for (int lane = 0; lane < half; lane++) total[lane] += total[lane + half];
    return total[0];
}

/* To the nearest whole number; adding 1.5 * 2^23 leaves no room for anything behind the point. */
INLINE Floats nearest(Floats numbers) {
    const Floats shift = (Floats){0} + 12582912.0f;
    return (numbers + shift) - shift;
}

/* exp(x) for x <= 0: 2^whole * 2^rest, the latter for |rest| <= 1/2 by its Taylor series. */
INLINE Floats exponential(Floats x) {
    const Floats least = (Floats){0} - 126.0f;
    Floats wanted = x * 1.44269504f;
    Wholes counts = wanted > least;
    wanted = choose(counts, wanted, least);
    Floats whole = nearest(wanted), rest = wanted - whole;
    Floats series = 0.00133336f + rest * 0.00015404f;
    series = 0.05550411f + rest * (0.00961813f + rest * series);
    series = 1.0f + rest * (0.69314718f + rest * (0.24022651f + rest * series));
    Wholes power = (__builtin_convertvector(whole, Wholes) + 127) << 23;
    return choose(counts, series * (Floats)power, (Floats){0});
}
