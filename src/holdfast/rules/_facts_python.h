/* `read_facts` for Python: the plain facts of a batch in columns, and where all else stands. */

#ifndef HOLDFAST_FACTS_PYTHON_H
#define HOLDFAST_FACTS_PYTHON_H

#include "_facts.h"

/* The plain facts of a batch, and the places of all else. Needs no Python. Returns how many facts it has found. */
static size_t plain_facts(const Text *raws, size_t count, Text origin, PlainFact *found, int64_t *odd, size_t *size)
{
    size_t plain = 0;
    *size = 0;
    for (size_t at = 0; at < count; at++) {
        if (raws[at].size <= COLUMNS_BYTES_MAX - *size &&
            read_plain_fact(raws[at].at, raws[at].size, origin, &found[plain])) {
            *size += raws[at].size;
            plain++;
        } else {
            odd[at - plain] = (int64_t)at;
        }
    }
    return plain;
}

/* (mesh, origin, where its subjects begin, how many, their highest stamp) */
static int append_facts_run(PyObject *runs, const PlainFact *first, size_t length)
{
    int64_t highest = 0;
    for (size_t i = 0; i < length; i++)
        if (first[i].lamport > highest)
            highest = first[i].lamport;
    PyObject *run = Py_BuildValue("(s#s#nnL)", (const char *)first->mesh.at, (Py_ssize_t)first->mesh.size,
                                  (const char *)first->origin.at, (Py_ssize_t)first->origin.size,
                                  (Py_ssize_t)subject_at(first), (Py_ssize_t)length, (long long)highest);
    if (run == NULL)
        return -1;
    int failed = PyList_Append(runs, run);
    Py_DECREF(run);
    return failed;
}

static PyObject *facts_runs(const PlainFact *facts, size_t count)
{
    PyObject *runs = PyList_New(0);
    for (size_t begin = 0, at = 1; runs != NULL && begin < count; at++) {
        if (at < count && is_of_run(&facts[at], &facts[begin]))
            continue;
        if (append_facts_run(runs, &facts[begin], at - begin) < 0)
            Py_CLEAR(runs);
        begin = at;
    }
    return runs;
}

static PyObject *facts_columns(const PlainFact *facts, size_t count, size_t size, const int64_t *odd, size_t others)
{
    enum { COLUMNS = 6 };
    const size_t widths[COLUMNS] = {0, ID_BYTES, sizeof(int64_t), sizeof(int64_t), STAMP_DIGITS, PRINT_BYTES};
    PyObject *made[COLUMNS] = {NULL}, *runs = NULL, *all = NULL;
    uint8_t *to[COLUMNS];
    for (int i = 0; i < COLUMNS; i++) {
        made[i] = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(i == 0 ? size : count * widths[i]));
        if (made[i] == NULL)
            goto end;
        to[i] = (uint8_t *)PyBytes_AsString(made[i]);
    }
    FactColumns columns = {to[0], to[1], to[2], to[3], to[4], to[5]};
    Py_BEGIN_ALLOW_THREADS
    put_facts(facts, count, &columns);
    Py_END_ALLOW_THREADS
    runs = facts_runs(facts, count);
    if (runs != NULL)
        all = Py_BuildValue("(y#OOOOOOO)", (const char *)odd, (Py_ssize_t)(others * sizeof *odd), made[0], made[1],
                            made[2], made[3], made[4], made[5], runs);
end:
    for (int i = 0; i < COLUMNS; i++)
        Py_XDECREF(made[i]);
    Py_XDECREF(runs);
    return all;
}

static PyObject *read_facts(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *batch;
    const char *name;
    Py_ssize_t name_size;
    if (!PyArg_ParseTuple(args, "O!s#", &PyTuple_Type, &batch, &name, &name_size))
        return NULL;
    size_t count = (size_t)PyTuple_Size(batch), size = 0, plain = 0;
    Text origin = {(const uint8_t *)name, (size_t)name_size};
    Text *raws = PyMem_Malloc((count + 1) * sizeof(Text));
    PlainFact *found = PyMem_Malloc((count + 1) * sizeof(PlainFact));
    int64_t *odd = PyMem_Malloc((count + 1) * sizeof(int64_t));
    PyObject *made = NULL;
    if (raws == NULL || found == NULL || odd == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    for (size_t at = 0; at < count; at++) {
        char *bytes;
        Py_ssize_t length;
        /* The tuple keeps them as they are while other threads run. */
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(batch, (Py_ssize_t)at), &bytes, &length) < 0)
            goto end;
        raws[at].at = (const uint8_t *)bytes;
        raws[at].size = (size_t)length;
    }
    Py_BEGIN_ALLOW_THREADS
    plain = plain_facts(raws, count, origin, found, odd, &size);
    Py_END_ALLOW_THREADS
    made = facts_columns(found, plain, size, odd, count - plain);
end:
    PyMem_Free(raws);
    PyMem_Free(found);
    PyMem_Free(odd);
    return made;
}

#endif
