/* Sum a tensor of PyTorch in place. Reading its attributes here takes half as long as in Python,
 * which counts beside a sum of a few KB. No header of PyTorch is needed. */
#include "module.h"
#include "shm.h"

#define FOR_NAMES(X) X(is_cpu) X(layout) X(dtype) X(is_contiguous) X(is_neg) X(data_ptr) X(numel)
#define MEMBER(NAME) PyObject *NAME;
#define INTERN(NAME) && (names.NAME = PyUnicode_InternFromString(#NAME))

static struct {
    FOR_NAMES(MEMBER)
} names;

typedef struct {
    void *address;
    size_t count;
    int dtype;
} memory;

/* True if an attribute is `wanted`; -1 with an exception. */
static int is_attribute(PyObject *tensor, PyObject *name, PyObject *wanted)
{
    PyObject *found = PyObject_GetAttr(tensor, name);
    Py_XDECREF(found); /* a constant, which has other owners */
    return found ? found == wanted : -1;
}

static int is_result(PyObject *tensor, PyObject *name, PyObject *wanted)
{
    PyObject *found = PyObject_CallMethodObjArgs(tensor, name, NULL);
    Py_XDECREF(found);
    return found ? found == wanted : -1;
}

static size_t number_of(PyObject *tensor, PyObject *name)
{
    PyObject *found = PyObject_CallMethodObjArgs(tensor, name, NULL);
    size_t number = found ? PyLong_AsSize_t(found) : 0;
    Py_XDECREF(found);
    return number;
}

/* Find the elements of a tensor; 0 unless it has a dtype in `codes` and the layout `strided`, and
 * is on the CPU, contiguous and not lazily negated; -1 with an exception. */
static int find(PyObject *tensor, PyObject *strided, PyObject *codes, memory *found)
{
    int fits = is_attribute(tensor, names.is_cpu, Py_True);
    if (fits > 0)
        fits = is_attribute(tensor, names.layout, strided);
    PyObject *dtype = fits > 0 ? PyObject_GetAttr(tensor, names.dtype) : NULL;
    PyObject *code = dtype ? PyDict_GetItemWithError(codes, dtype) : NULL;
    Py_XDECREF(dtype);
    if (code && (fits = is_result(tensor, names.is_contiguous, Py_True)) > 0)
        fits = is_result(tensor, names.is_neg, Py_False);
    if (!code || fits <= 0)
        return PyErr_Occurred() ? -1 : 0;
    found->dtype = (int)PyLong_AsLong(code);
    found->count = number_of(tensor, names.numel);
    found->address = (void *)number_of(tensor, names.data_ptr);
    if (PyErr_Occurred())
        return -1;
    return found->address || !found->count; /* a fake tensor has no memory */
}

/* all_reduce_tensor(shm, tensor, strided, codes, op, divisor, timeout_s): as `all_reduce`; None,
 * without a call, for a tensor that needs a copy or has a dtype that is not in `codes` */
FUNCTION(all_reduce_tensor)
{
    if (n != 7) {
        parse(a, n, "soooidd"); /* raises */
        return NULL;
    }
    if (!names.numel && !(1 FOR_NAMES(INTERN)))
        return NULL;
    memory at;
    shm_group *self = PyCapsule_GetPointer(a[0], SHM_CAPSULE);
    int op = (int)PyLong_AsLong(a[4]), status;
    double divisor = PyFloat_AsDouble(a[5]), timeout_s = PyFloat_AsDouble(a[6]);
    if (PyErr_Occurred())
        return NULL;
    int fits = find(a[1], a[2], a[3], &at);
    if (fits < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear(); /* a wrapper without memory: nothing has begun; the caller reports it */
        fits = 0;
    }
    if (fits == 0)
        Py_RETURN_NONE;
    if (fits < 0 || !reducible(at.dtype, op))
        return NULL;
    WITHOUT_GIL(status = shm_all_reduce(self, at.address, at.count, at.dtype, op, divisor, -1,
                                        timeout_s, check_interrupts));
    return collective_result(self, status);
}
