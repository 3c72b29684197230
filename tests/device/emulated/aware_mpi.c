// A GPU-aware MPI: messages take addresses of an emulated device, as a driver would map them.
//
// Preloaded. Arguments are passed on as they come, so that any MPI's handles do.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef long Word;
typedef Word Call(const void*, Word, Word, Word, Word, Word, Word);

typedef struct {
  const char* name;
  Call* call;
} Wanted;

static int find(struct dl_phdr_info* library, size_t size, void* wanted) {
  Wanted* one = wanted;
  if (!strstr(library->dlpi_name, "/libmpi")) return 0;
  void* opened = dlopen(library->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
  one->call = opened ? (Call*)dlsym(opened, one->name) : 0;
  return one->call != 0;
}

// name, of a message that counts in 64 bits, or plain: mpi4py takes the former wherever it sees one,
// such as here, and not every MPI has it.
static Call* real(const char* name, const char* plain) {
  Wanted one = {name, 0};
  dl_iterate_phdr(find, &one);
  if (!one.call) {
    one.name = plain;
    dl_iterate_phdr(find, &one);
  }
  if (!one.call) {
    fprintf(stderr, "aware_mpi: no library of MPI has %s\n", name);
    abort();
  }
  return one.call;
}

static const void* reachable(const void* address) {
  void* (*kernel_address)(const void*) = dlsym(RTLD_DEFAULT, "emulated_kernel_address");
  const void* place = kernel_address ? kernel_address(address) : 0;
  return place ? place : address;
}

#define HOOK(name, plain)                                                                        \
  int name(const void* memory, Word count, Word type, Word peer, Word tag, Word group, Word end) \
  {                                                                                              \
    static Call* call;                                                                           \
    if (!call) call = real(#name, #plain);                                                       \
    return (int)call(reachable(memory), count, type, peer, tag, group, end);                     \
  }
#define MESSAGE(name) HOOK(name, name) HOOK(name##_c, name)

MESSAGE(MPI_Isend)
MESSAGE(MPI_Irecv)
MESSAGE(MPI_Send)
MESSAGE(MPI_Recv)
