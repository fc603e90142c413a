/* What the kernels in eight bits offer one another; each file says what its functions do. */
#include <stdint.h>

/* A weight as int8_products.c lays it out. */
typedef struct {
    int64_t in, out;
    const int8_t *panels;
    const float *units, *totals, *bias;
    int64_t relu;
} Weight;

int64_t room(int64_t rows, int64_t in);
void multiply(const Weight *weight, const float *states, int64_t rows, uint8_t *bytes,
              float *output);

/* int8_attention.c */
int group(void);
void attend_source(const float *query, int64_t b, int64_t rows, int64_t heads, int64_t width,
                   const float *mask, int64_t slots, int8_t *kept, float *scales, float *output,
                   float *scores);
void attend_written(const float *qkv, int64_t b, int64_t rows, int64_t heads, int64_t width,
                    int64_t first, const float *mask, int64_t beam, int64_t mask_slots,
                    int64_t seen, int64_t slots, int8_t *kept, float *scales, float *output,
                    float *scores);
