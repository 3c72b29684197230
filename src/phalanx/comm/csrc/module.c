/* The kernels as functions of Python: conversion of arguments, loops over elements, and the module.
 * Addresses are passed as integers; calls release the GIL. */
#include "module.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

int parse(arguments a, Py_ssize_t n, const char *format, ...)
{
    Py_ssize_t wanted = (Py_ssize_t)strlen(format);
    va_list targets;
    if (n != wanted) {
        PyErr_Format(PyExc_TypeError, "%zd arguments given, %zd wanted", n, wanted);
        return 0;
    }
    va_start(targets, format);
    for (Py_ssize_t i = 0; i < n; i++) {
        void *target = va_arg(targets, void *);
        switch (format[i]) {
        case 's': *(shm_group **)target = PyCapsule_GetPointer(a[i], SHM_CAPSULE); break;
        case 'b': *(grad_buffer **)target = PyCapsule_GetPointer(a[i], GRAD_BUFFER_CAPSULE); break;
        case 'p': *(void **)target = PyLong_AsVoidPtr(a[i]); break;
        case 'n': *(size_t *)target = PyLong_AsSize_t(a[i]); break;
        case 'i': *(int *)target = (int)PyLong_AsLong(a[i]); break;
        case 'd': *(double *)target = PyFloat_AsDouble(a[i]); break;
        default: *(PyObject **)target = a[i];
        }
    }
    va_end(targets);
    return !PyErr_Occurred();
}

int numbers_from(PyObject *sequence, void **addresses, size_t *sizes)
{
    Py_ssize_t n = PySequence_Size(sequence);
    if (n > MAX_RANKS)
        PyErr_Format(PyExc_ValueError, "%zd ranks are more than %d", n, MAX_RANKS);
    for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        if (addresses)
            addresses[i] = item ? PyLong_AsVoidPtr(item) : NULL;
        else
            sizes[i] = item ? PyLong_AsSize_t(item) : 0;
        Py_XDECREF(item);
    }
    return PyErr_Occurred() ? -1 : (int)n;
}

size_t *integers_from(PyObject *sequence, size_t *count)
{
    Py_ssize_t n = PySequence_Size(sequence);
    size_t *values = n < 0 ? NULL : calloc((size_t)n + 1, sizeof *values);
    if (!values) {
        if (n >= 0)
            PyErr_NoMemory();
        return NULL;
    }
    *count = (size_t)n;
    for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        values[i] = item ? PyLong_AsSize_t(item) : 0;
        Py_XDECREF(item);
    }
    return values;
}

int reducible(int dtype, int op)
{
    if (!has_reduction(dtype, op))
        PyErr_Format(PyExc_TypeError, "no reduction %d of dtype %d", op, dtype);
    return has_reduction(dtype, op);
}

/* reduce_terms(outputs, terms, count, dtype, op, divisor) */
FUNCTION(reduce_terms)
{
    void *outputs[MAX_RANKS], *terms[MAX_RANKS];
    PyObject *to, *from;
    size_t count;
    int dtype, op;
    double divisor;
    if (!parse(a, n, "ooniid", &to, &from, &count, &dtype, &op, &divisor))
        return NULL;
    int num_outputs = numbers_from(to, outputs, NULL), num_terms = numbers_from(from, terms, NULL);
    if (PyErr_Occurred())
        return NULL;
    if (num_outputs < 1 || num_terms < 1 || !has_reduction(dtype, op)) {
        PyErr_Format(PyExc_ValueError, "%d outputs, %d terms, dtype %d, operation %d", num_outputs,
                     num_terms, dtype, op);
        return NULL;
    }
    WITHOUT_GIL(reduce_terms(outputs, num_outputs, (const void *const *)terms, num_terms, count,
                             dtype, op, divisor));
    Py_RETURN_NONE;
}

/* widen(wide, halves, count, dtype) */
FUNCTION(widen)
{
    void *wide, *halves;
    size_t count;
    int dtype;
    if (!parse(a, n, "ppni", &wide, &halves, &count, &dtype))
        return NULL;
    WITHOUT_GIL(widen_halves(wide, halves, count, dtype));
    Py_RETURN_NONE;
}

/* narrow(halves, wide, count, dtype, divisor) */
FUNCTION(narrow)
{
    void *halves, *wide;
    size_t count;
    int dtype;
    double divisor;
    if (!parse(a, n, "ppnid", &halves, &wide, &count, &dtype, &divisor))
        return NULL;
    WITHOUT_GIL(narrow_halves(halves, wide, count, dtype, divisor));
    Py_RETURN_NONE;
}

/* encode_int8(values, kept, scales, codes, count) */
FUNCTION(encode_int8)
{
    void *values, *kept, *scales, *codes;
    size_t count;
    if (!parse(a, n, "ppppn", &values, &kept, &scales, &codes, &count))
        return NULL;
    WITHOUT_GIL(encode_int8(values, kept, scales, codes, count));
    Py_RETURN_NONE;
}

/* add_int8(scales, codes, total, count, adds) */
FUNCTION(add_int8)
{
    void *scales, *codes, *total;
    size_t count;
    int adds;
    if (!parse(a, n, "pppni", &scales, &codes, &total, &count, &adds))
        return NULL;
    WITHOUT_GIL(add_int8(scales, codes, total, count, adds));
    Py_RETURN_NONE;
}

/* select_largest(values, count, positions, wanted) */
FUNCTION(select_largest)
{
    void *values, *positions;
    size_t count, wanted;
    int status;
    if (!parse(a, n, "pnpn", &values, &count, &positions, &wanted))
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

int update_from(PyObject *number, PyObject *numbers, PyObject *addresses, double *coefficients,
                void **states)
{
    int optimizer = (int)PyLong_AsLong(number);
    Py_ssize_t n = PySequence_Size(numbers), num_states = PySequence_Size(addresses);
    if (!PyErr_Occurred() &&
        (optimizer < 0 || optimizer >= NUM_OPTIMIZERS || n > NUM_COEFFICIENTS ||
         num_states > MAX_STATES))
        PyErr_Format(PyExc_ValueError, "optimizer %d with %zd coefficients, %zd states", optimizer,
                     n, num_states);
    for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++) {
        PyObject *item = PySequence_GetItem(numbers, i);
        coefficients[i] = item ? PyFloat_AsDouble(item) : 0.0;
        Py_XDECREF(item);
    }
    for (Py_ssize_t i = 0; i < num_states && !PyErr_Occurred(); i++) {
        PyObject *item = PySequence_GetItem(addresses, i);
        states[i] = item ? PyLong_AsVoidPtr(item) : NULL;
        Py_XDECREF(item);
    }
    return PyErr_Occurred() ? -1 : optimizer;
}

/* apply_update(rule, coefficients, parameters, states, gradients, count, dtype) */
FUNCTION(apply_update)
{
    double coefficients[NUM_COEFFICIENTS] = {0.0};
    void *states[MAX_STATES] = {NULL}, *parameters, *gradients;
    PyObject *rule, *numbers, *addresses;
    size_t count;
    int dtype;
    if (!parse(a, n, "oopopni", &rule, &numbers, &parameters, &addresses, &gradients, &count, &dtype))
        return NULL;
    int optimizer = update_from(rule, numbers, addresses, coefficients, states);
    if (optimizer < 0)
        return NULL;
    WITHOUT_GIL(apply_update(optimizer, coefficients, parameters, states, gradients, count, dtype));
    Py_RETURN_NONE;
}

/* are_finite(addresses, counts, dtype) -> bool */
FUNCTION(are_finite)
{
    size_t num_vectors = 0, num_counts = 0;
    PyObject *vectors, *lengths;
    int dtype, finite = 1;
    if (!parse(a, n, "ooi", &vectors, &lengths, &dtype))
        return NULL;
    size_t *addresses = integers_from(vectors, &num_vectors);
    size_t *counts = addresses ? integers_from(lengths, &num_counts) : NULL;
    if (!PyErr_Occurred() && num_vectors != num_counts)
        PyErr_Format(PyExc_ValueError, "%zu addresses, %zu counts", num_vectors, num_counts);
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS;
        for (size_t i = 0; finite && i < num_vectors; i++)
            finite = are_finite((const void *)addresses[i], counts[i], dtype);
        Py_END_ALLOW_THREADS
    }
    free(addresses), free(counts);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(finite);
}

#define METHOD(NAME) {#NAME, (PyCFunction)(void (*)(void))py_##NAME, METH_FASTCALL, NULL},

static PyMethodDef methods[] = {FOR_FUNCTIONS(METHOD){NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernels", "Loops and flags in C; see kernels.h.", 0, methods,
    NULL, NULL, NULL, NULL,
};

#define NAME_OF(CONSTANT, NAME) NAME,

/* Add a tuple of names to the module, each at the index that is its number. */
static int add_names(PyObject *module, const char *attribute, const char *const *names, int n)
{
    PyObject *tuple = PyTuple_New(n);
    for (int i = 0; tuple && i < n; i++)
        PyTuple_SetItem(tuple, i, PyUnicode_FromString(names[i]));
    int failed = !tuple || PyModule_AddObjectRef(module, attribute, tuple);
    Py_XDECREF(tuple);
    return failed ? -1 : 0;
}

static int add_enumerations(PyObject *module)
{
    static const char *const dtypes[] = {FOR_DTYPES(NAME_OF)}, *const ops[] = {FOR_OPS(NAME_OF)};
    static const char *const kinds[] = {FOR_KINDS(NAME_OF)};
    static const char *const statuses[] = {FOR_STATUSES(NAME_OF)};
    return add_names(module, "DTYPES", dtypes, NUM_DTYPES) ||
           add_names(module, "OPS", ops, NUM_OPS) ||
           add_names(module, "KINDS", kinds, NUM_KINDS) ||
           add_names(module, "STATUSES", statuses, NUM_STATUSES);
}

PyMODINIT_FUNC PyInit__kernels(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "INLINE_BYTES", INLINE_BYTES) == 0 &&
        PyModule_AddIntConstant(module, "SLOT_BYTES", SLOT_BYTES) == 0 &&
        PyModule_AddIntConstant(module, "MAX_RANKS", MAX_RANKS) == 0 &&
        PyModule_AddIntConstant(module, "PROTOCOL", PROTOCOL) == 0 &&
        PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) == 0 &&
        PyModule_AddIntConstant(module, "NOT_FINITE", NOT_FINITE) == 0 &&
        PyModule_AddIntConstant(module, "NUM_CARRIED", NUM_CARRIED) == 0 &&
        add_enumerations(module) == 0)
        return module;
    Py_XDECREF(module);
    return NULL;
}
