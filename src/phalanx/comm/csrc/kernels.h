/* Loops over elements and flags in shared memory: pointers and counts only.
 *
 * They use neither MPI nor PyTorch, so they outlive their ABIs. reduce.c reduces elements, shm.h
 * and the files that include it connect the ranks of a node, module*.c expose both to Python.
 * array_kernels.py does the same in NumPy. */
#ifndef PHALANX_KERNELS_H
#define PHALANX_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* Enumerations, X(constant, name): module.c exports the names, in order, to Python. */
#define FOR_DTYPES(X)                                                                           \
    X(FLOAT32, "float32") X(FLOAT64, "float64") X(FLOAT16, "float16") X(BFLOAT16, "bfloat16")   \
    X(INT8, "int8") X(INT16, "int16") X(INT32, "int32") X(INT64, "int64") X(UINT8, "uint8")     \
    X(UINT16, "uint16") X(UINT32, "uint32") X(UINT64, "uint64") X(BOOL, "bool")                 \
    X(COMPLEX64, "complex64") X(COMPLEX128, "complex128") X(OPAQUE, "opaque")
#define FOR_OPS(X)                                                                              \
    X(SUM, "SUM") X(PRODUCT, "PRODUCT") X(MIN, "MIN") X(MAX, "MAX") X(BAND, "BAND")             \
    X(BOR, "BOR") X(BXOR, "BXOR")
#define FOR_KINDS(X)                                                                            \
    X(NOTHING, "nothing") X(BARRIER, "barrier") X(ALL_REDUCE, "all_reduce")                     \
    X(REDUCE, "reduce") X(REDUCE_SCATTER, "reduce_scatter") X(ALL_GATHER, "all_gather")         \
    X(BROADCAST, "broadcast") X(ALL_TO_ALL, "all_to_all") X(GATHER, "gather")                   \
    X(SCATTER, "scatter") X(ALL_REDUCE_GRADS, "all_reduce of parts") X(FUSED_STEP, "fused_step")
/* NOT_FINITE: returned by grad_buffer.c only; the call has completed, on all ranks alike. */
#define FOR_STATUSES(X)                                                                         \
    X(DONE, "DONE") X(TIMED_OUT, "TIMED_OUT") X(MISMATCH, "MISMATCH")                           \
    X(PEER_FAILED, "PEER_FAILED") X(PEER_DIED, "PEER_DIED") X(INTERRUPTED, "INTERRUPTED")       \
    X(NO_MEMORY, "NO_MEMORY") X(NOT_FINITE, "NOT_FINITE")
#define CONSTANT_OF(CONSTANT, NAME) CONSTANT,
enum dtype { FOR_DTYPES(CONSTANT_OF) NUM_DTYPES };
enum op { FOR_OPS(CONSTANT_OF) NUM_OPS };
enum kind { FOR_KINDS(CONSTANT_OF) NUM_KINDS };
enum status { FOR_STATUSES(CONSTANT_OF) NUM_STATUSES };

extern const size_t ITEMSIZE[NUM_DTYPES];

/* True if elements of `dtype` have the reduction `op`. */
int has_reduction(int dtype, int op);

/* outputs[*][i] = terms[0][i] op terms[1][i] op …, in this order, divided by `divisor`.
 * An output may be a term; otherwise memory must not overlap. Half types are summed in float32
 * and rounded once. */
void reduce_terms(void *const *outputs, int num_outputs, const void *const *terms, int num_terms,
                  size_t count, int dtype, int op, double divisor);

/* Order of a sum: a postfix expression. A number below `num_terms` is a term; `num_terms` adds the
 * two values before it. */
typedef struct {
    const size_t *expression;
    size_t length, num_terms;
    char *blocks; /* BLOCK_BYTES for each value that waits, see `sum_order_depth` */
} sum_order;
enum { BLOCK_BYTES = 8192 /* fits the nearest cache */, MAX_DEPTH = 64 };

/* Largest number of values that wait at a time; 0 if the expression does not give one value, or if
 * more than MAX_DEPTH wait. */
size_t sum_order_depth(const size_t *expression, size_t length, size_t num_terms);

/* output[i] = the sum of terms[*][i], at most BLOCK_BYTES. Half types are rounded after each
 * addition, as in PyTorch; so denormal numbers are handled as the processor is set. */
void sum_in_order(void *output, const void *const *terms, const sum_order *order, size_t n,
                  int dtype);

/* Half types: out[i] = in[i] as float32, and out[i] = in[i] / divisor, rounded once. A division
 * changes `in`. Memory must not overlap. */
void widen_halves(float *out, const void *in, size_t count, int dtype);
void narrow_halves(void *out, float *in, size_t count, int dtype, double divisor);

/* True if no value is a NaN or an infinity. Integers are finite. */
int are_finite(const void *values, size_t count, int dtype);
/* Copy `values`; true if they and as many `others`, which may be the same ones, are finite. The
 * copy waits for memory writes, so the reads cost little beside it. */
int copy_finite(void *out, const void *values, const void *others, size_t count, int dtype);

/* coding.c, documented in gradients/compression/coding.py. */
void encode_int8(const float *values, float *kept, float *scales, int8_t *codes, size_t count);
void add_int8(const float *scales, const int8_t *codes, float *total, size_t count, int adds);
/* 1 <= wanted <= count < 2³¹; DONE or NO_MEMORY. */
int select_largest(const float *values, size_t count, int32_t *positions, size_t wanted);

/* Capacities of the shared memory. */
enum {
    PROTOCOL = 6,            /* raise with any change of what ranks write for peers */
    MAX_RANKS = 1024,
    INLINE_BYTES = 8192,     /* largest all-reduce in one phase */
    SHORT_BYTES = 2048,      /* the same if every rank has a core; both measured */
    SLOT_BYTES = 1 << 21,    /* a rank's slot; the largest chunk, beside other processes */
    LARGE_BYTES = 1 << 19,   /* a chunk if ranks share cores */
    CHUNK_BYTES = 1 << 17,   /* a chunk if every rank has a core */
    DIRECT_BYTES = 1 << 18,  /* smallest share for which ranks read peers' memory directly */
    NUM_SLOTS = 3,
    NUM_SEGMENTS = 256,      /* segments that a rank may export */
    REASON_BYTES = 448,
    NUM_LOGGED = 256          /* calls in the log of a rank */
};

typedef struct shm_group shm_group;

/* Bytes of shared memory that `size` ranks need; zeroed when the first one joins. */
size_t shm_bytes(int size);

/* Join the group whose memory is at `control`; NULL if allocation fails. spins, yields: how this
 * rank waits. Rank 0's values also choose the chunk sizes of all ranks. */
shm_group *shm_join(void *control, int rank, int size, int spins, int yields);
void shm_leave(shm_group *self);

/* Call once all have joined: take the chunk sizes that rank 0 has chosen, and try to read the
 * peers' memory. From now on waits detect dead peers. The first collective comes after all have
 * done this. */
void shm_all_joined(shm_group *self);
int shm_is_dead(shm_group *self, int peer);

/* Callback that long waits poll; non-zero ends the wait with INTERRUPTED. */
typedef int (*interrupted)(void);
/* yes: `interrupted` progresses messages, so waits call it more often. */
void shm_move_messages(int yes);

/* Collectives: every rank calls the same ones in the same order. They return a `status`. */
int shm_barrier(shm_group *self, double timeout_s, interrupted check);

/* root: -1 for every rank to get the result. */
int shm_all_reduce(shm_group *self, void *buffer, size_t count, int dtype, int op, double divisor,
                   int root, double timeout_s, interrupted check);

/* parts: one pointer per rank; counts: elements of each part. */
int shm_reduce_scatter(shm_group *self, void *output, void *const *parts, const size_t *counts,
                       int dtype, int op, double divisor, double timeout_s, interrupted check);

/* outputs: one pointer per rank; bytes: size of each rank's part. */
int shm_all_gather(shm_group *self, void *const *outputs, const size_t *bytes, const void *part,
                   int dtype, double timeout_s, interrupted check);
int shm_broadcast(shm_group *self, void *buffer, size_t bytes, int dtype, int root, double timeout_s,
                  interrupted check);
/* bytes_out: expected from each rank; bytes_in: sent to each rank; any sizes are allowed.
 * kind: ALL_TO_ALL, or GATHER and SCATTER, in which most sizes are 0. */
int shm_all_to_all(shm_group *self, int kind, void *const *outputs, const size_t *bytes_out,
                   void *const *parts, const size_t *bytes_in, int dtype, int root,
                   double timeout_s, interrupted check);

/* Export `bytes` of memory behind file descriptor `fd`; return the segment's number, or -1. Peers
 * map it when they first use it in a collective, for which `fd` must stay open. */
int shm_export_segment(shm_group *self, int fd, size_t bytes, void *address);
void shm_unexport_segment(shm_group *self, int segment);
/* Return, once, the errno with which a peer's memory could not be mapped; 0 if none failed. */
int shm_map_error(shm_group *self);

/* Report to the peers why this rank makes no more calls. FAILED ends all their waits; DEPARTED ends
 * those for phases that this rank has not published: it made all calls that it began. */
enum shm_end { FAILED = 1, DEPARTED };
void shm_fail(shm_group *self, enum shm_end end, const char *reason);

/* Waits for messages: each rank has a doorbell that its peers ring. A rank reads the number of
 * rings, polls its messages, and sleeps `ns` unless it was rung since it read. */
void shm_ring(shm_group *self, int peer);
uint32_t shm_num_rings(shm_group *self);
void shm_sleep_until_rung(shm_group *self, uint32_t rung, long ns);

/* Last published state of `peer`: its phase, and the call it is in. */
typedef struct {
    uint64_t phase;
    uint64_t fingerprint;
    uint64_t count;
    int failed;
    const char *reason;
} shm_peer_state;
shm_peer_state shm_peer(shm_group *self, int peer);

/* First element of the share of `rank` in `count` elements; the share of the rank before ends
 * there. Shares are whole cache lines, so that two ranks do not write the same line. */
size_t share_begin(int rank, int size, size_t count, size_t itemsize);

/* Gradients of this rank as parts of a flat vector, reduced over the ranks. */
typedef struct grad_buffer grad_buffer;

/* Numbers that a round carries beside the parts. */
enum { NUM_CARRIED = 2 };

/* Return NULL if allocation fails. shm: NULL for a single rank. windows: shared memory of `stride`
 * bytes each, at least one per rank. starts, sizes: places of the parts in the vector of `count`
 * elements; the result owns these arrays. guarded: parts are checked while they are copied; if a
 * value of any rank is not finite, the parts are not used and the round is NOT_FINITE. carried:
 * numbers of this rank, which each round replaces by their sums over the ranks, in rank order. */
grad_buffer *grad_buffer_make(shm_group *shm, int rank, int size, void *windows,
                              size_t num_windows, size_t stride, size_t count, size_t num_parts,
                              size_t *starts, size_t *sizes, int dtype, int guarded,
                              double *carried);
void grad_buffer_free(grad_buffer *self);
size_t grad_buffer_num_parts(const grad_buffer *self);
size_t grad_buffer_num_windows(const grad_buffer *self);
void grad_buffer_local_share(const grad_buffer *self, size_t *begin, size_t *end);

/* Callback for `n` elements of the local share that lie in a part, at `begin` in the vector, at
 * most BLOCK_BYTES. Returns true if its results are finite. */
typedef int (*share_visitor)(void *context, size_t part, size_t begin, const void *const *terms,
                             int num_terms, size_t n);
/* Terms of a round: this rank has those from `first` on. order: a number that must be equal on all
 * ranks; 0 for none. */
typedef struct {
    size_t num_terms, first, num_own;
    uint64_t order;
} grad_terms;
/* addresses: this rank's parts, term by term, unchanged until the round is over. terms: at most one
 * per window; NULL: one per rank. Once all parts of all ranks are copied, each rank visits its
 * local share; all wait until all are done. used_s: seconds spent in the local share. Collective;
 * NOT_FINITE if `visit` has returned 0 on any rank, or if nothing was done. */
int grad_buffer_reduce(grad_buffer *self, const size_t *addresses, const grad_terms *terms,
                       int kind, int op, share_visitor visit, void *context, double *used_s,
                       double timeout_s, interrupted check);
/* total: the vector in shared memory, which receives the reduction over the ranks, in rank order.
 * in_place: the parts receive it as well. */
int grad_buffer_all_reduce(grad_buffer *self, const size_t *addresses, void *total, int in_place,
                           int op, double timeout_s, interrupted check);
/* Sum any number of terms per rank, in the given order, in a vector of bytes. This rank has
 * `num_own` terms from `first` on. dtypes: one per part; parts begin on cache lines. */
int grad_buffer_sum_in_order(grad_buffer *self, const size_t *addresses, const size_t *dtypes,
                             size_t first, size_t num_own, const sum_order *order, void *total,
                             double timeout_s, interrupted check);

/* The update of a slice of parameters, and how many vectors of state it keeps. */
enum optimizer { SGD, SGD_MOMENTUM, ADAM, ADAMW, NUM_OPTIMIZERS };
enum { MAX_STATES = 2, NUM_COEFFICIENTS = 8 };

/* Update parameters[i] and states[*][i] by gradients[i]; all are contiguous. coefficients: as
 * gradients/optimizer_update.py makes them. dtype: FLOAT32 or FLOAT64. */
void apply_update(int optimizer, const double *coefficients, void *parameters, void *const *states,
                  const void *gradients, size_t n, int dtype);
/* The guarded parts are the ranks' gradients; all ranks see parameters and states. */
int fused_step(grad_buffer *gradients, const size_t *addresses, int optimizer,
               const double *coefficients, void *parameters, void *const *states, int dtype,
               double *used_s, double timeout_s, interrupted check);

#endif
