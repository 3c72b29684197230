/* Gradient buffers and optimizer updates as functions of Python. */
#include "module.h"

#include <stdlib.h>

#define CAPSULE "phalanx.comm.grad_buffer"

/* A gradient buffer keeps the capsule of its shared-memory group alive. */
static void leave(PyObject *capsule)
{
    grad_buffer *self = PyCapsule_GetPointer(capsule, CAPSULE);
    PyObject *shm = PyCapsule_GetContext(capsule);
    if (self)
        grad_buffer_free(self);
    Py_XDECREF(shm);
}

static grad_buffer *grad_buffer_from(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, CAPSULE);
}

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

/* make_grad_buffer(shm or None, rank, size, windows, stride, count, starts, sizes, dtype,
 * guarded) */
PyObject *py_make_grad_buffer(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 10))
        return NULL;
    shm_group *shm = a[0] == Py_None ? NULL : shm_from(a[0]);
    int rank = int_from(a[1]), size = int_from(a[2]), dtype = int_from(a[8]);
    int guarded = int_from(a[9]);
    void *windows = address_from(a[3]);
    size_t stride = PyLong_AsSize_t(a[4]), count = PyLong_AsSize_t(a[5]);
    size_t num_starts = 0, num_sizes = 0;
    if (PyErr_Occurred())
        return NULL;
    size_t *starts = integers_from(a[6], &num_starts), *sizes = integers_from(a[7], &num_sizes);
    grad_buffer *self = NULL;
    if (!PyErr_Occurred() && num_starts != num_sizes)
        PyErr_Format(PyExc_ValueError, "%zu starts, %zu sizes", num_starts, num_sizes);
    if (!PyErr_Occurred()) {
        self = grad_buffer_make(shm, rank, size, windows, stride, count, num_sizes, starts, sizes,
                                dtype, guarded);
        if (!self)
            PyErr_NoMemory();
    }
    if (!self) {
        free(starts), free(sizes);
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(self, CAPSULE, leave);
    if (!capsule)
        grad_buffer_free(self);
    else if (shm)
        PyCapsule_SetContext(capsule, Py_NewRef(a[0]));
    return capsule;
}

/* local_share(buffer) -> (begin, end), elements of the vector */
PyObject *py_local_share(PyObject *module, PyObject *capsule)
{
    (void)module;
    grad_buffer *self = grad_buffer_from(capsule);
    size_t begin, end;
    if (!self)
        return NULL;
    grad_buffer_local_share(self, &begin, &end);
    return Py_BuildValue("(nn)", (Py_ssize_t)begin, (Py_ssize_t)end);
}

/* Mark the parts at these addresses ready; all parts are required. */
static int mark_all_ready(grad_buffer *self, PyObject *addresses)
{
    size_t count = 0;
    size_t *values = integers_from(addresses, &count);
    if (!PyErr_Occurred() && count != grad_buffer_num_parts(self))
        PyErr_Format(PyExc_ValueError, "%zu parts given, %zu wanted", count,
                     grad_buffer_num_parts(self));
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS;
        grad_buffer_mark_all_ready(self, values);
        Py_END_ALLOW_THREADS
    }
    free(values);
    return PyErr_Occurred() ? -1 : 0;
}

/* addresses: None when the parts were marked ready one by one. */
static int check_all_ready(grad_buffer *self, PyObject *addresses)
{
    if (PyErr_Occurred() || (addresses != Py_None && mark_all_ready(self, addresses)))
        return 0;
    if (grad_buffer_first_missing(self) < grad_buffer_num_parts(self))
        PyErr_Format(PyExc_ValueError, "part %zu was not marked ready",
                     grad_buffer_first_missing(self));
    return !PyErr_Occurred();
}

/* mark_ready(buffer, number, address) */
PyObject *py_mark_ready(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 3))
        return NULL;
    grad_buffer *self = grad_buffer_from(a[0]);
    size_t part = PyLong_AsSize_t(a[1]);
    void *address = address_from(a[2]);
    if (PyErr_Occurred())
        return NULL;
    if (part >= grad_buffer_num_parts(self)) {
        PyErr_Format(PyExc_IndexError, "part %zu of %zu", part, grad_buffer_num_parts(self));
        return NULL;
    }
    WITHOUT_GIL(grad_buffer_mark_ready(self, part, address));
    Py_RETURN_NONE;
}

/* mark_all_ready(buffer, addresses) */
PyObject *py_mark_all_ready(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 2) || mark_all_ready(grad_buffer_from(a[0]), a[1]))
        return NULL;
    Py_RETURN_NONE;
}

/* grad_buffer_all_reduce(buffer, addresses or None, total, op, timeout_s) -> status */
PyObject *py_grad_buffer_all_reduce(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 5))
        return NULL;
    grad_buffer *self = grad_buffer_from(a[0]);
    void *total = address_from(a[2]);
    int op = int_from(a[3]), status;
    double timeout_s = PyFloat_AsDouble(a[4]);
    if (!self || !check_all_ready(self, a[1]))
        return NULL;
    WITHOUT_GIL(status = grad_buffer_all_reduce(self, total, op, timeout_s, check_interrupts));
    return status_result(status);
}

/* Parse the optimizer's number, its coefficients and the addresses of its states. */
static int update_from(PyObject *number, PyObject *numbers, PyObject *addresses,
                       double *coefficients, void **states)
{
    int optimizer = int_from(number);
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

/* fused_step(buffer, addresses or None, rule, coefficients, parameters, states, dtype, timeout_s)
 * -> (status, seconds in the own share) */
PyObject *py_fused_step(PyObject *module, arguments a, Py_ssize_t n)
{
    double coefficients[NUM_COEFFICIENTS] = {0.0}, used_s = 0.0;
    void *states[MAX_STATES] = {NULL};
    (void)module;
    if (!check_num_args(n, 8))
        return NULL;
    grad_buffer *self = grad_buffer_from(a[0]);
    void *parameters = address_from(a[4]);
    int dtype = int_from(a[6]), status;
    double timeout_s = PyFloat_AsDouble(a[7]);
    if (PyErr_Occurred())
        return NULL;
    int optimizer = update_from(a[2], a[3], a[5], coefficients, states);
    if (optimizer < 0 || !check_all_ready(self, a[1]))
        return NULL;
    WITHOUT_GIL(status = fused_step(self, optimizer, coefficients, parameters, states, dtype,
                                    &used_s, timeout_s, check_interrupts));
    return status == INTERRUPTED ? NULL : Py_BuildValue("(id)", status, used_s);
}

/* apply_update(rule, coefficients, parameters, states, gradients, count, dtype) */
PyObject *py_apply_update(PyObject *module, arguments a, Py_ssize_t n)
{
    double coefficients[NUM_COEFFICIENTS] = {0.0};
    void *states[MAX_STATES] = {NULL};
    (void)module;
    if (!check_num_args(n, 7))
        return NULL;
    int optimizer = update_from(a[0], a[1], a[3], coefficients, states), dtype = int_from(a[6]);
    void *parameters = address_from(a[2]), *gradients = address_from(a[4]);
    size_t count = PyLong_AsSize_t(a[5]);
    if (PyErr_Occurred())
        return NULL;
    WITHOUT_GIL(apply_update(optimizer, coefficients, parameters, states, gradients, count, dtype));
    Py_RETURN_NONE;
}

/* are_finite(addresses, counts, dtype) -> bool */
PyObject *py_are_finite(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 3))
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
