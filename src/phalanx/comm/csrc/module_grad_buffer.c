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

/* make_grad_buffer(shm or None, rank, size, windows, stride, count, starts, sizes, dtype,
 * guarded) */
FUNCTION(make_grad_buffer)
{
    PyObject *group, *starts_, *sizes_;
    int rank, size, dtype, guarded;
    void *windows;
    size_t stride, count, num_starts = 0, num_sizes = 0;
    if (!parse(a, n, "oiipnnooii", &group, &rank, &size, &windows, &stride, &count, &starts_, &sizes_,
               &dtype, &guarded))
        return NULL;
    shm_group *shm = group == Py_None ? NULL : PyCapsule_GetPointer(group, SHM_CAPSULE);
    if (PyErr_Occurred())
        return NULL;
    size_t *starts = integers_from(starts_, &num_starts), *sizes = integers_from(sizes_, &num_sizes);
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

/* Addresses of all parts, to be freed; NULL with an exception. */
static size_t *parts_from(const grad_buffer *self, PyObject *addresses)
{
    size_t count = 0, wanted = grad_buffer_num_parts(self);
    size_t *parts = integers_from(addresses, &count);
    if (!PyErr_Occurred() && count != wanted)
        PyErr_Format(PyExc_ValueError, "%zu parts given, %zu wanted", count, wanted);
    if (!PyErr_Occurred())
        return parts;
    free(parts);
    return NULL;
}

/* grad_buffer_all_reduce(buffer, addresses, total, op, timeout_s) -> status */
FUNCTION(grad_buffer_all_reduce)
{
    grad_buffer *self;
    PyObject *addresses;
    void *total;
    int op, status;
    double timeout_s;
    size_t *parts;
    if (!parse(a, n, "bopid", &self, &addresses, &total, &op, &timeout_s) ||
        !(parts = parts_from(self, addresses)))
        return NULL;
    WITHOUT_GIL(status = grad_buffer_all_reduce(self, parts, total, op, timeout_s, check_interrupts));
    free(parts);
    return status_result(status);
}

/* fused_step(buffer, addresses, rule, coefficients, parameters, states, dtype, timeout_s)
 * -> (status, seconds in the own share) */
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
    if (optimizer < 0 || !(parts = parts_from(self, addresses)))
        return NULL;
    WITHOUT_GIL(status = fused_step(self, parts, optimizer, coefficients, parameters, states, dtype,
                                    &used_s, timeout_s, check_interrupts));
    free(parts);
    return status == INTERRUPTED ? NULL : Py_BuildValue("(id)", status, used_s);
}
