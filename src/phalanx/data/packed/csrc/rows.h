/* Read spans of files into a buffer and compare each with its CRC-32. */
#ifndef PHALANX_ROWS_H
#define PHALANX_ROWS_H

#include <stddef.h>
#include <stdint.h>

/* Outcome of reading a span; a negative outcome is minus an errno. */
enum { INTACT = 0, TRUNCATED = 1, ALTERED = 2 };

typedef struct {
    const int32_t *files;      /* descriptors */
    const int64_t *maps;       /* address of the file's mapping; 0: not mapped, read it */
    const int64_t *map_bytes;  /* bytes mapped */
    const int64_t *offsets;    /* in the file */
    const int64_t *sizes;
    const int64_t *destinations; /* offset in the output */
    const uint32_t *crcs;
} span_batch;

typedef struct {
    int64_t descriptor; /* negative: not open */
    int64_t map, map_bytes;
} shard_file;

/* Samples of equal size in the shards of a pack. */
typedef struct {
    size_t num_shards;
    const int64_t *first_samples; /* of each shard, then the number of samples */
    const shard_file *files;      /* of each shard */
    const int64_t *headers;       /* bytes before each shard's first sample */
    const char *entries;          /* of each sample: its CRC-32, at the stride */
    size_t entry_stride;
    int64_t sample_bytes;
} sample_table;

/* Install a handler of SIGBUS: reading a mapped page that is gone (the file was truncated, or its
 * disk fails) becomes an error instead of the end of the process. Call once, first. */
void install_bus_error_handler(void);

/* Read n spans; return the number that are not intact. Destinations do not overlap. */
size_t read_spans(const span_batch *s, size_t n, unsigned char *out, int32_t *outcomes);

/* Locate and read n samples, one after the other; return 1 if all are intact. 0 does not say which
 * one is damaged, or whether a file was just not open. */
int read_samples(const sample_table *t, const int64_t *samples, size_t n, unsigned char *out);

/* Set crcs[i] to the CRC-32 of row i of n contiguous rows. */
void crcs_of_rows(const unsigned char *rows, size_t n, size_t row_bytes, uint32_t *crcs);

#endif
