/* Groups in shared memory as functions of Python. */
#include "module.h"
#include "shm.h"

/* Hook called in long waits of any group, which lets MPI progress messages. */
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
FUNCTION(set_progress_hook)
{
    PyObject *hook;
    if (!parse(a, n, "o", &hook))
        return NULL;
    Py_XDECREF(progress_hook);
    progress_hook = hook == Py_None ? NULL : Py_NewRef(hook);
    shm_move_messages(progress_hook != NULL);
    Py_RETURN_NONE;
}

PyObject *status_result(int status)
{
    return status == INTERRUPTED ? NULL : PyLong_FromLong(status);
}

/* shm_bytes(size) */
FUNCTION(shm_bytes)
{
    int size;
    return parse(a, n, "i", &size) ? PyLong_FromSize_t(shm_bytes(size)) : NULL;
}

static void leave(PyObject *capsule)
{
    shm_group *self = PyCapsule_GetPointer(capsule, SHM_CAPSULE);
    if (self)
        shm_leave(self);
    Py_XDECREF((PyObject *)PyCapsule_GetContext(capsule));
}

/* join(control, rank, size, spins, yields) */
FUNCTION(join)
{
    void *control;
    int rank, size, spins, yields;
    if (!parse(a, n, "piiii", &control, &rank, &size, &spins, &yields))
        return NULL;
    if (size < 1 || size > MAX_RANKS || rank < 0 || rank >= size) {
        PyErr_Format(PyExc_ValueError, "rank %d of %d; at most %d", rank, size, MAX_RANKS);
        return NULL;
    }
    shm_group *self = shm_join(control, rank, size, spins, yields);
    return self ? PyCapsule_New(self, SHM_CAPSULE, leave) : PyErr_NoMemory();
}

/* keep_memory(shm, memory): the object whose memory `control` is lives as long as the group */
FUNCTION(keep_memory)
{
    PyObject *capsule, *memory;
    if (!parse(a, n, "oo", &capsule, &memory))
        return NULL;
    PyObject *before = PyCapsule_GetContext(capsule);
    if (PyCapsule_SetContext(capsule, Py_NewRef(memory)))
        return NULL;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* all_joined(shm): before the first collective */
FUNCTION(all_joined)
{
    shm_group *self;
    if (!parse(a, n, "s", &self))
        return NULL;
    shm_all_joined(self);
    Py_RETURN_NONE;
}

/* is_dead(shm, rank) */
FUNCTION(is_dead)
{
    shm_group *self;
    int rank;
    return parse(a, n, "si", &self, &rank) ? PyBool_FromLong(shm_is_dead(self, rank)) : NULL;
}

/* barrier(shm, timeout_s); converted by itself, as `all_reduce` */
FUNCTION(barrier)
{
    if (n != 2) {
        parse(a, n, "sd"); /* raises */
        return NULL;
    }
    shm_group *self = PyCapsule_GetPointer(a[0], SHM_CAPSULE);
    double timeout_s = PyFloat_AsDouble(a[1]);
    int status;
    if (PyErr_Occurred())
        return NULL;
    WITHOUT_GIL(status = shm_barrier(self, timeout_s, check_interrupts));
    return status_result(status);
}

PyObject *collective_result(shm_group *self, int status)
{
    int error = status == DONE ? shm_map_error(self) : 0;
    if (error && PyErr_WarnFormat(PyExc_RuntimeWarning, 2,
                                  "memory of another rank could not be mapped (%s): all ranks "
                                  "copy such buffers instead, which is slower",
                                  strerror(error)))
        return NULL;
    return status_result(status);
}

/* all_reduce(shm, address, count, dtype, op, divisor, timeout_s): as `run`, with less to convert,
 * and without `parse`, which takes another 10 ns */
FUNCTION(all_reduce)
{
    if (n != 7) {
        parse(a, n, "spniidd"); /* raises */
        return NULL;
    }
    shm_group *self = PyCapsule_GetPointer(a[0], SHM_CAPSULE);
    void *buffer = PyLong_AsVoidPtr(a[1]);
    size_t count = PyLong_AsSize_t(a[2]);
    int dtype = (int)PyLong_AsLong(a[3]), op = (int)PyLong_AsLong(a[4]), status;
    double divisor = PyFloat_AsDouble(a[5]), timeout_s = PyFloat_AsDouble(a[6]);
    if (PyErr_Occurred() || !reducible(dtype, op))
        return NULL;
    WITHOUT_GIL(status = shm_all_reduce(self, buffer, count, dtype, op, divisor, -1, timeout_s,
                                        check_interrupts));
    return collective_result(self, status);
}

/* Buffers of a collective: one, or one per rank. */
typedef struct {
    void *addresses[MAX_RANKS];
    size_t sizes[MAX_RANKS]; /* bytes; elements if they are reduced */
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
FUNCTION(run)
{
    buffers out, in;
    shm_group *self;
    PyObject *outputs, *sizes_out, *inputs, *sizes_in;
    int kind, dtype, op, root, status;
    double divisor, timeout_s;
    if (!parse(a, n, "siooooiidid", &self, &kind, &outputs, &sizes_out, &inputs, &sizes_in,
               &dtype, &op, &divisor, &root, &timeout_s))
        return NULL;
    if (numbers_from(outputs, out.addresses, NULL) < 0 ||
        numbers_from(sizes_out, NULL, out.sizes) < 0 ||
        numbers_from(inputs, in.addresses, NULL) < 0 || numbers_from(sizes_in, NULL, in.sizes) < 0)
        return NULL;
    int reduces = kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER;
    if (reduces && !reducible(dtype, op))
        return NULL;
    WITHOUT_GIL(status = run(self, kind, &out, &in, dtype, op, divisor, root, timeout_s));
    return collective_result(self, status);
}

/* export_segment(shm, fd, bytes, address) -> number of the segment, or -1 */
FUNCTION(export_segment)
{
    shm_group *self;
    int fd;
    size_t bytes;
    void *address;
    if (!parse(a, n, "sinp", &self, &fd, &bytes, &address))
        return NULL;
    return PyLong_FromLong(shm_export_segment(self, fd, bytes, address));
}

/* unexport_segment(shm, number) */
FUNCTION(unexport_segment)
{
    shm_group *self;
    int number;
    if (!parse(a, n, "si", &self, &number))
        return NULL;
    shm_unexport_segment(self, number);
    Py_RETURN_NONE;
}

/* fail(shm, reason, has_departed) */
FUNCTION(fail)
{
    shm_group *self;
    PyObject *reason;
    int has_departed;
    if (!parse(a, n, "soi", &self, &reason, &has_departed))
        return NULL;
    PyObject *text = PyUnicode_AsEncodedString(reason, "utf-8", "backslashreplace");
    if (!text)
        return NULL;
    shm_fail(self, has_departed ? DEPARTED : FAILED, PyBytes_AsString(text));
    Py_DECREF(text);
    Py_RETURN_NONE;
}

/* progress(shm) -> (phase published, phase waited for last, rank whose process is gone) */
FUNCTION(progress)
{
    shm_group *self;
    if (!parse(a, n, "s", &self))
        return NULL;
    return Py_BuildValue("(KKi)", (unsigned long long)self->phase,
                         (unsigned long long)self->awaited_phase, self->dead_peer);
}

/* peer_status(shm, rank) -> (phase, fingerprint, count, failed, reason) */
FUNCTION(peer_status)
{
    shm_group *self;
    int rank;
    if (!parse(a, n, "si", &self, &rank))
        return NULL;
    shm_peer_state state = shm_peer(self, rank);
    /* A long reason may end within a character, which is left out. */
    PyObject *reason = PyUnicode_DecodeUTF8(state.reason, (Py_ssize_t)strlen(state.reason), "ignore");
    return reason ? Py_BuildValue("(KKKiN)", (unsigned long long)state.phase,
                                  (unsigned long long)state.fingerprint,
                                  (unsigned long long)state.count, state.failed, reason)
                  : NULL;
}

/* logged_calls(shm) -> (calls begun, the last that ended, ((fingerprint, count, began_ns), ...)): the
 * calls in the log, the oldest first */
FUNCTION(logged_calls)
{
    shm_group *self;
    if (!parse(a, n, "s", &self))
        return NULL;
    uint64_t begun = self->begun, kept = begun < NUM_LOGGED ? begun : NUM_LOGGED;
    PyObject *calls = PyTuple_New((Py_ssize_t)kept);
    for (uint64_t i = 0; calls && i < kept; i++) {
        const shm_log_entry *entry = &self->call_log[(begun - kept + i) % NUM_LOGGED];
        PyObject *one = Py_BuildValue("(KKL)", (unsigned long long)entry->fingerprint,
                                      (unsigned long long)entry->count, (long long)entry->began_ns);
        if (!one || PyTuple_SetItem(calls, (Py_ssize_t)i, one) < 0)
            Py_CLEAR(calls);
    }
    return calls ? Py_BuildValue("(KKN)", (unsigned long long)begun,
                                 (unsigned long long)self->ended, calls)
                 : NULL;
}

/* ring(shm, peer) */
FUNCTION(ring)
{
    shm_group *self;
    int peer;
    if (!parse(a, n, "si", &self, &peer))
        return NULL;
    shm_ring(self, peer);
    Py_RETURN_NONE;
}

/* num_rings(shm) -> how often, modulo 2³² */
FUNCTION(num_rings)
{
    shm_group *self;
    return parse(a, n, "s", &self) ? PyLong_FromUnsignedLong(shm_num_rings(self)) : NULL;
}

/* sleep_until_rung(shm, rung, seconds) */
FUNCTION(sleep_until_rung)
{
    shm_group *self;
    size_t rung;
    double seconds;
    if (!parse(a, n, "snd", &self, &rung, &seconds))
        return NULL;
    WITHOUT_GIL(shm_sleep_until_rung(self, (uint32_t)rung, (long)(1e9 * seconds)));
    Py_RETURN_NONE;
}
