/* Compression of gradients: int8 codes with a scale per block, and selection of the largest values.
 * The results have the same bits as those of gradients/compression/coding.py in NumPy. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "wide.h"

enum { BLOCK = 256, LOW_BITS = 16, LOW_BINS = 1 << LOW_BITS, HIGH_BINS = 1 << (31 - LOW_BITS) };

static const float TINY = 1e-30f;
static const float LARGEST_SCALE = 0x1.020406p+121f; /* 127 times this is finite */

/* Add; return the largest magnitude as bits, which order as magnitudes do (NaN above infinity). */
WIDE
static uint32_t add_kept(const float *values, float *kept, size_t n)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        float wanted = values[i] + kept[i];
        uint32_t bits;
        kept[i] = wanted;
        memcpy(&bits, &wanted, sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* kept: the wanted values on entry, the residual on return. */
WIDE
static void round_block(float *kept, int8_t *codes, size_t n, float scale, float inverse)
{
    for (size_t i = 0; i < n; i++) {
        float number = rintf(kept[i] * inverse);
        codes[i] = (int8_t)number;
        kept[i] -= number * scale;
    }
}

WIDE
static void add_block(const int8_t *codes, float *total, size_t n, float scale, int adds)
{
    if (adds)
        for (size_t i = 0; i < n; i++)
            total[i] += scale * (float)codes[i];
    else
        for (size_t i = 0; i < n; i++)
            total[i] = scale * (float)codes[i];
}

void encode_int8(const float *values, float *kept, float *scales, int8_t *codes, size_t count)
{
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;
        uint32_t bits = add_kept(values + at, kept + at, n);
        float largest, scale = 0.0f, inverse = 0.0f;
        memcpy(&largest, &bits, sizeof largest);
        if (!isfinite(largest)) {
            scales[at / BLOCK] = NAN;
            memset(codes + at, 0, n);
            memset(kept + at, 0, n * sizeof *kept);
            continue;
        }
        if (largest >= TINY) {
            scale = fminf(largest / 127.0f, LARGEST_SCALE);
            inverse = 127.0f / largest;
        }
        scales[at / BLOCK] = scale;
        round_block(kept + at, codes + at, n, scale, inverse);
    }
}

void add_int8(const float *scales, const int8_t *codes, float *total, size_t count, int adds)
{
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;
        add_block(codes + at, total + at, n, scales[at / BLOCK], adds);
    }
}

static inline uint32_t magnitude(const float *values, size_t i)
{
    uint32_t bits;
    memcpy(&bits, values + i, sizeof bits);
    return bits & 0x7fffffffu;
}

/* Return the bin of value number `*wanted`, counted from the largest down; `*wanted` becomes its
 * number within the bin. */
static uint32_t bin_of(const uint32_t *counts, uint32_t num_bins, size_t *wanted)
{
    uint32_t bin = num_bins - 1;
    while (counts[bin] < *wanted) {
        *wanted -= counts[bin];
        bin--;
    }
    return bin;
}

int select_largest(const float *values, size_t count, int32_t *positions, size_t wanted)
{
    uint32_t *counts = calloc(HIGH_BINS + LOW_BINS, sizeof *counts);
    if (!counts)
        return NO_MEMORY;
    uint32_t *low_counts = counts + HIGH_BINS;
    for (size_t i = 0; i < count; i++)
        counts[magnitude(values, i) >> LOW_BITS]++;
    size_t left = wanted;
    uint32_t high = bin_of(counts, HIGH_BINS, &left);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = magnitude(values, i);
        if (bits >> LOW_BITS == high)
            low_counts[bits & (LOW_BINS - 1)]++;
    }
    uint32_t threshold = high << LOW_BITS | bin_of(low_counts, LOW_BINS, &left);
    free(counts);
    size_t taken = 0; /* includes the first `left` values equal to the threshold */
    for (size_t i = 0; i < count && taken < wanted; i++) {
        uint32_t bits = magnitude(values, i);
        if (bits > threshold || (bits == threshold && left > 0)) {
            left -= bits == threshold;
            positions[taken++] = (int32_t)i;
        }
    }
    return DONE;
}
