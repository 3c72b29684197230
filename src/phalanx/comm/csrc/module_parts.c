/* Vectors in parts, and updates of parameters, as functions of Python. */
#include "module.h"

#include <stdlib.h>

#define CAPSULE "phalanx.comm.parts"

/* The parts keep the capsule of their node alive. */
static void leave(PyObject *capsule)
{
    parts *self = PyCapsule_GetPointer(capsule, CAPSULE);
    PyObject *node = PyCapsule_GetContext(capsule);
    if (self)
        parts_free(self);
    Py_XDECREF(node);
}

static parts *parts_from(PyObject *capsule) { return PyCapsule_GetPointer(capsule, CAPSULE); }

/* A new array of the sequence's integers, with an exception when they are none. */
static size_t *integers_from(PyObject *sequence, size_t *count)
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

/* make_parts(node or None, rank, size, windows, stride, count, starts, sizes, dtype, guarded) */
PyObject *py_make_parts(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 10))
        return NULL;
    node *node = a[0] == Py_None ? NULL : node_from(a[0]);
    int rank = int_from(a[1]), size = int_from(a[2]), dtype = int_from(a[8]);
    int guarded = int_from(a[9]);
    void *windows = address_from(a[3]);
    size_t stride = PyLong_AsSize_t(a[4]), count = PyLong_AsSize_t(a[5]);
    size_t num_starts = 0, num_sizes = 0;
    if (PyErr_Occurred())
        return NULL;
    size_t *starts = integers_from(a[6], &num_starts), *sizes = integers_from(a[7], &num_sizes);
    parts *self = NULL;
    if (!PyErr_Occurred() && num_starts != num_sizes)
        PyErr_Format(PyExc_ValueError, "%zu starts, %zu sizes", num_starts, num_sizes);
    if (!PyErr_Occurred()) {
        self = parts_make(node, rank, size, windows, stride, count, num_sizes, starts, sizes, dtype,
                          guarded);
        if (!self)
            PyErr_NoMemory();
    }
    if (!self) {
        free(starts), free(sizes);
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(self, CAPSULE, leave);
    if (!capsule)
        parts_free(self);
    else if (node)
        PyCapsule_SetContext(capsule, Py_NewRef(a[0]));
    return capsule;
}

/* own_share(parts) -> (begin, end), elements of the vector */
PyObject *py_own_share(PyObject *module, PyObject *capsule)
{
    (void)module;
    parts *self = parts_from(capsule);
    size_t begin, end;
    if (!self)
        return NULL;
    parts_own_share(self, &begin, &end);
    return Py_BuildValue("(nn)", (Py_ssize_t)begin, (Py_ssize_t)end);
}

/* Hand over the parts at these addresses; all of them are wanted. */
static int hand_over_all(parts *self, PyObject *addresses)
{
    size_t count = 0;
    size_t *values = integers_from(addresses, &count);
    if (!PyErr_Occurred() && count != parts_number(self))
        PyErr_Format(PyExc_ValueError, "%zu parts given, %zu wanted", count, parts_number(self));
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS;
        parts_hand_over_all(self, values);
        Py_END_ALLOW_THREADS
    }
    free(values);
    return PyErr_Occurred() ? -1 : 0;
}

/* addresses: None when the parts have been handed over one by one. */
static int all_given(parts *self, PyObject *addresses)
{
    if (PyErr_Occurred() || (addresses != Py_None && hand_over_all(self, addresses)))
        return 0;
    if (parts_missing(self) < parts_number(self))
        PyErr_Format(PyExc_ValueError, "part %zu was not handed over", parts_missing(self));
    return !PyErr_Occurred();
}

/* hand_over(parts, number, address) */
PyObject *py_hand_over(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 3))
        return NULL;
    parts *self = parts_from(a[0]);
    size_t part = PyLong_AsSize_t(a[1]);
    void *address = address_from(a[2]);
    if (PyErr_Occurred())
        return NULL;
    if (part >= parts_number(self)) {
        PyErr_Format(PyExc_IndexError, "part %zu of %zu", part, parts_number(self));
        return NULL;
    }
    WITHOUT_GIL(parts_hand_over(self, part, address));
    Py_RETURN_NONE;
}

/* hand_over_all(parts, addresses) */
PyObject *py_hand_over_all(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 2) || hand_over_all(parts_from(a[0]), a[1]))
        return NULL;
    Py_RETURN_NONE;
}

/* parts_all_reduce(parts, addresses or None, total, op, timeout_s) -> status */
PyObject *py_parts_all_reduce(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 5))
        return NULL;
    parts *self = parts_from(a[0]);
    void *total = address_from(a[2]);
    int op = int_from(a[3]), status;
    double timeout_s = PyFloat_AsDouble(a[4]);
    if (!self || !all_given(self, a[1]))
        return NULL;
    WITHOUT_GIL(status = parts_all_reduce(self, total, op, timeout_s, look_up));
    return answer(status);
}

/* The rule's number, its coefficients and addresses of its states. */
static int rule_from(PyObject *number, PyObject *numbers, PyObject *addresses, double *coefficients,
                     void **states)
{
    int rule = int_from(number);
    Py_ssize_t n = PySequence_Size(numbers), num_states = PySequence_Size(addresses);
    if (!PyErr_Occurred() &&
        (rule < 0 || rule >= NUM_RULES || n > NUM_COEFFICIENTS || num_states > MAX_STATES))
        PyErr_Format(PyExc_ValueError, "rule %d with %zd coefficients, %zd states", rule, n,
                     num_states);
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
    return PyErr_Occurred() ? -1 : rule;
}

/* fused_step(parts, addresses or None, rule, coefficients, parameters, states, dtype, timeout_s)
 * -> (status, seconds in the own share) */
PyObject *py_fused_step(PyObject *module, arguments a, Py_ssize_t n)
{
    double coefficients[NUM_COEFFICIENTS] = {0.0}, used_s = 0.0;
    void *states[MAX_STATES] = {NULL};
    (void)module;
    if (!has(n, 8))
        return NULL;
    parts *self = parts_from(a[0]);
    void *parameters = address_from(a[4]);
    int dtype = int_from(a[6]), status;
    double timeout_s = PyFloat_AsDouble(a[7]);
    if (PyErr_Occurred())
        return NULL;
    int rule = rule_from(a[2], a[3], a[5], coefficients, states);
    if (rule < 0 || !all_given(self, a[1]))
        return NULL;
    WITHOUT_GIL(status = fused_step(self, rule, coefficients, parameters, states, dtype, &used_s,
                                    timeout_s, look_up));
    return status == INTERRUPTED ? NULL : Py_BuildValue("(id)", status, used_s);
}

/* apply_rule(rule, coefficients, parameters, states, gradients, count, dtype) */
PyObject *py_apply_rule(PyObject *module, arguments a, Py_ssize_t n)
{
    double coefficients[NUM_COEFFICIENTS] = {0.0};
    void *states[MAX_STATES] = {NULL};
    (void)module;
    if (!has(n, 7))
        return NULL;
    int rule = rule_from(a[0], a[1], a[3], coefficients, states), dtype = int_from(a[6]);
    void *parameters = address_from(a[2]), *gradients = address_from(a[4]);
    size_t count = PyLong_AsSize_t(a[5]);
    if (PyErr_Occurred())
        return NULL;
    WITHOUT_GIL(apply_rule(rule, coefficients, parameters, states, gradients, count, dtype));
    Py_RETURN_NONE;
}

/* are_finite(addresses, counts, dtype) -> bool */
PyObject *py_are_finite(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 3))
        return NULL;
    size_t num_vectors = 0, num_counts = 0;
    size_t *addresses = integers_from(a[0], &num_vectors);
    size_t *counts = addresses ? integers_from(a[1], &num_counts) : NULL;
    int dtype = int_from(a[2]), finite = 1;
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
