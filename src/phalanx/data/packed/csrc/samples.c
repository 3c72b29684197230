#include "samples.h"

#include <stdlib.h>
#include <string.h>

#include "rows.h"

/* Of a sample that is there. */
static size_t shard_of(const sample_places *p, int64_t sample)
{
    size_t low = 0, beyond = p->num_shards;
    while (beyond - low > 1) {
        size_t middle = (low + beyond) / 2;
        if (p->first_samples[middle] <= sample)
            low = middle;
        else
            beyond = middle;
    }
    return low;
}

typedef struct {
    shard_file file;
    int64_t offset;
    uint32_t crc;
} place;

/* Whether its place is known, makes sense, and lies in a file that is open. */
static int find(const sample_places *p, int64_t sample, place *found)
{
    if (sample < 0 || sample >= p->first_samples[p->num_shards])
        return 0;
    size_t shard = shard_of(p, sample);
    const char *entry = p->entries + (size_t)sample * p->entry_stride;
    if (p->headers) {
        found->offset = p->headers[shard] + (sample - p->first_samples[shard]) * p->sample_bytes;
        memcpy(&found->crc, entry, sizeof found->crc);
    } else {
        int64_t told[3];
        memcpy(told, entry, sizeof told);
        if (told[1] != p->sample_bytes || told[2] >> 32)
            return 0;
        found->offset = told[0];
        found->crc = (uint32_t)told[2];
    }
    found->file = p->files[shard];
    return found->file.descriptor >= 0 && found->offset >= 0 &&
           found->offset <= INT64_MAX - p->sample_bytes;
}

int read_samples(const sample_places *p, const int64_t *samples, size_t n, unsigned char *out)
{
    enum { LONG = 5, SHORT = 3 };
    int64_t *memory = malloc(n * (LONG * sizeof(int64_t) + SHORT * sizeof(int32_t)) + 1);
    int64_t *maps = memory, *map_bytes = maps + n, *offsets = map_bytes + n;
    int64_t *sizes = offsets + n, *places = sizes + n;
    int32_t *files = (int32_t *)(places + n), *outcomes = files + n;
    uint32_t *crcs = (uint32_t *)(outcomes + n);
    place found;
    size_t i = 0;
    for (; memory && i < n && find(p, samples[i], &found); i++) {
        files[i] = (int32_t)found.file.descriptor;
        maps[i] = found.file.map;
        map_bytes[i] = found.file.map_bytes;
        offsets[i] = found.offset;
        crcs[i] = found.crc;
        sizes[i] = p->sample_bytes;
        places[i] = (int64_t)i * p->sample_bytes;
    }
    spans s = {files, maps, map_bytes, offsets, sizes, places, crcs};
    int are_whole = memory && i == n && !read_spans(&s, n, out, outcomes);
    free(memory);
    return are_whole;
}
