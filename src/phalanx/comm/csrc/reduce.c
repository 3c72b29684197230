/* Reduce several vectors to one, element by element. */
#include "kernels.h"
#include "wide.h"

#include <string.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

/* A process may set its processor to flush denormal numbers to zero (torch.set_flush_denormal, or a
 * library built with -ffast-math). Widening half types uses such numbers, and every rank must get
 * the same bits, however its processor is set. */
#if defined(__SSE__)
typedef unsigned int float_mode;
enum { FLUSH = 0x8040 }; /* results (FTZ), and operands (DAZ) */
static float_mode keep_denormals(void)
{
    float_mode before = _mm_getcsr();
    if (before & FLUSH)
        _mm_setcsr(before & ~(float_mode)FLUSH);
    return before;
}
static void restore(float_mode before)
{
    if (before & FLUSH)
        _mm_setcsr(before);
}
#elif defined(__aarch64__)
typedef uint64_t float_mode;
enum { FLUSH = 1 << 24 | 1 << 19 }; /* float and double (FZ), and halves (FZ16) */
static void set_mode(float_mode mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
static float_mode keep_denormals(void)
{
    float_mode before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    if (before & FLUSH)
        set_mode(before & ~(float_mode)FLUSH);
    return before;
}
static void restore(float_mode before)
{
    if (before & FLUSH)
        set_mode(before);
}
#else
typedef int float_mode;
static float_mode keep_denormals(void) { return 0; }
static void restore(float_mode before) { (void)before; }
#endif

enum { BLOCK_FLOATS = BLOCK_BYTES / sizeof(float) };

const size_t ITEMSIZE[NUM_DTYPES] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1, 8, 16, 1};

typedef void (*binary)(void *out, const void *a, const void *b, size_t n);

#define BINARY(NAME, TYPE, EXPRESSION)                                                          \
    WIDE static void NAME(void *out_, const void *a_, const void *b_, size_t n)                 \
    {                                                                                           \
        TYPE *out = out_;                                                                       \
        const TYPE *a = a_, *b = b_;                                                            \
        INDEPENDENT                                                                             \
        for (size_t i = 0; i < n; i++) {                                                        \
            TYPE x = a[i], y = b[i];                                                            \
            out[i] = (EXPRESSION);                                                              \
        }                                                                                       \
    }

/* A NaN on either side is the result. */
#define FLOATING(NAME, TYPE)                                                                    \
    BINARY(sum_##NAME, TYPE, x + y)                                                             \
    BINARY(product_##NAME, TYPE, x *y)                                                          \
    BINARY(min_##NAME, TYPE, x < y || x != x ? x : y)                                           \
    BINARY(max_##NAME, TYPE, x > y || x != x ? x : y)
/* Unsigned arithmetic wraps round where signed would be undefined; the bits are the same. */
#define INTEGER(NAME, TYPE, UNSIGNED)                                                           \
    BINARY(sum_##NAME, TYPE, (TYPE)((UNSIGNED)x + (UNSIGNED)y))                                 \
    BINARY(product_##NAME, TYPE, (TYPE)((UNSIGNED)(1U * (UNSIGNED)x) * (UNSIGNED)y))            \
    BINARY(min_##NAME, TYPE, x < y ? x : y)                                                     \
    BINARY(max_##NAME, TYPE, x > y ? x : y)                                                     \
    BINARY(band_##NAME, TYPE, (TYPE)(x & y))                                                    \
    BINARY(bor_##NAME, TYPE, (TYPE)(x | y))                                                     \
    BINARY(bxor_##NAME, TYPE, (TYPE)(x ^ y))

FLOATING(f32, float)
FLOATING(f64, double)
INTEGER(i8, int8_t, uint8_t)
INTEGER(i16, int16_t, uint32_t)
INTEGER(i32, int32_t, uint32_t)
INTEGER(i64, int64_t, uint64_t)
INTEGER(u8, uint8_t, uint8_t)
INTEGER(u16, uint16_t, uint32_t)
INTEGER(u32, uint32_t, uint32_t)
INTEGER(u64, uint64_t, uint64_t)
BINARY(and_bool, uint8_t, (uint8_t)((x != 0) & (y != 0)))
BINARY(or_bool, uint8_t, (uint8_t)((x != 0) | (y != 0)))
BINARY(xor_bool, uint8_t, (uint8_t)((x != 0) ^ (y != 0)))

#define COMPLEX_PRODUCT(NAME, TYPE)                                                             \
    static void product_##NAME(void *out_, const void *a_, const void *b_, size_t n)            \
    {                                                                                           \
        TYPE *out = out_;                                                                       \
        const TYPE *a = a_, *b = b_;                                                            \
        for (size_t i = 0; i < 2 * n; i += 2) {                                                 \
            TYPE real = a[i] * b[i] - a[i + 1] * b[i + 1];                                      \
            TYPE imaginary = a[i] * b[i + 1] + a[i + 1] * b[i];                                 \
            out[i] = real;                                                                      \
            out[i + 1] = imaginary;                                                             \
        }                                                                                       \
    }
COMPLEX_PRODUCT(c64, float)
COMPLEX_PRODUCT(c128, double)
static void sum_c64(void *out, const void *a, const void *b, size_t n) { sum_f32(out, a, b, 2 * n); }
static void sum_c128(void *out, const void *a, const void *b, size_t n) { sum_f64(out, a, b, 2 * n); }

#define FLOATING_ROW(NAME) {sum_##NAME, product_##NAME, min_##NAME, max_##NAME, NULL, NULL, NULL}
#define INTEGER_ROW(NAME)                                                                       \
    {sum_##NAME, product_##NAME, min_##NAME, max_##NAME, band_##NAME, bor_##NAME, bxor_##NAME}

/* The half types reduce in float32. */
static const binary BINARIES[NUM_DTYPES][NUM_OPS] = {
    [FLOAT32] = FLOATING_ROW(f32), [FLOAT64] = FLOATING_ROW(f64),
    [FLOAT16] = FLOATING_ROW(f32), [BFLOAT16] = FLOATING_ROW(f32),
    [INT8] = INTEGER_ROW(i8), [INT16] = INTEGER_ROW(i16),
    [INT32] = INTEGER_ROW(i32), [INT64] = INTEGER_ROW(i64),
    [UINT8] = INTEGER_ROW(u8), [UINT16] = INTEGER_ROW(u16),
    [UINT32] = INTEGER_ROW(u32), [UINT64] = INTEGER_ROW(u64),
    [BOOL] = {NULL, and_bool, and_bool, or_bool, and_bool, or_bool, xor_bool},
    [COMPLEX64] = {sum_c64, product_c64, NULL, NULL, NULL, NULL, NULL},
    [COMPLEX128] = {sum_c128, product_c128, NULL, NULL, NULL, NULL, NULL},
};

int has_reduction(int dtype, int op)
{
    return dtype >= 0 && dtype < NUM_DTYPES && op >= 0 && op < NUM_OPS && BINARIES[dtype][op];
}

/* ---- half types ---- */

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

WIDE static void widen_bf16(float *out, const uint16_t *in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = float_of((uint32_t)in[i] << 16);
}

/* Round to nearest, ties to even; a NaN stays one. */
WIDE static void narrow_bf16(uint16_t *out, const float *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(in[i]);
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        out[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
    }
}

WIDE static void widen_f16(float *out, const uint16_t *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t magnitude = (uint32_t)(in[i] & 0x7fff) << 13;
        /* The product sets the exponent, of numbers without a leading one (subnormal) as well. */
        uint32_t finite = bits_of(float_of(magnitude) * 0x1p112f);
        uint32_t special = magnitude | 0x7f800000;
        uint32_t value = magnitude >= 0x0f800000 ? special : finite;
        out[i] = float_of(value | (uint32_t)(in[i] & 0x8000) << 16);
    }
}

WIDE static void narrow_f16(uint16_t *out, const float *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(in[i]), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
        uint32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
        /* Below the smallest normal number the sum's last bit is the half's last bit. */
        uint32_t small = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000;
        uint32_t large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
        uint32_t value = magnitude < 0x38800000 ? small : magnitude >= 0x477ff000 ? large : normal;
        out[i] = (uint16_t)(sign | value);
    }
}

static void widen(float *out, const void *in, size_t n, int dtype)
{
    (dtype == BFLOAT16 ? widen_bf16 : widen_f16)(out, in, n);
}

static void narrow(void *out, const float *in, size_t n, int dtype)
{
    (dtype == BFLOAT16 ? narrow_bf16 : narrow_f16)(out, in, n);
}

/* ---- division ---- */

#define DIVIDE(NAME, TYPE, DIVISOR_TYPE)                                                        \
    WIDE static void divide_##NAME(void *values_, size_t n, double divisor_)                    \
    {                                                                                           \
        TYPE *values = values_;                                                                 \
        DIVISOR_TYPE divisor = (DIVISOR_TYPE)divisor_;                                          \
        for (size_t i = 0; i < n; i++)                                                          \
            values[i] = (TYPE)(values[i] / divisor);                                            \
    }
DIVIDE(f32, float, float)
DIVIDE(f64, double, double)
DIVIDE(i8, int8_t, int64_t)
DIVIDE(i16, int16_t, int64_t)
DIVIDE(i32, int32_t, int64_t)
DIVIDE(i64, int64_t, int64_t)
DIVIDE(u8, uint8_t, uint64_t)
DIVIDE(u16, uint16_t, uint64_t)
DIVIDE(u32, uint32_t, uint64_t)
DIVIDE(u64, uint64_t, uint64_t)

static void divide(void *values, size_t n, int dtype, double divisor)
{
    static void (*const loops[NUM_DTYPES])(void *, size_t, double) = {
        [FLOAT32] = divide_f32, [FLOAT64] = divide_f64,
        [FLOAT16] = divide_f32, [BFLOAT16] = divide_f32,
        [INT8] = divide_i8, [INT16] = divide_i16, [INT32] = divide_i32, [INT64] = divide_i64,
        [UINT8] = divide_u8, [UINT16] = divide_u16, [UINT32] = divide_u32, [UINT64] = divide_u64,
        [COMPLEX64] = divide_f32, [COMPLEX128] = divide_f64,
    };
    if (loops[dtype])
        loops[dtype](values, dtype == COMPLEX64 || dtype == COMPLEX128 ? 2 * n : n, divisor);
}

void widen_halves(float *out, const void *in, size_t count, int dtype)
{
    float_mode before = keep_denormals();
    widen(out, in, count, dtype);
    restore(before);
}

void narrow_halves(void *out, float *in, size_t count, int dtype, double divisor)
{
    float_mode before = keep_denormals();
    for (size_t start = 0; start < count; start += BLOCK_FLOATS) {
        size_t n = count - start < BLOCK_FLOATS ? count - start : BLOCK_FLOATS;
        if (divisor != 1.0)
            divide(in + start, n, dtype, divisor);
        narrow((char *)out + start * ITEMSIZE[dtype], in + start, n, dtype);
    }
    restore(before);
}

/* ---- several terms ---- */

/* Reduce one block, so short that its intermediate results stay in the nearest cache. */
static void reduce_halves(void *output, const char *const *terms, int num_terms, size_t n,
                          int dtype, int op, double divisor)
{
    float sum[BLOCK_FLOATS], term[BLOCK_FLOATS];
    widen(sum, terms[0], n, dtype);
    for (int k = 1; k < num_terms; k++) {
        widen(term, terms[k], n, dtype);
        BINARIES[dtype][op](sum, sum, term, n);
    }
    if (divisor != 1.0)
        divide(sum, n, dtype, divisor);
    narrow(output, sum, n, dtype);
}

static void reduce_wholes(void *output, const char *const *terms, int num_terms, size_t n,
                          int dtype, int op, double divisor)
{
    char between[BLOCK_BYTES] __attribute__((aligned(64)));
    binary loop = BINARIES[dtype][op];
    const void *sum = terms[0];
    for (int k = 1; k < num_terms; k++) {
        void *out = k == num_terms - 1 ? output : between;
        loop(out, sum, terms[k], n);
        sum = out;
    }
    if (num_terms == 1 && output != terms[0])
        memcpy(output, terms[0], n * ITEMSIZE[dtype]);
    if (divisor != 1.0)
        divide(output, n, dtype, divisor);
}

void reduce_terms(void *const *outputs, int num_outputs, const void *const *terms, int num_terms,
                  size_t count, int dtype, int op, double divisor)
{
    size_t itemsize = ITEMSIZE[dtype];
    int half = dtype == FLOAT16 || dtype == BFLOAT16;
    size_t block = half ? BLOCK_FLOATS : BLOCK_BYTES / itemsize;
    const char *here[MAX_RANKS];
    float_mode before = keep_denormals();
    for (size_t start = 0; start < count; start += block) {
        size_t n = count - start < block ? count - start : block;
        size_t at = start * itemsize;
        for (int k = 0; k < num_terms; k++)
            here[k] = (const char *)terms[k] + at;
        char *output = (char *)outputs[0] + at;
        (half ? reduce_halves : reduce_wholes)(output, here, num_terms, n, dtype, op, divisor);
        for (int k = 1; k < num_outputs; k++)
            memcpy((char *)outputs[k] + at, output, n * itemsize);
    }
    restore(before);
}

/* ---- in a given order ---- */

size_t sum_order_depth(const size_t *expression, size_t length, size_t num_terms)
{
    size_t waiting = 0, most = 0;
    for (size_t i = 0; i < length; i++) {
        if (expression[i] > num_terms || (expression[i] == num_terms && waiting < 2))
            return 0;
        waiting += expression[i] == num_terms ? (size_t)-1 : 1;
        most = waiting > most ? waiting : most;
    }
    return waiting == 1 && most <= MAX_DEPTH ? most : 0;
}

static void add_halves(char *out, const char *a, const char *b, size_t n, int dtype)
{
    float x[BLOCK_FLOATS], y[BLOCK_FLOATS];
    for (size_t start = 0; start < n; start += BLOCK_FLOATS) {
        size_t count = n - start < BLOCK_FLOATS ? n - start : BLOCK_FLOATS;
        size_t at = start * ITEMSIZE[dtype];
        widen(x, a + at, count, dtype);
        widen(y, b + at, count, dtype);
        sum_f32(x, x, y, count);
        narrow(out + at, x, count, dtype);
    }
}

/* Sums of float16 are not denormal in float32; only widening and narrowing use such numbers. */
static void add(void *out, const void *a, const void *b, size_t n, int dtype)
{
    if (dtype == FLOAT16) {
        float_mode before = keep_denormals();
        add_halves(out, a, b, n, dtype);
        restore(before);
    } else if (dtype == BFLOAT16)
        add_halves(out, a, b, n, dtype);
    else
        BINARIES[dtype][SUM](out, a, b, n);
}

void sum_in_order(void *output, const void *const *terms, const sum_order *order, size_t n,
                  int dtype)
{
    const void *stack[MAX_DEPTH];
    size_t waiting = 0;
    for (size_t i = 0; i < order->length; i++) {
        if (order->expression[i] < order->num_terms) {
            stack[waiting++] = terms[order->expression[i]];
            continue;
        }
        waiting--;
        void *out = i + 1 < order->length ? order->blocks + (waiting - 1) * BLOCK_BYTES : output;
        add(out, stack[waiting - 1], stack[waiting], n, dtype);
        stack[waiting - 1] = out;
    }
    if (order->length == 1)
        memcpy(output, stack[0], n * ITEMSIZE[dtype]);
}
