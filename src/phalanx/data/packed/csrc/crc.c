/* CRC-32: a message is a polynomial over GF(2), its first bit the highest power; the checksum is its
 * remainder modulo P. Bits are reversed, as in zlib.
 *
 * Portable: a table, eight bytes at a time. On x86: folding with the carry-less product, after Gopal
 * et al. 2009, "Fast CRC computation using PCLMULQDQ": 128 bits R that precede others by D bits are
 * replaced by adding R·x^D mod P to those. With AVX-512 four products at once. */
#include "crc.h"

#include <string.h>

#define P 0xEDB88320u /* x^32 + x^26 + x^23 + … + 1, reversed, without its x^32 */

static uint32_t table[8][256];

static uint32_t times_x(uint32_t r) { return r >> 1 ^ (r & 1 ? P : 0); }

static uint32_t crc_by_table(uint32_t r, const unsigned char *bytes, size_t n)
{
    for (; n >= 8; bytes += 8, n -= 8) {
        r ^= (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
             (uint32_t)bytes[3] << 24;
        r = table[7][r & 255] ^ table[6][r >> 8 & 255] ^ table[5][r >> 16 & 255] ^
            table[4][r >> 24] ^ table[3][bytes[4]] ^ table[2][bytes[5]] ^ table[1][bytes[6]] ^
            table[0][bytes[7]];
    }
    for (; n; bytes++, n--)
        r = r >> 8 ^ table[0][(r ^ *bytes) & 255];
    return r;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

enum { LANES = 4, LANE_BYTES = 16, ROUND_BYTES = LANES * LANE_BYTES };
enum { WIDE_ROUND_BYTES = LANES * ROUND_BYTES };

#define PRODUCT __attribute__((target("pclmul,sse2")))
#define WIDE_PRODUCT __attribute__((target("avx512f,vpclmulqdq,pclmul")))

static int has_product, has_wide_product;
static uint64_t lane_factors[2], round_factors[2], wide_round_factors[2];

/* Return x^power mod P in the upper half of 64 bits. */
static uint64_t power_of_x(int power)
{
    uint32_t r = 1u << 31;
    while (power--)
        r = times_x(r);
    return (uint64_t)r << 32;
}

/* Factors for the upper and the lower 64 bits. The product of reversed numbers is multiplied by x,
 * hence - 1. */
static void make_factors(uint64_t *factors, int distance_bits)
{
    factors[0] = power_of_x(distance_bits + 64 - 1);
    factors[1] = power_of_x(distance_bits - 1);
}

PRODUCT static inline __m128i fold(__m128i r, __m128i factors, __m128i to)
{
    __m128i high = _mm_clmulepi64_si128(r, factors, 0x00);
    __m128i low = _mm_clmulepi64_si128(r, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(high, low), to);
}

/* Fold `lane` over the last n bytes. */
PRODUCT static inline uint32_t fold_tail(__m128i lane, const unsigned char *bytes, size_t n)
{
    __m128i over_one = _mm_loadu_si128((const __m128i *)lane_factors);
    for (; n >= LANE_BYTES; bytes += LANE_BYTES, n -= LANE_BYTES)
        lane = fold(lane, over_one, _mm_loadu_si128((const __m128i *)bytes));
    unsigned char last[LANE_BYTES];
    _mm_storeu_si128((__m128i *)last, lane);
    return crc_by_table(crc_by_table(0, last, LANE_BYTES), bytes, n);
}

/* Requires n >= ROUND_BYTES. */
PRODUCT static uint32_t crc_by_product(uint32_t r, const unsigned char *bytes, size_t n)
{
    __m128i lanes[LANES], over_all = _mm_loadu_si128((const __m128i *)round_factors);
    __m128i over_one = _mm_loadu_si128((const __m128i *)lane_factors);
    for (int i = 0; i < LANES; i++)
        lanes[i] = _mm_loadu_si128((const __m128i *)bytes + i);
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)r));
    for (bytes += ROUND_BYTES, n -= ROUND_BYTES; n >= ROUND_BYTES;
         bytes += ROUND_BYTES, n -= ROUND_BYTES)
        for (int i = 0; i < LANES; i++)
            lanes[i] = fold(lanes[i], over_all, _mm_loadu_si128((const __m128i *)bytes + i));
    for (int i = 1; i < LANES; i++)
        lanes[i] = fold(lanes[i - 1], over_one, lanes[i]);
    return fold_tail(lanes[LANES - 1], bytes, n);
}

WIDE_PRODUCT static inline __m512i fold_wide(__m512i r, __m512i factors, __m512i to)
{
    __m512i high = _mm512_clmulepi64_epi128(r, factors, 0x00);
    __m512i low = _mm512_clmulepi64_epi128(r, factors, 0x11);
    return _mm512_xor_si512(_mm512_xor_si512(high, low), to);
}

WIDE_PRODUCT static inline __m512i broadcast_factors(const uint64_t *factors)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)factors));
}

/* Requires n >= WIDE_ROUND_BYTES. */
WIDE_PRODUCT static uint32_t crc_by_wide_product(uint32_t r, const unsigned char *bytes, size_t n)
{
    __m512i lanes[LANES], over_all = broadcast_factors(wide_round_factors), over_one = broadcast_factors(round_factors);
    for (int i = 0; i < LANES; i++)
        lanes[i] = _mm512_loadu_si512((const __m512i *)bytes + i);
    lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)r)));
    for (bytes += WIDE_ROUND_BYTES, n -= WIDE_ROUND_BYTES; n >= WIDE_ROUND_BYTES;
         bytes += WIDE_ROUND_BYTES, n -= WIDE_ROUND_BYTES)
        for (int i = 0; i < LANES; i++)
            lanes[i] =
                fold_wide(lanes[i], over_all, _mm512_loadu_si512((const __m512i *)bytes + i));
    for (int i = 1; i < LANES; i++)
        lanes[i] = fold_wide(lanes[i - 1], over_one, lanes[i]);
    __m512i four = lanes[LANES - 1];
    for (; n >= ROUND_BYTES; bytes += ROUND_BYTES, n -= ROUND_BYTES)
        four = fold_wide(four, over_one, _mm512_loadu_si512(bytes));
    __m128i one = _mm512_castsi512_si128(four), factors = _mm_loadu_si128((const __m128i *)lane_factors);
    one = fold(one, factors, _mm512_extracti32x4_epi32(four, 1));
    one = fold(one, factors, _mm512_extracti32x4_epi32(four, 2));
    one = fold(one, factors, _mm512_extracti32x4_epi32(four, 3));
    return fold_tail(one, bytes, n);
}
#endif

void crc_prepare(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t r = byte;
        for (int i = 0; i < 8; i++)
            r = times_x(r);
        table[0][byte] = r;
    }
    for (int i = 1; i < 8; i++)
        for (int byte = 0; byte < 256; byte++)
            table[i][byte] = table[i - 1][byte] >> 8 ^ table[0][table[i - 1][byte] & 255];
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    has_product = __builtin_cpu_supports("pclmul");
    has_wide_product = has_product && __builtin_cpu_supports("avx512f") &&
                       __builtin_cpu_supports("vpclmulqdq");
    make_factors(lane_factors, 8 * LANE_BYTES);
    make_factors(round_factors, 8 * ROUND_BYTES);
    make_factors(wide_round_factors, 8 * WIDE_ROUND_BYTES);
#endif
}

uint32_t crc_of(uint32_t crc, const void *bytes, size_t num_bytes)
{
#if defined(__x86_64__) && defined(__GNUC__)
    if (has_wide_product && num_bytes >= WIDE_ROUND_BYTES)
        return ~crc_by_wide_product(~crc, bytes, num_bytes);
    if (has_product && num_bytes >= ROUND_BYTES)
        return ~crc_by_product(~crc, bytes, num_bytes);
#endif
    return ~crc_by_table(~crc, bytes, num_bytes);
}
