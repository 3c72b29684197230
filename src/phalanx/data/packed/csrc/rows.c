#include "rows.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "crc.h"

/* Bytes read at once: the checksum then finds them in the second-level cache. */
enum { CHUNK_BYTES = 256 * 1024 };
enum { LINES_AHEAD = 8 };

/* Jump target of a thread for SIGBUS; NULL while it does not copy from a mapping. */
static __thread sigjmp_buf *volatile fault_jump;
static struct sigaction previous;

static void on_bus_error(int number)
{
    if (fault_jump)
        siglongjmp(*fault_jump, 1);
    sigaction(number, &previous, NULL); /* not ours: the previous handler */
    raise(number);
}

void install_bus_error_handler(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_bus_error;
    action.sa_flags = SA_NODEFER;
    sigaction(SIGBUS, &action, &previous);
}

/* Copy n bytes; return 0 if a page is gone. */
static int copy_or_fault(void *to, const void *from, size_t n)
{
    sigjmp_buf here;
    if (sigsetjmp(here, 0)) {
        fault_jump = NULL;
        return 0;
    }
    fault_jump = &here;
    __asm__ volatile("" ::: "memory");
    memcpy(to, from, n);
    __asm__ volatile("" ::: "memory");
    fault_jump = NULL;
    return 1;
}

/* Prefetch the first cache lines of the next span. */
static void prefetch_span(const span_batch *s, size_t i)
{
    if (s->maps[i])
        for (int line = 0; line < LINES_AHEAD; line++)
            __builtin_prefetch((const char *)(intptr_t)(s->maps[i] + s->offsets[i]) + 64 * line);
}

/* Copy a mapped span; return 0 if it is not mapped. */
static int copy_mapped(const span_batch *s, size_t i, unsigned char *out)
{
    if (!s->maps[i] || s->offsets[i] + s->sizes[i] > s->map_bytes[i])
        return 0;
    const char *map = (const char *)(intptr_t)s->maps[i];
    return copy_or_fault(out + s->destinations[i], map + s->offsets[i], (size_t)s->sizes[i]);
}

/* Read up to `wanted` bytes of a file; return their number, or minus an errno. */
static int64_t read_chunk(int file, unsigned char *to, size_t wanted, int64_t offset)
{
    size_t got = 0;
    while (got < wanted) {
        ssize_t n = pread(file, to + got, wanted - got, offset + (int64_t)got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        got += (size_t)n;
    }
    return (int64_t)got;
}

/* Return the outcome of a span that was read in full. */
static int32_t check_crc(const span_batch *s, size_t i, const unsigned char *out)
{
    uint32_t crc = crc_of(0, out + s->destinations[i], (size_t)s->sizes[i]);
    return crc == s->crcs[i] ? INTACT : ALTERED;
}

static int32_t read_long(const span_batch *s, size_t i, unsigned char *out)
{
    uint32_t crc = 0;
    for (int64_t done = 0; done < s->sizes[i]; done += CHUNK_BYTES) {
        int64_t left = s->sizes[i] - done, wanted = left < CHUNK_BYTES ? left : CHUNK_BYTES;
        unsigned char *to = out + s->destinations[i] + done;
        int64_t got = read_chunk(s->files[i], to, (size_t)wanted, s->offsets[i] + done);
        if (got < wanted)
            return got < 0 ? (int32_t)got : TRUNCATED;
        crc = crc_of(crc, to, (size_t)wanted);
    }
    return crc == s->crcs[i] ? INTACT : ALTERED;
}

/* Return the end of the run of spans from `first` that are contiguous in the file and the output
 * and fit into one chunk. */
static size_t end_of_run(const span_batch *s, size_t n, size_t first)
{
    size_t i = first + 1;
    int64_t run_bytes = s->sizes[first];
    while (i < n && s->files[i] == s->files[first] &&
           s->offsets[i] == s->offsets[first] + run_bytes &&
           s->destinations[i] == s->destinations[first] + run_bytes && run_bytes + s->sizes[i] <= CHUNK_BYTES)
        run_bytes += s->sizes[i++];
    return i;
}

static void read_run(const span_batch *s, size_t first, size_t end, unsigned char *out,
                     int32_t *outcomes)
{
    int64_t run_bytes = s->destinations[end - 1] + s->sizes[end - 1] - s->destinations[first];
    int64_t got = read_chunk(s->files[first], out + s->destinations[first], (size_t)run_bytes,
                             s->offsets[first]);
    for (size_t i = first; i < end; i++) {
        int64_t needed = s->destinations[i] + s->sizes[i] - s->destinations[first];
        if (got < needed)
            outcomes[i] = got < 0 ? (int32_t)got : TRUNCATED;
        else
            outcomes[i] = check_crc(s, i, out);
    }
}

size_t read_spans(const span_batch *s, size_t n, unsigned char *out, int32_t *outcomes)
{
    size_t end, num_damaged = 0;
    for (size_t first = 0; first < n; first = end) {
        if (first + 1 < n)
            prefetch_span(s, first + 1);
        if (copy_mapped(s, first, out)) {
            end = first + 1;
            outcomes[first] = check_crc(s, first, out);
        } else if (s->sizes[first] > CHUNK_BYTES) {
            end = first + 1;
            outcomes[first] = read_long(s, first, out);
        } else {
            end = end_of_run(s, n, first);
            read_run(s, first, end, out, outcomes);
        }
        for (size_t i = first; i < end; i++)
            num_damaged += outcomes[i] != INTACT;
    }
    return num_damaged;
}

void crcs_of_rows(const unsigned char *rows, size_t n, size_t row_bytes, uint32_t *crcs)
{
    for (size_t i = 0; i < n; i++)
        crcs[i] = crc_of(0, rows + i * row_bytes, row_bytes);
}

/* Return the shard of an existing sample. */
static size_t shard_of(const sample_table *t, int64_t sample)
{
    size_t low = 0, end = t->num_shards;
    while (end - low > 1) {
        size_t middle = (low + end) / 2;
        if (t->first_samples[middle] <= sample)
            low = middle;
        else
            end = middle;
    }
    return low;
}

typedef struct {
    shard_file file;
    int64_t offset;
    uint32_t crc;
} sample_location;

/* Return 1 if there is such a sample and its file is open. */
static int locate_sample(const sample_table *t, int64_t sample, sample_location *found)
{
    if (sample < 0 || sample >= t->first_samples[t->num_shards])
        return 0;
    size_t shard = shard_of(t, sample);
    const char *entry = t->entries + (size_t)sample * t->entry_stride;
    found->offset = t->headers[shard] + (sample - t->first_samples[shard]) * t->sample_bytes;
    memcpy(&found->crc, entry, sizeof found->crc);
    found->file = t->files[shard];
    return found->file.descriptor >= 0 && found->offset >= 0 &&
           found->offset <= INT64_MAX - t->sample_bytes;
}

int read_samples(const sample_table *t, const int64_t *samples, size_t n, unsigned char *out)
{
    enum { LONG = 5, SHORT = 3 };
    int64_t *memory = malloc(n * (LONG * sizeof(int64_t) + SHORT * sizeof(int32_t)) + 1);
    int64_t *maps = memory, *map_bytes = maps + n, *offsets = map_bytes + n;
    int64_t *sizes = offsets + n, *destinations = sizes + n;
    int32_t *files = (int32_t *)(destinations + n), *outcomes = files + n;
    uint32_t *crcs = (uint32_t *)(outcomes + n);
    sample_location found;
    size_t i = 0;
    for (; memory && i < n && locate_sample(t, samples[i], &found); i++) {
        files[i] = (int32_t)found.file.descriptor;
        maps[i] = found.file.map;
        map_bytes[i] = found.file.map_bytes;
        offsets[i] = found.offset;
        crcs[i] = found.crc;
        sizes[i] = t->sample_bytes;
        destinations[i] = (int64_t)i * t->sample_bytes;
    }
    span_batch s = {files, maps, map_bytes, offsets, sizes, destinations, crcs};
    int is_intact = memory && i == n && !read_spans(&s, n, out, outcomes);
    free(memory);
    return is_intact;
}
