/* Memory of its own that a rank shows to the others, who map it when they first meet it. */
#define _GNU_SOURCE
#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int node_share(node *self, int fd, size_t bytes, void *address)
{
    struct stat file;
    if (fstat(fd, &file))
        return -1;
    for (int number = 0; number < NUM_SEGMENTS; number++) {
        if (self->own[number].address)
            continue;
        shown *own = &self->abouts[self->rank].segments[number];
        own->fd = fd;
        own->bytes = bytes;
        own->device = file.st_dev;
        own->inode = file.st_ino;
        atomic_fetch_add(&own->generation, 1);
        self->own[number] = (mapping){0, UNKNOWN, address, bytes};
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
    for (int i = 0; i < self->size * NUM_SEGMENTS; i++)
        forget(&self->mappings[i]);
    free(self->mappings);
}

/* What a rank publishes in `found` of an all-reduce. */
enum { CANNOT_MAP = 1 };

static int same_file(const struct stat *file, const shown *there)
{
    return file->st_dev == there->device && file->st_ino == there->inode &&
           (uint64_t)file->st_size >= there->bytes;
}

/* The file that a peer has shown; -1 with an errno. Nothing is opened before it is known to be that
 * file: where processes have other numbers than the peer knows them by, such as in containers,
 * the path leads to a file of somebody else. */
static int open_shown(int64_t pid, const shown *there)
{
    char path[64];
    struct stat file;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)pid, (int)there->fd);
    if (stat(path, &file))
        return -1;
    if (!same_file(&file, there)) {
        errno = ESTALE;
        return -1;
    }
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || (!fstat(fd, &file) && same_file(&file, there)))
        return fd;
    close(fd);
    errno = ESTALE;
    return -1;
}

/* Into `seen`; 0, or an errno. */
static int map(mapping *seen, int64_t pid, const shown *there)
{
    int fd = open_shown(pid, there);
    if (fd < 0)
        return errno;
    void *address = mmap(NULL, there->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int error = address == MAP_FAILED ? errno : 0;
    close(fd);
    if (error)
        return error;
#ifdef MADV_HUGEPAGE
    madvise(address, there->bytes, MADV_HUGEPAGE); /* where the system has them */
#endif
    seen->address = address;
    seen->bytes = there->bytes;
    return 0;
}

static mapping *mapping_of(node *self, int peer)
{
    return &self->mappings[peer * NUM_SEGMENTS + (int)(call_of(self, peer)->segment & 0xff)];
}

/* Whether all segments of this call are known; those of others than were known are forgotten. */
static int all_known(node *self)
{
    int known = 1;
    for (int peer = 0; peer < self->size; peer++) {
        mapping *seen = mapping_of(self, peer);
        uint32_t generation = call_of(self, peer)->segment >> 8;
        if (seen->generation != generation || seen->verdict == UNKNOWN) {
            forget(seen);
            seen->generation = generation;
            seen->verdict = UNKNOWN;
            known = 0;
        }
    }
    return known;
}

/* Map what is new; 0 where that failed. */
static int map_unknown(node *self)
{
    for (int peer = 0; peer < self->size; peer++) {
        mapping *seen = mapping_of(self, peer);
        if (peer == self->rank || seen->verdict != UNKNOWN)
            continue;
        about *theirs = &self->abouts[peer];
        int error = map(seen, theirs->pid, &theirs->segments[call_of(self, peer)->segment & 0xff]);
        if (error) {
            if (self->map_error >= 0)
                self->map_error = error;
            return 0;
        }
    }
    return 1;
}

/* Tell the others whether this rank has mapped what is new, and hear the same of them. */
static int learn_new(node *self)
{
    uint32_t found = map_unknown(self) ? 0 : CANNOT_MAP;
    atomic_store_explicit(&call_of(self, self->rank)->found, found, memory_order_relaxed);
    TRY(node_advance(self));
    for (int peer = 0; peer < self->size; peer++)
        found |= atomic_load_explicit(&call_of(self, peer)->found, memory_order_relaxed);
    for (int peer = 0; peer < self->size; peer++) {
        mapping *seen = mapping_of(self, peer);
        if (seen->verdict == UNKNOWN)
            seen->verdict = found ? NOT_MAPPED_BY_ALL : MAPPED_BY_ALL;
    }
    return DONE;
}

int node_map_all(node *self, int *mapped)
{
    if (!all_known(self))
        TRY(learn_new(self));
    *mapped = 1;
    for (int peer = 0; peer < self->size; peer++)
        *mapped &= mapping_of(self, peer)->verdict == MAPPED_BY_ALL;
    return DONE;
}

char *node_mapped(node *self, int peer)
{
    call *theirs = call_of(self, peer);
    int number = (int)(theirs->segment & 0xff);
    mapping *seen = peer == self->rank ? &self->own[number] : mapping_of(self, peer);
    return (char *)seen->address + theirs->offset;
}

int node_map_error(node *self)
{
    int error = self->map_error;
    if (error > 0)
        self->map_error = -1;
    return error > 0 ? error : 0;
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
