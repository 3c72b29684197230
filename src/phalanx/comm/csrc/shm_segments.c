/* Segments: memory that a rank exports, and that its peers map when they first use it. */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int shm_export_segment(shm_group *self, int fd, size_t bytes, void *address)
{
    struct stat file;
    if (fstat(fd, &file))
        return -1;
    for (int number = 0; number < NUM_SEGMENTS; number++) {
        if (self->own[number].address)
            continue;
        shm_exported_segment *own = &self->rank_infos[self->rank].segments[number];
        own->fd = fd;
        own->bytes = bytes;
        own->device = file.st_dev;
        own->inode = file.st_ino;
        atomic_fetch_add(&own->generation, 1);
        self->own[number] = (shm_mapping){0, UNKNOWN, address, bytes};
        if (number >= self->num_own)
            self->num_own = number + 1;
        return number;
    }
    return -1;
}

void shm_unexport_segment(shm_group *self, int segment) { self->own[segment].address = NULL; }

static void unmap(shm_mapping *mapping)
{
    if (mapping->address)
        munmap(mapping->address, mapping->bytes);
    mapping->address = NULL;
}

void shm_unmap_all(shm_group *self)
{
    for (int i = 0; i < self->size * NUM_SEGMENTS; i++)
        unmap(&self->mappings[i]);
    free(self->mappings);
}

/* Bits of `report` in an all-reduce. */
enum { CANNOT_MAP = 1 };

static int same_file(const struct stat *file, const shm_exported_segment *segment)
{
    return file->st_dev == segment->device && file->st_ino == segment->inode &&
           (uint64_t)file->st_size >= segment->bytes;
}

/* Open the file that a peer has exported; -1 with an errno. It is checked before it is opened: if
 * processes have other ids here than the peer knows, as between containers, the path leads to a
 * file of another process. */
static int open_exported(int64_t pid, const shm_exported_segment *segment)
{
    char path[64];
    struct stat file;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)pid, (int)segment->fd);
    if (stat(path, &file))
        return -1;
    if (!same_file(&file, segment)) {
        errno = ESTALE;
        return -1;
    }
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || (!fstat(fd, &file) && same_file(&file, segment)))
        return fd;
    close(fd);
    errno = ESTALE;
    return -1;
}

/* Fill `mapping`; 0, or an errno. */
static int map(shm_mapping *mapping, int64_t pid, const shm_exported_segment *segment)
{
    int fd = open_exported(pid, segment);
    if (fd < 0)
        return errno;
    void *address = mmap(NULL, segment->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int error = address == MAP_FAILED ? errno : 0;
    close(fd);
    if (error)
        return error;
#ifdef MADV_HUGEPAGE
    madvise(address, segment->bytes, MADV_HUGEPAGE); /* where the system has them */
#endif
    mapping->address = address;
    mapping->bytes = segment->bytes;
    return 0;
}

static shm_mapping *mapping_of(shm_group *self, int peer)
{
    return &self->mappings[peer * NUM_SEGMENTS + (int)(call_of(self, peer)->segment & 0xff)];
}

/* True if the verdicts on all segments of this call are known; unmaps replaced segments. */
static int all_mappings_known(shm_group *self)
{
    int known = 1;
    for (int peer = 0; peer < self->size; peer++) {
        shm_mapping *mapping = mapping_of(self, peer);
        uint32_t generation = call_of(self, peer)->segment >> 8;
        if (mapping->generation != generation || mapping->verdict == UNKNOWN) {
            unmap(mapping);
            mapping->generation = generation;
            mapping->verdict = UNKNOWN;
            known = 0;
        }
    }
    return known;
}

/* Map new segments; 0 if that failed. */
static int map_new(shm_group *self)
{
    for (int peer = 0; peer < self->size; peer++) {
        shm_mapping *mapping = mapping_of(self, peer);
        if (peer == self->rank || mapping->verdict != UNKNOWN)
            continue;
        shm_rank_info *theirs = &self->rank_infos[peer];
        uint32_t number = call_of(self, peer)->segment & 0xff;
        int error = map(mapping, theirs->pid, &theirs->segments[number]);
        if (error) {
            if (self->map_error >= 0)
                self->map_error = error;
            return 0;
        }
    }
    return 1;
}

/* Publish whether this rank has mapped new segments, and read the reports of its peers. */
static int exchange_reports(shm_group *self)
{
    uint32_t report = map_new(self) ? 0 : CANNOT_MAP;
    atomic_store_explicit(&call_of(self, self->rank)->report, report, memory_order_relaxed);
    TRY(shm_advance(self));
    for (int peer = 0; peer < self->size; peer++)
        report |= atomic_load_explicit(&call_of(self, peer)->report, memory_order_relaxed);
    for (int peer = 0; peer < self->size; peer++) {
        shm_mapping *mapping = mapping_of(self, peer);
        if (mapping->verdict == UNKNOWN)
            mapping->verdict = report ? NOT_MAPPED_BY_ALL : MAPPED_BY_ALL;
    }
    return DONE;
}

int shm_map_all(shm_group *self, int *mapped)
{
    if (!all_mappings_known(self))
        TRY(exchange_reports(self));
    *mapped = 1;
    for (int peer = 0; peer < self->size; peer++)
        *mapped &= mapping_of(self, peer)->verdict == MAPPED_BY_ALL;
    return DONE;
}

char *shm_mapped_buffer(shm_group *self, int peer)
{
    shm_call *theirs = call_of(self, peer);
    int number = (int)(theirs->segment & 0xff);
    shm_mapping *mapping = peer == self->rank ? &self->own[number] : mapping_of(self, peer);
    return (char *)mapping->address + theirs->offset;
}

int shm_map_error(shm_group *self)
{
    int error = self->map_error;
    if (error > 0)
        self->map_error = -1;
    return error > 0 ? error : 0;
}

/* This rank's segment that holds all of `bytes` from `address` on; -1 for private memory. */
int shm_segment_of(shm_group *self, const char *address, size_t bytes)
{
    for (int number = 0; number < self->num_own; number++) {
        shm_mapping *own = &self->own[number];
        const char *start = own->address;
        if (start && address >= start && address + bytes <= start + own->bytes)
            return number;
    }
    return -1;
}
