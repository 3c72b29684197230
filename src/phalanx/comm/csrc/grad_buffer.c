/* Flat gradient buffer: gradients of every rank, reduced in shared memory.
 *
 * The flat vector is cut into a share for each rank. A rank copies what belongs to the shares of its
 * peers into its window, which they can read; then it reduces its local share, for which its own
 * terms lie in the gradients and those of the peers in their windows. So two phases suffice: all
 * parts are copied; all shares are done.
 *
 * A window may be filled again at once after a round: its readers were done before the second
 * phase. What a round writes for all may be overwritten in the next, after its first phase.
 *
 * Non-finite values are found in the same passes, and reported with these phases: of terms, where
 * parts are guarded, with the first; of results with the second. */
#include "shm.h"

#include <stdlib.h>
#include <string.h>

/* Bits of `report`; distinct, since a rank may be done before a peer has read the first. */
enum { NON_FINITE_TERM = 1, NON_FINITE_RESULT = 2 };

struct grad_buffer {
    shm_group *shm; /* NULL for one rank by itself */
    int rank, size, dtype, guarded;
    uint32_t report;           /* bits of this round */
    size_t checked_part;       /* the part that is being checked for non-finite values */
    size_t num_checked;        /* elements of the local share in it that were checked */
    size_t num_parts, count, itemsize, stride;
    size_t local_begin, local_end; /* elements of the local share */
    uint64_t layout;           /* equal on ranks with equal parts */
    char *windows;             /* [size][stride] */
    size_t *starts, *sizes;    /* elements */
    const size_t *addresses;   /* of this round's parts */
};

static uint64_t hash_mix(uint64_t hash, uint64_t value) { return (hash ^ value) * 1099511628211U; }

grad_buffer *grad_buffer_make(shm_group *shm, int rank, int size, void *windows, size_t stride,
                              size_t count, size_t num_parts, size_t *starts, size_t *sizes,
                              int dtype, int guarded)
{
    grad_buffer *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    *self = (grad_buffer){shm, rank, size, dtype, guarded, 0, 0, 0,
                    num_parts, count, ITEMSIZE[dtype], stride,
                    share_begin(rank, size, count, ITEMSIZE[dtype]),
                    share_begin(rank + 1, size, count, ITEMSIZE[dtype]),
                    14695981039346656037U, windows, starts, sizes, NULL};
    for (size_t part = 0; part < num_parts; part++)
        self->layout = hash_mix(hash_mix(self->layout, starts[part]), sizes[part]);
    return self;
}

void grad_buffer_free(grad_buffer *self)
{
    free(self->starts);
    free(self->sizes);
    free(self);
}

size_t grad_buffer_num_parts(const grad_buffer *self) { return self->num_parts; }

void grad_buffer_local_share(const grad_buffer *self, size_t *begin, size_t *end)
{
    *begin = self->local_begin;
    *end = self->local_end;
}

static size_t clamped(size_t at, size_t low, size_t high)
{
    return at < low ? low : at > high ? high : at;
}

/* Elements of the local share that lie in a part. */
static void local_range(const grad_buffer *self, size_t part, size_t *begin, size_t *end)
{
    size_t start = self->starts[part], stop = start + self->sizes[part];
    *begin = clamped(self->local_begin, start, stop);
    *end = clamped(self->local_end, start, stop);
}

/* Where this rank has element `at` of the vector, which lies in a part of this round. */
static const char *element_at(const grad_buffer *self, size_t part, size_t at)
{
    return (const char *)self->addresses[part] + (at - self->starts[part]) * self->itemsize;
}

/* Number of elements of the local share at `*values` that are not checked yet; 0 when none is left. */
static size_t next_unchecked(grad_buffer *self, const char **values)
{
    size_t begin, end;
    for (; self->guarded && self->checked_part < self->num_parts;
         self->checked_part++, self->num_checked = 0) {
        local_range(self, self->checked_part, &begin, &end);
        begin += self->num_checked;
        if (begin >= end)
            continue;
        *values = element_at(self, self->checked_part, begin);
        return end - begin;
    }
    return 0;
}

/* Copy elements [begin, end) of the vector, which lie in one part, into the local window. As many of
 * the local share, which is not copied, are checked in the same loop. */
static void copy_to_window(grad_buffer *self, size_t part, size_t begin, size_t end)
{
    char *window = self->windows + (size_t)self->rank * self->stride;
    for (size_t n; begin < end; begin += n) {
        char *to = window + begin * self->itemsize;
        const char *values = element_at(self, part, begin), *own = values;
        size_t num_own = next_unchecked(self, &own);
        n = num_own ? least(num_own, end - begin) : end - begin;
        if (!self->guarded)
            memcpy(to, values, n * self->itemsize);
        else if (!copy_finite(to, values, own, n, self->dtype))
            self->report |= NON_FINITE_TERM;
        self->num_checked += num_own ? n : 0;
    }
}

static void copy_part(grad_buffer *self, size_t part)
{
    size_t start = self->starts[part], begin, end;
    local_range(self, part, &begin, &end);
    copy_to_window(self, part, start, begin);
    copy_to_window(self, part, end, start + self->sizes[part]);
}

/* Check the remaining local elements, which no copy loop covered. */
static void check_rest_finite(grad_buffer *self)
{
    const char *own;
    for (size_t n; (n = next_unchecked(self, &own)); self->num_checked += n)
        if (!are_finite(own, n, self->dtype))
            self->report |= NON_FINITE_TERM;
}

/* Visit elements [begin, end) of the local share, which lie in one part, block by block. */
static int visit_part(grad_buffer *self, size_t part, size_t begin, size_t end, share_visitor visit,
                      void *context)
{
    const void *terms[MAX_RANKS];
    size_t block = GRAD_BLOCK_BYTES / self->itemsize;
    int finite = 1;
    for (size_t at = begin; at < end; at += block) {
        for (int peer = 0; peer < self->size; peer++)
            terms[peer] = self->windows + (size_t)peer * self->stride + at * self->itemsize;
        terms[self->rank] = element_at(self, part, at);
        finite &= visit(context, at, terms, self->size, least(block, end - at));
    }
    return finite;
}

/* Visit the local share, part by part. */
static void visit_local_share(grad_buffer *self, share_visitor visit, void *context)
{
    for (size_t part = 0; part < self->num_parts; part++) {
        size_t begin, end;
        local_range(self, part, &begin, &end);
        if (!visit_part(self, part, begin, end, visit, context))
            self->report |= NON_FINITE_RESULT;
    }
}

/* Before a phase is published. */
static void publish_report(grad_buffer *self)
{
    if (self->shm)
        atomic_store_explicit(&call_of(self->shm, self->rank)->report, self->report,
                              memory_order_relaxed);
}

/* After it, for all ranks. */
static int any_report(grad_buffer *self, uint32_t what)
{
    uint32_t report = self->report;
    for (int peer = 0; self->shm && peer < self->size; peer++)
        report |= atomic_load_explicit(&call_of(self->shm, peer)->report, memory_order_relaxed);
    return (report & what) != 0;
}

/* Copy all parts, and wait until all ranks have. */
static int barrier_enter(grad_buffer *self, int kind, int op, double timeout_s, interrupted check)
{
    for (size_t part = 0; part < self->num_parts; part++)
        copy_part(self, part);
    check_rest_finite(self);
    if (!self->shm)
        return DONE;
    TRY(shm_begin(self->shm, kind, self->dtype, op, 1.0, 0, self->layout, timeout_s,
                  check));
    publish_report(self);
    return shm_enter(self->shm);
}

/* Wait until all ranks are done with their shares. */
static int barrier_leave(grad_buffer *self)
{
    if (!self->shm)
        return DONE;
    publish_report(self);
    TRY(shm_advance(self->shm));
    return shm_end(self->shm);
}

int grad_buffer_reduce(grad_buffer *self, const size_t *addresses, int kind, int op,
                       share_visitor visit, void *context, double *used_s, double timeout_s,
                       interrupted check)
{
    self->addresses = addresses;
    int status = barrier_enter(self, kind, op, timeout_s, check);
    if (!status) {
        double began = now();
        if (!any_report(self, NON_FINITE_TERM))
            visit_local_share(self, visit, context);
        *used_s = now() - began;
        status = barrier_leave(self);
    }
    if (!status && any_report(self, NON_FINITE_TERM | NON_FINITE_RESULT))
        status = NOT_FINITE;
    self->report = 0;
    self->checked_part = self->num_checked = 0;
    return status;
}

/* ---- all-reduce ---- */

typedef struct {
    char *total;
    int dtype, op;
} sums;

static int reduce(void *context, size_t begin, const void *const *terms, int num_terms, size_t n)
{
    sums *to = context;
    void *output = to->total + begin * ITEMSIZE[to->dtype];
    reduce_terms(&output, 1, terms, num_terms, n, to->dtype, to->op, 1.0);
    return are_finite(output, n, to->dtype);
}

int grad_buffer_all_reduce(grad_buffer *self, const size_t *addresses, void *total, int op,
                           double timeout_s, interrupted check)
{
    sums to = {total, self->dtype, op};
    double used_s;
    return grad_buffer_reduce(self, addresses, ALL_REDUCE_GRADS, op, reduce, &to, &used_s, timeout_s,
                              check);
}
