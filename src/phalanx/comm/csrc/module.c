/* The kernels as functions of Python. Addresses come as integers; calls give up the GIL. */
#include "module.h"

#include <string.h>

#define CAPSULE "phalanx.comm.node"

/* Called in long waits of any node: lets MPI go on with messages that are on their way. */
static PyObject *progress_hook = NULL;

int look_up(void)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int stop = PyErr_CheckSignals();
    if (!stop && progress_hook) {
        PyObject *result = PyObject_CallNoArgs(progress_hook);
        stop = result ? 0 : -1;
        Py_XDECREF(result);
    }
    PyGILState_Release(state);
    return stop;
}

/* in_long_waits(callable or None) */
static PyObject *py_in_long_waits(PyObject *module, PyObject *hook)
{
    (void)module;
    Py_XDECREF(progress_hook);
    progress_hook = hook == Py_None ? NULL : Py_NewRef(hook);
    node_naps(hook == Py_None ? 20 * 1000 * 1000 : 500 * 1000);
    Py_RETURN_NONE;
}

PyObject *answer(int status)
{
    return status == INTERRUPTED ? NULL : PyLong_FromLong(status);
}

node *node_from(PyObject *capsule) { return PyCapsule_GetPointer(capsule, CAPSULE); }

int has(Py_ssize_t given, Py_ssize_t wanted)
{
    if (given != wanted)
        PyErr_Format(PyExc_TypeError, "%zd arguments given, %zd wanted", given, wanted);
    return given == wanted;
}

/* A sequence of at most MAX_RANKS integers; how many there are, or -1. */
static int addresses_from(PyObject *sequence, void **addresses)
{
    Py_ssize_t n = PySequence_Size(sequence);
    if (n > MAX_RANKS)
        PyErr_Format(PyExc_ValueError, "%zd ranks are more than %d", n, MAX_RANKS);
    for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        addresses[i] = item ? PyLong_AsVoidPtr(item) : NULL;
        Py_XDECREF(item);
    }
    return PyErr_Occurred() ? -1 : (int)n;
}

static int sizes_from(PyObject *sequence, size_t *sizes)
{
    Py_ssize_t n = PySequence_Size(sequence);
    if (n > MAX_RANKS)
        PyErr_Format(PyExc_ValueError, "%zd ranks are more than %d", n, MAX_RANKS);
    for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        sizes[i] = item ? PyLong_AsSize_t(item) : 0;
        Py_XDECREF(item);
    }
    return PyErr_Occurred() ? -1 : (int)n;
}

/* Whether there is such a reduction; raises TypeError. */
static int reducible(int dtype, int op)
{
    if (PyErr_Occurred())
        return 0;
    if (!has_reduction(dtype, op))
        PyErr_Format(PyExc_TypeError, "no reduction %d of dtype %d", op, dtype);
    return has_reduction(dtype, op);
}

/* reduce_terms(outputs, terms, count, dtype, op, divisor) */
static PyObject *py_reduce_terms(PyObject *module, arguments a, Py_ssize_t n)
{
    void *outputs[MAX_RANKS], *terms[MAX_RANKS];
    (void)module;
    if (!has(n, 6))
        return NULL;
    int num_outputs = addresses_from(a[0], outputs), num_terms = addresses_from(a[1], terms);
    size_t count = PyLong_AsSize_t(a[2]);
    int dtype = int_from(a[3]), op = int_from(a[4]);
    double divisor = PyFloat_AsDouble(a[5]);
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
static PyObject *py_widen(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 4))
        return NULL;
    void *wide = address_from(a[0]), *halves = address_from(a[1]);
    size_t count = PyLong_AsSize_t(a[2]);
    int dtype = int_from(a[3]);
    if (PyErr_Occurred())
        return NULL;
    WITHOUT_GIL(widen_halves(wide, halves, count, dtype));
    Py_RETURN_NONE;
}

/* narrow(halves, wide, count, dtype, divisor) */
static PyObject *py_narrow(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 5))
        return NULL;
    void *halves = address_from(a[0]), *wide = address_from(a[1]);
    size_t count = PyLong_AsSize_t(a[2]);
    int dtype = int_from(a[3]);
    double divisor = PyFloat_AsDouble(a[4]);
    if (PyErr_Occurred())
        return NULL;
    WITHOUT_GIL(narrow_halves(halves, wide, count, dtype, divisor));
    Py_RETURN_NONE;
}

static void leave(PyObject *capsule)
{
    node *self = node_from(capsule);
    if (self)
        node_leave(self);
    Py_XDECREF((PyObject *)PyCapsule_GetContext(capsule));
}

/* join(control, rank, size, spins, yields) */
static PyObject *py_join(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 5))
        return NULL;
    void *control = address_from(a[0]);
    int rank = int_from(a[1]), size = int_from(a[2]), spins = int_from(a[3]);
    int yields = int_from(a[4]);
    if (PyErr_Occurred())
        return NULL;
    if (size < 1 || size > MAX_RANKS || rank < 0 || rank >= size) {
        PyErr_Format(PyExc_ValueError, "rank %d of %d; at most %d", rank, size, MAX_RANKS);
        return NULL;
    }
    node *self = node_join(control, rank, size, spins, yields);
    return self ? PyCapsule_New(self, CAPSULE, leave) : PyErr_NoMemory();
}

/* own(node, memory): the object whose memory `control` is lives as long as the node */
static PyObject *py_own(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 2) || !node_from(a[0]))
        return NULL;
    PyObject *before = PyCapsule_GetContext(a[0]);
    if (PyCapsule_SetContext(a[0], Py_NewRef(a[1])))
        return NULL;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* is_dead(node, rank) */
static PyObject *py_is_dead(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 2))
        return NULL;
    node *self = node_from(a[0]);
    int rank = int_from(a[1]);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(node_is_dead(self, rank));
}

/* watch(node): all have joined */
static PyObject *py_watch(PyObject *module, PyObject *capsule)
{
    (void)module;
    node *self = node_from(capsule);
    if (!self)
        return NULL;
    node_adopt_sizes(self);
    node_watch(self);
    Py_RETURN_NONE;
}

/* barrier(node, timeout_s) */
static PyObject *py_barrier(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 2))
        return NULL;
    node *self = node_from(a[0]);
    double timeout_s = PyFloat_AsDouble(a[1]);
    int status;
    if (PyErr_Occurred())
        return NULL;
    WITHOUT_GIL(status = node_barrier(self, timeout_s, look_up));
    return answer(status);
}

/* all_reduce(node, address, count, dtype, op, divisor, root, timeout_s) */
static PyObject *py_all_reduce(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 8))
        return NULL;
    node *self = node_from(a[0]);
    void *buffer = address_from(a[1]);
    size_t count = PyLong_AsSize_t(a[2]);
    int dtype = int_from(a[3]), op = int_from(a[4]), root = int_from(a[6]);
    double divisor = PyFloat_AsDouble(a[5]), timeout_s = PyFloat_AsDouble(a[7]);
    int status;
    if (!reducible(dtype, op))
        return NULL;
    WITHOUT_GIL(status = node_all_reduce(self, buffer, count, dtype, op, divisor, root, timeout_s,
                                         look_up));
    int error = status == DONE ? node_map_error(self) : 0;
    if (error && PyErr_WarnFormat(PyExc_RuntimeWarning, 2,
                                  "memory of another rank could not be mapped (%s): all ranks "
                                  "copy such buffers instead, which is slower",
                                  strerror(error)))
        return NULL;
    return answer(status);
}

/* reduce_scatter(node, output, parts, counts, dtype, op, divisor, timeout_s) */
static PyObject *py_reduce_scatter(PyObject *module, arguments a, Py_ssize_t n)
{
    void *parts[MAX_RANKS];
    size_t counts[MAX_RANKS];
    (void)module;
    if (!has(n, 8))
        return NULL;
    node *self = node_from(a[0]);
    void *output = address_from(a[1]);
    if (addresses_from(a[2], parts) < 0 || sizes_from(a[3], counts) < 0)
        return NULL;
    int dtype = int_from(a[4]), op = int_from(a[5]), status;
    double divisor = PyFloat_AsDouble(a[6]), timeout_s = PyFloat_AsDouble(a[7]);
    if (!reducible(dtype, op))
        return NULL;
    WITHOUT_GIL(status = node_reduce_scatter(self, output, parts, counts, dtype, op, divisor,
                                             timeout_s, look_up));
    return answer(status);
}

/* all_gather(node, outputs, bytes, part, dtype, timeout_s) */
static PyObject *py_all_gather(PyObject *module, arguments a, Py_ssize_t n)
{
    void *outputs[MAX_RANKS];
    size_t bytes[MAX_RANKS];
    (void)module;
    if (!has(n, 6))
        return NULL;
    node *self = node_from(a[0]);
    if (addresses_from(a[1], outputs) < 0 || sizes_from(a[2], bytes) < 0)
        return NULL;
    void *part = address_from(a[3]);
    int dtype = int_from(a[4]), status;
    double timeout_s = PyFloat_AsDouble(a[5]);
    if (PyErr_Occurred())
        return NULL;
    WITHOUT_GIL(status = node_all_gather(self, outputs, bytes, part, dtype, timeout_s,
                                         look_up));
    return answer(status);
}

/* broadcast(node, address, bytes, dtype, root, timeout_s) */
static PyObject *py_broadcast(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 6))
        return NULL;
    node *self = node_from(a[0]);
    void *buffer = address_from(a[1]);
    size_t bytes = PyLong_AsSize_t(a[2]);
    int dtype = int_from(a[3]), root = int_from(a[4]), status;
    double timeout_s = PyFloat_AsDouble(a[5]);
    if (PyErr_Occurred())
        return NULL;
    WITHOUT_GIL(status = node_broadcast(self, buffer, bytes, dtype, root, timeout_s,
                                        look_up));
    return answer(status);
}

/* all_to_all(node, kind, outputs, bytes_out, parts, bytes_in, dtype, root, timeout_s) */
static PyObject *py_all_to_all(PyObject *module, arguments a, Py_ssize_t n)
{
    void *outputs[MAX_RANKS], *parts[MAX_RANKS];
    size_t bytes_out[MAX_RANKS], bytes_in[MAX_RANKS];
    (void)module;
    if (!has(n, 9))
        return NULL;
    node *self = node_from(a[0]);
    if (addresses_from(a[2], outputs) < 0 || sizes_from(a[3], bytes_out) < 0 ||
        addresses_from(a[4], parts) < 0 || sizes_from(a[5], bytes_in) < 0)
        return NULL;
    int kind = int_from(a[1]), dtype = int_from(a[6]), root = int_from(a[7]), status;
    double timeout_s = PyFloat_AsDouble(a[8]);
    if (PyErr_Occurred())
        return NULL;
    WITHOUT_GIL(status = node_all_to_all(self, kind, outputs, bytes_out, parts, bytes_in, dtype,
                                         root, timeout_s, look_up));
    return answer(status);
}

/* share(node, fd, bytes, address) -> number of the segment, or -1 */
static PyObject *py_share(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 4))
        return NULL;
    node *self = node_from(a[0]);
    int fd = int_from(a[1]);
    size_t bytes = PyLong_AsSize_t(a[2]);
    void *address = address_from(a[3]);
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromLong(node_share(self, fd, bytes, address));
}

/* unshare(node, number) */
static PyObject *py_unshare(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 2))
        return NULL;
    node *self = node_from(a[0]);
    int number = int_from(a[1]);
    if (PyErr_Occurred())
        return NULL;
    node_unshare(self, number);
    Py_RETURN_NONE;
}

/* fail(node, reason) */
static PyObject *py_fail(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 2))
        return NULL;
    node *self = node_from(a[0]);
    PyObject *text = self ? PyUnicode_AsEncodedString(a[1], "utf-8", "backslashreplace") : NULL;
    if (!text)
        return NULL;
    node_fail(self, PyBytes_AsString(text));
    Py_DECREF(text);
    Py_RETURN_NONE;
}

/* progress(node) -> (phase published, phase waited for last, rank whose process is gone) */
static PyObject *py_progress(PyObject *module, PyObject *capsule)
{
    (void)module;
    node *self = node_from(capsule);
    if (!self)
        return NULL;
    return Py_BuildValue("(KKi)", (unsigned long long)node_phase(self),
                         (unsigned long long)node_awaited(self), node_gone(self));
}

/* peer(node, rank) -> (phase, fingerprint, count, failed, reason) */
static PyObject *py_peer(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 2))
        return NULL;
    node *self = node_from(a[0]);
    int rank = int_from(a[1]);
    if (PyErr_Occurred())
        return NULL;
    peer_state state = node_peer(self, rank);
    /* A long reason may end within a character, which is left out. */
    PyObject *reason = PyUnicode_DecodeUTF8(state.reason, (Py_ssize_t)strlen(state.reason), "ignore");
    return reason ? Py_BuildValue("(KKKiN)", (unsigned long long)state.phase,
                                  (unsigned long long)state.fingerprint,
                                  (unsigned long long)state.count, state.failed, reason)
                  : NULL;
}

/* keep_notes(node, whether) */
static PyObject *py_keep_notes(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 2))
        return NULL;
    node *self = node_from(a[0]);
    int keep = int_from(a[1]);
    if (PyErr_Occurred())
        return NULL;
    node_keep_notes(self, keep);
    Py_RETURN_NONE;
}

/* noted(node) -> (calls begun, the last that ended, ((fingerprint, count, began_ns), ...)): those that
 * are remembered, the oldest first */
static PyObject *py_noted(PyObject *module, PyObject *capsule)
{
    (void)module;
    node *self = node_from(capsule);
    if (!self)
        return NULL;
    uint64_t begun = node_begun(self), n = begun < NUM_NOTED ? begun : NUM_NOTED;
    PyObject *calls = PyTuple_New((Py_ssize_t)n);
    for (uint64_t i = 0; calls && i < n; i++) {
        uint64_t fingerprint, count;
        int64_t began_ns;
        node_noted(self, begun - n + 1 + i, &fingerprint, &count, &began_ns);
        PyObject *one = Py_BuildValue("(KKL)", (unsigned long long)fingerprint,
                                      (unsigned long long)count, (long long)began_ns);
        if (!one || PyTuple_SetItem(calls, (Py_ssize_t)i, one) < 0)
            Py_CLEAR(calls);
    }
    return calls ? Py_BuildValue("(KKN)", (unsigned long long)begun,
                                 (unsigned long long)node_ended(self), calls)
                 : NULL;
}

/* ring(node, peer) */
static PyObject *py_ring(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 2))
        return NULL;
    node *self = node_from(a[0]);
    int peer = int_from(a[1]);
    if (PyErr_Occurred())
        return NULL;
    node_ring(self, peer);
    Py_RETURN_NONE;
}

/* rung(node) -> how often, modulo 2³² */
static PyObject *py_rung(PyObject *module, PyObject *capsule)
{
    (void)module;
    node *self = node_from(capsule);
    return self ? PyLong_FromUnsignedLong(node_rung(self)) : NULL;
}

/* doze(node, rung, seconds) */
static PyObject *py_doze(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!has(n, 3))
        return NULL;
    node *self = node_from(a[0]);
    uint32_t rung = (uint32_t)PyLong_AsUnsignedLong(a[1]);
    double seconds = PyFloat_AsDouble(a[2]);
    if (PyErr_Occurred())
        return NULL;
    WITHOUT_GIL(node_doze(self, rung, (long)(1e9 * seconds)));
    Py_RETURN_NONE;
}

/* node_bytes(size) */
static PyObject *py_node_bytes(PyObject *module, PyObject *size)
{
    (void)module;
    long n = PyLong_AsLong(size);
    return PyErr_Occurred() ? NULL : PyLong_FromSize_t(node_bytes((int)n));
}

#define FAST(NAME) {#NAME, (PyCFunction)(void (*)(void))py_##NAME, METH_FASTCALL, NULL}
#define ONE(NAME) {#NAME, py_##NAME, METH_O, NULL}

static PyMethodDef methods[] = {
    FAST(reduce_terms), FAST(widen), FAST(narrow), ONE(node_bytes), FAST(join), FAST(own), FAST(is_dead), ONE(watch), ONE(in_long_waits), FAST(barrier), FAST(all_reduce),
    FAST(reduce_scatter), FAST(all_gather), FAST(broadcast), FAST(all_to_all), FAST(share),
    FAST(unshare), FAST(fail), ONE(progress), FAST(peer), FAST(make_parts), ONE(own_share), FAST(hand_over),
    FAST(parts_all_reduce), ONE(noted), FAST(keep_notes), FAST(ring), ONE(rung), FAST(doze), FAST(fused_step), FAST(apply_rule),
    FAST(are_finite), FAST(hand_over_all), FAST(encode_int8), FAST(add_int8),
    FAST(select_largest), {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernels", "Loops and flags in C; see kernels.h.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernels(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "INLINE_BYTES", INLINE_BYTES) == 0 &&
        PyModule_AddIntConstant(module, "SLOT_BYTES", SLOT_BYTES) == 0 &&
        PyModule_AddIntConstant(module, "MAX_RANKS", MAX_RANKS) == 0 &&
        PyModule_AddIntConstant(module, "PROTOCOL", PROTOCOL) == 0 &&
        PyModule_AddIntConstant(module, "NOT_FINITE", NOT_FINITE) == 0)
        return module;
    Py_XDECREF(module);
    return NULL;
}
