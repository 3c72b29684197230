/* Python bindings of rows.h. Arrays are passed as buffers; calls release the GIL. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "crc.h"
#include "rows.h"

/* Return 1 if every span lies within the output. */
static int spans_fit(const span_batch *s, size_t n, Py_ssize_t out_bytes)
{
    for (size_t i = 0; i < n; i++)
        if (s->offsets[i] < 0 || s->sizes[i] < 0 || s->destinations[i] < 0 || s->sizes[i] > out_bytes ||
            s->destinations[i] > out_bytes - s->sizes[i] || s->offsets[i] > INT64_MAX - s->sizes[i])
            return 0;
    return 1;
}

/* read_spans(files, maps, map_bytes, offsets, sizes, destinations, crcs, out, outcomes) -> number
 * of spans that are not intact */
static PyObject *py_read_spans(PyObject *module, PyObject *args)
{
    enum { FILES, MAPS, MAP_BYTES, OFFSETS, SIZES, DESTINATIONS, CRCS, OUT, OUTCOMES, NUM };
    static const size_t WIDTHS[] = {4, 8, 8, 8, 8, 8, 4, 0, 4};
    Py_buffer b[NUM];
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*w*w*", &b[FILES], &b[MAPS], &b[MAP_BYTES],
                          &b[OFFSETS], &b[SIZES], &b[DESTINATIONS], &b[CRCS], &b[OUT], &b[OUTCOMES]))
        return NULL;
    span_batch s = {b[FILES].buf, b[MAPS].buf,   b[MAP_BYTES].buf, b[OFFSETS].buf,
               b[SIZES].buf, b[DESTINATIONS].buf, b[CRCS].buf};
    size_t n = (size_t)b[FILES].len / 4, damaged = 0;
    int fits = 1;
    for (int i = 0; i < NUM; i++)
        fits &= i == OUT || (size_t)b[i].len == n * WIDTHS[i];
    if (!fits || !spans_fit(&s, n, b[OUT].len)) {
        PyErr_SetString(PyExc_ValueError, "spans do not fit each other or the output");
    } else {
        Py_BEGIN_ALLOW_THREADS
        damaged = read_spans(&s, n, b[OUT].buf, b[OUTCOMES].buf);
        Py_END_ALLOW_THREADS
        result = PyLong_FromSize_t(damaged);
    }
    for (int i = 0; i < NUM; i++)
        PyBuffer_Release(&b[i]);
    return result;
}

/* Return 1 if the sizes of the table's arrays agree, and the output has room for n samples. Entries
 * are checked when they are read. */
static int table_fits(const sample_table *t, const Py_buffer *first_samples, const Py_buffer *files,
                      const Py_buffer *headers, const Py_buffer *entries, Py_ssize_t entry_offset,
                      size_t n, const Py_buffer *out)
{
    if ((size_t)first_samples->len != (t->num_shards + 1) * 8 || !t->num_shards ||
        (size_t)files->len != t->num_shards * sizeof(shard_file) ||
        (size_t)headers->len != t->num_shards * 8)
        return 0;
    int64_t num_samples = t->first_samples[t->num_shards];
    return num_samples >= 0 && entry_offset >= 0 &&
           (size_t)entry_offset + sizeof(uint32_t) <= t->entry_stride &&
           (size_t)entries->len == (size_t)num_samples * t->entry_stride && t->sample_bytes > 0 &&
           n == (size_t)(out->len / t->sample_bytes) && out->len % t->sample_bytes == 0;
}

/* read_samples(first_samples, files, headers, entries, entry_stride, entry_offset, sample_bytes,
 * samples, out) -> True if all are intact */
static PyObject *py_read_samples(PyObject *module, PyObject *args)
{
    enum { FIRST_SAMPLES, FILES, HEADERS, ENTRIES, SAMPLES, OUT, NUM };
    Py_buffer b[NUM];
    Py_ssize_t stride, offset;
    long long sample_bytes;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*y*y*nnLy*w*", &b[FIRST_SAMPLES], &b[FILES], &b[HEADERS],
                          &b[ENTRIES], &stride, &offset, &sample_bytes, &b[SAMPLES], &b[OUT]))
        return NULL;
    size_t n = (size_t)b[SAMPLES].len / 8, num_shards = (size_t)b[FILES].len / sizeof(shard_file);
    sample_table t = {num_shards,
                      b[FIRST_SAMPLES].buf,
                       b[FILES].buf,
                       b[HEADERS].buf,
                       (const char *)b[ENTRIES].buf + offset,
                       (size_t)stride,
                       sample_bytes};
    if (!table_fits(&t, &b[FIRST_SAMPLES], &b[FILES], &b[HEADERS], &b[ENTRIES], offset, n,
                       &b[OUT])) {
        PyErr_SetString(PyExc_ValueError, "samples, their table and the output do not fit");
    } else {
        int is_intact;
        Py_BEGIN_ALLOW_THREADS
        is_intact = read_samples(&t, b[SAMPLES].buf, n, b[OUT].buf);
        Py_END_ALLOW_THREADS
        result = PyBool_FromLong(is_intact);
    }
    for (int i = 0; i < NUM; i++)
        PyBuffer_Release(&b[i]);
    return result;
}

/* crcs_of_rows(rows, crcs): len(crcs) rows of equal size */
static PyObject *py_crcs_of_rows(PyObject *module, PyObject *args)
{
    Py_buffer rows, crcs;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*", &rows, &crcs))
        return NULL;
    size_t n = (size_t)crcs.len / 4;
    if (n) {
        Py_BEGIN_ALLOW_THREADS
        crcs_of_rows(rows.buf, n, (size_t)rows.len / n, crcs.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&rows);
    PyBuffer_Release(&crcs);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"read_spans", py_read_spans, METH_VARARGS, NULL},
    {"read_samples", py_read_samples, METH_VARARGS, NULL},
    {"crcs_of_rows", py_crcs_of_rows, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_rows", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__rows(void)
{
    crc_prepare();
    install_bus_error_handler();
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
