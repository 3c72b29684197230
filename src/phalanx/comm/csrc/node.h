/* What the collectives of a node are made of: who publishes what, and how one waits for it.
 *
 * Every rank owns one cache line that only it writes (but for a count of sleepers): how many
 * phases it has published, and which calls it is in. A collective is a few phases: do something,
 * publish, wait until the others have published as much. Nothing is locked and nothing is
 * cleared, since phases only grow.
 *
 * Vectors go through slots of the shared memory in chunks that stay in cache, or are reduced where
 * they lie when every rank's buffer is itself in memory that it has shown to the others. A slot
 * may be filled again once all ranks have published the phase after the one in which they read
 * it (`slot_free`). */
#ifndef PHALANX_NODE_H
#define PHALANX_NODE_H

#include "kernels.h"

#include <stdatomic.h>
#include <string.h>

enum { CACHE_LINE = 64 };
static const uint32_t NO_SEGMENT = UINT32_MAX;

/* What a call is, to be compared with the others'. From the lowest bit: kind, operation, dtype,
 * divisor (node.c) in 8 bits each, root, and the number of the call in 16 each: one of another
 * number, such as a stale one, never fits. */
typedef struct {
    uint64_t fingerprint;
    uint64_t count;
    uint32_t segment; /* generation << 8 | number; NO_SEGMENT: private memory */
    _Atomic uint32_t found; /* bits of parts.c in its rounds, of segments.c in an all-reduce */
    uint64_t offset; /* of the buffer in its segment; in private memory: whether the rank is crowded */
} call;

typedef struct {
    _Atomic uint64_t phase;
    _Atomic uint32_t sleepers;
    _Atomic uint32_t failed;
    uint64_t padding[6];
    call calls[2]; /* of odd and even calls: a rank can be one ahead of another */
} line;

/* Where ranks sleep: those who wait for all ranks on one, whom the last one wakes; and each that waits
 * for messages on one of its own. */
typedef struct {
    _Atomic uint32_t rung;
    _Atomic uint32_t sleepers;
    char padding[56];
} bell;

/* By which every rank cuts vectors: written by rank 0 before the others read them. How a rank
 * waits may differ from its peers; what it writes may not. */
typedef struct {
    uint64_t chunk_bytes, inline_bytes;
    char padding[48];
} sizes;

/* device, inode: of the file behind `fd`, since the number alone may name another file here. */
typedef struct {
    _Atomic uint32_t generation;
    int32_t fd;
    uint64_t bytes;
    uint64_t device, inode;
} shown;

typedef struct {
    int64_t pid;
    char reason[REASON_BYTES];
    shown segments[NUM_SEGMENTS];
} about;

/* A segment as this process sees it. verdict: whether all ranks can map it, the same on every rank,
 * since it comes of what all ranks have published. */
enum verdict { UNKNOWN, MAPPED_BY_ALL, NOT_MAPPED_BY_ALL };
typedef struct {
    uint32_t generation;
    enum verdict verdict;
    void *address;
    uint64_t bytes;
} mapping;

/* A call of this rank, for those who ask afterwards what it did last. */
typedef struct {
    uint64_t fingerprint, count;
    int64_t began_ns;
} noted;

struct node {
    int rank, size, spins, yields;
    size_t chunk_bytes, inline_bytes;
    line *lines;
    bell *bell, *bells;
    sizes *sizes;
    about *abouts;
    char *inlines, *slots;
    uint64_t phase;     /* published by this rank */
    uint64_t seen;      /* that all ranks are known to have published */
    uint64_t awaited;   /* the phase that was waited for last */
    int gone;           /* the rank whose process was found to be gone */
    uint64_t begun;     /* calls that were noted */
    uint64_t ended;     /* of these, the last that came to its end */
    int notes_nothing;  /* to measure what it costs */
    uint64_t calls;     /* begun by this rank */
    uint64_t unmet;     /* first phase of the last call, if not all were compared in it; else 0 */
    uint64_t chunks;    /* that went through the slots */
    uint64_t inlined;   /* all-reduces that went through the inline places */
    uint64_t call_free[2], inline_free[2], slot_free[NUM_SLOTS];
    mapping own[NUM_SEGMENTS]; /* by number; shown to the others */
    int num_own;               /* numbers below are or were in use */
    char *watched;             /* for each rank whether its process can be seen from here */
    mapping *mappings;         /* [size][NUM_SEGMENTS] */
    int map_error;             /* errno of the last one that failed; -1: reported */
    double deadline;
    double timeout_s;
    double slow_at, crowded_until; /* see waiting.c */
    int crowded;                   /* other processes want this rank's core */
    interrupted check;
    noted noted[NUM_NOTED]; /* by number; last, so that what every call needs lies together */
};

#define TRY(WHAT)                                                                               \
    do {                                                                                        \
        int status_ = (WHAT);                                                                   \
        if (status_)                                                                            \
            return status_;                                                                     \
    } while (0)

/* waiting.c */
void node_publish(node *self);
void node_wake(node *self);
int node_wait_for(node *self, int peer, uint64_t phase);
int node_wait_all(node *self, uint64_t phase);
int node_advance(node *self); /* one more phase, for all */

/* node.c: every collective begins, meets (or advances) and ends. */
int node_begin(node *self, enum kind kind, int dtype, int op, double divisor, int root,
               uint64_t count, double timeout_s, interrupted check);
int node_agrees(node *self, int peer);
int node_meet(node *self);
int node_end(node *self);
int node_take_slot(node *self, uint64_t chunk);

/* segments.c */
int node_segment_of(node *self, const char *address, size_t bytes);
/* Every rank has published a segment in this call: `*mapped` becomes whether all ranks have mapped
 * all of them, the same on every rank. One more phase when one of them is new. */
int node_map_all(node *self, int *mapped);
/* Where the buffer of `peer` in this call lies; they have been mapped. */
char *node_mapped(node *self, int peer);
void node_forget_all(node *self);

/* What `rank` said of this call. */
static inline call *call_of(node *self, int rank)
{
    return &self->lines[rank].calls[self->calls & 1];
}

static inline char *inline_of(node *self, int rank)
{
    return self->inlines + ((size_t)rank * 2 + (self->inlined & 1)) * INLINE_BYTES;
}

static inline char *slot_of(node *self, int rank, uint64_t chunk)
{
    return self->slots + ((size_t)rank * NUM_SLOTS + chunk % NUM_SLOTS) * SLOT_BYTES;
}

static inline size_t least(size_t a, size_t b) { return a < b ? a : b; }

#endif
