/* Shared by the files that expose the kernels to Python. */
#ifndef PHALANX_MODULE_H
#define PHALANX_MODULE_H

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

typedef PyObject *const *arguments;

/* For long waits: handle signals, and progress messages. */
int check_interrupts(void);

/* NULL with the exception of the signal's handler, else the status. */
PyObject *status_result(int status);

/* Of a capsule made by `join`; NULL with an exception. */
shm_group *shm_from(PyObject *capsule);

/* Whether so many arguments were given; raises TypeError. */
int check_num_args(Py_ssize_t given, Py_ssize_t wanted);

static inline void *address_from(PyObject *number) { return PyLong_AsVoidPtr(number); }
static inline int int_from(PyObject *number) { return (int)PyLong_AsLong(number); }

#define WITHOUT_GIL(CALL)                                                                       \
    do {                                                                                        \
        Py_BEGIN_ALLOW_THREADS CALL;                                                            \
        Py_END_ALLOW_THREADS                                                                    \
    } while (0)

/* module_grad_buffer.c */
PyObject *py_make_grad_buffer(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_local_share(PyObject *module, PyObject *capsule);
PyObject *py_mark_ready(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_mark_all_ready(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_grad_buffer_all_reduce(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_fused_step(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_apply_update(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_are_finite(PyObject *module, arguments a, Py_ssize_t n);

/* module_coding.c */
PyObject *py_encode_int8(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_add_int8(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_select_largest(PyObject *module, arguments a, Py_ssize_t n);

#endif
