/* Samples of one size by their numbers, where nothing is out of the ordinary: found and read in one
 * call. */
#ifndef PHALANX_SAMPLES_H
#define PHALANX_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int64_t descriptor; /* less than 0: the file is not open */
    int64_t map, map_bytes;
} shard_file;

typedef struct {
    size_t num_shards;
    const int64_t *first_samples; /* of each shard; and in the end how many samples there are */
    const shard_file *files;      /* of each shard */
    const int64_t *headers;       /* bytes before each shard's first sample; NULL: entries tell */
    const char *entries;          /* of each sample: its checksum, or its offset, size, checksum */
    size_t entry_stride;
    int64_t sample_bytes;
} sample_places;

/* Whether n samples were read, one after the other, and are all whole. Otherwise nothing is said,
 * neither what is wrong with which nor whether a file was just not open. */
int read_samples(const sample_places *p, const int64_t *samples, size_t n, unsigned char *out);

#endif
