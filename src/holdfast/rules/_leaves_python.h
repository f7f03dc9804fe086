/* `leaves` for Python: the leaf hashes of entries that lie one after another, for `leaf`. */

#ifndef HOLDFAST_LEAVES_PYTHON_H
#define HOLDFAST_LEAVES_PYTHON_H

#include "_leaf.h"

/* Where entry `at` ends, given numbers of eight bytes that need not be aligned. */
static int64_t end_at(const char *ends, Py_ssize_t at)
{
    int64_t end;
    memcpy(&end, ends + at * (Py_ssize_t)sizeof end, sizeof end);
    return end;
}

static PyObject *leaves(PyObject *self, PyObject *args)
{
    (void)self;
    const char *joined, *ends;
    Py_ssize_t size, ends_size;
    int64_t before = 0;
    if (!PyArg_ParseTuple(args, "y#y#", &joined, &size, &ends, &ends_size))
        return NULL;
    Py_ssize_t count = ends_size / (Py_ssize_t)sizeof(int64_t);
    for (Py_ssize_t at = 0; at < count; at++) {
        int64_t end = end_at(ends, at);
        if (end < before || end > size) {
            PyErr_SetString(PyExc_ValueError, "an entry ends before it begins, or beyond all of them");
            return NULL;
        }
        before = end;
    }
    PyObject *made = PyBytes_FromStringAndSize(NULL, count * LEAF_BYTES);
    if (made == NULL)
        return NULL;
    uint8_t *to = (uint8_t *)PyBytes_AsString(made);
    Py_BEGIN_ALLOW_THREADS
    int64_t begin = 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        int64_t end = end_at(ends, at);
        put_leaf((const uint8_t *)joined + begin, (size_t)(end - begin), to + at * LEAF_BYTES);
        begin = end;
    }
    Py_END_ALLOW_THREADS
    return made;
}

#endif
