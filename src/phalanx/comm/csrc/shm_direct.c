/* Private memory of the peers, read where it lies: one copy, by the system, and none in slots. */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <sys/types.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/random.h>
#include <sys/uio.h>
#endif

/* Bytes that were read, from `from` in the memory of process `pid`; -1 with an errno. */
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

/* A number that only that process has at that address: a process of the same number, in another
 * container, is not taken for it. */
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

int shm_all_read(shm_group *self)
{
    if (self->all_read < 0) {
        self->all_read = 1;
        for (int peer = 0; peer < self->size; peer++)
            self->all_read &= (int)atomic_load(&self->rank_infos[peer].reads_peers);
    }
    return self->all_read;
}

/* Memory of a device may be mapped so that the system does not read it for others; nor for us. */
int shm_is_readable(shm_group *self, const char *buffer, size_t bytes)
{
    int64_t pid = self->rank_infos[self->rank].pid;
    char found;
    return read_process(pid, &found, (uint64_t)(uintptr_t)buffer, 1) == 1 &&
           read_process(pid, &found, (uint64_t)(uintptr_t)buffer + bytes - 1, 1) == 1;
}

int shm_read_peer(shm_group *self, int peer, void *to, uint64_t from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = read_process(self->rank_infos[peer].pid, (char *)to + done, from + done,
                                 bytes - done);
        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        TRY(shm_failure(self, peer));
        self->dead_peer = peer;
        return errno == ESRCH ? PEER_DIED : NO_MEMORY;
    }
    return DONE;
}
