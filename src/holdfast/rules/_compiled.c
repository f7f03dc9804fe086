/* The compiled reader of pushes: what `push_columns` and `plain_push` do in Python, for the usual case.
 *
 *     scan_push        a Push frame        ->  its mesh, its epoch, its numbers, and where its envelopes lie
 *     read_envelopes   those envelopes     ->  columns: ids, fingerprints, stamps, runs of alike ones
 *     created_answers  numbers and tickets ->  the answers of a run that was accepted as a whole
 *     fingerprint      a request           ->  its fingerprint, for `fingerprint`
 *     read_facts       arriving envelopes  ->  the facts among them in columns, for `fact_columns`
 *     leaves           entries, joined     ->  their leaf hashes, for `leaf`
 *
 * and what a quorum commits (`_commits.h`).
 *
 * It accepts only what is plain, and refuses nothing: whatever is not surely good is left to the Python reader, which
 * alone says what is wrong. So every check here may be stricter than the rule behind it, and none may be weaker.
 * tests/rules/test_compiled.py compares both readers on whatever either takes, and tests/rules/fuzz_compiled.c
 * runs this file under sanitizers. `_envelope.h` has the rules, `_sha256.h` the hash.
 */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>

#include "_envelope.h"
#include "_commits.h"
#include "_facts_python.h"
#include "_leaves_python.h"

/* --- columns as Python values ------------------------------------------------------------------------------------ */

/* Numbers and spans are whole numbers of eight bytes in the order of the machine: array('q') in Python. */

static PyObject *no_match(void)
{
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *scan_push(PyObject *self, PyObject *raw)
{
    (void)self;
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(raw, &bytes, &size) < 0)
        return NULL;
    Push push;
    if (size > SPAN_MAX || !open_push((const uint8_t *)bytes, (size_t)size, &push))
        return no_match();
    PyObject *numbers = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(push.count * sizeof(int64_t)));
    PyObject *spans = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(push.count * sizeof(int64_t)));
    PyObject *found = NULL;
    if (numbers == NULL || spans == NULL)
        goto end;
    if (!read_items(&push, (uint8_t *)PyBytes_AsString(numbers), (uint8_t *)PyBytes_AsString(spans))) {
        found = no_match();
        goto end;
    }
    found = Py_BuildValue("(s#LOO)", (const char *)push.mesh.at, (Py_ssize_t)push.mesh.size, (long long)push.epoch,
                          numbers, spans);
end:
    Py_XDECREF(numbers);
    Py_XDECREF(spans);
    return found;
}

static int append_run(PyObject *runs, const Plain *one, size_t length)
{
    PyObject *run = Py_BuildValue("(ss#s#sn)", KINDS[one->kind], (const char *)one->ref.at, (Py_ssize_t)one->ref.size,
                                  (const char *)one->origin.at, (Py_ssize_t)one->origin.size,
                                  PRIORITIES[one->priority], (Py_ssize_t)length);
    if (run == NULL)
        return -1;
    int failed = PyList_Append(runs, run);
    Py_DECREF(run);
    return failed;
}

static int is_alike(const Plain *one, const Plain *other)
{
    return one->kind == other->kind && one->priority == other->priority && same(one->ref, other->ref) &&
           same(one->origin, other->origin);
}

/* The columns of `count` plain envelopes. */
static PyObject *columns(const Plain *found, size_t count)
{
    PyObject *ids = PyTuple_New((Py_ssize_t)count);
    PyObject *prints = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * PRINT_BYTES));
    PyObject *stamps = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(int64_t)));
    PyObject *runs = PyList_New(0);
    PyObject *made = NULL;
    if (ids == NULL || prints == NULL || stamps == NULL || runs == NULL)
        goto end;
    char *print = PyBytes_AsString(prints), *stamp = PyBytes_AsString(stamps);
    int64_t highest = 0;
    size_t begin = 0, size = 0;
    for (size_t at = 0; at < count; at++) {
        const Plain *one = &found[at];
        PyObject *id = PyBytes_FromStringAndSize((const char *)one->id, ID_BYTES);
        if (id == NULL || PyTuple_SetItem(ids, (Py_ssize_t)at, id) < 0)
            goto end;
        memcpy(print + at * PRINT_BYTES, one->print, PRINT_BYTES);
        memcpy(stamp + at * sizeof(int64_t), &one->lamport, sizeof(int64_t));
        if (one->lamport > highest)
            highest = one->lamport;
        size += one->size;
        if (at > begin && !is_alike(one, &found[begin])) {
            if (append_run(runs, &found[begin], at - begin) < 0)
                goto end;
            begin = at;
        }
    }
    if (count > 0 && append_run(runs, &found[begin], count - begin) < 0)
        goto end;
    made = Py_BuildValue("(OOOOLn)", ids, prints, stamps, runs, (long long)highest, (Py_ssize_t)size);
end:
    Py_XDECREF(ids);
    Py_XDECREF(prints);
    Py_XDECREF(stamps);
    Py_XDECREF(runs);
    return made;
}

static PyObject *read_envelopes(PyObject *self, PyObject *args)
{
    (void)self;
    const char *payload, *spans, *mesh, *member;
    Py_ssize_t size, spans_size, begin, end, mesh_size, member_size;
    if (!PyArg_ParseTuple(args, "y#y#nns#s#", &payload, &size, &spans, &spans_size, &begin, &end, &mesh, &mesh_size,
                          &member, &member_size))
        return NULL;
    if (begin < 0 || begin > end || end > spans_size / (Py_ssize_t)sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "there are not so many spans");
        return NULL;
    }
    Names names = {{(const uint8_t *)mesh, (size_t)mesh_size}, {(const uint8_t *)member, (size_t)member_size}};
    Plain *found = PyMem_Malloc((size_t)(end - begin + 1) * sizeof(Plain));
    if (found == NULL)
        return PyErr_NoMemory();
    size_t count = 0;
    for (Py_ssize_t at = is_mesh(names.mesh) ? begin : end; at < end; at++) {
        int64_t span;
        memcpy(&span, spans + at * (Py_ssize_t)sizeof(int64_t), sizeof span);
        size_t offset = (size_t)(span >> SPAN_BITS), length = (size_t)(span & SPAN_MAX);
        if (span < 0 || offset > (size_t)size || length > (size_t)size - offset)
            break;
        if (!read_plain((const uint8_t *)payload + offset, length, &names, &found[count]))
            break;
        count++;
    }
    PyObject *made = columns(found, count);
    PyMem_Free(found);
    return made;
}

static PyObject *created_answers(PyObject *self, PyObject *args)
{
    (void)self;
    const char *numbers, *tickets;
    Py_ssize_t numbers_size, tickets_size;
    long long epoch, seq, seen;
    if (!PyArg_ParseTuple(args, "y#y#LLL", &numbers, &numbers_size, &tickets, &tickets_size, &epoch, &seq, &seen))
        return NULL;
    Py_ssize_t count = numbers_size / (Py_ssize_t)sizeof(int64_t);
    if (epoch < 0 || seq < 0 || seen < 0 || seq > INT64_MAX - count ||
        tickets_size != count * ID_BYTES) {
        PyErr_SetString(PyExc_ValueError, "each number has its ticket, and nothing is negative");
        return NULL;
    }
    uint8_t *packed = PyMem_Malloc((size_t)count * ANSWER_BYTES_MAX + 1);
    if (packed == NULL)
        return PyErr_NoMemory();
    uint8_t *at = packed;
    for (Py_ssize_t one = 0; one < count; one++) {
        int64_t number;
        memcpy(&number, numbers + one * (Py_ssize_t)sizeof number, sizeof number);
        at = put_answer(at, (uint64_t)number, (uint64_t)epoch, (uint64_t)(seq + one), (uint64_t)seen,
                        (const uint8_t *)tickets + one * ID_BYTES);
    }
    PyObject *made = PyBytes_FromStringAndSize((const char *)packed, at - packed);
    PyMem_Free(packed);
    return made;
}

/* A text without NUL, which separates the fields. */
static int take_field(PyObject *value, Text *found)
{
    Py_ssize_t size;
    const char *text = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, &size) : NULL;
    if (text == NULL) {
        PyErr_Clear(); /* half of a surrogate pair: Python says so */
        return 0;
    }
    found->at = (const uint8_t *)text;
    found->size = (size_t)size;
    return memchr(text, 0, (size_t)size) == NULL;
}

static int take_content(PyObject *value, Text *found)
{
    char *bytes;
    Py_ssize_t size;
    if (!PyBytes_Check(value) || PyBytes_AsStringAndSize(value, &bytes, &size) < 0)
        return 0;
    found->at = (const uint8_t *)bytes;
    found->size = (size_t)size;
    return 1;
}

static PyObject *fingerprint(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    (void)self;
    Request asked;
    uint8_t print[PRINT_BYTES];
    if (count != 8) {
        PyErr_SetString(PyExc_TypeError, "formula, kind, ref, reply_to, priority, meta, content_type, body");
        return NULL;
    }
    long formula = PyLong_AsLong(given[0]);
    if (formula == -1 && PyErr_Occurred())
        return NULL;
    if ((formula != 1 && formula != 2) || !take_field(given[1], &asked.kind) || !take_field(given[2], &asked.ref) ||
        !take_field(given[3], &asked.reply_to) || !take_field(given[4], &asked.priority) ||
        !take_content(given[5], &asked.meta) || memchr(asked.meta.at, 0, asked.meta.size) != NULL ||
        !take_field(given[6], &asked.content_type) || !take_content(given[7], &asked.content))
        return no_match();
    print_of(&asked, (int)formula, print);
    return PyBytes_FromStringAndSize((const char *)print, PRINT_BYTES);
}

static PyObject *sha256(PyObject *self, PyObject *raw)
{
    (void)self;
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(raw, &bytes, &size) < 0)
        return NULL;
    uint8_t digest[PRINT_BYTES];
    Sha256 state;
    sha256_begin(&state);
    sha256_add(&state, (const uint8_t *)bytes, (size_t)size);
    sha256_end(&state, digest);
    return PyBytes_FromStringAndSize((const char *)digest, PRINT_BYTES);
}

static PyMethodDef methods[] = {
    {"scan_push", scan_push, METH_O, "Mesh, epoch, numbers and spans of a plain Push frame, or None."},
    {"read_envelopes", read_envelopes, METH_VARARGS, "The columns of the plain envelopes that spans begin with."},
    {"created_answers", created_answers, METH_VARARGS, "The answers of envelopes that were accepted one after another."},
    {"fingerprint", (PyCFunction)(void (*)(void))fingerprint, METH_FASTCALL, "The fingerprint of a request, or None."},
    {"make_intent", make_intent, METH_VARARGS, "The envelope of a plain intent, or None."},
    {"read_commits", read_commits, METH_VARARGS, "The columns of entries of a quorum that are all plain, or None."},
    {"make_records", make_records, METH_VARARGS, "The commit records of such columns, and where each lies."},
    {"leaves", leaves, METH_VARARGS, "The leaf hashes of entries that are joined, given where each ends."},
    {"read_facts", read_facts, METH_VARARGS, "The plain facts of a batch in columns, behind the places of all else."},
    {"sha256", sha256, METH_O, "SHA-256, for comparing."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module)
{
    sha256_choose();
    return PyModule_AddIntConstant(module, "ENVELOPE_BYTES_MAX", ENVELOPE_BYTES_MAX) |
           PyModule_AddIntConstant(module, "MESSAGE_BYTES_MAX", MESSAGE_BYTES_MAX) |
           PyModule_AddIntConstant(module, "VALUE_BYTES_MAX", VALUE_BYTES_MAX) |
           PyModule_AddIntConstant(module, "KEY_BYTES_MAX", KEY_BYTES_MAX) |
           PyModule_AddIntConstant(module, "PATH_BYTES_MAX", PATH_BYTES_MAX) |
           PyModule_AddIntConstant(module, "SUBJECT_BYTES_MAX", SUBJECT_BYTES_MAX) |
           PyModule_AddIntConstant(module, "PREDICATE_BYTES_MAX", PREDICATE_BYTES_MAX) |
           PyModule_AddIntConstant(module, "PEER_ID_BYTES_MAX", PEER_ID_BYTES_MAX) |
           PyModule_AddIntConstant(module, "MESH_SLUG_CHARS_MAX", MESH_SLUG_CHARS_MAX) |
           PyModule_AddIntConstant(module, "REF_CHARS_MAX", REF_CHARS_MAX) |
           PyModule_AddIntConstant(module, "INTENT_BYTES_MAX", INTENT_BYTES_MAX) |
           PyModule_AddIntConstant(module, "ENTITY_BYTES_MAX", ENTITY_BYTES_MAX) |
           PyModule_AddIntConstant(module, "ENTITY_ID_BYTES_MAX", ENTITY_ID_BYTES_MAX) |
           PyModule_AddIntConstant(module, "TITLE_BYTES_MAX", TITLE_BYTES_MAX) |
           PyModule_AddIntConstant(module, "TAGS_MAX", TAGS_MAX) |
           PyModule_AddIntConstant(module, "TAG_BYTES_MAX", TAG_BYTES_MAX);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, prepare},
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_compiled",
    .m_doc = "The compiled reader of pushes; `compiled` finds it.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__compiled(void)
{
    const char *pure = getenv("HOLDFAST_PURE");
    if (pure != NULL && *pure != '\0' && strcmp(pure, "0") != 0) {
        PyErr_SetString(PyExc_ImportError, "HOLDFAST_PURE is set");
        return NULL;
    }
    return PyModuleDef_Init(&definition);
}
