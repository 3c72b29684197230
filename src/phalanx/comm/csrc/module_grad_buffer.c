/* Gradient buffers and optimizer steps on them as functions of Python. */
#include "module.h"

#include <stdlib.h>

/* A gradient buffer keeps the capsule of its shared-memory group alive. */
static void leave(PyObject *capsule)
{
    grad_buffer *self = PyCapsule_GetPointer(capsule, GRAD_BUFFER_CAPSULE);
    PyObject *shm = PyCapsule_GetContext(capsule);
    if (self)
        grad_buffer_free(self);
    Py_XDECREF(shm);
}

/* make_grad_buffer(shm or None, rank, size, windows, num_windows, stride, count, starts, sizes,
 * dtype, guarded, carried) */
FUNCTION(make_grad_buffer)
{
    PyObject *group, *starts_, *sizes_;
    int rank, size, dtype, guarded;
    void *windows, *carried;
    size_t num_windows, stride, count, num_starts = 0, num_sizes = 0;
    if (!parse(a, n, "oiipnnnooiip", &group, &rank, &size, &windows, &num_windows, &stride, &count,
               &starts_, &sizes_, &dtype, &guarded, &carried))
        return NULL;
    shm_group *shm = group == Py_None ? NULL : PyCapsule_GetPointer(group, SHM_CAPSULE);
    if (PyErr_Occurred())
        return NULL;
    size_t *starts = integers_from(starts_, &num_starts), *sizes = integers_from(sizes_, &num_sizes);
    grad_buffer *self = NULL;
    if (!PyErr_Occurred() && num_starts != num_sizes)
        PyErr_Format(PyExc_ValueError, "%zu starts, %zu sizes", num_starts, num_sizes);
    if (!PyErr_Occurred()) {
        self = grad_buffer_make(shm, rank, size, windows, num_windows, stride, count, num_sizes,
                                starts, sizes, dtype, guarded, carried);
        if (!self)
            PyErr_NoMemory();
    }
    if (!self) {
        free(starts), free(sizes);
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(self, GRAD_BUFFER_CAPSULE, leave);
    if (!capsule)
        grad_buffer_free(self);
    else if (shm)
        PyCapsule_SetContext(capsule, Py_NewRef(group));
    return capsule;
}

/* local_share(buffer) -> (begin, end), elements of the vector */
FUNCTION(local_share)
{
    grad_buffer *self;
    size_t begin, end;
    if (!parse(a, n, "b", &self))
        return NULL;
    grad_buffer_local_share(self, &begin, &end);
    return Py_BuildValue("(nn)", (Py_ssize_t)begin, (Py_ssize_t)end);
}

/* Addresses of all parts of the terms, to be freed; NULL with an exception. */
static size_t *parts_from(const grad_buffer *self, size_t num_terms, PyObject *addresses)
{
    size_t count = 0, wanted = num_terms * grad_buffer_num_parts(self);
    size_t *parts = integers_from(addresses, &count);
    if (!PyErr_Occurred() && count != wanted)
        PyErr_Format(PyExc_ValueError, "%zu parts given, %zu wanted", count, wanted);
    if (!PyErr_Occurred())
        return parts;
    free(parts);
    return NULL;
}

/* grad_buffer_all_reduce(buffer, addresses, total, in_place, op, timeout_s) -> status */
FUNCTION(grad_buffer_all_reduce)
{
    grad_buffer *self;
    PyObject *addresses;
    void *total;
    int in_place, op, status;
    double timeout_s;
    size_t *parts;
    if (!parse(a, n, "bopiid", &self, &addresses, &total, &in_place, &op, &timeout_s) ||
        !(parts = parts_from(self, 1, addresses)))
        return NULL;
    WITHOUT_GIL(status = grad_buffer_all_reduce(self, parts, total, in_place, op, timeout_s,
                                                check_interrupts));
    free(parts);
    return status_result(status);
}

/* Fill the order of a sum; return its expression, to be freed, or NULL with an exception. */
static size_t *order_from(PyObject *expression, size_t num_terms, sum_order *order)
{
    size_t *items = integers_from(expression, &order->length);
    size_t depth = items ? sum_order_depth(items, order->length, num_terms) : 0;
    if (items && !PyErr_Occurred() && !depth)
        PyErr_Format(PyExc_ValueError, "no order of a sum of %zu terms", num_terms);
    if (!PyErr_Occurred() && !(order->blocks = malloc(depth * BLOCK_BYTES)))
        PyErr_NoMemory();
    order->expression = items;
    order->num_terms = num_terms;
    if (!PyErr_Occurred())
        return items;
    free(items);
    return NULL;
}

/* Types of all parts, to be freed; NULL with an exception. */
static size_t *dtypes_from(const grad_buffer *self, PyObject *numbers)
{
    size_t count = 0, *dtypes = integers_from(numbers, &count);
    if (!PyErr_Occurred() && count != grad_buffer_num_parts(self))
        PyErr_Format(PyExc_ValueError, "%zu types given, %zu wanted", count,
                     grad_buffer_num_parts(self));
    for (size_t part = 0; !PyErr_Occurred() && part < count; part++)
        reducible(dtypes[part] < NUM_DTYPES ? (int)dtypes[part] : -1, SUM);
    if (!PyErr_Occurred())
        return dtypes;
    free(dtypes);
    return NULL;
}

/* grad_buffer_sum_in_order(buffer, addresses, dtypes, total, first, num_own, num_terms, expression,
 * timeout_s) -> status */
FUNCTION(grad_buffer_sum_in_order)
{
    grad_buffer *self;
    PyObject *addresses, *numbers, *expression;
    void *total;
    size_t first, num_own, num_terms, *parts = NULL, *dtypes = NULL, *items = NULL;
    sum_order order = {NULL, 0, 0, NULL};
    double timeout_s;
    int status = DONE;
    if (!parse(a, n, "boopnnnod", &self, &addresses, &numbers, &total, &first, &num_own,
               &num_terms, &expression, &timeout_s))
        return NULL;
    if (num_terms > grad_buffer_num_windows(self) || first > num_terms || num_own > num_terms - first) {
        PyErr_Format(PyExc_ValueError, "terms %zu to %zu of %zu, in %zu windows", first,
                     first + num_own, num_terms, grad_buffer_num_windows(self));
        return NULL;
    }
    int fits = (parts = parts_from(self, num_own, addresses)) &&
               (dtypes = dtypes_from(self, numbers)) &&
               (items = order_from(expression, num_terms, &order));
    if (fits)
        WITHOUT_GIL(status = grad_buffer_sum_in_order(self, parts, dtypes, first, num_own, &order,
                                                      total, timeout_s, check_interrupts));
    free(parts), free(dtypes), free(items), free(order.blocks);
    return fits ? status_result(status) : NULL;
}

/* fused_step(buffer, addresses, rule, coefficients, parameters, states, dtype, timeout_s)
 * -> (status, seconds in the local share) */
FUNCTION(fused_step)
{
    double coefficients[NUM_COEFFICIENTS] = {0.0}, used_s = 0.0, timeout_s;
    void *states[MAX_STATES] = {NULL}, *parameters;
    grad_buffer *self;
    PyObject *addresses, *rule, *numbers, *vectors;
    int dtype, status;
    size_t *parts;
    if (!parse(a, n, "booopoid", &self, &addresses, &rule, &numbers, &parameters, &vectors, &dtype,
               &timeout_s))
        return NULL;
    int optimizer = update_from(rule, numbers, vectors, coefficients, states);
    if (optimizer < 0 || !(parts = parts_from(self, 1, addresses)))
        return NULL;
    WITHOUT_GIL(status = fused_step(self, parts, optimizer, coefficients, parameters, states, dtype,
                                    &used_s, timeout_s, check_interrupts));
    free(parts);
    return status == INTERRUPTED ? NULL : Py_BuildValue("(id)", status, used_s);
}
