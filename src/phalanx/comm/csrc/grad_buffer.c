/* Flat gradient buffer: gradients of every rank, reduced in shared memory.
 *
 * The flat vector is cut into one share per rank. Every rank has some terms of the sum, by default
 * one. It copies the peers' shares of each term into the term's window, which the peers can read.
 * Then it reduces its local share: its own terms lie in the gradients, those of the peers in their
 * windows. So two phases suffice: all parts are copied; all shares are done.
 *
 * Any rank may fill a window again right after a round: its readers were done before the second
 * phase. The next round may overwrite the results of this one after its first phase.
 *
 * The same passes find non-finite values. If parts are guarded, a rank reports those of terms with
 * the first phase; it reports those of results with the second. */
#include "shm.h"

#include <stdlib.h>
#include <string.h>

/* Bits of `report`; distinct, since a rank may be done before a peer has read the first. */
enum { NON_FINITE_TERM = 1, NON_FINITE_RESULT = 2 };

struct grad_buffer {
    shm_group *shm; /* NULL for a single rank */
    int rank, size, dtype, guarded;
    uint32_t report;           /* bits of this round */
    size_t checked_part;       /* part that is being checked, counted over all terms */
    size_t num_checked;        /* elements of the local share already checked in that part */
    size_t num_parts, count, itemsize, stride;
    size_t local_begin, local_end; /* elements of the local share */
    uint64_t layout;           /* equal on ranks with equal parts */
    char *windows;             /* [num_windows][stride] */
    size_t num_windows;
    size_t *starts, *sizes;    /* elements */
    double *carried;
    const size_t *addresses;   /* this round's parts: [round.num_own][num_parts] */
    grad_terms round;
    const void *terms[];       /* [num_windows], for the current block */
};

static uint64_t hash_mix(uint64_t hash, uint64_t value) { return (hash ^ value) * 1099511628211U; }

grad_buffer *grad_buffer_make(shm_group *shm, int rank, int size, void *windows,
                              size_t num_windows, size_t stride, size_t count, size_t num_parts,
                              size_t *starts, size_t *sizes, int dtype, int guarded,
                              double *carried)
{
    grad_buffer *self = calloc(1, sizeof *self + num_windows * sizeof self->terms[0]);
    if (!self)
        return NULL;
    *self = (grad_buffer){shm, rank, size, dtype, guarded, 0, 0, 0,
                    num_parts, count, ITEMSIZE[dtype], stride,
                    share_begin(rank, size, count, ITEMSIZE[dtype]),
                    share_begin(rank + 1, size, count, ITEMSIZE[dtype]),
                    14695981039346656037U, windows, num_windows, starts, sizes, carried, NULL,
                    {0, 0, 0, 0}};
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

size_t grad_buffer_num_windows(const grad_buffer *self) { return self->num_windows; }

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

/* Address of element `at` of this rank's term `own`, in a part of this round. */
static const char *element_at(const grad_buffer *self, size_t own, size_t part, size_t at)
{
    size_t address = self->addresses[own * self->num_parts + part];
    return (const char *)address + (at - self->starts[part]) * self->itemsize;
}

/* Address of element `at` of this rank's only term. */
static char *part_at(const grad_buffer *self, size_t part, size_t at)
{
    return (char *)self->addresses[part] + (at - self->starts[part]) * self->itemsize;
}

static char *window_at(const grad_buffer *self, size_t term, size_t at)
{
    return self->windows + term * self->stride + at * self->itemsize;
}

/* Number of elements of the local share at `*values` that are not checked yet; 0 when none is left. */
static size_t next_unchecked(grad_buffer *self, const char **values)
{
    size_t begin, end;
    for (; self->guarded && self->checked_part < self->round.num_own * self->num_parts;
         self->checked_part++, self->num_checked = 0) {
        size_t part = self->checked_part % self->num_parts;
        local_range(self, part, &begin, &end);
        begin += self->num_checked;
        if (begin >= end)
            continue;
        *values = element_at(self, self->checked_part / self->num_parts, part, begin);
        return end - begin;
    }
    return 0;
}

/* Copy elements [begin, end) of a term, which lie in one part, into its window. The same loop
 * checks as many elements of the local share, which is not copied. */
static void copy_to_window(grad_buffer *self, size_t own, size_t part, size_t begin, size_t end)
{
    for (size_t n; begin < end; begin += n) {
        char *to = window_at(self, self->round.first + own, begin);
        const char *values = element_at(self, own, part, begin), *local = values;
        size_t num_local = next_unchecked(self, &local);
        n = num_local ? least(num_local, end - begin) : end - begin;
        if (!self->guarded)
            memcpy(to, values, n * self->itemsize);
        else if (!copy_finite(to, values, local, n, self->dtype))
            self->report |= NON_FINITE_TERM;
        self->num_checked += num_local ? n : 0;
    }
}

static void copy_part(grad_buffer *self, size_t own, size_t part)
{
    size_t start = self->starts[part], begin, end;
    local_range(self, part, &begin, &end);
    copy_to_window(self, own, part, start, begin);
    copy_to_window(self, own, part, end, start + self->sizes[part]);
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
    grad_terms round = self->round;
    size_t block = BLOCK_BYTES / self->itemsize;
    int finite = 1;
    for (size_t at = begin; at < end; at += block) {
        for (size_t term = 0; term < round.num_terms; term++)
            self->terms[term] = window_at(self, term, at);
        for (size_t own = 0; own < round.num_own; own++)
            self->terms[round.first + own] = element_at(self, own, part, at);
        finite &= visit(context, part, at, self->terms, (int)round.num_terms, least(block, end - at));
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

/* Write this rank's report, before a phase is published. */
static void publish_report(grad_buffer *self)
{
    if (self->shm)
        atomic_store_explicit(&call_of(self->shm, self->rank)->report, self->report,
                              memory_order_relaxed);
}

/* True if any rank has reported `what`; read after the phase. */
static int any_report(grad_buffer *self, uint32_t what)
{
    uint32_t report = self->report;
    for (int peer = 0; self->shm && peer < self->size; peer++)
        report |= atomic_load_explicit(&call_of(self->shm, peer)->report, memory_order_relaxed);
    return (report & what) != 0;
}

/* Publish the carried numbers with the first phase. Every rank reads them before it publishes the
 * second, so no rank overwrites them before all have read them. */
static void publish_carried(grad_buffer *self)
{
    memcpy(call_of(self->shm, self->rank)->carried, self->carried, sizeof(double[NUM_CARRIED]));
}

static void sum_carried(grad_buffer *self)
{
    double sums[NUM_CARRIED] = {0.0};
    for (int peer = 0; peer < self->size; peer++)
        for (int i = 0; i < NUM_CARRIED; i++)
            sums[i] += call_of(self->shm, peer)->carried[i];
    memcpy(self->carried, sums, sizeof sums);
}

/* Copy all parts, and wait until all ranks have. */
static int barrier_enter(grad_buffer *self, int kind, int op, double timeout_s, interrupted check)
{
    for (size_t own = 0; own < self->round.num_own; own++)
        for (size_t part = 0; part < self->num_parts; part++)
            copy_part(self, own, part);
    check_rest_finite(self);
    if (!self->shm)
        return DONE;
    uint64_t order = self->round.order, layout = self->layout;
    TRY(shm_begin(self->shm, kind, self->dtype, op, 1.0, 0,
                  order ? hash_mix(layout, order) : layout, timeout_s, check));
    publish_report(self);
    publish_carried(self);
    TRY(shm_enter(self->shm));
    sum_carried(self);
    return DONE;
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

int grad_buffer_reduce(grad_buffer *self, const size_t *addresses, const grad_terms *terms,
                       int kind, int op, share_visitor visit, void *context, double *used_s,
                       double timeout_s, interrupted check)
{
    self->addresses = addresses;
    self->round = terms ? *terms
                        : (grad_terms){(size_t)self->size, (size_t)self->rank, 1, 0};
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
    const grad_buffer *buffer;
    char *total;
    int in_place, op;
} sums;

static int reduce(void *context, size_t part, size_t begin, const void *const *terms, int num_terms,
                  size_t n)
{
    const sums *to = context;
    const grad_buffer *self = to->buffer;
    void *outputs[] = {to->total + begin * self->itemsize, part_at(self, part, begin)};
    reduce_terms(outputs, 1 + to->in_place, terms, num_terms, n, self->dtype, to->op, 1.0);
    return are_finite(outputs[0], n, self->dtype);
}

/* Copy the sums of the peers' shares into the parts, which have those of the local share. */
static void collect_sums(const grad_buffer *self, const char *total)
{
    for (size_t part = 0; part < self->num_parts; part++) {
        size_t start = self->starts[part], stop = start + self->sizes[part], begin, end;
        local_range(self, part, &begin, &end);
        memcpy(part_at(self, part, start), total + start * self->itemsize,
               (begin - start) * self->itemsize);
        memcpy(part_at(self, part, end), total + end * self->itemsize,
               (stop - end) * self->itemsize);
    }
}

int grad_buffer_all_reduce(grad_buffer *self, const size_t *addresses, void *total, int in_place,
                           int op, double timeout_s, interrupted check)
{
    sums to = {self, total, in_place, op};
    double used_s;
    int status = grad_buffer_reduce(self, addresses, NULL, ALL_REDUCE_GRADS, op, reduce, &to,
                                    &used_s, timeout_s, check);
    if (in_place && (status == DONE || status == NOT_FINITE))
        collect_sums(self, total);
    return status;
}

/* ---- sum in a given order ---- */

typedef struct {
    char *total;
    const size_t *dtypes;
    const sum_order *order;
} ordered_sums;

static int sum_block(void *context, size_t part, size_t begin, const void *const *terms,
                     int num_terms, size_t num_bytes)
{
    ordered_sums *to = context;
    void *output = to->total + begin;
    int dtype = (int)to->dtypes[part];
    size_t n = num_bytes / ITEMSIZE[dtype];
    (void)num_terms;
    sum_in_order(output, terms, to->order, n, dtype);
    return are_finite(output, n, dtype);
}

int grad_buffer_sum_in_order(grad_buffer *self, const size_t *addresses, const size_t *dtypes,
                             size_t first, size_t num_own, const sum_order *order, void *total,
                             double timeout_s, interrupted check)
{
    grad_terms terms = {order->num_terms, first, num_own, hash_mix(1, order->num_terms)};
    ordered_sums to = {total, dtypes, order};
    double used_s;
    for (size_t part = 0; part < self->num_parts; part++)
        terms.order = hash_mix(terms.order, dtypes[part]);
    for (size_t i = 0; i < order->length; i++)
        terms.order = hash_mix(terms.order, order->expression[i]);
    return grad_buffer_reduce(self, addresses, &terms, ALL_REDUCE_GRADS, SUM, sum_block, &to,
                              &used_s, timeout_s, check);
}
