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

/* Those who sleep on the own line look again. */
void node_wake(node *self)
{
#ifdef __linux__
    syscall(SYS_futex, &self->lines[self->rank].phase, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
#else
    (void)self;
#endif
}

void node_publish(node *self)
{
    line *own = &self->lines[self->rank];
    /* Sequentially consistent, and so is the sleeper's side: either it sees the new phase, or we
     * see that it sleeps. */
    atomic_store(&own->phase, ++self->phase);
    if (atomic_load(&own->sleepers))
        node_wake(self);
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

int node_wait_for(node *self, int peer, uint64_t phase)
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

int node_wait_all(node *self, uint64_t phase)
{
    if (phase <= self->seen)
        return DONE;
    for (int peer = 0; peer < self->size; peer++) {
        int status = node_wait_for(self, peer, phase);
        if (status)
            return status;
    }
    self->seen = phase;
    return DONE;
}

int node_advance(node *self)
{
    node_publish(self);
    return node_wait_all(self, self->phase);
}
