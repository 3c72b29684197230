#include "rows.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "crc.h"

/* Read in pieces of this size, so that the checksum finds the bytes in the nearest cache but one. */
enum { PIECE_BYTES = 256 * 1024 };
enum { LINES_AHEAD = 8 };

/* Where a thread goes on when a page is not there; NULL while it copies from no map. */
static __thread sigjmp_buf *volatile way_out;
static struct sigaction before;

static void page_is_missing(int number)
{
    if (way_out)
        siglongjmp(*way_out, 1);
    sigaction(number, &before, NULL); /* not ours: to whom it belongs */
    raise(number);
}

void guard_maps(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = page_is_missing;
    action.sa_flags = SA_NODEFER;
    sigaction(SIGBUS, &action, &before);
}

/* Whether all of it was there. */
static int copy_guarded(void *to, const void *from, size_t n)
{
    sigjmp_buf here;
    if (sigsetjmp(here, 0)) {
        way_out = NULL;
        return 0;
    }
    way_out = &here;
    __asm__ volatile("" ::: "memory");
    memcpy(to, from, n);
    __asm__ volatile("" ::: "memory");
    way_out = NULL;
    return 1;
}

/* The beginning of a span that is read next: it lies anywhere, and memory takes its time. */
static void fetch_ahead(const spans *s, size_t i)
{
    if (s->maps[i])
        for (int line = 0; line < LINES_AHEAD; line++)
            __builtin_prefetch((const char *)(intptr_t)(s->maps[i] + s->offsets[i]) + 64 * line);
}

/* Whether the span lies in memory; then it was copied. */
static int copy_mapped(const spans *s, size_t i, unsigned char *out)
{
    if (!s->maps[i] || s->offsets[i] + s->sizes[i] > s->map_bytes[i])
        return 0;
    const char *map = (const char *)(intptr_t)s->maps[i];
    return copy_guarded(out + s->places[i], map + s->offsets[i], (size_t)s->sizes[i]);
}

/* The next `wanted` bytes of a file: how many there were, or minus the error's number. */
static int64_t read_piece(int file, unsigned char *to, size_t wanted, int64_t offset)
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

/* Of a span whose bytes are all there. */
static int32_t outcome_of(const spans *s, size_t i, const unsigned char *out)
{
    uint32_t crc = crc_of(0, out + s->places[i], (size_t)s->sizes[i]);
    return crc == s->crcs[i] ? WHOLE : ALTERED;
}

static int32_t read_long(const spans *s, size_t i, unsigned char *out)
{
    uint32_t crc = 0;
    for (int64_t done = 0; done < s->sizes[i]; done += PIECE_BYTES) {
        int64_t left = s->sizes[i] - done, wanted = left < PIECE_BYTES ? left : PIECE_BYTES;
        unsigned char *to = out + s->places[i] + done;
        int64_t got = read_piece(s->files[i], to, (size_t)wanted, s->offsets[i] + done);
        if (got < wanted)
            return got < 0 ? (int32_t)got : ENDS_EARLY;
        crc = crc_of(crc, to, (size_t)wanted);
    }
    return crc == s->crcs[i] ? WHOLE : ALTERED;
}

/* The end of the spans from `first` that lie one after the other, in the file as in the output, and
 * are a piece together. */
static size_t end_of_run(const spans *s, size_t n, size_t first)
{
    size_t i = first + 1;
    int64_t run_bytes = s->sizes[first];
    while (i < n && s->files[i] == s->files[first] &&
           s->offsets[i] == s->offsets[first] + run_bytes &&
           s->places[i] == s->places[first] + run_bytes && run_bytes + s->sizes[i] <= PIECE_BYTES)
        run_bytes += s->sizes[i++];
    return i;
}

static void read_run(const spans *s, size_t first, size_t end, unsigned char *out,
                     int32_t *outcomes)
{
    int64_t run_bytes = s->places[end - 1] + s->sizes[end - 1] - s->places[first];
    int64_t got = read_piece(s->files[first], out + s->places[first], (size_t)run_bytes,
                             s->offsets[first]);
    for (size_t i = first; i < end; i++) {
        int64_t needed = s->places[i] + s->sizes[i] - s->places[first];
        if (got < needed)
            outcomes[i] = got < 0 ? (int32_t)got : ENDS_EARLY;
        else
            outcomes[i] = outcome_of(s, i, out);
    }
}

size_t read_spans(const spans *s, size_t n, unsigned char *out, int32_t *outcomes)
{
    size_t end, num_damaged = 0;
    for (size_t first = 0; first < n; first = end) {
        if (first + 1 < n)
            fetch_ahead(s, first + 1);
        if (copy_mapped(s, first, out)) {
            end = first + 1;
            outcomes[first] = outcome_of(s, first, out);
        } else if (s->sizes[first] > PIECE_BYTES) {
            end = first + 1;
            outcomes[first] = read_long(s, first, out);
        } else {
            end = end_of_run(s, n, first);
            read_run(s, first, end, out, outcomes);
        }
        for (size_t i = first; i < end; i++)
            num_damaged += outcomes[i] != WHOLE;
    }
    return num_damaged;
}

void crcs_of_rows(const unsigned char *rows, size_t n, size_t row_bytes, uint32_t *crcs)
{
    for (size_t i = 0; i < n; i++)
        crcs[i] = crc_of(0, rows + i * row_bytes, row_bytes);
}
