/* All-reduce and reduce: in one phase, through slots, in place, or by reads of peers' memory. */
#include "shm.h"

typedef struct {
    char *buffer;
    size_t count, itemsize;
    int dtype, op, root;
    double divisor;
} reduction;

size_t share_begin(int rank, int size, size_t count, size_t itemsize)
{
    size_t per_line = itemsize < CACHE_LINE ? CACHE_LINE / itemsize : 1;
    size_t lines = (count + per_line - 1) / per_line;
    size_t begin = lines * (size_t)rank / (size_t)size * per_line;
    return begin < count ? begin : count;
}

/* One phase: every rank reads all vectors. */
static int reduce_inline(shm_group *self, const reduction *r)
{
    const void *terms[MAX_RANKS];
    void *output = r->buffer;
    self->inlined++;
    TRY(shm_wait_all(self, self->inline_free[self->inlined & 1]));
    memcpy(inline_of(self, self->rank), r->buffer, r->count * r->itemsize);
    TRY(shm_enter(self));
    self->inline_free[self->inlined & 1] = self->phase + 1;
    if (r->root >= 0 && r->root != self->rank)
        return shm_end(self);
    for (int peer = 0; peer < self->size; peer++)
        terms[peer] = inline_of(self, peer);
    reduce_terms(&output, 1, terms, self->size, r->count, r->dtype, r->op, r->divisor);
    return shm_end(self);
}

/* Copy the peers' shares of elements [start, start + n) into the local slot. */
static int stage(shm_group *self, const reduction *r, uint64_t chunk, size_t start, size_t n)
{
    TRY(shm_acquire_slot(self, chunk));
    char *slot = slot_of(self, self->rank, chunk);
    size_t own = share_begin(self->rank, self->size, n, r->itemsize) * r->itemsize;
    size_t after = share_begin(self->rank + 1, self->size, n, r->itemsize) * r->itemsize;
    const char *from = r->buffer + start * r->itemsize;
    memcpy(slot, from, own);
    memcpy(slot + after, from + after, n * r->itemsize - after);
    return DONE;
}

/* Reduce the local share of the chunk; peers read the result from the local slot. */
static void reduce_share(shm_group *self, const reduction *r, uint64_t chunk, size_t start, size_t n)
{
    const void *terms[MAX_RANKS];
    void *outputs[2];
    size_t begin = share_begin(self->rank, self->size, n, r->itemsize);
    size_t count = share_begin(self->rank + 1, self->size, n, r->itemsize) - begin;
    for (int peer = 0; peer < self->size; peer++)
        terms[peer] = slot_of(self, peer, chunk) + begin * r->itemsize;
    char *own = r->buffer + (start + begin) * r->itemsize;
    terms[self->rank] = own;
    int wanted = r->root < 0 || r->root == self->rank, num_outputs = 0;
    if (wanted)
        outputs[num_outputs++] = own;
    outputs[num_outputs++] = slot_of(self, self->rank, chunk) + begin * r->itemsize;
    reduce_terms(outputs, num_outputs, terms, self->size, count, r->dtype, r->op, r->divisor);
}

static void collect(shm_group *self, const reduction *r, uint64_t chunk, size_t start, size_t n)
{
    if (r->root >= 0 && r->root != self->rank)
        return;
    for (int peer = 0; peer < self->size; peer++) {
        if (peer == self->rank)
            continue;
        size_t begin = share_begin(peer, self->size, n, r->itemsize) * r->itemsize;
        size_t after = share_begin(peer + 1, self->size, n, r->itemsize) * r->itemsize;
        memcpy(r->buffer + start * r->itemsize + begin, slot_of(self, peer, chunk) + begin,
               after - begin);
    }
}

/* Bytes of every chunk after the first. Beside other processes each phase costs a turn of theirs,
 * so the fewest are best. The result is equal on all ranks: they read the published signatures. */
static size_t later_chunk_bytes(shm_group *self)
{
    for (int peer = 0; peer < self->size; peer++) {
        shm_call *theirs = call_of(self, peer);
        if (theirs->segment == NO_SEGMENT && theirs->offset)
            return SLOT_BYTES;
    }
    return self->chunk_bytes;
}

/* Chunk by chunk through the slots: copy in, reduce the local share, copy out. A rank copies in the
 * next chunk before it waits for this one, so a chunk takes one phase. The first is copied in. */
static int reduce_staged(shm_group *self, const reduction *r, size_t first)
{
    size_t largest = later_chunk_bytes(self) / r->itemsize;
    for (size_t start = 0, n = first, next_n; start < r->count; start += n, n = next_n) {
        size_t next = start + n;
        next_n = r->count - next < largest ? r->count - next : largest;
        uint64_t chunk = self->chunks++;
        reduce_share(self, r, chunk, start, n);
        if (next < r->count)
            TRY(stage(self, r, chunk + 1, next, next_n));
        TRY(shm_advance(self));
        collect(self, r, chunk, start, n);
        self->slot_free[chunk % NUM_SLOTS] = self->phase + 1;
    }
    return shm_end(self);
}

/* All ranks have mapped all buffers: reduce the local share in place, into all of them. */
static int reduce_in_place(shm_group *self, const reduction *r)
{
    void *outputs[MAX_RANKS];
    const void *terms[MAX_RANKS];
    size_t begin = share_begin(self->rank, self->size, r->count, r->itemsize);
    size_t count = share_begin(self->rank + 1, self->size, r->count, r->itemsize) - begin;
    for (int peer = 0; peer < self->size; peer++) {
        terms[peer] = outputs[peer] = shm_mapped_buffer(self, peer) + begin * r->itemsize;
    }
    int num_outputs = self->size;
    if (r->root >= 0) {
        outputs[0] = outputs[r->root];
        num_outputs = 1;
    }
    reduce_terms(outputs, num_outputs, terms, self->size, count, r->dtype, r->op, r->divisor);
    TRY(shm_advance(self));
    return shm_end(self);
}

/* Read the local share from the peers' buffers, reduce it, and read the peers' results. */
static int reduce_direct(shm_group *self, const reduction *r)
{
    size_t begin = share_begin(self->rank, self->size, r->count, r->itemsize);
    size_t count = share_begin(self->rank + 1, self->size, r->count, r->itemsize) - begin;
    char *own = r->buffer + begin * r->itemsize;
    TRY(shm_reduce_direct(self, own, own, begin * r->itemsize, count, r->dtype, r->op, r->divisor));
    shm_publish(self);
    for (int i = 1; i < self->size; i++) {
        int peer = (self->rank + i) % self->size;
        size_t start = share_begin(peer, self->size, r->count, r->itemsize) * r->itemsize;
        size_t after = share_begin(peer + 1, self->size, r->count, r->itemsize) * r->itemsize;
        TRY(shm_wait_for(self, peer, self->phase));
        TRY(shm_read_peer(self, peer, r->buffer + start, start, after - start));
    }
    TRY(shm_advance(self)); /* all have read */
    return shm_end(self);
}

static int num_exported(shm_group *self)
{
    int count = 0;
    for (int peer = 0; peer < self->size; peer++)
        count += call_of(self, peer)->segment != NO_SEGMENT;
    return count;
}

int shm_all_reduce(shm_group *self, void *buffer, size_t count, int dtype, int op, double divisor,
                   int root, double timeout_s, interrupted check)
{
    reduction r = {buffer, count, ITEMSIZE[dtype], dtype, op, root, divisor};
    TRY(shm_begin(self, root < 0 ? ALL_REDUCE : REDUCE, dtype, op, divisor, root, count,
                  timeout_s, check));
    size_t bytes = count * r.itemsize;
    if (bytes <= self->inline_bytes)
        return reduce_inline(self, &r);
    size_t first = self->chunk_bytes / r.itemsize < count ? self->chunk_bytes / r.itemsize : count;
    int segment = shm_segment_of(self, buffer, bytes), staged = 0;
    int shows = segment < 0 || !self->was_in_place; /* calls on DDP's buckets need no offer */
    int direct = root < 0 && shm_offer(self, buffer, bytes, bytes / (size_t)self->size, shows);
    if (segment >= 0) {
        shm_rank_info *info = &self->rank_infos[self->rank];
        uint32_t generation = atomic_load(&info->segments[segment].generation);
        shm_call *own = call_of(self, self->rank);
        own->segment = generation << 8 | (uint32_t)segment;
        own->offset = (uint64_t)((char *)buffer - (char *)self->own[segment].address);
    } else
        call_of(self, self->rank)->offset = (uint64_t)self->crowded;
    if (segment < 0 && !direct) {
        TRY(stage(self, &r, self->chunks, 0, first));
        staged = 1;
    }
    TRY(shm_enter(self));
    int exported = num_exported(self), mapped = 0;
    if (exported == self->size)
        TRY(shm_map_all(self, &mapped));
    self->was_in_place = mapped;
    if (mapped)
        return reduce_in_place(self, &r);
    if (direct && shm_all_offered(self))
        return reduce_direct(self, &r);
    if (direct || exported) { /* not all ranks can use all buffers directly */
        if (!staged)
            TRY(stage(self, &r, self->chunks, 0, first));
        TRY(shm_advance(self));
    }
    return reduce_staged(self, &r, first);
}
