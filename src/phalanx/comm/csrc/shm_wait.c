/* Publish phases and wait for them: spin, then yield, then sleep; never forever. */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
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

/* A nap ends when the peer publishes, or after this time. If messages must progress meanwhile, it
 * is short at first, then a hundredth of the wait. */
static const long NAP_NS = 20 * 1000 * 1000, SHORTEST_NAP_NS = 500 * 1000, LONGEST_NAP_NS = 2000 * 1000;
static int moves_messages;

void shm_move_messages(int yes) { moves_messages = yes; }

static long nap_ns(shm_group *self)
{
    if (!moves_messages)
        return NAP_NS;
    double share = 1e9 * 0.01 * (now() - (self->deadline - self->timeout_s));
    return share < SHORTEST_NAP_NS ? SHORTEST_NAP_NS : share < LONGEST_NAP_NS ? (long)share : LONGEST_NAP_NS;
}

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

static void wake(void *word)
{
#ifdef __linux__
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
#else
    (void)word;
#endif
}

static void ring(shm_doorbell *bell)
{
    atomic_fetch_add(&bell->rings, 1);
    wake(&bell->rings);
}

void shm_ring(shm_group *self, int peer)
{
    shm_doorbell *bell = &self->doorbells[peer];
    atomic_fetch_add(&bell->rings, 1);
    if (atomic_load(&bell->sleepers))
        wake(&bell->rings);
}

uint32_t shm_num_rings(shm_group *self) { return atomic_load(&self->doorbells[self->rank].rings); }

void shm_sleep_until_rung(shm_group *self, uint32_t rings, long ns)
{
    shm_doorbell *own = &self->doorbells[self->rank];
    atomic_fetch_add(&own->sleepers, 1);
    nap_for(&own->rings, rings, ns);
    atomic_fetch_sub(&own->sleepers, 1);
}

/* Wake all sleepers, so that they poll again. */
void shm_wake(shm_group *self)
{
    wake(&self->rank_flags[self->rank].phase);
    ring(self->group_doorbell);
}

static int has_reached(shm_rank_flags *peer, uint64_t phase)
{
    return atomic_load_explicit(&peer->phase, memory_order_acquire) >= phase;
}

/* The first rank that has not published `phase`; the group's size if there is none. */
static int first_missing(shm_group *self, uint64_t phase)
{
    for (int peer = 0; peer < self->size; peer++)
        if (!has_reached(&self->rank_flags[peer], phase))
            return peer;
    return self->size;
}

void shm_publish(shm_group *self)
{
    shm_rank_flags *own = &self->rank_flags[self->rank];
    /* Sequentially consistent, as on the sleeper's side: either it sees the new phase, or this rank
     * sees that it sleeps. Of ranks that publish at the same time at least one sees all others. */
    atomic_store(&own->phase, ++self->phase);
    if (atomic_load(&own->sleepers))
        wake(&own->phase);
    if (!atomic_load(&self->group_doorbell->sleepers))
        return;
    atomic_thread_fence(memory_order_seq_cst);
    if (first_missing(self, self->phase) == self->size)
        ring(self->group_doorbell);
}

/* True if a process runs no further instruction of its own, though it is still visible: the system
 * needs 80 ms per GB of its memory, and then it stays until its parent has reaped it. A pending
 * SIGKILL cannot be undone. The fields of "12 (python3) S 1 …" are numbered as in proc(5). */
static int is_ending(long pid)
{
    enum { STATE = 3, FLAGS = 9, PENDING = 31 };
    static const unsigned long EXITING = 0x4;
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[length < 0 ? 0 : length] = 0;
    const char *word = strrchr(text, ')');
    for (int number = STATE; word && number <= PENDING; number++) {
        word = strchr(word, ' ');
        if (!word++)
            return 0;
        if (number == STATE && (*word == 'Z' || *word == 'X'))
            return 1;
        if (number == FLAGS && strtoul(word, NULL, 10) & EXITING)
            return 1;
        if (number == PENDING && strtoul(word, NULL, 10) & 1UL << (SIGKILL - 1))
            return 1;
    }
    return 0;
}

static int has_died(shm_group *self, int peer)
{
    long pid = (long)self->rank_infos[peer].pid;
    return (kill((pid_t)pid, 0) && errno == ESRCH) || is_ending(pid);
}

int shm_is_dead(shm_group *self, int peer) { return self->watched[peer] && has_died(self, peer); }

void shm_all_joined(shm_group *self)
{
    self->chunk_bytes = self->chunk_sizes->chunk_bytes;
    self->inline_bytes = self->chunk_sizes->inline_bytes;
    for (int peer = 0; peer < self->size; peer++)
        self->watched[peer] = !has_died(self, peer);
    shm_try_to_read(self);
}

/* True if a rank has reported a failure; it may be another thread of this one. */
static int has_failure(shm_group *self)
{
    for (int rank = 0; rank < self->size; rank++)
        if (atomic_load(&self->rank_flags[rank].failed) == FAILED)
            return 1;
    return 0;
}

/* Status that ends a wait for `peer`: a rank has reported a failure, or `peer` has departed or is
 * dead. Failures come first, since a rank that has read of one ends too. */
int shm_failure(shm_group *self, int peer)
{
    if (has_failure(self))
        return PEER_FAILED;
    if (atomic_load(&self->rank_flags[peer].failed))
        return PEER_FAILED;
    if (!shm_is_dead(self, peer))
        return DONE;
    self->dead_peer = peer;
    return PEER_DIED;
}

/* Check for failures, the deadline and signals during a long wait; DONE: continue. */
static int check_wait(shm_group *self, int peer)
{
    int status = shm_failure(self, peer);
    if (status)
        return status;
    if (now() > self->deadline)
        return TIMED_OUT;
    return self->check && self->check() ? INTERRUPTED : DONE;
}

/* Status of a wait whose check returned `status`; the peers may have arrived meanwhile. An
 * interrupted wait still ends as such: the exception of the signal is set, and must be raised. */
static int after_check(int status, int arrived)
{
    return arrived && status != INTERRUPTED ? DONE : status;
}

static void set_deadline(shm_group *self, uint64_t phase)
{
    self->awaited_phase = phase;
    if (!self->deadline)
        self->deadline = now() + self->timeout_s;
}

static int sleep_until(shm_group *self, int peer, uint64_t phase)
{
    shm_rank_flags *flags = &self->rank_flags[peer];
    set_deadline(self, phase);
    while (!has_reached(flags, phase)) {
        atomic_fetch_add(&flags->sleepers, 1);
        uint64_t seen = atomic_load(&flags->phase);
        if (seen < phase) /* The low half: no rank publishes 2³² phases in a nap. */
            nap_for(&flags->phase, (uint32_t)seen, nap_ns(self));
        atomic_fetch_sub(&flags->sleepers, 1);
        int status = has_reached(flags, phase) ? DONE : check_wait(self, peer);
        if (status)
            return after_check(status, has_reached(flags, phase));
    }
    return DONE;
}

static int sleep_until_all(shm_group *self, uint64_t phase)
{
    shm_doorbell *bell = self->group_doorbell;
    set_deadline(self, phase);
    for (;;) {
        atomic_fetch_add(&bell->sleepers, 1);
        uint32_t seen = atomic_load(&bell->rings);
        atomic_thread_fence(memory_order_seq_cst);
        if (first_missing(self, phase) < self->size)
            nap_for(&bell->rings, seen, nap_ns(self));
        atomic_fetch_sub(&bell->sleepers, 1);
        int missing = first_missing(self, phase);
        if (missing == self->size)
            return DONE;
        int status = check_wait(self, missing);
        if (status)
            return after_check(status, first_missing(self, phase) == self->size);
    }
}

/* A wait after its spins: yields, while nothing else wants the core. */
typedef struct {
    int left;             /* yields */
    double before, checked; /* when the last yield began; when the last check was */
} pace;

/* A yield that returns late has given the core to a process that computes. Two in a short time are
 * contention: a sleeper then gets the core as soon as it is woken; a yielder waits for all others
 * each time. So sleep, and try to yield again after many times the cost of that yield. */
static const double SLOW_S = 1e-3, TWICE_WITHIN_S = 0.25, CROWDED_TIMES = 20, CROWDED_S = 0.1;
/* Interval of checks of deadlines, signals, messages and peers while yielding. */
static const double POLL_INTERVAL_S = 2e-3;

/* Polls in a row. Beside other processes the peer seldom runs at the same time. */
static int num_spins(shm_group *self) { return self->crowded ? self->spins / 16 : self->spins; }

static pace begin_yields(shm_group *self)
{
    double time = now();
    if (time >= self->crowded_until)
        self->crowded = 0;
    return (pace){self->crowded ? 0 : self->yields, time, has_failure(self) ? 0 : time};
}

static void yield_core(shm_group *self, pace *pace)
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

/* True if a check is due, as sleepers make after each nap: at once if a failure was reported. */
static int is_check_due(pace *pace)
{
    if (pace->before - pace->checked < POLL_INTERVAL_S)
        return 0;
    pace->checked = pace->before;
    return 1;
}

int shm_wait_for(shm_group *self, int peer, uint64_t phase)
{
    shm_rank_flags *flags = &self->rank_flags[peer];
    for (int i = 0, spins = num_spins(self); i < spins; i++) {
        if (has_reached(flags, phase))
            return DONE;
        PAUSE();
    }
    pace pace = begin_yields(self);
    while (pace.left > 0) {
        if (has_reached(flags, phase))
            return DONE;
        if (is_check_due(&pace)) {
            set_deadline(self, phase);
            int status = check_wait(self, peer);
            if (status)
                return after_check(status, has_reached(flags, phase));
        }
        yield_core(self, &pace);
    }
    return sleep_until(self, peer, phase);
}

/* Wait after the spins; `peer` is the first that may be missing. */
static int yield_until_all(shm_group *self, int peer, uint64_t phase)
{
    pace pace = begin_yields(self);
    while (pace.left > 0) {
        while (has_reached(&self->rank_flags[peer], phase))
            if (++peer == self->size)
                return DONE;
        if (is_check_due(&pace)) {
            set_deadline(self, phase);
            int status = check_wait(self, peer);
            if (status)
                return after_check(status, first_missing(self, phase) == self->size);
        }
        yield_core(self, &pace);
    }
    return sleep_until_all(self, phase);
}

int shm_wait_all(shm_group *self, uint64_t phase)
{
    if (phase <= self->all_reached)
        return DONE;
    int peer = 0, spins = num_spins(self);
    while (peer < self->size) {
        if (has_reached(&self->rank_flags[peer], phase))
            peer++;
        else if (spins-- > 0)
            PAUSE();
        else {
            TRY(yield_until_all(self, peer, phase));
            break;
        }
    }
    self->all_reached = phase;
    return DONE;
}

int shm_advance(shm_group *self)
{
    shm_publish(self);
    return shm_wait_all(self, self->phase);
}
