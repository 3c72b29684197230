/* The codings of coding.c as functions of Python. */
#include "module.h"

/* encode_int8(values, kept, scales, codes, count) */
PyObject *py_encode_int8(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 5))
        return NULL;
    void *values = address_from(a[0]), *kept = address_from(a[1]);
    void *scales = address_from(a[2]), *codes = address_from(a[3]);
    size_t count = PyLong_AsSize_t(a[4]);
    if (PyErr_Occurred())
        return NULL;
    WITHOUT_GIL(encode_int8(values, kept, scales, codes, count));
    Py_RETURN_NONE;
}

/* add_int8(scales, codes, total, count, adds) */
PyObject *py_add_int8(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 5))
        return NULL;
    void *scales = address_from(a[0]), *codes = address_from(a[1]), *total = address_from(a[2]);
    size_t count = PyLong_AsSize_t(a[3]);
    int adds = PyObject_IsTrue(a[4]);
    if (PyErr_Occurred())
        return NULL;
    WITHOUT_GIL(add_int8(scales, codes, total, count, adds));
    Py_RETURN_NONE;
}

/* select_largest(values, count, positions, wanted) */
PyObject *py_select_largest(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 4))
        return NULL;
    void *values = address_from(a[0]), *positions = address_from(a[2]);
    size_t count = PyLong_AsSize_t(a[1]), wanted = PyLong_AsSize_t(a[3]);
    int status;
    if (PyErr_Occurred())
        return NULL;
    if (wanted < 1 || wanted > count || count > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%zu of %zu values", wanted, count);
        return NULL;
    }
    WITHOUT_GIL(status = select_largest(values, count, positions, wanted));
    if (status != DONE)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}
