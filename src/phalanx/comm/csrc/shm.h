/* Building blocks of the collectives in shared memory: published phases, and waits for them.
 *
 * Every rank owns one cache line that only it writes (but for a count of sleepers): how many
 * phases it has published, and which calls it is in. A collective is a few phases: do something,
 * publish, wait until the peers have published as much. Nothing is locked and nothing is
 * cleared, since phases only grow.
 *
 * Vectors go through slots of the shared memory in chunks that stay in cache, or are reduced in
 * place if every rank's buffer is in an exported segment. A slot may be filled again once all ranks
 * have published the phase after the one in which they read it (`slot_free`). */
#ifndef PHALANX_SHM_H
#define PHALANX_SHM_H

#include "kernels.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { CACHE_LINE = 64 };
static const uint32_t NO_SEGMENT = UINT32_MAX;

/* Signature of a call, compared with those of the peers. From the lowest bit: kind, operation,
 * dtype, divisor (shm.c) in 8 bits each, root and the number of the call in 16 bits each. A call of
 * another number, such as a stale one, never matches. */
typedef struct {
    uint64_t fingerprint;
    uint64_t count;
    uint32_t segment; /* generation << 8 | number; NO_SEGMENT: private memory */
    _Atomic uint32_t report; /* bits of grad_buffer.c, or of shm_segments.c in an all-reduce */
    uint64_t offset; /* place in the segment; in private memory 1 if the rank is crowded */
    double carried[NUM_CARRIED]; /* see grad_buffer.c */
    uint64_t address; /* the buffer's address in its process, if the peers may read it; else 0 */
    uint64_t padding[1];
} shm_call;

typedef struct {
    _Atomic uint64_t phase;
    _Atomic uint32_t sleepers;
    _Atomic uint32_t failed; /* enum shm_end */
    uint64_t padding[6];
    shm_call calls[2]; /* odd and even calls: a rank can be one ahead of another */
} shm_rank_flags;

/* Futexes on which ranks sleep: a shared one for waits for all ranks, rung by the last to arrive; one
 * per rank for waits for messages. */
typedef struct {
    _Atomic uint32_t rings;
    _Atomic uint32_t sleepers;
    char padding[56];
} shm_doorbell;

/* Sizes by which every rank cuts vectors, written by rank 0 before its peers read them. Ranks may
 * wait in different ways, but must write the same. */
typedef struct {
    uint64_t chunk_bytes, inline_bytes;
    char padding[48];
} shm_chunk_sizes;

/* device, inode: identify the file behind `fd`, whose number may name another file in a peer. */
typedef struct {
    _Atomic uint32_t generation;
    int32_t fd;
    uint64_t bytes;
    uint64_t device, inode;
} shm_exported_segment;

typedef struct {
    int64_t pid;
    uint64_t witness, witness_address;
    _Atomic uint32_t reads_peers; /* has read the witnesses of all */
    char reason[REASON_BYTES];
    shm_exported_segment segments[NUM_SEGMENTS];
} shm_rank_info;

/* A segment as mapped by this process. verdict: whether all ranks can map it; equal on every rank,
 * since it derives from what all ranks have published. */
enum verdict { UNKNOWN, MAPPED_BY_ALL, NOT_MAPPED_BY_ALL };
typedef struct {
    uint32_t generation;
    enum verdict verdict;
    void *address;
    uint64_t bytes;
} shm_mapping;

/* A logged call of this rank, for the flight recorder. */
typedef struct {
    uint64_t fingerprint, count;
    int64_t began_ns; /* monotonic, as coarse as the system's ticks */
} shm_log_entry;

struct shm_group {
    int rank, size, spins, yields;
    size_t chunk_bytes, inline_bytes;
    shm_rank_flags *rank_flags;
    shm_doorbell *group_doorbell, *doorbells;
    shm_chunk_sizes *chunk_sizes;
    shm_rank_info *rank_infos;
    char *inlines, *slots;
    uint64_t phase;           /* published by this rank */
    uint64_t all_reached;     /* phase that all ranks are known to have published */
    uint64_t awaited_phase;   /* phase of the last wait */
    int dead_peer;            /* the rank whose process was found dead */
    uint64_t begun;           /* logged calls */
    uint64_t ended;           /* number of the last one that completed */
    uint64_t calls;           /* begun by this rank */
    uint64_t unchecked_phase; /* first of the last call, if not compared with all peers; else 0 */
    uint64_t chunks;          /* sent through the slots */
    uint64_t inlined;         /* all-reduces through the inline buffers */
    uint64_t call_free[2], inline_free[2], slot_free[NUM_SLOTS];
    shm_mapping own[NUM_SEGMENTS]; /* exported segments, by number */
    int num_own;                   /* numbers below are or were in use */
    char *watched;                 /* [size]: 1 if the process of a rank is visible from here */
    shm_mapping *mappings;         /* [size][NUM_SEGMENTS] */
    int map_error;                 /* errno of the last mapping that failed; -1: reported */
    int was_in_place;              /* 1 if the last long all-reduce was in place */
    uint64_t witness;              /* number for peers that try to read this process */
    int all_read;                  /* 1 if every rank reads every other; -1: not known yet */
    double deadline;
    double timeout_s;
    double slow_at, crowded_until; /* see shm_wait.c */
    int crowded;                   /* other processes want this rank's core */
    interrupted check;
    shm_log_entry call_log[NUM_LOGGED]; /* calls by number; last, to keep the hot fields together */
};

#define TRY(WHAT)                                                                               \
    do {                                                                                        \
        int status_ = (WHAT);                                                                   \
        if (status_)                                                                            \
            return status_;                                                                     \
    } while (0)

/* shm_wait.c */
void shm_publish(shm_group *self);
void shm_wake(shm_group *self);
int shm_wait_for(shm_group *self, int peer, uint64_t phase);
int shm_wait_all(shm_group *self, uint64_t phase);
int shm_advance(shm_group *self); /* publish a phase, and wait for all */

int shm_failure(shm_group *self, int peer); /* status that ends a wait for `peer`, or DONE */

/* shm_direct.c: ranks read each other's memory, if a trial shows that they may. */
void shm_show_witness(shm_group *self); /* call before all have joined */
void shm_try_to_read(shm_group *self);  /* call after that, before the first collective */
/* Offer `bytes` of `buffer` to the peers, before the first phase. True on all ranks if they may
 * read each other and their shares are long enough. shows: 0 withholds this buffer, and saves the
 * 3 µs of asking the system whether it can be read. */
int shm_offer(shm_group *self, const void *buffer, size_t bytes, size_t share_bytes, int shows);
int shm_all_offered(shm_group *self); /* true if all have; call after the first phase */
int shm_read_peer(shm_group *self, int peer, void *to, size_t offset, size_t bytes);
/* output[i] = the reduction of own[i] and of what the peers have offered from `offset` on. */
int shm_reduce_direct(shm_group *self, void *output, const void *own, size_t offset, size_t count,
                      int dtype, int op, double divisor);

/* shm.c: every collective begins, enters (or advances) and ends. */
int shm_begin(shm_group *self, enum kind kind, int dtype, int op, double divisor, int root,
              uint64_t count, double timeout_s, interrupted check);
int shm_agrees(shm_group *self, int peer);
int shm_enter(shm_group *self);
int shm_end(shm_group *self);
int shm_acquire_slot(shm_group *self, uint64_t chunk);

/* shm_segments.c */
int shm_segment_of(shm_group *self, const char *address, size_t bytes);
/* Every rank has published a segment in this call: `*mapped` becomes 1 on every rank if all ranks
 * have mapped all of them, else 0. Takes one more phase if one of them is new. */
int shm_map_all(shm_group *self, int *mapped);
/* Address of the buffer of `peer` in this call, once it is mapped. */
char *shm_mapped_buffer(shm_group *self, int peer);
void shm_unmap_all(shm_group *self);

/* Signature of this call as published by `rank`. */
static inline shm_call *call_of(shm_group *self, int rank)
{
    return &self->rank_flags[rank].calls[self->calls & 1];
}

static inline char *inline_of(shm_group *self, int rank)
{
    return self->inlines + ((size_t)rank * 2 + (self->inlined & 1)) * INLINE_BYTES;
}

static inline char *slot_of(shm_group *self, int rank, uint64_t chunk)
{
    return self->slots + ((size_t)rank * NUM_SLOTS + chunk % NUM_SLOTS) * SLOT_BYTES;
}

/* Seconds on the monotonic clock. */
static inline double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static inline size_t least(size_t a, size_t b) { return a < b ? a : b; }

#endif
