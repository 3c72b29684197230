/* Collectives among the ranks of a node, through memory that all of them see.
 *
 * Every rank owns one cache line that only it writes (but for a count of sleepers): how many
 * phases it has published, and which calls it is in. A collective is a few phases: do something,
 * publish, wait until the others have published as much. Nothing is locked and nothing is
 * cleared, since phases only grow.
 *
 * Vectors go through slots of the shared memory in chunks that stay in cache, or are reduced where
 * they lie when every rank's buffer is itself in memory that it has shown to the others. A slot
 * may be filled again once all ranks have published the phase after the one in which they read
 * it (`slot_free`). */
#define _GNU_SOURCE
#include "kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void)0)
#endif

enum { CACHE_LINE = 64 };
static const uint32_t NO_SEGMENT = UINT32_MAX;

/* What a call is, to be compared with the others': kind, operation, dtype, root. */
typedef struct {
    uint64_t fingerprint;
    uint64_t count;
    uint32_t segment; /* generation << 8 | number; NO_SEGMENT: private memory */
    uint32_t unused;
    uint64_t offset;
} call;

typedef struct {
    _Atomic uint64_t phase;
    _Atomic uint32_t sleepers;
    _Atomic uint32_t failed;
    uint64_t padding[6];
    call calls[2]; /* of odd and even calls: a rank can be one ahead of another */
} line;

typedef struct {
    _Atomic uint32_t generation;
    int32_t fd;
    uint64_t bytes;
} shown;

typedef struct {
    int64_t pid;
    char reason[REASON_BYTES];
    shown segments[NUM_SEGMENTS];
} about;

/* A segment as this process sees it. */
typedef struct {
    uint32_t generation;
    void *address;
    uint64_t bytes;
} mapping;

struct node {
    int rank, size, spins, yields;
    size_t chunk_bytes, inline_bytes;
    line *lines;
    about *abouts;
    char *inlines, *slots;
    uint64_t phase;     /* published by this rank */
    uint64_t seen;      /* that all ranks are known to have published */
    uint64_t awaited;   /* the phase that was waited for last */
    int gone;           /* the rank whose process was found to be gone */
    uint64_t calls;     /* begun by this rank */
    uint64_t unmet;     /* first phase of the last call, if not all were compared in it; else 0 */
    uint64_t chunks;    /* that went through the slots */
    uint64_t inlined;   /* all-reduces that went through the inline places */
    uint64_t call_free[2], inline_free[2], slot_free[NUM_SLOTS];
    mapping own[NUM_SEGMENTS]; /* by number; shown to the others */
    int num_own;               /* numbers below are or were in use */
    char *watched;             /* for each rank whether its process can be seen from here */
    mapping *mappings; /* [size][NUM_SEGMENTS], made when first needed */
    double deadline;
    double timeout_s;
    interrupted check;
};

/* ---- memory ---- */

static size_t round_up(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
static size_t lines_bytes(int size) { return round_up(sizeof(line) * (size_t)size); }
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
    if (!self || !watched) {
        free(self), free(watched);
        return NULL;
    }
    self->watched = watched;
    char *memory = control;
    self->rank = rank;
    self->size = size;
    self->spins = spins;
    self->yields = yields;
    /* Waiting is dear where ranks share cores: fewer phases, larger chunks. */
    self->chunk_bytes = spins > 1 ? CHUNK_BYTES : SLOT_BYTES;
    self->inline_bytes = spins > 1 ? SHORT_BYTES : INLINE_BYTES;
    self->lines = control;
    self->abouts = (about *)(memory + lines_bytes(size));
    self->inlines = memory + lines_bytes(size) + abouts_bytes(size);
    self->slots = self->inlines + (size_t)size * 2 * INLINE_BYTES;
    self->abouts[rank].pid = getpid();
    return self;
}

static void forget(mapping *seen)
{
    if (seen->address)
        munmap(seen->address, seen->bytes);
    seen->address = NULL;
}

void node_leave(node *self)
{
    if (self->mappings)
        for (int i = 0; i < self->size * NUM_SEGMENTS; i++)
            forget(&self->mappings[i]);
    free(self->mappings);
    free(self->watched);
    free(self);
}

static char *inline_of(node *self, int rank)
{
    return self->inlines + ((size_t)rank * 2 + (self->inlined & 1)) * INLINE_BYTES;
}

static char *slot_of(node *self, int rank, uint64_t chunk)
{
    return self->slots + ((size_t)rank * NUM_SLOTS + chunk % NUM_SLOTS) * SLOT_BYTES;
}

/* ---- waiting ---- */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* A nap ends when the peer publishes; this is how long one lasts that is not ended. */
static long nap_ns = 20 * 1000 * 1000;

void node_naps(long ns) { nap_ns = ns; }

static void nap(line *peer, uint32_t seen)
{
    struct timespec time = {0, nap_ns};
#ifdef __linux__
    /* The low half of the phase; nobody counts 2³² phases in a nap. */
    syscall(SYS_futex, &peer->phase, FUTEX_WAIT, seen, &time, NULL, 0);
#else
    (void)peer, (void)seen;
    time.tv_nsec = 100 * 1000;
    nanosleep(&time, NULL);
#endif
}

static void publish(node *self)
{
    line *own = &self->lines[self->rank];
    /* Sequentially consistent, and so is the sleeper's side: either it sees the new phase, or we
     * see that it sleeps. */
    atomic_store(&own->phase, ++self->phase);
#ifdef __linux__
    if (atomic_load(&own->sleepers))
        syscall(SYS_futex, &own->phase, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
#endif
}

static int there(line *peer, uint64_t phase)
{
    return atomic_load_explicit(&peer->phase, memory_order_acquire) >= phase;
}

/* A process that has ended stays visible until its parent has asked how. */
static int ended(long pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[length < 0 ? 0 : length] = 0;
    const char *state = strrchr(text, ')'); /* "12 (python3) S …" */
    return state && strlen(state) > 2 && (state[2] == 'Z' || state[2] == 'X');
}

static int gone(node *self, int peer)
{
    long pid = (long)self->abouts[peer].pid;
    return (kill((pid_t)pid, 0) && errno == ESRCH) || ended(pid);
}

static int dead(node *self, int peer) { return self->watched[peer] && gone(self, peer); }

void node_watch(node *self)
{
    for (int peer = 0; peer < self->size; peer++)
        self->watched[peer] = !gone(self, peer);
}

/* What ends a wait for `peer`: somebody has said why it cannot go on, or `peer` is gone. In this order:
 * who has heard of a failure goes too. */
static int failure(node *self, int peer)
{
    for (int rank = 0; rank < self->size; rank++)
        if (rank != self->rank && atomic_load(&self->lines[rank].failed))
            return PEER_FAILED;
    if (!dead(self, peer))
        return DONE;
    self->gone = peer;
    return PEER_DIED;
}

static int sleep_until(node *self, int peer, uint64_t phase)
{
    line *line = &self->lines[peer];
    if (!self->deadline)
        self->deadline = now() + self->timeout_s;
    while (!there(line, phase)) {
        int status = failure(self, peer);
        if (status)
            return there(line, phase) ? DONE : status;
        if (now() > self->deadline)
            return TIMED_OUT;
        if (self->check && self->check())
            return INTERRUPTED;
        atomic_fetch_add(&line->sleepers, 1);
        uint64_t seen = atomic_load(&line->phase);
        if (seen < phase)
            nap(line, (uint32_t)seen);
        atomic_fetch_sub(&line->sleepers, 1);
    }
    return DONE;
}

static int wait_for(node *self, int peer, uint64_t phase)
{
    line *line = &self->lines[peer];
    for (int i = 0; i < self->spins; i++) {
        if (there(line, phase))
            return DONE;
        PAUSE();
    }
    for (int i = 0; i < self->yields; i++) {
        if (there(line, phase))
            return DONE;
        sched_yield();
    }
    self->awaited = phase;
    return sleep_until(self, peer, phase);
}

static int wait_all(node *self, uint64_t phase)
{
    if (phase <= self->seen)
        return DONE;
    for (int peer = 0; peer < self->size; peer++) {
        int status = wait_for(self, peer, phase);
        if (status)
            return status;
    }
    self->seen = phase;
    return DONE;
}

/* One more phase, for all. */
static int advance(node *self)
{
    publish(self);
    return wait_all(self, self->phase);
}

#define TRY(WHAT)                                                                               \
    do {                                                                                        \
        int status_ = (WHAT);                                                                   \
        if (status_)                                                                            \
            return status_;                                                                     \
    } while (0)

/* ---- calls ---- */

static call *call_of(node *self, int rank) { return &self->lines[rank].calls[self->calls & 1]; }

static int agrees(node *self, int peer)
{
    call *own = call_of(self, self->rank), *other = call_of(self, peer);
    return own->fingerprint == other->fingerprint && own->count == other->count;
}

static int all_agree(node *self)
{
    for (int peer = 0; peer < self->size; peer++)
        if (!agrees(self, peer))
            return 0;
    return 1;
}

/* Say what is called, before the first phase is published. */
static int begin(node *self, enum kind kind, int dtype, int op, int root, uint64_t count,
                 double timeout_s, interrupted check)
{
    self->deadline = 0;
    self->timeout_s = timeout_s;
    self->check = check;
    if (self->unmet) { /* a broadcast, in which only the root's call was looked at */
        TRY(wait_all(self, self->unmet));
        TRY(all_agree(self) ? DONE : MISMATCH);
        self->unmet = 0;
    }
    self->calls++;
    TRY(wait_all(self, self->call_free[self->calls & 1]));
    call *own = call_of(self, self->rank);
    own->fingerprint = (uint64_t)kind | (uint64_t)op << 8 | (uint64_t)dtype << 16 |
                       (uint64_t)(uint32_t)root << 32;
    own->count = count;
    own->segment = NO_SEGMENT;
    /* All have compared this call with theirs once they publish anything of the next one. */
    return DONE;
}

/* Publish the first phase and wait for it; compare calls. */
static int meet(node *self)
{
    TRY(advance(self));
    return all_agree(self) ? DONE : MISMATCH;
}

/* The call is over; what it published may be overwritten once all have gone further. */
static int end(node *self)
{
    self->call_free[self->calls & 1] = self->phase + 1;
    return DONE;
}

static int take_slot(node *self, uint64_t chunk)
{
    return wait_all(self, self->slot_free[chunk % NUM_SLOTS]);
}

int node_barrier(node *self, double timeout_s, interrupted check)
{
    TRY(begin(self, BARRIER, 0, 0, 0, 0, timeout_s, check));
    TRY(meet(self));
    return end(self);
}

/* ---- all-reduce ---- */

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

/* One phase: everyone reads everything. */
static int reduce_inline(node *self, const reduction *r)
{
    const void *terms[MAX_RANKS];
    void *output = r->buffer;
    self->inlined++;
    TRY(wait_all(self, self->inline_free[self->inlined & 1]));
    memcpy(inline_of(self, self->rank), r->buffer, r->count * r->itemsize);
    TRY(meet(self));
    self->inline_free[self->inlined & 1] = self->phase + 1;
    if (r->root >= 0 && r->root != self->rank)
        return end(self);
    for (int peer = 0; peer < self->size; peer++)
        terms[peer] = inline_of(self, peer);
    reduce_terms(&output, 1, terms, self->size, r->count, r->dtype, r->op, r->divisor);
    return end(self);
}

/* Copy what others reduce of elements [start, start + n) into the own slot. */
static int stage(node *self, const reduction *r, uint64_t chunk, size_t start, size_t n)
{
    TRY(take_slot(self, chunk));
    char *slot = slot_of(self, self->rank, chunk);
    size_t own = share_begin(self->rank, self->size, n, r->itemsize) * r->itemsize;
    size_t after = share_begin(self->rank + 1, self->size, n, r->itemsize) * r->itemsize;
    const char *from = r->buffer + start * r->itemsize;
    memcpy(slot, from, own);
    memcpy(slot + after, from + after, n * r->itemsize - after);
    return DONE;
}

/* Reduce the own share of the chunk, for the others into the own slot. */
static void reduce_share(node *self, const reduction *r, uint64_t chunk, size_t start, size_t n)
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

static void collect(node *self, const reduction *r, uint64_t chunk, size_t start, size_t n)
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

/* Chunk by chunk through the slots: copy in, reduce the own share, copy out. The next chunk is
 * copied in before this one is waited for, so one phase a chunk suffices. The first has been. */
static int reduce_staged(node *self, const reduction *r)
{
    size_t largest = self->chunk_bytes / r->itemsize;
    for (size_t start = 0; start < r->count; start += largest) {
        size_t n = r->count - start < largest ? r->count - start : largest;
        size_t next = start + n, next_n = r->count - next < largest ? r->count - next : largest;
        uint64_t chunk = self->chunks++;
        reduce_share(self, r, chunk, start, n);
        if (next < r->count)
            TRY(stage(self, r, chunk + 1, next, next_n));
        TRY(advance(self));
        collect(self, r, chunk, start, n);
        self->slot_free[chunk % NUM_SLOTS] = self->phase + 1;
    }
    return end(self);
}

/* ---- memory that a rank shows to the others ---- */

static char *address_in(node *self, int peer, uint32_t segment, uint64_t offset)
{
    uint32_t number = segment & 0xff, generation = segment >> 8;
    if (peer == self->rank)
        return (char *)self->own[number].address + offset;
    if (!self->mappings)
        self->mappings = calloc((size_t)self->size * NUM_SEGMENTS, sizeof *self->mappings);
    if (!self->mappings)
        return NULL;
    mapping *seen = &self->mappings[peer * NUM_SEGMENTS + (int)number];
    if (seen->address && seen->generation == generation)
        return (char *)seen->address + offset;
    forget(seen);
    shown *there = &self->abouts[peer].segments[number];
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)self->abouts[peer].pid, (int)there->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    void *address = mmap(NULL, there->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
#ifdef MADV_HUGEPAGE
    if (address != MAP_FAILED)
        madvise(address, there->bytes, MADV_HUGEPAGE); /* where the system has them */
#endif
    close(fd);
    if (address == MAP_FAILED)
        return NULL;
    *seen = (mapping){generation, address, there->bytes};
    return (char *)address + offset;
}

/* Every rank's buffer is visible: reduce the own share where it lies, into all of them. */
static int reduce_in_place(node *self, const reduction *r)
{
    void *outputs[MAX_RANKS];
    const void *terms[MAX_RANKS];
    size_t begin = share_begin(self->rank, self->size, r->count, r->itemsize);
    size_t count = share_begin(self->rank + 1, self->size, r->count, r->itemsize) - begin;
    for (int peer = 0; peer < self->size; peer++) {
        call *theirs = call_of(self, peer);
        char *address = address_in(self, peer, theirs->segment, theirs->offset);
        if (!address)
            return NO_MEMORY;
        terms[peer] = outputs[peer] = address + begin * r->itemsize;
    }
    int num_outputs = self->size;
    if (r->root >= 0) {
        outputs[0] = outputs[r->root];
        num_outputs = 1;
    }
    reduce_terms(outputs, num_outputs, terms, self->size, count, r->dtype, r->op, r->divisor);
    TRY(advance(self));
    return end(self);
}

/* The own segment that holds all of `bytes` from `address` on; -1 for private memory. */
static int segment_of(node *self, const char *address, size_t bytes)
{
    for (int number = 0; number < self->num_own; number++) {
        mapping *own = &self->own[number];
        const char *start = own->address;
        if (start && address >= start && address + bytes <= start + own->bytes)
            return number;
    }
    return -1;
}

static int num_shown(node *self)
{
    int count = 0;
    for (int peer = 0; peer < self->size; peer++)
        count += call_of(self, peer)->segment != NO_SEGMENT;
    return count;
}

int node_all_reduce(node *self, void *buffer, size_t count, int dtype, int op, double divisor,
                    int root, double timeout_s, interrupted check)
{
    reduction r = {buffer, count, ITEMSIZE[dtype], dtype, op, root, divisor};
    TRY(begin(self, root < 0 ? ALL_REDUCE : REDUCE, dtype, op, root, count, timeout_s, check));
    if (count * r.itemsize <= self->inline_bytes)
        return reduce_inline(self, &r);
    size_t first = self->chunk_bytes / r.itemsize < count ? self->chunk_bytes / r.itemsize : count;
    int segment = segment_of(self, buffer, count * r.itemsize);
    if (segment >= 0) {
        uint32_t generation = atomic_load(&self->abouts[self->rank].segments[segment].generation);
        call *own = call_of(self, self->rank);
        own->segment = generation << 8 | (uint32_t)segment;
        own->offset = (uint64_t)((char *)buffer - (char *)self->own[segment].address);
    } else
        TRY(stage(self, &r, self->chunks, 0, first));
    TRY(meet(self));
    int shown = num_shown(self);
    if (shown == self->size)
        return reduce_in_place(self, &r);
    if (shown) { /* some buffers can be seen and some cannot: the former are copied in too */
        if (segment >= 0)
            TRY(stage(self, &r, self->chunks, 0, first));
        TRY(advance(self));
    }
    return reduce_staged(self, &r);
}

/* ---- the other collectives ---- */

/* What a rank's slot has room for, for each of the ranks. */
static size_t room(node *self) { return self->chunk_bytes / (size_t)self->size / CACHE_LINE * CACHE_LINE; }

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static size_t largest_of(const size_t *sizes, int n)
{
    size_t largest = 0;
    for (int i = 0; i < n; i++)
        largest = sizes[i] > largest ? sizes[i] : largest;
    return largest;
}

static uint64_t digest(const size_t *sizes, int n)
{
    uint64_t hash = 14695981039346656037U;
    for (int i = 0; i < n; i++)
        hash = (hash ^ sizes[i]) * 1099511628211U;
    return hash;
}

/* Elements of a part of `size` in chunk number k of at most `cap` each. */
static size_t in_chunk(size_t size, size_t cap, size_t k)
{
    return size > k * cap ? least(size - k * cap, cap) : 0;
}

int node_reduce_scatter(node *self, void *output, void *const *parts, const size_t *counts,
                        int dtype, int op, double divisor, double timeout_s, interrupted check)
{
    size_t itemsize = ITEMSIZE[dtype], cap = room(self) / itemsize;
    size_t longest = largest_of(counts, self->size), own = counts[self->rank];
    const void *terms[MAX_RANKS];
    TRY(begin(self, REDUCE_SCATTER, dtype, op, 0, digest(counts, self->size), timeout_s, check));
    for (size_t k = 0; k == 0 || k * cap < longest; k++) {
        uint64_t chunk = self->chunks++;
        TRY(take_slot(self, chunk));
        char *slot = slot_of(self, self->rank, chunk);
        for (int peer = 0; peer < self->size; peer++)
            if (peer != self->rank)
                memcpy(slot + (size_t)peer * cap * itemsize,
                       (char *)parts[peer] + k * cap * itemsize,
                       in_chunk(counts[peer], cap, k) * itemsize);
        TRY(k ? advance(self) : meet(self));
        for (int peer = 0; peer < self->size; peer++)
            terms[peer] = slot_of(self, peer, chunk) + (size_t)self->rank * cap * itemsize;
        terms[self->rank] = (char *)parts[self->rank] + k * cap * itemsize;
        void *outputs[1] = {(char *)output + k * cap * itemsize};
        reduce_terms(outputs, 1, terms, self->size, in_chunk(own, cap, k), dtype, op, divisor);
        self->slot_free[chunk % NUM_SLOTS] = self->phase + 1;
    }
    return end(self);
}

int node_all_gather(node *self, void *const *outputs, const size_t *bytes, const void *part,
                    int dtype, double timeout_s, interrupted check)
{
    size_t longest = largest_of(bytes, self->size), own = bytes[self->rank];
    TRY(begin(self, ALL_GATHER, dtype, 0, 0, digest(bytes, self->size), timeout_s, check));
    if (outputs[self->rank] != part)
        memcpy(outputs[self->rank], part, own);
    for (size_t k = 0; k == 0 || k * self->chunk_bytes < longest; k++) {
        uint64_t chunk = self->chunks++;
        TRY(take_slot(self, chunk));
        memcpy(slot_of(self, self->rank, chunk), (const char *)part + k * self->chunk_bytes,
               in_chunk(own, self->chunk_bytes, k));
        TRY(k ? advance(self) : meet(self));
        for (int peer = 0; peer < self->size; peer++)
            if (peer != self->rank)
                memcpy((char *)outputs[peer] + k * self->chunk_bytes, slot_of(self, peer, chunk),
                       in_chunk(bytes[peer], self->chunk_bytes, k));
        self->slot_free[chunk % NUM_SLOTS] = self->phase + 1;
    }
    return end(self);
}

/* The root runs ahead of the others as far as there are slots. */
int node_broadcast(node *self, void *buffer, size_t bytes, int dtype, int root, double timeout_s,
                   interrupted check)
{
    TRY(begin(self, BROADCAST, dtype, 0, root, bytes, timeout_s, check));
    uint64_t first = self->phase + 1;
    for (size_t k = 0; k == 0 || k * self->chunk_bytes < bytes; k++) {
        uint64_t chunk = self->chunks++;
        char *here = (char *)buffer + k * self->chunk_bytes;
        size_t n = in_chunk(bytes, self->chunk_bytes, k);
        TRY(take_slot(self, chunk));
        if (self->rank == root)
            memcpy(slot_of(self, root, chunk), here, n);
        publish(self);
        if (self->rank != root) {
            TRY(wait_for(self, root, self->phase));
            if (!agrees(self, root))
                return MISMATCH;
            memcpy(here, slot_of(self, root, chunk), n);
        }
        self->slot_free[chunk % NUM_SLOTS] = self->phase + 1;
    }
    self->unmet = first;
    return end(self);
}

/* Each part travels behind its length, so that a receiver who expects another notices. */
int node_all_to_all(node *self, int kind, void *const *outputs, const size_t *bytes_out,
                    void *const *parts, const size_t *bytes_in, int dtype, int root,
                    double timeout_s, interrupted check)
{
    size_t cap = room(self) - CACHE_LINE, chunks = largest_of(bytes_in, self->size) / cap + 1;
    TRY(begin(self, kind, dtype, 0, root, chunks, timeout_s, check));
    for (size_t k = 0; k < chunks; k++) {
        uint64_t chunk = self->chunks++;
        TRY(take_slot(self, chunk));
        for (int peer = 0; peer < self->size; peer++) {
            char *place = slot_of(self, self->rank, chunk) + (size_t)peer * room(self);
            uint64_t length = bytes_in[peer];
            memcpy(place, &length, sizeof length);
            memcpy(place + CACHE_LINE, (char *)parts[peer] + k * cap,
                   in_chunk(bytes_in[peer], cap, k));
        }
        TRY(advance(self));
        for (int peer = 0; peer < self->size; peer++) {
            char *place = slot_of(self, peer, chunk) + (size_t)self->rank * room(self);
            uint64_t length;
            if (k == 0) { /* as many chunks as the longest part of all ranks takes */
                call *theirs = call_of(self, peer);
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
    return end(self);
}

/* ---- showing memory, failing, looking at peers ---- */

int node_share(node *self, int fd, size_t bytes, void *address)
{
    for (int number = 0; number < NUM_SEGMENTS; number++) {
        if (self->own[number].address)
            continue;
        shown *own = &self->abouts[self->rank].segments[number];
        own->fd = fd;
        own->bytes = bytes;
        atomic_fetch_add(&own->generation, 1);
        self->own[number] = (mapping){0, address, bytes};
        if (number >= self->num_own)
            self->num_own = number + 1;
        return number;
    }
    return -1;
}

void node_unshare(node *self, int segment) { self->own[segment].address = NULL; }

void node_fail(node *self, const char *reason)
{
    snprintf(self->abouts[self->rank].reason, REASON_BYTES, "%s", reason);
    atomic_store(&self->lines[self->rank].failed, 1);
#ifdef __linux__
    syscall(SYS_futex, &self->lines[self->rank].phase, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
#endif
}

peer_state node_peer(node *self, int peer)
{
    line *line = &self->lines[peer];
    call *theirs = call_of(self, peer);
    return (peer_state){atomic_load(&line->phase), theirs->fingerprint, theirs->count,
                        (int)atomic_load(&line->failed), self->abouts[peer].reason};
}

uint64_t node_phase(node *self) { return self->phase; }
uint64_t node_awaited(node *self) { return self->awaited; }
int node_gone(node *self) { return self->gone; }

/* ---- for collectives in other files ---- */

int node_begin(node *self, int kind, int dtype, int op, int root, uint64_t count, double timeout_s,
               interrupted check)
{
    return begin(self, (enum kind)kind, dtype, op, root, count, timeout_s, check);
}

int node_meet(node *self) { return meet(self); }
int node_advance(node *self) { return advance(self); }
void node_end(node *self) { end(self); }
