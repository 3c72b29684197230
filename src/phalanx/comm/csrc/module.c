/* The kernels as functions of Python. Addresses come as integers; calls give up the GIL. */
#include "module.h"

#include <string.h>

#define CAPSULE "phalanx.comm.shm"

/* Called in long waits of any group: lets MPI progress messages. */
static PyObject *progress_hook = NULL;

int check_interrupts(void)
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

/* set_progress_hook(callable or None) */
static PyObject *py_set_progress_hook(PyObject *module, PyObject *hook)
{
    (void)module;
    Py_XDECREF(progress_hook);
    progress_hook = hook == Py_None ? NULL : Py_NewRef(hook);
    shm_move_messages(progress_hook != NULL);
    Py_RETURN_NONE;
}

PyObject *status_result(int status)
{
    return status == INTERRUPTED ? NULL : PyLong_FromLong(status);
}

shm_group *shm_from(PyObject *capsule) { return PyCapsule_GetPointer(capsule, CAPSULE); }

int check_num_args(Py_ssize_t given, Py_ssize_t wanted)
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
    if (!check_num_args(n, 6))
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
    if (!check_num_args(n, 4))
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
    if (!check_num_args(n, 5))
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
    shm_group *self = shm_from(capsule);
    if (self)
        shm_leave(self);
    Py_XDECREF((PyObject *)PyCapsule_GetContext(capsule));
}

/* join(control, rank, size, spins, yields) */
static PyObject *py_join(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 5))
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
    shm_group *self = shm_join(control, rank, size, spins, yields);
    return self ? PyCapsule_New(self, CAPSULE, leave) : PyErr_NoMemory();
}

/* keep_memory(shm, memory): the object whose memory `control` is lives as long as the group */
static PyObject *py_keep_memory(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 2) || !shm_from(a[0]))
        return NULL;
    PyObject *before = PyCapsule_GetContext(a[0]);
    if (PyCapsule_SetContext(a[0], Py_NewRef(a[1])))
        return NULL;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* is_dead(shm, rank) */
static PyObject *py_is_dead(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 2))
        return NULL;
    shm_group *self = shm_from(a[0]);
    int rank = int_from(a[1]);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(shm_is_dead(self, rank));
}

/* watch_peers(shm): all have joined */
static PyObject *py_watch_peers(PyObject *module, PyObject *capsule)
{
    (void)module;
    shm_group *self = shm_from(capsule);
    if (!self)
        return NULL;
    shm_adopt_chunk_sizes(self);
    shm_watch_peers(self);
    Py_RETURN_NONE;
}

/* barrier(shm, timeout_s) */
static PyObject *py_barrier(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 2))
        return NULL;
    shm_group *self = shm_from(a[0]);
    double timeout_s = PyFloat_AsDouble(a[1]);
    int status;
    if (PyErr_Occurred())
        return NULL;
    WITHOUT_GIL(status = shm_barrier(self, timeout_s, check_interrupts));
    return status_result(status);
}

/* The status of a collective; warns once where memory of a peer could not be mapped. */
static PyObject *collective_result(shm_group *self, int status)
{
    int error = status == DONE ? shm_map_error(self) : 0;
    if (error && PyErr_WarnFormat(PyExc_RuntimeWarning, 2,
                                  "memory of another rank could not be mapped (%s): all ranks "
                                  "copy such buffers instead, which is slower",
                                  strerror(error)))
        return NULL;
    return status_result(status);
}

/* all_reduce(shm, address, count, dtype, op, divisor, timeout_s): as `run`, with less to convert */
static PyObject *py_all_reduce(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 7))
        return NULL;
    shm_group *self = shm_from(a[0]);
    void *buffer = address_from(a[1]);
    size_t count = PyLong_AsSize_t(a[2]);
    int dtype = int_from(a[3]), op = int_from(a[4]), status;
    double divisor = PyFloat_AsDouble(a[5]), timeout_s = PyFloat_AsDouble(a[6]);
    if (!reducible(dtype, op))
        return NULL;
    WITHOUT_GIL(status = shm_all_reduce(self, buffer, count, dtype, op, divisor, -1, timeout_s,
                                        check_interrupts));
    return collective_result(self, status);
}

/* Buffers of a collective: one, or one a rank. */
typedef struct {
    void *addresses[MAX_RANKS];
    size_t sizes[MAX_RANKS]; /* in bytes; in elements where they are reduced */
} buffers;

static int run(shm_group *self, int kind, const buffers *out, const buffers *in, int dtype, int op,
               double divisor, int root, double timeout_s)
{
    switch (kind) {
    case ALL_REDUCE:
    case REDUCE:
        return shm_all_reduce(self, out->addresses[0], out->sizes[0], dtype, op, divisor,
                              kind == REDUCE ? root : -1, timeout_s, check_interrupts);
    case REDUCE_SCATTER:
        return shm_reduce_scatter(self, out->addresses[0], in->addresses, in->sizes, dtype, op,
                                  divisor, timeout_s, check_interrupts);
    case ALL_GATHER:
        return shm_all_gather(self, out->addresses, out->sizes, in->addresses[0], dtype, timeout_s,
                              check_interrupts);
    case BROADCAST:
        return shm_broadcast(self, out->addresses[0], out->sizes[0], dtype, root, timeout_s,
                             check_interrupts);
    default:
        return shm_all_to_all(self, kind, out->addresses, out->sizes, in->addresses, in->sizes,
                              dtype, root, timeout_s, check_interrupts);
    }
}

/* run(shm, kind, outputs, sizes_out, inputs, sizes_in, dtype, op, divisor, root, timeout_s): any
 * collective but a barrier */
static PyObject *py_run(PyObject *module, arguments a, Py_ssize_t n)
{
    buffers out, in;
    (void)module;
    if (!check_num_args(n, 11))
        return NULL;
    shm_group *self = shm_from(a[0]);
    if (addresses_from(a[2], out.addresses) < 0 || sizes_from(a[3], out.sizes) < 0 ||
        addresses_from(a[4], in.addresses) < 0 || sizes_from(a[5], in.sizes) < 0)
        return NULL;
    int kind = int_from(a[1]), dtype = int_from(a[6]), op = int_from(a[7]), root = int_from(a[9]);
    double divisor = PyFloat_AsDouble(a[8]), timeout_s = PyFloat_AsDouble(a[10]);
    int reduces = kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER, status;
    if (reduces ? !reducible(dtype, op) : PyErr_Occurred() != NULL)
        return NULL;
    WITHOUT_GIL(status = run(self, kind, &out, &in, dtype, op, divisor, root, timeout_s));
    return collective_result(self, status);
}

/* export_segment(shm, fd, bytes, address) -> number of the segment, or -1 */
static PyObject *py_export_segment(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 4))
        return NULL;
    shm_group *self = shm_from(a[0]);
    int fd = int_from(a[1]);
    size_t bytes = PyLong_AsSize_t(a[2]);
    void *address = address_from(a[3]);
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromLong(shm_export_segment(self, fd, bytes, address));
}

/* unexport_segment(shm, number) */
static PyObject *py_unexport_segment(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 2))
        return NULL;
    shm_group *self = shm_from(a[0]);
    int number = int_from(a[1]);
    if (PyErr_Occurred())
        return NULL;
    shm_unexport_segment(self, number);
    Py_RETURN_NONE;
}

/* fail(shm, reason) */
static PyObject *py_fail(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 2))
        return NULL;
    shm_group *self = shm_from(a[0]);
    PyObject *text = self ? PyUnicode_AsEncodedString(a[1], "utf-8", "backslashreplace") : NULL;
    if (!text)
        return NULL;
    shm_fail(self, PyBytes_AsString(text));
    Py_DECREF(text);
    Py_RETURN_NONE;
}

/* progress(shm) -> (phase published, phase waited for last, rank whose process is gone) */
static PyObject *py_progress(PyObject *module, PyObject *capsule)
{
    (void)module;
    shm_group *self = shm_from(capsule);
    if (!self)
        return NULL;
    return Py_BuildValue("(KKi)", (unsigned long long)shm_phase(self),
                         (unsigned long long)shm_awaited_phase(self), shm_dead_peer(self));
}

/* peer_status(shm, rank) -> (phase, fingerprint, count, failed, reason) */
static PyObject *py_peer_status(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 2))
        return NULL;
    shm_group *self = shm_from(a[0]);
    int rank = int_from(a[1]);
    if (PyErr_Occurred())
        return NULL;
    shm_peer_state state = shm_peer(self, rank);
    /* A long reason may end within a character, which is left out. */
    PyObject *reason = PyUnicode_DecodeUTF8(state.reason, (Py_ssize_t)strlen(state.reason), "ignore");
    return reason ? Py_BuildValue("(KKKiN)", (unsigned long long)state.phase,
                                  (unsigned long long)state.fingerprint,
                                  (unsigned long long)state.count, state.failed, reason)
                  : NULL;
}

/* log_calls(shm, whether) */
static PyObject *py_log_calls(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 2))
        return NULL;
    shm_group *self = shm_from(a[0]);
    int keep = int_from(a[1]);
    if (PyErr_Occurred())
        return NULL;
    shm_log_calls(self, keep);
    Py_RETURN_NONE;
}

/* logged_calls(shm) -> (calls begun, the last that ended, ((fingerprint, count, began_ns), ...)): the
 * calls in the log, the oldest first */
static PyObject *py_logged_calls(PyObject *module, PyObject *capsule)
{
    (void)module;
    shm_group *self = shm_from(capsule);
    if (!self)
        return NULL;
    uint64_t begun = shm_calls_begun(self), n = begun < NUM_LOGGED ? begun : NUM_LOGGED;
    PyObject *calls = PyTuple_New((Py_ssize_t)n);
    for (uint64_t i = 0; calls && i < n; i++) {
        uint64_t fingerprint, count;
        int64_t began_ns;
        shm_logged_call(self, begun - n + 1 + i, &fingerprint, &count, &began_ns);
        PyObject *one = Py_BuildValue("(KKL)", (unsigned long long)fingerprint,
                                      (unsigned long long)count, (long long)began_ns);
        if (!one || PyTuple_SetItem(calls, (Py_ssize_t)i, one) < 0)
            Py_CLEAR(calls);
    }
    return calls ? Py_BuildValue("(KKN)", (unsigned long long)begun,
                                 (unsigned long long)shm_calls_ended(self), calls)
                 : NULL;
}

/* ring(shm, peer) */
static PyObject *py_ring(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 2))
        return NULL;
    shm_group *self = shm_from(a[0]);
    int peer = int_from(a[1]);
    if (PyErr_Occurred())
        return NULL;
    shm_ring(self, peer);
    Py_RETURN_NONE;
}

/* num_rings(shm) -> how often, modulo 2³² */
static PyObject *py_num_rings(PyObject *module, PyObject *capsule)
{
    (void)module;
    shm_group *self = shm_from(capsule);
    return self ? PyLong_FromUnsignedLong(shm_num_rings(self)) : NULL;
}

/* sleep_until_rung(shm, rung, seconds) */
static PyObject *py_sleep_until_rung(PyObject *module, arguments a, Py_ssize_t n)
{
    (void)module;
    if (!check_num_args(n, 3))
        return NULL;
    shm_group *self = shm_from(a[0]);
    uint32_t rung = (uint32_t)PyLong_AsUnsignedLong(a[1]);
    double seconds = PyFloat_AsDouble(a[2]);
    if (PyErr_Occurred())
        return NULL;
    WITHOUT_GIL(shm_sleep_until_rung(self, rung, (long)(1e9 * seconds)));
    Py_RETURN_NONE;
}

/* shm_bytes(size) */
static PyObject *py_shm_bytes(PyObject *module, PyObject *size)
{
    (void)module;
    long n = PyLong_AsLong(size);
    return PyErr_Occurred() ? NULL : PyLong_FromSize_t(shm_bytes((int)n));
}

#define FAST(NAME) {#NAME, (PyCFunction)(void (*)(void))py_##NAME, METH_FASTCALL, NULL}
#define ONE(NAME) {#NAME, py_##NAME, METH_O, NULL}

static PyMethodDef methods[] = {
    FAST(reduce_terms), FAST(widen), FAST(narrow), ONE(shm_bytes), FAST(join), FAST(keep_memory),
    FAST(is_dead), ONE(watch_peers), ONE(set_progress_hook), FAST(barrier), FAST(all_reduce),
    FAST(run), FAST(export_segment), FAST(unexport_segment), FAST(fail), ONE(progress), FAST(peer_status),
    FAST(make_grad_buffer), ONE(local_share), FAST(mark_ready), FAST(grad_buffer_all_reduce),
    ONE(logged_calls), FAST(log_calls), FAST(ring), ONE(num_rings), FAST(sleep_until_rung),
    FAST(fused_step), FAST(apply_update), FAST(are_finite), FAST(mark_all_ready),
    FAST(encode_int8), FAST(add_int8), FAST(select_largest),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernels", "Loops and flags in C; see kernels.h.", 0, methods,
    NULL, NULL, NULL, NULL,
};

#define NAME_OF(CONSTANT, NAME) NAME,

/* A tuple of names, each at the index that is its number. */
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
        PyModule_AddIntConstant(module, "NOT_FINITE", NOT_FINITE) == 0 &&
        add_enumerations(module) == 0)
        return module;
    Py_XDECREF(module);
    return NULL;
}
