/* Spans of files, read to where they are wanted, each compared with its checksum on the way. */
#ifndef PHALANX_ROWS_H
#define PHALANX_ROWS_H

#include <stddef.h>
#include <stdint.h>

/* What became of a span: these, or minus the number of an error of the system. */
enum { WHOLE = 0, ENDS_EARLY = 1, ALTERED = 2 };

typedef struct {
    const int32_t *files;       /* descriptors */
    const int64_t *maps;        /* where a file lies in memory; 0: nowhere, it is to be read */
    const int64_t *map_bytes;   /* how much of it does */
    const int64_t *offsets;     /* in the file */
    const int64_t *sizes;
    const int64_t *places;      /* where to in the output */
    const uint32_t *crcs;
} spans;

/* Once, before anything else: a page of a map that is not there any more, of a file that was cut off
 * or on a disk that fails, shall be an error and no end of the process. */
void guard_maps(void);

/* How many of n spans are not whole. No two of them share a place. */
size_t read_spans(const spans *s, size_t n, unsigned char *out, int32_t *outcomes);

/* crcs[i] = the checksum of row i of n rows that lie one after the other. */
void crcs_of_rows(const unsigned char *rows, size_t n, size_t row_bytes, uint32_t *crcs);

#endif
