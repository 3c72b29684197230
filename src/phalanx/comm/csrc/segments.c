/* Memory of its own that a rank shows to the others, who map it when they first meet it. */
#define _GNU_SOURCE
#include "node.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

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

static void forget(mapping *seen)
{
    if (seen->address)
        munmap(seen->address, seen->bytes);
    seen->address = NULL;
}

void node_forget_all(node *self)
{
    if (self->mappings)
        for (int i = 0; i < self->size * NUM_SEGMENTS; i++)
            forget(&self->mappings[i]);
    free(self->mappings);
}

char *node_address_in(node *self, int peer, uint32_t segment, uint64_t offset)
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

/* The own segment that holds all of `bytes` from `address` on; -1 for private memory. */
int node_segment_of(node *self, const char *address, size_t bytes)
{
    for (int number = 0; number < self->num_own; number++) {
        mapping *own = &self->own[number];
        const char *start = own->address;
        if (start && address >= start && address + bytes <= start + own->bytes)
            return number;
    }
    return -1;
}
