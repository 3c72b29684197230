/* Loops over elements and flags in shared memory: pointers and counts only.
 *
 * No MPI and no PyTorch in here, so it outlives their ABIs. reduce.c knows elements, node.h and the
 * files that include it the ranks of a node, module.c hands both to Python. array_kernels.py says
 * the same in NumPy. */
#ifndef PHALANX_KERNELS_H
#define PHALANX_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* The numbers of comm/dtypes.py. */
enum dtype {
    FLOAT32, FLOAT64, FLOAT16, BFLOAT16,
    INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64,
    BOOL, COMPLEX64, COMPLEX128, OPAQUE, NUM_DTYPES
};
enum op { SUM, PRODUCT, MIN, MAX, BAND, BOR, BXOR, NUM_OPS };

extern const size_t ITEMSIZE[NUM_DTYPES];

/* Whether elements of `dtype` have the reduction `op`. */
int has_reduction(int dtype, int op);

/* outputs[*][i] = terms[0][i] op terms[1][i] op …, in this order, divided by `divisor`.
 * An output may be a term; otherwise memory must not overlap. Half types are summed in float32
 * and rounded once. */
void reduce_terms(void *const *outputs, int num_outputs, const void *const *terms, int num_terms,
                  size_t count, int dtype, int op, double divisor);

/* Half types: out[i] = in[i] as float32, and out[i] = in[i] / divisor, rounded once; that changes
 * `in` where it divides. Memory must not overlap. */
void widen_halves(float *out, const void *in, size_t count, int dtype);
void narrow_halves(void *out, float *in, size_t count, int dtype, double divisor);

/* Whether no value is a NaN or an infinity. Integers are finite. */
int are_finite(const void *values, size_t count, int dtype);
/* The same of `values`, which are copied, and of as many `others`, which may be the same ones: the
 * copy waits for memory that is written, so to read costs little beside it. */
int copy_finite(void *out, const void *values, const void *others, size_t count, int dtype);

/* coding.c, as comm/coding.py says it. */
void encode_int8(const float *values, float *kept, float *scales, int8_t *codes, size_t count);
void add_int8(const float *scales, const int8_t *codes, float *total, size_t count, int adds);
/* 1 <= wanted <= count < 2³¹; DONE or NO_MEMORY. */
int select_largest(const float *values, size_t count, int32_t *positions, size_t wanted);

/* What the shared memory of a node's ranks has room for. */
enum {
    PROTOCOL = 5,            /* to be raised with any change of what ranks write for each other */
    MAX_RANKS = 1024,
    INLINE_BYTES = 8192,     /* up to here an all-reduce is one phase */
    SHORT_BYTES = 2048,      /* up to here where every rank has a core; both measured */
    SLOT_BYTES = 1 << 21,    /* for a chunk of each rank: the largest, beside other processes */
    LARGE_BYTES = 1 << 19,   /* a chunk where ranks share cores */
    CHUNK_BYTES = 1 << 17,   /* a chunk where every rank has a core */
    NUM_SLOTS = 3,
    NUM_SEGMENTS = 256,      /* of memory of its own that a rank may show to the others */
    REASON_BYTES = 448,
    NUM_NOTED = 256          /* calls that a rank remembers */
};

/* The numbers by which Python names them. */
enum kind {
    BARRIER = 1, ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, ALL_TO_ALL, GATHER,
    SCATTER, ALL_REDUCE_PARTS, FUSED_STEP
};

enum status {
    DONE, TIMED_OUT, MISMATCH, PEER_FAILED, PEER_DIED, INTERRUPTED, NO_MEMORY,
    NOT_FINITE /* of parts alone: the call is over, on all ranks alike */
};

typedef struct node node;

/* Bytes of shared memory that `size` ranks need; zeroed when the first one joins. */
size_t node_bytes(int size);

/* This rank's side of the memory at `control`; NULL without memory. spins, yields: how this rank
 * waits. Those of rank 0 also choose the sizes by which all ranks cut vectors. */
node *node_join(void *control, int rank, int size, int spins, int yields);
void node_leave(node *self);

/* Once all have joined, before the first collective: go by the sizes that rank 0 has chosen. */
void node_adopt_sizes(node *self);
/* From now on waits notice when a peer's process is gone. */
void node_watch(node *self);
int node_is_dead(node *self, int peer);

/* Called now and then in long waits; non-zero ends the wait with INTERRUPTED. */
typedef int (*interrupted)(void);
void node_naps(long ns);

/* Collectives: every rank calls the same ones in the same order. They return a `status`. */
int node_barrier(node *self, double timeout_s, interrupted check);

/* root: -1 for every rank to get the result. */
int node_all_reduce(node *self, void *buffer, size_t count, int dtype, int op, double divisor,
                    int root, double timeout_s, interrupted check);

/* parts: one pointer a rank; counts: elements of each part. */
int node_reduce_scatter(node *self, void *output, void *const *parts, const size_t *counts,
                        int dtype, int op, double divisor, double timeout_s, interrupted check);

/* outputs: one pointer a rank; bytes: of each rank's part. */
int node_all_gather(node *self, void *const *outputs, const size_t *bytes, const void *part,
                    int dtype, double timeout_s, interrupted check);
int node_broadcast(node *self, void *buffer, size_t bytes, int dtype, int root, double timeout_s,
                   interrupted check);
/* bytes_out: expected from each rank; bytes_in: for each rank; they may be any.
 * kind: ALL_TO_ALL, or GATHER and SCATTER, in which most of them are 0. */
int node_all_to_all(node *self, int kind, void *const *outputs, const size_t *bytes_out,
                    void *const *parts, const size_t *bytes_in, int dtype, int root,
                    double timeout_s, interrupted check);

/* Show `bytes` of memory behind file descriptor `fd` to the others; its number, or -1. They map it
 * when they first meet it in a collective, for which `fd` must stay open. */
int node_share(node *self, int fd, size_t bytes, void *address);
void node_unshare(node *self, int segment);
/* Once: why memory of another rank could not be mapped here, as an errno; 0 when all could. */
int node_map_error(node *self);

/* Tell the others why this rank cannot go on. */
void node_fail(node *self, const char *reason);

/* For those who wait for messages: each rank has a bell that the others ring. A rank reads how often
 * it was rung for, looks for messages, and sleeps `ns` unless it was rung for since it read. */
void node_ring(node *self, int peer);
uint32_t node_rung(node *self);
void node_doze(node *self, uint32_t rung, long ns);

/* What `peer` published last: how far it is, and the call it is in. */
typedef struct {
    uint64_t phase;
    uint64_t fingerprint;
    uint64_t count;
    int failed;
    const char *reason;
} peer_state;
peer_state node_peer(node *self, int peer);
uint64_t node_phase(node *self);
uint64_t node_awaited(node *self);
int node_gone(node *self);

/* The calls of this rank: how many were begun, the last that ended, and what the one with this number
 * (from 1) was, for the NUM_NOTED last. began_ns: monotonic, as coarse as the system's ticks. */
void node_keep_notes(node *self, int keep);
uint64_t node_begun(node *self);
uint64_t node_ended(node *self);
void node_noted(node *self, uint64_t number, uint64_t *fingerprint, uint64_t *count,
                int64_t *began_ns);

/* Where the share of `rank` in `count` elements begins, and that of the rank before it ends; whole
 * cache lines, so that two ranks do not write the same line. */
size_t share_begin(int rank, int size, size_t count, size_t itemsize);

/* A vector that every rank holds as parts, and brings together with those of the others. */
typedef struct parts parts;

/* node: NULL for one rank by itself. windows: `stride` bytes for each rank, seen by all of them.
 * starts, sizes: of the parts within the vector of `count` elements; they become those of the
 * result, which is NULL without memory. guarded: parts are looked through when they are handed over,
 * and if a value of any rank is not finite nothing is done with them: the round is NOT_FINITE. */
parts *parts_make(node *node, int rank, int size, void *windows, size_t stride, size_t count,
                  size_t num_parts, size_t *starts, size_t *sizes, int dtype, int guarded);
void parts_free(parts *self);
size_t parts_number(const parts *self);
void parts_own_share(const parts *self, size_t *begin, size_t *end);

/* This round's part lies at `address`, and stays there, unchanged, until the round is over. */
void parts_hand_over(parts *self, size_t part, const void *address);
/* The same of all parts. */
void parts_hand_over_all(parts *self, const size_t *addresses);
/* The first part that has not been handed over; their number when there is none. */
size_t parts_missing(const parts *self);

/* What is done with `n` elements of the own share that lie at `begin` in the vector, PARTS_BYTES of
 * them at most; one term a rank. Returns whether what was made of them is finite. */
enum { PARTS_BYTES = 8192 }; /* which stay in the nearest cache */
typedef int (*parts_use)(void *context, size_t begin, const void *const *terms, int num_terms,
                          size_t n);
/* Once all ranks have handed over all parts: each goes through its own share; all wait until all
 * are done. used_s: the time that the own share took. Collective; NOT_FINITE when `use` has told so
 * on any rank, or when nothing was done. */
int parts_round(parts *self, int kind, int op, parts_use use, void *context, double *used_s,
                double timeout_s, interrupted check);
/* total: of the vector's elements, seen by all ranks: the reduction over the ranks, in their
 * order. */
int parts_all_reduce(parts *self, void *total, int op, double timeout_s, interrupted check);

/* The update of a slice of parameters, and how many vectors of state it keeps. */
enum rule { SGD, SGD_MOMENTUM, ADAM, ADAMW, NUM_RULES };
enum { MAX_STATES = 2, NUM_COEFFICIENTS = 8 };

/* parameters[i] and states[*][i] become what the rule makes of gradients[i]; one after another in
 * memory. coefficients: as comm/update.py makes them. dtype: FLOAT32 or FLOAT64. */
void apply_rule(int rule, const double *coefficients, void *parameters, void *const *states,
                const void *gradients, size_t n, int dtype);
/* The ranks' gradients are the parts, which are guarded; parameters and states are seen by all
 * ranks. */
int fused_step(parts *gradients, int rule, const double *coefficients, void *parameters,
               void *const *states, int dtype, double *used_s, double timeout_s,
               interrupted check);

#endif
