/* Checks that values are finite: none of them is a NaN or an infinity. */
#include "kernels.h"
#include "wide.h"

#include <string.h>

typedef uint16_t __attribute__((may_alias)) bits16;
typedef uint32_t __attribute__((may_alias)) bits32;
typedef uint64_t __attribute__((may_alias)) bits64;

typedef int (*look)(const void *values, size_t n);
typedef int (*copy)(void *out, const void *values, const void *others, size_t n);

/* A value is not finite if its exponent is all ones: adding one at EXPONENT's lowest bit then
 * carries into the sign bit. So the loop needs no comparisons, for vectors of every width. */
#define FINITE(NAME, TYPE, EXPONENT)                                                            \
    enum { SIGN_##NAME = 8 * sizeof(TYPE) - 1 };                                                \
    static const TYPE ONES_##NAME = (EXPONENT), LAST_##NAME = (EXPONENT) & (~(EXPONENT) + 1);   \
    WIDE static int look_##NAME(const void *values, size_t n)                                   \
    {                                                                                           \
        const TYPE *in = values;                                                                \
        TYPE found = 0;                                                                         \
        for (size_t i = 0; i < n; i++)                                                          \
            found |= (TYPE)((in[i] & ONES_##NAME) + LAST_##NAME);                               \
        return !(found >> SIGN_##NAME);                                                         \
    }                                                                                           \
    WIDE static int copy_##NAME(void *out_, const void *values, const void *others, size_t n)   \
    {                                                                                           \
        TYPE *restrict out = out_;                                                              \
        const TYPE *restrict in = values, *restrict also = others;                              \
        TYPE found = 0;                                                                         \
        for (size_t i = 0; i < n; i++) {                                                        \
            out[i] = in[i];                                                                     \
            found |= (TYPE)((in[i] & ONES_##NAME) + LAST_##NAME);                               \
            found |= (TYPE)((also[i] & ONES_##NAME) + LAST_##NAME);                             \
        }                                                                                       \
        return !(found >> SIGN_##NAME);                                                         \
    }

FINITE(f16, bits16, 0x7c00U)
FINITE(bf16, bits16, 0x7f80U)
FINITE(f32, bits32, 0x7f800000U)
FINITE(f64, bits64, 0x7ff0000000000000U)

static const look LOOKS[NUM_DTYPES] = {
    [FLOAT32] = look_f32, [FLOAT64] = look_f64, [FLOAT16] = look_f16, [BFLOAT16] = look_bf16,
    [COMPLEX64] = look_f32, [COMPLEX128] = look_f64,
};
static const copy COPIES[NUM_DTYPES] = {
    [FLOAT32] = copy_f32, [FLOAT64] = copy_f64, [FLOAT16] = copy_f16, [BFLOAT16] = copy_bf16,
    [COMPLEX64] = copy_f32, [COMPLEX128] = copy_f64,
};

static size_t numbers(size_t count, int dtype)
{
    return dtype == COMPLEX64 || dtype == COMPLEX128 ? 2 * count : count;
}

int are_finite(const void *values, size_t count, int dtype)
{
    return !LOOKS[dtype] || LOOKS[dtype](values, numbers(count, dtype));
}

int copy_finite(void *out, const void *values, const void *others, size_t count, int dtype)
{
    if (COPIES[dtype])
        return COPIES[dtype](out, values, others, numbers(count, dtype));
    memcpy(out, values, count * ITEMSIZE[dtype]);
    return 1;
}
