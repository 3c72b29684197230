/* A vector that every rank of a node holds as parts, wherever they lie: the ranks bring it together.
 *
 * The vector is cut into a share for each rank. A rank copies what belongs to the shares of others
 * into its window, which they can read; then it goes through its own share, for which its own term
 * lies where the part is and those of the others in their windows. So a part may be handed over as
 * soon as it is there, and two phases suffice: all is handed over; all shares are done.
 *
 * A window may be filled again at once after a round: its readers were done before the second
 * phase. What a round writes for all may be overwritten in the next, after its first phase.
 *
 * Whether values are finite is found in passing, and told with the phases that are there anyway: of
 * terms, where parts are guarded, with the first; of what was made of them with the second. */
#include "node.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What a rank tells the others; apart, since a rank may be done before another has looked. */
enum { BAD_TERM = 1, BAD_RESULT = 2 };

struct parts {
    node *node; /* NULL for one rank by itself */
    int rank, size, dtype, guarded;
    uint32_t found;            /* in this round, of the above */
    size_t looking, seen;      /* a part, and elements of the own share in it: looked through */
    size_t num_parts, count, itemsize, stride;
    size_t own_begin, own_end; /* elements of the own share */
    uint64_t layout;           /* equal on ranks with equal parts */
    char *windows;             /* [size][stride] */
    size_t *starts, *sizes;    /* elements */
    const char **given;        /* addresses of this round's parts; NULL: not handed over yet */
};

static uint64_t mixed(uint64_t hash, uint64_t value) { return (hash ^ value) * 1099511628211U; }

parts *parts_make(node *node, int rank, int size, void *windows, size_t stride, size_t count,
                  size_t num_parts, size_t *starts, size_t *sizes, int dtype, int guarded)
{
    parts *self = calloc(1, sizeof *self);
    const char **given = calloc(num_parts + 1, sizeof *given);
    if (!self || !given) {
        free(self), free(given);
        return NULL;
    }
    *self = (parts){node, rank, size, dtype, guarded, 0, 0, 0,
                    num_parts, count, ITEMSIZE[dtype], stride,
                    share_begin(rank, size, count, ITEMSIZE[dtype]),
                    share_begin(rank + 1, size, count, ITEMSIZE[dtype]),
                    14695981039346656037U, windows, starts, sizes, given};
    for (size_t part = 0; part < num_parts; part++)
        self->layout = mixed(mixed(self->layout, starts[part]), sizes[part]);
    return self;
}

void parts_free(parts *self)
{
    free(self->starts);
    free(self->sizes);
    free(self->given);
    free(self);
}

size_t parts_number(const parts *self) { return self->num_parts; }

void parts_own_share(const parts *self, size_t *begin, size_t *end)
{
    *begin = self->own_begin;
    *end = self->own_end;
}

static size_t clamped(size_t at, size_t low, size_t high)
{
    return at < low ? low : at > high ? high : at;
}

/* Elements of the own share that lie in a part. */
static void own_range(const parts *self, size_t part, size_t *begin, size_t *end)
{
    size_t start = self->starts[part], stop = start + self->sizes[part];
    *begin = clamped(self->own_begin, start, stop);
    *end = clamped(self->own_end, start, stop);
}

/* How many elements of the own share lie at `*values`, not yet looked through; 0 when the next part
 * is not there, or none is left. */
static size_t unseen(parts *self, const char **values)
{
    size_t begin, end;
    for (; self->guarded && self->looking < self->num_parts; self->looking++, self->seen = 0) {
        own_range(self, self->looking, &begin, &end);
        begin += self->seen;
        if (begin >= end)
            continue;
        const char *part = self->given[self->looking];
        if (!part)
            return 0;
        *values = part + (begin - self->starts[self->looking]) * self->itemsize;
        return end - begin;
    }
    return 0;
}

/* Copy elements [begin, end) of the vector, which lie in one part, into the own window. As many of
 * the own share, which nobody needs there, are looked through in the same loop. */
static void show(parts *self, size_t part, size_t begin, size_t end)
{
    char *window = self->windows + (size_t)self->rank * self->stride;
    for (size_t n; begin < end; begin += n) {
        char *to = window + begin * self->itemsize;
        const char *values = self->given[part] + (begin - self->starts[part]) * self->itemsize;
        const char *own = values;
        size_t num_own = unseen(self, &own);
        n = num_own ? least(num_own, end - begin) : end - begin;
        if (!self->guarded)
            memcpy(to, values, n * self->itemsize);
        else if (!copy_finite(to, values, own, n, self->dtype))
            self->found |= BAD_TERM;
        self->seen += num_own ? n : 0;
    }
}

static void copy_part(parts *self, size_t part)
{
    size_t start = self->starts[part], begin, end;
    own_range(self, part, &begin, &end);
    show(self, part, start, begin);
    show(self, part, end, start + self->sizes[part]);
}

/* What no copy was left for. */
static void look_through_rest(parts *self)
{
    const char *own;
    for (size_t n; (n = unseen(self, &own)); self->seen += n)
        if (!are_finite(own, n, self->dtype))
            self->found |= BAD_TERM;
}

void parts_hand_over(parts *self, size_t part, const void *address)
{
    self->given[part] = address;
    copy_part(self, part);
}

void parts_hand_over_all(parts *self, const size_t *addresses)
{
    for (size_t part = 0; part < self->num_parts; part++)
        self->given[part] = (const char *)addresses[part];
    for (size_t part = 0; part < self->num_parts; part++)
        copy_part(self, part);
    look_through_rest(self);
}

size_t parts_missing(const parts *self)
{
    size_t part = 0;
    while (part < self->num_parts && (self->given[part] || !self->sizes[part]))
        part++;
    return part;
}

/* Elements [begin, end) of the own share, which lie in one part, block by block. */
static int use_part(parts *self, size_t part, size_t begin, size_t end, parts_use use,
                    void *context)
{
    const void *terms[MAX_RANKS];
    size_t block = PARTS_BYTES / self->itemsize;
    int finite = 1;
    for (size_t at = begin; at < end; at += block) {
        for (int peer = 0; peer < self->size; peer++)
            terms[peer] = self->windows + (size_t)peer * self->stride + at * self->itemsize;
        terms[self->rank] = self->given[part] + (at - self->starts[part]) * self->itemsize;
        finite &= use(context, at, terms, self->size, least(block, end - at));
    }
    return finite;
}

/* Go through the own share, part by part. */
static void use_own(parts *self, parts_use use, void *context)
{
    for (size_t part = 0; part < self->num_parts; part++) {
        size_t begin, end;
        own_range(self, part, &begin, &end);
        if (!use_part(self, part, begin, end, use, context))
            self->found |= BAD_RESULT;
    }
}

/* Before a phase is published. */
static void tell(parts *self)
{
    if (self->node)
        atomic_store_explicit(&call_of(self->node, self->rank)->found, self->found,
                              memory_order_relaxed);
}

/* After it, for all ranks. */
static int has_found(parts *self, uint32_t what)
{
    uint32_t found = self->found;
    for (int peer = 0; self->node && peer < self->size; peer++)
        found |= atomic_load_explicit(&call_of(self->node, peer)->found, memory_order_relaxed);
    return (found & what) != 0;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* All have handed over all parts. */
static int meet(parts *self, int kind, int op, double timeout_s, interrupted check)
{
    look_through_rest(self);
    if (!self->node)
        return DONE;
    TRY(node_begin(self->node, kind, self->dtype, op, 1.0, 0, self->layout, timeout_s,
                   check));
    tell(self);
    return node_meet(self->node);
}

/* All are done with their shares. */
static int part_again(parts *self)
{
    if (!self->node)
        return DONE;
    tell(self);
    TRY(node_advance(self->node));
    return node_end(self->node);
}

int parts_round(parts *self, int kind, int op, parts_use use, void *context, double *used_s,
                double timeout_s, interrupted check)
{
    int status = meet(self, kind, op, timeout_s, check);
    if (!status) {
        double began = now();
        if (!has_found(self, BAD_TERM))
            use_own(self, use, context);
        *used_s = now() - began;
        status = part_again(self);
    }
    if (!status && has_found(self, BAD_TERM | BAD_RESULT))
        status = NOT_FINITE;
    memset(self->given, 0, self->num_parts * sizeof *self->given);
    self->found = 0;
    self->looking = self->seen = 0;
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

int parts_all_reduce(parts *self, void *total, int op, double timeout_s, interrupted check)
{
    sums to = {total, self->dtype, op};
    double used_s;
    return parts_round(self, ALL_REDUCE_PARTS, op, reduce, &to, &used_s, timeout_s, check);
}
