/* Reduce-scatter, all-gather, broadcast, all-to-all: by reads of peers' memory or through slots. */
#include "shm.h"

/* Bytes of a rank's slot for each of the ranks. */
static size_t room(shm_group *self)
{
    return self->chunk_bytes / (size_t)self->size / CACHE_LINE * CACHE_LINE;
}

static size_t largest_of(const size_t *sizes, int n)
{
    size_t largest = 0;
    for (int i = 0; i < n; i++)
        largest = sizes[i] > largest ? sizes[i] : largest;
    return largest;
}

static size_t total_of(const size_t *sizes, int n)
{
    size_t total = 0;
    for (int i = 0; i < n; i++)
        total += sizes[i];
    return total;
}

static uint64_t digest(const size_t *sizes, int n)
{
    uint64_t hash = 14695981039346656037U;
    for (int i = 0; i < n; i++)
        hash = (hash ^ sizes[i]) * 1099511628211U;
    return hash;
}

/* Elements in chunk k of a part of `size` elements, cut into chunks of at most `cap`. */
static size_t in_chunk(size_t size, size_t cap, size_t k)
{
    return size > k * cap ? least(size - k * cap, cap) : 0;
}

/* Bytes of all parts if they are contiguous and the output is outside them or is this rank's part;
 * else 0, and the parts are not offered to peers. */
static size_t bytes_in_a_row(shm_group *self, const char *output, void *const *parts,
                             const size_t *counts, size_t itemsize)
{
    const char *first = parts[0], *end = first, *after = output + counts[self->rank] * itemsize;
    for (int peer = 0; peer < self->size; peer++) {
        if (parts[peer] != end)
            return 0;
        end += counts[peer] * itemsize;
    }
    int is_apart = after <= first || output >= end;
    return is_apart || output == parts[self->rank] ? (size_t)(end - first) : 0;
}

int shm_reduce_scatter(shm_group *self, void *output, void *const *parts, const size_t *counts,
                       int dtype, int op, double divisor, double timeout_s, interrupted check)
{
    size_t itemsize = ITEMSIZE[dtype], cap = room(self) / itemsize;
    size_t longest = largest_of(counts, self->size), own = counts[self->rank];
    const void *terms[MAX_RANKS];
    TRY(shm_begin(self, REDUCE_SCATTER, dtype, op, divisor, 0, digest(counts, self->size),
                  timeout_s, check));
    size_t bytes = bytes_in_a_row(self, output, parts, counts, itemsize);
    size_t each = total_of(counts, self->size) / (size_t)self->size * itemsize;
    if (shm_offer(self, parts[0], bytes, each, 1)) {
        TRY(shm_enter(self));
        if (shm_all_offered(self)) {
            size_t before = total_of(counts, self->rank) * itemsize;
            TRY(shm_reduce_direct(self, output, parts[self->rank], before, own, dtype, op, divisor));
            TRY(shm_advance(self)); /* all have read */
            return shm_end(self);
        }
    }
    for (size_t k = 0; k == 0 || k * cap < longest; k++) {
        uint64_t chunk = self->chunks++;
        TRY(shm_acquire_slot(self, chunk));
        char *slot = slot_of(self, self->rank, chunk);
        for (int peer = 0; peer < self->size; peer++)
            if (peer != self->rank)
                memcpy(slot + (size_t)peer * cap * itemsize,
                       (char *)parts[peer] + k * cap * itemsize,
                       in_chunk(counts[peer], cap, k) * itemsize);
        TRY(k ? shm_advance(self) : shm_enter(self));
        for (int peer = 0; peer < self->size; peer++)
            terms[peer] = slot_of(self, peer, chunk) + (size_t)self->rank * cap * itemsize;
        terms[self->rank] = (char *)parts[self->rank] + k * cap * itemsize;
        void *outputs[1] = {(char *)output + k * cap * itemsize};
        reduce_terms(outputs, 1, terms, self->size, in_chunk(own, cap, k), dtype, op, divisor);
        self->slot_free[chunk % NUM_SLOTS] = self->phase + 1;
    }
    return shm_end(self);
}

int shm_all_gather(shm_group *self, void *const *outputs, const size_t *bytes, const void *part,
                   int dtype, double timeout_s, interrupted check)
{
    size_t longest = largest_of(bytes, self->size), own = bytes[self->rank];
    TRY(shm_begin(self, ALL_GATHER, dtype, 0, 1.0, 0, digest(bytes, self->size), timeout_s,
                  check));
    int direct = shm_offer(self, part, own, total_of(bytes, self->size) / (size_t)self->size, 1);
    if (direct)
        TRY(shm_enter(self));
    if (outputs[self->rank] != part)
        memcpy(outputs[self->rank], part, own);
    if (direct && shm_all_offered(self)) {
        for (int i = 1; i < self->size; i++) {
            int peer = (self->rank + i) % self->size;
            TRY(shm_read_peer(self, peer, outputs[peer], 0, bytes[peer]));
        }
        TRY(shm_advance(self)); /* all have read */
        return shm_end(self);
    }
    for (size_t k = 0; k == 0 || k * self->chunk_bytes < longest; k++) {
        uint64_t chunk = self->chunks++;
        TRY(shm_acquire_slot(self, chunk));
        memcpy(slot_of(self, self->rank, chunk), (const char *)part + k * self->chunk_bytes,
               in_chunk(own, self->chunk_bytes, k));
        TRY(k ? shm_advance(self) : shm_enter(self));
        for (int peer = 0; peer < self->size; peer++)
            if (peer != self->rank)
                memcpy((char *)outputs[peer] + k * self->chunk_bytes, slot_of(self, peer, chunk),
                       in_chunk(bytes[peer], self->chunk_bytes, k));
        self->slot_free[chunk % NUM_SLOTS] = self->phase + 1;
    }
    return shm_end(self);
}

/* The root runs ahead of its peers by as many chunks as there are slots. */
int shm_broadcast(shm_group *self, void *buffer, size_t bytes, int dtype, int root,
                  double timeout_s, interrupted check)
{
    TRY(shm_begin(self, BROADCAST, dtype, 0, 1.0, root, bytes, timeout_s, check));
    if (shm_offer(self, buffer, self->rank == root ? bytes : 0, bytes, 1)) {
        TRY(shm_enter(self));
        if (call_of(self, root)->address) {
            if (self->rank != root)
                TRY(shm_read_peer(self, root, buffer, 0, bytes));
            TRY(shm_advance(self)); /* all have read */
            return shm_end(self);
        }
    }
    uint64_t first = self->phase + 1;
    for (size_t k = 0; k == 0 || k * self->chunk_bytes < bytes; k++) {
        uint64_t chunk = self->chunks++;
        char *here = (char *)buffer + k * self->chunk_bytes;
        size_t n = in_chunk(bytes, self->chunk_bytes, k);
        TRY(shm_acquire_slot(self, chunk));
        if (self->rank == root)
            memcpy(slot_of(self, root, chunk), here, n);
        shm_publish(self);
        if (self->rank != root) {
            TRY(shm_wait_for(self, root, self->phase));
            if (!shm_agrees(self, root))
                return MISMATCH;
            memcpy(here, slot_of(self, root, chunk), n);
        }
        self->slot_free[chunk % NUM_SLOTS] = self->phase + 1;
    }
    self->unchecked_phase = first;
    return shm_end(self);
}

/* Each part is sent after its length, so that a receiver detects one that it does not expect. */
int shm_all_to_all(shm_group *self, int kind, void *const *outputs, const size_t *bytes_out,
                   void *const *parts, const size_t *bytes_in, int dtype, int root,
                   double timeout_s, interrupted check)
{
    size_t cap = room(self) - CACHE_LINE, chunks = largest_of(bytes_in, self->size) / cap + 1;
    TRY(shm_begin(self, kind, dtype, 0, 1.0, root, chunks, timeout_s, check));
    for (size_t k = 0; k < chunks; k++) {
        uint64_t chunk = self->chunks++;
        TRY(shm_acquire_slot(self, chunk));
        for (int peer = 0; peer < self->size; peer++) {
            char *place = slot_of(self, self->rank, chunk) + (size_t)peer * room(self);
            uint64_t length = bytes_in[peer];
            memcpy(place, &length, sizeof length);
            memcpy(place + CACHE_LINE, (char *)parts[peer] + k * cap,
                   in_chunk(bytes_in[peer], cap, k));
        }
        TRY(shm_advance(self));
        for (int peer = 0; peer < self->size; peer++) {
            char *place = slot_of(self, peer, chunk) + (size_t)self->rank * room(self);
            uint64_t length;
            if (k == 0) { /* as many chunks as the longest part of all ranks takes */
                shm_call *theirs = call_of(self, peer);
                if (theirs->fingerprint != call_of(self, self->rank)->fingerprint)
                    return MISMATCH;
                chunks = theirs->count > chunks ? theirs->count : chunks;
            }
            memcpy(&length, place, sizeof length);
            if (length != bytes_out[peer])
                return MISMATCH;
            memcpy((char *)outputs[peer] + k * cap, place + CACHE_LINE, in_chunk(length, cap, k));
        }
        self->slot_free[chunk % NUM_SLOTS] = self->phase + 1;
    }
    return shm_end(self);
}
