/* A node: its memory, what every collective begins and ends with, and what is known of peers. */
#include "node.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static size_t round_up(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
static size_t lines_bytes(int size)
{
    return round_up(sizeof(line) * (size_t)size + sizeof(bell) * (size_t)(size + 1) +
                    sizeof(sizes));
}
static size_t abouts_bytes(int size) { return round_up(sizeof(about) * (size_t)size); }

size_t node_bytes(int size)
{
    return lines_bytes(size) + abouts_bytes(size) +
           (size_t)size * (2 * INLINE_BYTES + NUM_SLOTS * (size_t)SLOT_BYTES);
}

node *node_join(void *control, int rank, int size, int spins, int yields)
{
    node *self = calloc(1, sizeof *self);
    char *watched = calloc(1, (size_t)size);
    mapping *mappings = calloc((size_t)size * NUM_SEGMENTS, sizeof *mappings);
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
    self->lines = control;
    self->bells = (bell *)(self->lines + size);
    self->bell = self->bells + size;
    self->sizes = (sizes *)(self->bell + 1);
    if (rank == 0) /* Waiting is dear where ranks share cores: fewer phases, larger chunks. */
        *self->sizes = spins > 1 ? (sizes){CHUNK_BYTES, SHORT_BYTES, {0}}
                                 : (sizes){LARGE_BYTES, INLINE_BYTES, {0}};
    self->abouts = (about *)(memory + lines_bytes(size));
    self->inlines = memory + lines_bytes(size) + abouts_bytes(size);
    self->slots = self->inlines + (size_t)size * 2 * INLINE_BYTES;
    self->abouts[rank].pid = getpid();
    return self;
}

void node_adopt_sizes(node *self)
{
    self->chunk_bytes = self->sizes->chunk_bytes;
    self->inline_bytes = self->sizes->inline_bytes;
}

void node_leave(node *self)
{
    node_forget_all(self);
    free(self->watched);
    free(self);
}

int node_agrees(node *self, int peer)
{
    call *own = call_of(self, self->rank), *other = call_of(self, peer);
    return own->fingerprint == other->fingerprint && own->count == other->count;
}

static int all_agree(node *self)
{
    for (int peer = 0; peer < self->size; peer++)
        if (!node_agrees(self, peer))
            return 0;
    return 1;
}

/* Some nanoseconds: the coarse clock is a read of memory. */
static void note(node *self, uint64_t fingerprint, uint64_t count)
{
#ifdef CLOCK_MONOTONIC_COARSE
    enum { CLOCK = CLOCK_MONOTONIC_COARSE };
#else
    enum { CLOCK = CLOCK_MONOTONIC };
#endif
    struct timespec time;
    clock_gettime(CLOCK, &time);
    self->noted[self->begun++ % NUM_NOTED] =
        (noted){fingerprint, count, (int64_t)time.tv_sec * 1000000000 + time.tv_nsec};
}

/* In 8 bits: 0 for none; up to 127 one less than a whole number; else a digest. */
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

static uint64_t number_of(const call *call) { return call->fingerprint >> 48; }

/* Say what is called, before the first phase is published. */
int node_begin(node *self, enum kind kind, int dtype, int op, double divisor, int root,
               uint64_t count, double timeout_s, interrupted check)
{
    self->deadline = 0;
    self->timeout_s = timeout_s;
    self->check = check;
    uint64_t fingerprint = (uint64_t)kind | (uint64_t)op << 8 | (uint64_t)dtype << 16 |
                           divisor_code(divisor) << 24 | (uint64_t)(uint16_t)root << 32 |
                           (self->calls + 1) << 48;
    if (!self->notes_nothing)
        note(self, fingerprint, count);
    if (self->unmet) { /* a broadcast, in which only the root's call was looked at */
        TRY(node_wait_all(self, self->unmet));
        TRY(all_agree(self) ? DONE : MISMATCH);
        self->unmet = 0;
    }
    self->calls++;
    TRY(node_wait_all(self, self->call_free[self->calls & 1]));
    call *own = call_of(self, self->rank);
    own->fingerprint = fingerprint;
    own->count = count;
    own->segment = NO_SEGMENT;
    /* All have compared this call with theirs once they publish anything of the next one. */
    return DONE;
}

/* Publish the first phase and wait for it; compare calls. */
int node_meet(node *self)
{
    TRY(node_advance(self));
    return all_agree(self) ? DONE : MISMATCH;
}

/* The call is over; what it published may be overwritten once all have gone further. */
int node_end(node *self)
{
    self->call_free[self->calls & 1] = self->phase + 1;
    self->ended = self->begun;
    return DONE;
}

int node_take_slot(node *self, uint64_t chunk)
{
    return node_wait_all(self, self->slot_free[chunk % NUM_SLOTS]);
}

int node_barrier(node *self, double timeout_s, interrupted check)
{
    TRY(node_begin(self, BARRIER, 0, 0, 1.0, 0, 0, timeout_s, check));
    TRY(node_meet(self));
    return node_end(self);
}

void node_fail(node *self, const char *reason)
{
    snprintf(self->abouts[self->rank].reason, REASON_BYTES, "%s", reason);
    atomic_store(&self->lines[self->rank].failed, 1);
    node_wake(self);
}

/* The call of this number; the last one of a peer that is not in it. */
static call *last_call(node *self, int peer)
{
    call *same = call_of(self, peer), *other = &self->lines[peer].calls[~self->calls & 1];
    uint16_t number = (uint16_t)self->calls;
    int is_older = (int16_t)(number_of(same) - number_of(other)) < 0;
    return number_of(same) != number && is_older ? other : same;
}

peer_state node_peer(node *self, int peer)
{
    line *line = &self->lines[peer];
    call *theirs = last_call(self, peer);
    return (peer_state){atomic_load(&line->phase), theirs->fingerprint, theirs->count,
                        (int)atomic_load(&line->failed), self->abouts[peer].reason};
}

uint64_t node_phase(node *self) { return self->phase; }
uint64_t node_awaited(node *self) { return self->awaited; }
int node_gone(node *self) { return self->gone; }

void node_keep_notes(node *self, int keep) { self->notes_nothing = !keep; }
uint64_t node_begun(node *self) { return self->begun; }
uint64_t node_ended(node *self) { return self->ended; }

void node_noted(node *self, uint64_t number, uint64_t *fingerprint, uint64_t *count,
                int64_t *began_ns)
{
    noted *one = &self->noted[(number - 1) % NUM_NOTED];
    *fingerprint = one->fingerprint;
    *count = one->count;
    *began_ns = one->began_ns;
}
