/* Shared by the files that expose the kernels to Python. */
#ifndef PHALANX_MODULE_H
#define PHALANX_MODULE_H

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

typedef PyObject *const *arguments;

/* Functions of Python, by the file that defines them. */
#define FOR_FUNCTIONS(X)                                                                        \
    X(reduce_terms) X(widen) X(narrow) X(are_finite) X(apply_update) X(encode_int8)             \
    X(add_int8) X(select_largest)                                                               \
    /* module_shm.c */                                                                          \
    X(shm_bytes) X(join) X(keep_memory) X(all_joined) X(is_dead) X(set_progress_hook)           \
    X(barrier) X(all_reduce) X(run) X(export_segment) X(unexport_segment) X(fail) X(progress)   \
    X(peer_status) X(logged_calls) X(ring) X(num_rings) X(sleep_until_rung)                     \
    /* module_tensor.c */                                                                       \
    X(all_reduce_tensor)                                                                        \
    /* module_grad_buffer.c */                                                                  \
    X(make_grad_buffer) X(local_share) X(grad_buffer_all_reduce) X(grad_buffer_sum_in_order)     \
    X(fused_step)
#define FUNCTION(NAME) PyObject *py_##NAME(PyObject *Py_UNUSED(module), arguments a, Py_ssize_t n)
#define DECLARE(NAME) FUNCTION(NAME);
FOR_FUNCTIONS(DECLARE)

/* Names of the capsules that hold a shared-memory group and a gradient buffer. */
#define SHM_CAPSULE "phalanx.comm.shm"
#define GRAD_BUFFER_CAPSULE "phalanx.comm.grad_buffer"

/* Convert `n` arguments, each by a character of `format` into the next target: 's' shm_group *,
 * 'b' grad_buffer *, 'p' an address into a void *, 'n' size_t, 'i' int, 'd' double, 'o' PyObject *.
 * Returns 0 with an exception if one does not fit. */
int parse(arguments a, Py_ssize_t n, const char *format, ...);

/* A new array of the sequence's integers, to be freed; NULL with an exception if they are none. */
size_t *integers_from(PyObject *sequence, size_t *count);

/* Parse the optimizer's number, its coefficients and the addresses of its states; -1 with an
 * exception. */
int update_from(PyObject *number, PyObject *numbers, PyObject *addresses, double *coefficients,
                void **states);

/* Handle signals and progress messages; called in long waits. */
int check_interrupts(void);

/* The status as an integer; NULL if the handler of a signal raised an exception. */
PyObject *status_result(int status);

/* The status of a collective; warns once if memory of a peer could not be mapped. */
PyObject *collective_result(shm_group *self, int status);

/* True if the reduction exists; else raises TypeError. */
int reducible(int dtype, int op);

/* Read at most MAX_RANKS integers of a sequence as addresses or, if these are NULL, as sizes;
 * return their number, or -1 with an exception. */
int numbers_from(PyObject *sequence, void **addresses, size_t *sizes);

#define WITHOUT_GIL(CALL)                                                                       \
    do {                                                                                        \
        Py_BEGIN_ALLOW_THREADS CALL;                                                            \
        Py_END_ALLOW_THREADS                                                                    \
    } while (0)

#endif
