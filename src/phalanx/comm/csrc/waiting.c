/* Phases are published and waited for here: look, then yield, then sleep; never for ever. */
#define _GNU_SOURCE
#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
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

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* A nap ends when the peer publishes; this is how long one lasts that is not ended. */
static long nap_ns = 20 * 1000 * 1000;

void node_naps(long ns) { nap_ns = ns; }

static void nap_for(void *word, uint32_t seen, long ns)
{
    struct timespec time = {ns / 1000000000, ns % 1000000000};
#ifdef __linux__
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &time, NULL, 0);
#else
    (void)word, (void)seen;
    time = (struct timespec){0, 100 * 1000};
    nanosleep(&time, NULL);
#endif
}

static void nap(void *word, uint32_t seen) { nap_for(word, seen, nap_ns); }

static void wake(void *word)
{
#ifdef __linux__
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
#else
    (void)word;
#endif
}

static void ring(bell *bell)
{
    atomic_fetch_add(&bell->rung, 1);
    wake(&bell->rung);
}

void node_ring(node *self, int peer)
{
    bell *bell = &self->bells[peer];
    atomic_fetch_add(&bell->rung, 1);
    if (atomic_load(&bell->sleepers))
        wake(&bell->rung);
}

uint32_t node_rung(node *self) { return atomic_load(&self->bells[self->rank].rung); }

void node_doze(node *self, uint32_t rung, long ns)
{
    bell *own = &self->bells[self->rank];
    atomic_fetch_add(&own->sleepers, 1);
    nap_for(&own->rung, rung, ns);
    atomic_fetch_sub(&own->sleepers, 1);
}

/* All who sleep look again. */
void node_wake(node *self)
{
    wake(&self->lines[self->rank].phase);
    ring(self->bell);
}

static int there(line *peer, uint64_t phase)
{
    return atomic_load_explicit(&peer->phase, memory_order_acquire) >= phase;
}

/* The first rank that has not published `phase`; their number when there is none. */
static int first_missing(node *self, uint64_t phase)
{
    for (int peer = 0; peer < self->size; peer++)
        if (!there(&self->lines[peer], phase))
            return peer;
    return self->size;
}

void node_publish(node *self)
{
    line *own = &self->lines[self->rank];
    /* Sequentially consistent, and so is the sleeper's side: either it sees the new phase, or we
     * see that it sleeps. Of several who publish at the same time one at least sees all others. */
    atomic_store(&own->phase, ++self->phase);
    if (atomic_load(&own->sleepers))
        wake(&own->phase);
    if (!atomic_load(&self->bell->sleepers))
        return;
    atomic_thread_fence(memory_order_seq_cst);
    if (first_missing(self, self->phase) == self->size)
        ring(self->bell);
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

int node_is_dead(node *self, int peer) { return self->watched[peer] && gone(self, peer); }

void node_watch(node *self)
{
    for (int peer = 0; peer < self->size; peer++)
        self->watched[peer] = !gone(self, peer);
}

/* What ends a wait for `peer`: somebody has said why it cannot go on, another thread of this rank
 * perhaps, or `peer` is gone. In this order: who has heard of a failure goes too. */
static int failure(node *self, int peer)
{
    for (int rank = 0; rank < self->size; rank++)
        if (atomic_load(&self->lines[rank].failed))
            return PEER_FAILED;
    if (!node_is_dead(self, peer))
        return DONE;
    self->gone = peer;
    return PEER_DIED;
}

/* What is to be done after a while that did not end the wait; DONE: go on. */
static int look_up(node *self, int peer)
{
    int status = failure(self, peer);
    if (status)
        return status;
    if (now() > self->deadline)
        return TIMED_OUT;
    return self->check && self->check() ? INTERRUPTED : DONE;
}

static void begin_sleep(node *self, uint64_t phase)
{
    self->awaited = phase;
    if (!self->deadline)
        self->deadline = now() + self->timeout_s;
}

static int sleep_until(node *self, int peer, uint64_t phase)
{
    line *line = &self->lines[peer];
    begin_sleep(self, phase);
    while (!there(line, phase)) {
        atomic_fetch_add(&line->sleepers, 1);
        uint64_t seen = atomic_load(&line->phase);
        if (seen < phase) /* The low half; nobody counts 2³² phases in a nap. */
            nap(&line->phase, (uint32_t)seen);
        atomic_fetch_sub(&line->sleepers, 1);
        int status = there(line, phase) ? DONE : look_up(self, peer);
        if (status)
            return there(line, phase) ? DONE : status;
    }
    return DONE;
}

static int sleep_until_all(node *self, uint64_t phase)
{
    bell *bell = self->bell;
    begin_sleep(self, phase);
    for (;;) {
        atomic_fetch_add(&bell->sleepers, 1);
        uint32_t seen = atomic_load(&bell->rung);
        atomic_thread_fence(memory_order_seq_cst);
        if (first_missing(self, phase) < self->size)
            nap(&bell->rung, seen);
        atomic_fetch_sub(&bell->sleepers, 1);
        int missing = first_missing(self, phase);
        if (missing == self->size)
            return DONE;
        int status = look_up(self, missing);
        if (status)
            return first_missing(self, phase) == self->size ? DONE : status;
    }
}

/* A wait after its spins: yields, while nothing else wants the core. */
typedef struct {
    int left;             /* yields */
    double before, looked; /* when the last yield began; when the last look-up was */
} pace;

/* A yield that comes back late has given the core to a process that computes. Twice in a short time
 * is competition: whoever sleeps then gets the core as soon as it is woken, whoever yields waits for
 * all others each time. So sleep, and try to yield again after many times what that has cost. */
static const double SLOW_S = 1e-3, TWICE_WITHIN_S = 0.25, CROWDED_TIMES = 20, CROWDED_S = 0.1;
/* Of yielding, before deadlines, signals, messages and peers are looked at. */
static const double LOOK_EVERY_S = 2e-3;

/* Looks in a row. Beside other processes the peer seldom runs at the same time. */
static int spins_of(node *self) { return self->crowded ? self->spins / 16 : self->spins; }

static pace begin_yields(node *self)
{
    double time = now();
    if (time >= self->crowded_until)
        self->crowded = 0;
    return (pace){self->crowded ? 0 : self->yields, time, time};
}

static void yield_core(node *self, pace *pace)
{
    sched_yield();
    double time = now(), lasted = time - pace->before;
    pace->left--;
    pace->before = time;
    if (lasted < SLOW_S)
        return;
    if (time - self->slow_at - lasted < TWICE_WITHIN_S) {
        double rest = CROWDED_TIMES * lasted;
        self->crowded_until = time + (rest > CROWDED_S ? rest : CROWDED_S);
        self->crowded = 1;
        pace->left = 0;
    }
    self->slow_at = time;
}

/* Whether it is time for a look-up, as sleepers have one after each nap. */
static int is_long(pace *pace)
{
    if (pace->before - pace->looked < LOOK_EVERY_S)
        return 0;
    pace->looked = pace->before;
    return 1;
}

int node_wait_for(node *self, int peer, uint64_t phase)
{
    line *line = &self->lines[peer];
    for (int i = 0, spins = spins_of(self); i < spins; i++) {
        if (there(line, phase))
            return DONE;
        PAUSE();
    }
    pace pace = begin_yields(self);
    while (pace.left > 0) {
        if (there(line, phase))
            return DONE;
        yield_core(self, &pace);
        if (is_long(&pace)) {
            begin_sleep(self, phase);
            int status = there(line, phase) ? DONE : look_up(self, peer);
            if (status)
                return there(line, phase) ? DONE : status;
        }
    }
    return sleep_until(self, peer, phase);
}

/* After its spins; `peer` is the first that may be missing. */
static int yield_until_all(node *self, int peer, uint64_t phase)
{
    pace pace = begin_yields(self);
    while (pace.left > 0) {
        while (there(&self->lines[peer], phase))
            if (++peer == self->size)
                return DONE;
        yield_core(self, &pace);
        if (is_long(&pace)) {
            begin_sleep(self, phase);
            int status = there(&self->lines[peer], phase) ? DONE : look_up(self, peer);
            if (status)
                return first_missing(self, phase) == self->size ? DONE : status;
        }
    }
    return sleep_until_all(self, phase);
}

int node_wait_all(node *self, uint64_t phase)
{
    if (phase <= self->seen)
        return DONE;
    int peer = 0, spins = spins_of(self);
    while (peer < self->size) {
        if (there(&self->lines[peer], phase))
            peer++;
        else if (spins-- > 0)
            PAUSE();
        else {
            TRY(yield_until_all(self, peer, phase));
            break;
        }
    }
    self->seen = phase;
    return DONE;
}

int node_advance(node *self)
{
    node_publish(self);
    return node_wait_all(self, self->phase);
}
