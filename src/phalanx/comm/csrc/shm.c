/* Shared-memory group: its layout, begin and end of every collective, and the state of peers. */
#include "shm.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static size_t round_up(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
static size_t rank_flags_bytes(int size)
{
    return round_up(sizeof(shm_rank_flags) * (size_t)size +
                    sizeof(shm_doorbell) * (size_t)(size + 1) + sizeof(shm_chunk_sizes));
}
static size_t rank_infos_bytes(int size) { return round_up(sizeof(shm_rank_info) * (size_t)size); }

size_t shm_bytes(int size)
{
    return rank_flags_bytes(size) + rank_infos_bytes(size) +
           (size_t)size * (2 * INLINE_BYTES + NUM_SLOTS * (size_t)SLOT_BYTES);
}

shm_group *shm_join(void *control, int rank, int size, int spins, int yields)
{
    shm_group *self = calloc(1, sizeof *self);
    char *watched = calloc(1, (size_t)size);
    shm_mapping *mappings = calloc((size_t)size * NUM_SEGMENTS, sizeof *mappings);
    if (!self || !watched || !mappings) {
        free(self), free(watched), free(mappings);
        return NULL;
    }
    self->watched = watched;
    self->mappings = mappings;
    char *memory = control;
    self->rank = rank;
    self->size = size;
    self->spins = spins;
    self->yields = yields;
    self->rank_flags = control;
    self->doorbells = (shm_doorbell *)(self->rank_flags + size);
    self->group_doorbell = self->doorbells + size;
    self->chunk_sizes = (shm_chunk_sizes *)(self->group_doorbell + 1);
    if (rank == 0) /* Waits are expensive if ranks share cores: fewer phases, larger chunks. */
        *self->chunk_sizes = spins > 1 ? (shm_chunk_sizes){CHUNK_BYTES, SHORT_BYTES, {0}}
                                 : (shm_chunk_sizes){LARGE_BYTES, INLINE_BYTES, {0}};
    self->rank_infos = (shm_rank_info *)(memory + rank_flags_bytes(size));
    self->inlines = memory + rank_flags_bytes(size) + rank_infos_bytes(size);
    self->slots = self->inlines + (size_t)size * 2 * INLINE_BYTES;
    self->rank_infos[rank].pid = getpid();
    self->all_read = -1;
    shm_show_witness(self);
    return self;
}

void shm_leave(shm_group *self)
{
    shm_unmap_all(self);
    free(self->watched);
    free(self);
}

int shm_agrees(shm_group *self, int peer)
{
    shm_call *own = call_of(self, self->rank), *other = call_of(self, peer);
    return own->fingerprint == other->fingerprint && own->count == other->count;
}

static int all_agree(shm_group *self)
{
    for (int peer = 0; peer < self->size; peer++)
        if (!shm_agrees(self, peer))
            return 0;
    return 1;
}

/* Log a call in a few nanoseconds: the coarse clock is a read of memory. */
static void log_call(shm_group *self, uint64_t fingerprint, uint64_t count)
{
#ifdef CLOCK_MONOTONIC_COARSE
    enum { CLOCK = CLOCK_MONOTONIC_COARSE };
#else
    enum { CLOCK = CLOCK_MONOTONIC };
#endif
    struct timespec time;
    clock_gettime(CLOCK, &time);
    self->call_log[self->begun++ % NUM_LOGGED] =
        (shm_log_entry){fingerprint, count, (int64_t)time.tv_sec * 1000000000 + time.tv_nsec};
}

/* The divisor in 8 bits: 0 for none; n - 1 for an integer n up to 128; else a digest. */
static uint64_t divisor_code(double divisor)
{
    if (divisor == 1.0)
        return 0;
    if (divisor > 1.0 && divisor <= 128.0 && divisor == (double)(int)divisor)
        return (uint64_t)divisor - 1;
    uint64_t bits;
    memcpy(&bits, &divisor, sizeof bits);
    return 128 | (bits * 0x9e3779b97f4a7c15U) >> 57;
}

static uint64_t number_of(const shm_call *call) { return call->fingerprint >> 48; }

/* Publish the signature of the call, before its first phase. */
int shm_begin(shm_group *self, enum kind kind, int dtype, int op, double divisor, int root,
              uint64_t count, double timeout_s, interrupted check)
{
    self->deadline = 0;
    self->timeout_s = timeout_s;
    self->check = check;
    uint64_t fingerprint = (uint64_t)kind | (uint64_t)op << 8 | (uint64_t)dtype << 16 |
                           divisor_code(divisor) << 24 | (uint64_t)(uint16_t)root << 32 |
                           (self->calls + 1) << 48;
    log_call(self, fingerprint, count);
    if (self->unchecked_phase) { /* a broadcast, in which only the root's call was compared */
        TRY(shm_wait_all(self, self->unchecked_phase));
        TRY(all_agree(self) ? DONE : MISMATCH);
        self->unchecked_phase = 0;
    }
    self->calls++;
    TRY(shm_wait_all(self, self->call_free[self->calls & 1]));
    shm_call *own = call_of(self, self->rank);
    own->fingerprint = fingerprint;
    own->count = count;
    own->segment = NO_SEGMENT;
    own->address = 0;
    /* A rank has compared this call with its own once it publishes anything of the next one. */
    return DONE;
}

/* Publish the first phase and wait for it; compare calls. */
int shm_enter(shm_group *self)
{
    TRY(shm_advance(self));
    return all_agree(self) ? DONE : MISMATCH;
}

/* End the call; its signature may be overwritten once all ranks have published another phase. */
int shm_end(shm_group *self)
{
    self->call_free[self->calls & 1] = self->phase + 1;
    self->ended = self->begun;
    return DONE;
}

int shm_acquire_slot(shm_group *self, uint64_t chunk)
{
    return shm_wait_all(self, self->slot_free[chunk % NUM_SLOTS]);
}

int shm_barrier(shm_group *self, double timeout_s, interrupted check)
{
    TRY(shm_begin(self, BARRIER, 0, 0, 1.0, 0, 0, timeout_s, check));
    TRY(shm_enter(self));
    return shm_end(self);
}

void shm_fail(shm_group *self, enum shm_end end, const char *reason)
{
    snprintf(self->rank_infos[self->rank].reason, REASON_BYTES, "%s", reason);
    atomic_store(&self->rank_flags[self->rank].failed, end);
    shm_wake(self);
}

/* The peer's call of this number or, if the peer is not in it, its last one. */
static shm_call *last_call(shm_group *self, int peer)
{
    shm_call *same = call_of(self, peer), *other = &self->rank_flags[peer].calls[~self->calls & 1];
    uint16_t number = (uint16_t)self->calls;
    int is_older = (int16_t)(number_of(same) - number_of(other)) < 0;
    return number_of(same) != number && is_older ? other : same;
}

shm_peer_state shm_peer(shm_group *self, int peer)
{
    shm_rank_flags *flags = &self->rank_flags[peer];
    shm_call *theirs = last_call(self, peer);
    return (shm_peer_state){atomic_load(&flags->phase), theirs->fingerprint, theirs->count,
                        (int)atomic_load(&flags->failed), self->rank_infos[peer].reason};
}
