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

/* read_spans(files, offsets, sizes, places, crcs, out, outcomes) → how many are not whole */
static PyObject *py_read_spans(PyObject *module, PyObject *args)
{
    Py_buffer files, offsets, sizes, places, crcs, out, outcomes;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*w*w*", &files, &offsets, &sizes, &places, &crcs, &out,
                          &outcomes))
        return NULL;
    spans s = {files.buf, offsets.buf, sizes.buf, places.buf, crcs.buf};
    size_t n = (size_t)files.len / 4, damaged = 0;
    if ((size_t)offsets.len != 8 * n || (size_t)sizes.len != 8 * n ||
        (size_t)places.len != 8 * n || (size_t)crcs.len != 4 * n || (size_t)outcomes.len != 4 * n ||
        !lie_within(&s, n, out.len)) {
        PyErr_SetString(PyExc_ValueError, "spans do not fit each other or the output");
    } else {
        Py_BEGIN_ALLOW_THREADS
        damaged = read_spans(&s, n, out.buf, outcomes.buf);
        Py_END_ALLOW_THREADS
        result = PyLong_FromSize_t(damaged);
    }
    Py_buffer *all[] = {&files, &offsets, &sizes, &places, &crcs, &out, &outcomes};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        PyBuffer_Release(all[i]);
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
    return PyModule_Create(&definition);
}
