/* Reading of rows as functions of Python. Arrays come as buffers; calls give up the GIL. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "crc.h"
#include "rows.h"

/* Whether every span lies within the output, and its numbers make sense. */
static int lie_within(const spans *s, size_t n, Py_ssize_t out_bytes)
{
    for (size_t i = 0; i < n; i++)
        if (s->offsets[i] < 0 || s->sizes[i] < 0 || s->places[i] < 0 || s->sizes[i] > out_bytes ||
            s->places[i] > out_bytes - s->sizes[i] || s->offsets[i] > INT64_MAX - s->sizes[i])
            return 0;
    return 1;
}

/* read_spans(files, maps, map_bytes, offsets, sizes, places, crcs, out, outcomes): how many are not
 * whole */
static PyObject *py_read_spans(PyObject *module, PyObject *args)
{
    enum { FILES, MAPS, MAP_BYTES, OFFSETS, SIZES, PLACES, CRCS, OUT, OUTCOMES, NUM };
    static const size_t WIDTHS[] = {4, 8, 8, 8, 8, 8, 4, 0, 4};
    Py_buffer b[NUM];
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*w*w*", &b[FILES], &b[MAPS], &b[MAP_BYTES],
                          &b[OFFSETS], &b[SIZES], &b[PLACES], &b[CRCS], &b[OUT], &b[OUTCOMES]))
        return NULL;
    spans s = {b[FILES].buf, b[MAPS].buf,   b[MAP_BYTES].buf, b[OFFSETS].buf,
               b[SIZES].buf, b[PLACES].buf, b[CRCS].buf};
    size_t n = (size_t)b[FILES].len / 4, damaged = 0;
    int fits = 1;
    for (int i = 0; i < NUM; i++)
        fits &= i == OUT || (size_t)b[i].len == n * WIDTHS[i];
    if (!fits || !lie_within(&s, n, b[OUT].len)) {
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

/* crcs_of_rows(rows, crcs): as many rows of equal size as there are places for checksums */
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
    {"crcs_of_rows", py_crcs_of_rows, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_rows", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__rows(void)
{
    crc_prepare();
    guard_maps();
    return PyModule_Create(&definition);
}
