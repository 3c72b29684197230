/* Direct reads of the peers' private memory: the system makes one copy, and none in slots. */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <sys/types.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/random.h>
#include <sys/uio.h>
#endif

/* Bytes of the peers that are buffered at a time: they stay in a core's cache. With more ranks than
 * MOST_DIRECT the bytes of each would be too few. */
enum { BETWEEN_BYTES = 1 << 19, MOST_DIRECT = 64 };

/* Read from address `from` of process `pid`; return the bytes read, or -1 with an errno. */
static ssize_t read_process(int64_t pid, void *to, uint64_t from, size_t bytes)
{
#ifdef __linux__
    struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)from, bytes};
    return process_vm_readv((pid_t)pid, &here, 1, &there, 1, 0);
#else
    (void)pid, (void)to, (void)from, (void)bytes;
    errno = ENOSYS;
    return -1;
#endif
}

void shm_show_witness(shm_group *self)
{
    shm_rank_info *info = &self->rank_infos[self->rank];
#ifdef __linux__
    if (getrandom(&self->witness, sizeof self->witness, GRND_NONBLOCK) < 0)
        self->witness = 0;
#endif
    info->witness = self->witness;
    info->witness_address = (uint64_t)(uintptr_t)&self->witness;
}

/* Read a number that only the peer has at that address, so that a process of the same id in another
 * container is not taken for the peer. */
void shm_try_to_read(shm_group *self)
{
    uint32_t reads = self->witness != 0;
    for (int peer = 0; peer < self->size && reads; peer++) {
        shm_rank_info *theirs = &self->rank_infos[peer];
        uint64_t found = 0;
        read_process(theirs->pid, &found, theirs->witness_address, sizeof found);
        reads = found == theirs->witness;
    }
    atomic_store(&self->rank_infos[self->rank].reads_peers, reads);
}

static int all_read(shm_group *self)
{
    if (self->all_read < 0) {
        self->all_read = 1;
        for (int peer = 0; peer < self->size; peer++)
            self->all_read &= (int)atomic_load(&self->rank_infos[peer].reads_peers);
    }
    return self->all_read;
}

/* The system reads some mapped device memory neither for other processes nor for this one. */
static int is_readable(shm_group *self, const char *buffer, size_t bytes)
{
    int64_t pid = self->rank_infos[self->rank].pid;
    char found;
    return read_process(pid, &found, (uint64_t)(uintptr_t)buffer, 1) == 1 &&
           read_process(pid, &found, (uint64_t)(uintptr_t)buffer + bytes - 1, 1) == 1;
}

int shm_offer(shm_group *self, const void *buffer, size_t bytes, size_t share_bytes, int shows)
{
    if (share_bytes < DIRECT_BYTES || self->size > MOST_DIRECT || !all_read(self))
        return 0;
    if (bytes && shows && is_readable(self, buffer, bytes))
        call_of(self, self->rank)->address = (uint64_t)(uintptr_t)buffer;
    return 1;
}

int shm_all_offered(shm_group *self)
{
    for (int peer = 0; peer < self->size; peer++)
        if (!call_of(self, peer)->address)
            return 0;
    return 1;
}

int shm_read_peer(shm_group *self, int peer, void *to, size_t offset, size_t bytes)
{
    uint64_t from = call_of(self, peer)->address + offset;
    for (size_t done = 0; done < bytes;) {
        ssize_t n = read_process(self->rank_infos[peer].pid, (char *)to + done, from + done,
                                 bytes - done);
        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        int error = errno; /* the check of the peer sets another one */
        TRY(shm_failure(self, peer));
        self->dead_peer = peer;
        return error == ESRCH ? PEER_DIED : NO_MEMORY;
    }
    return DONE;
}

int shm_reduce_direct(shm_group *self, void *output, const void *own, size_t offset, size_t count,
                      int dtype, int op, double divisor)
{
    const void *terms[MAX_RANKS];
    size_t itemsize = ITEMSIZE[dtype], bytes = count * itemsize;
    size_t block = BETWEEN_BYTES / (size_t)(self->size - 1) / CACHE_LINE * CACHE_LINE;
    TRY(shm_wait_all(self, self->slot_free[0]));
    for (size_t at = 0, n; at < bytes; at += n) {
        char *between = slot_of(self, self->rank, 0);
        n = least(bytes - at, block);
        for (int peer = 0; peer < self->size; peer++) {
            terms[peer] = peer == self->rank ? (const char *)own + at : between;
            if (peer == self->rank)
                continue;
            TRY(shm_read_peer(self, peer, between, offset + at, n));
            between += block;
        }
        void *outputs[1] = {(char *)output + at};
        reduce_terms(outputs, 1, terms, self->size, n / itemsize, dtype, op, divisor);
    }
    return DONE;
}
