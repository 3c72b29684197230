/* What the files that hand the kernels to Python share. */
#ifndef PHALANX_MODULE_H
#define PHALANX_MODULE_H

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

typedef PyObject *const *arguments;

/* For long waits: signals, and messages that are on their way. */
int look_up(void);

/* NULL with the exception of the signal's handler, else the status. */
PyObject *answer(int status);

/* Of a capsule made by `join`; NULL with an exception. */
node *node_from(PyObject *capsule);

/* Whether so many arguments were given; raises TypeError. */
int has(Py_ssize_t given, Py_ssize_t wanted);

static inline void *address_from(PyObject *number) { return PyLong_AsVoidPtr(number); }
static inline int int_from(PyObject *number) { return (int)PyLong_AsLong(number); }

#define WITHOUT_GIL(CALL)                                                                       \
    do {                                                                                        \
        Py_BEGIN_ALLOW_THREADS CALL;                                                            \
        Py_END_ALLOW_THREADS                                                                    \
    } while (0)

/* module_parts.c */
PyObject *py_make_parts(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_own_share(PyObject *module, PyObject *capsule);
PyObject *py_hand_over(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_hand_over_all(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_parts_all_reduce(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_fused_step(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_apply_rule(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_are_finite(PyObject *module, arguments a, Py_ssize_t n);

/* module_coding.c */
PyObject *py_encode_int8(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_add_int8(PyObject *module, arguments a, Py_ssize_t n);
PyObject *py_select_largest(PyObject *module, arguments a, Py_ssize_t n);

#endif
