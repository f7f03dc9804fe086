/* The compiled part of a quorum, as Python calls it:
 *
 *     make_intent    the fields of an intent  ->  its envelope, if it is plain
 *     read_commits   payloads of entries      ->  columns, if all of them are plain
 *     make_records   those columns            ->  the commit records of a run that was applied as a whole
 *
 * `_intent.h` says what is plain. Whatever is not is left to Python, which alone says what is wrong with it. */

#ifndef HOLDFAST_COMMITS_H
#define HOLDFAST_COMMITS_H

#include "_intent.h"

enum { DECIMAL_DIGITS = 19 };

static uint8_t *put_number(uint8_t *at, int64_t number)
{
    for (int i = DECIMAL_DIGITS - 1; i >= 0; i--, number /= 10)
        at[i] = (uint8_t)('0' + number % 10);
    return at + DECIMAL_DIGITS;
}

static void put_padded(uint8_t *at, Text text, size_t width)
{
    memcpy(at, text.at, text.size);
    memset(at + text.size, ' ', width - text.size);
}

static PyObject *make_intent(PyObject *self, PyObject *args)
{
    (void)self;
    const char *id, *mesh, *entity, *origin, *print, *body;
    Py_ssize_t id_size, mesh_size, entity_size, origin_size, print_size, body_size;
    long long lamport, created_at;
    if (!PyArg_ParseTuple(args, "y#s#s#s#LLy#y#", &id, &id_size, &mesh, &mesh_size, &entity, &entity_size, &origin,
                          &origin_size, &lamport, &created_at, &print, &print_size, &body, &body_size))
        return NULL;
    if (id_size != ID_BYTES || print_size != PRINT_BYTES || lamport < 1 || created_at < 0 || mesh_size > 0xff ||
        entity_size > 0xffff || origin_size > 0xff || body_size > INTENT_BYTES_MAX) {
        Py_INCREF(Py_None);
        return Py_None;
    }
    Text mesh_text = {(const uint8_t *)mesh, (size_t)mesh_size}, name = {(const uint8_t *)entity, (size_t)entity_size},
         origin_text = {(const uint8_t *)origin, (size_t)origin_size}, body_text = {(const uint8_t *)body, (size_t)body_size};
    size_t room = INTENT_ROOM + mesh_text.size + name.size + origin_text.size + body_text.size;
    uint8_t *made = PyMem_Malloc(2 * room);
    if (made == NULL)
        return PyErr_NoMemory();
    uint8_t *at = put_intent(made, (const uint8_t *)id, mesh_text, name, origin_text, (uint64_t)lamport,
                             (uint64_t)created_at, (const uint8_t *)print, body_text);
    Text raw = {made, (size_t)(at - made)};
    Rows rows = {made + room, 0};
    Commit found;
    PyObject *answer = NULL;
    if (read_intent(raw, mesh_text, &rows, &found)) {
        answer = PyBytes_FromStringAndSize((const char *)made, at - made);
    } else {
        Py_INCREF(Py_None);
        answer = Py_None;
    }
    PyMem_Free(made);
    return answer;
}

/* Reads them one by one; the number of those that are plain, from the first. */
static Py_ssize_t read_payloads(PyObject *payloads, Py_ssize_t count, Text mesh, Rows *rows, Commit *found)
{
    for (Py_ssize_t at = 0; at < count; at++) {
        char *bytes;
        Py_ssize_t size;
        PyObject *payload = PyList_GetItem(payloads, at);
        if (payload == NULL || PyBytes_AsStringAndSize(payload, &bytes, &size) < 0)
            return -1;
        if (!read_commit((const uint8_t *)bytes, (size_t)size, mesh, rows, &found[at]))
            return at;
        if (at > 0 && !same(found[at].coordinator, found[0].coordinator))
            return at;
    }
    return count;
}

static PyObject *room_for(size_t count, size_t width)
{
    return PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * width));
}

enum { IDS, PRINTS, LEAVES, STAMPS, STAMP_WORDS, TIMES, TIME_WORDS, BASES, SPANS, ROW_SPANS, NAMES, ORIGINS, COLUMNS };

/* What each entry says, column by column. */
static PyObject *columns_of_commits(PyObject *payloads, const Commit *found, size_t count, const Rows *rows)
{
    size_t widths[COLUMNS] = {ID_BYTES, PRINT_BYTES, PRINT_BYTES, 8, DECIMAL_DIGITS, 8, DECIMAL_DIGITS, 8, 8, 8, 0, 0};
    PyObject *made[COLUMNS] = {NULL}, *answer = NULL, *joined = NULL;
    uint8_t *at[COLUMNS];
    size_t begin = 0;
    int any_base = 0;
    for (size_t i = 0; i < count; i++) {
        if (found[i].name.size > widths[NAMES])
            widths[NAMES] = found[i].name.size;
        if (found[i].origin.size > widths[ORIGINS])
            widths[ORIGINS] = found[i].origin.size;
        any_base |= found[i].base >= 0;
    }
    for (int column = 0; column < COLUMNS; column++) {
        made[column] = room_for(count, widths[column]);
        if (made[column] == NULL)
            goto end;
        at[column] = (uint8_t *)PyBytes_AsString(made[column]);
    }
    for (size_t i = 0; i < count; i++) {
        const Commit *one = &found[i];
        Sha256 leaf;
        int64_t row_span = (int64_t)one->row << SPAN_BITS | (int64_t)one->row_size, span;
        char *payload;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyList_GetItem(payloads, (Py_ssize_t)i), &payload, &size) < 0)
            goto end;
        span = (int64_t)(begin + (size_t)(one->raw.at - (const uint8_t *)payload)) << SPAN_BITS |
               (int64_t)one->raw.size;
        begin += (size_t)size;
        memcpy(at[IDS] + i * ID_BYTES, one->id, ID_BYTES);
        memcpy(at[PRINTS] + i * PRINT_BYTES, one->print, PRINT_BYTES);
        sha256_begin(&leaf);
        sha256_add(&leaf, (const uint8_t *)"", 1);
        sha256_add(&leaf, one->raw.at, one->raw.size);
        sha256_end(&leaf, at[LEAVES] + i * PRINT_BYTES);
        memcpy(at[STAMPS] + i * 8, &one->lamport, 8);
        put_number(at[STAMP_WORDS] + i * DECIMAL_DIGITS, one->lamport);
        memcpy(at[TIMES] + i * 8, &one->committed_at, 8);
        put_number(at[TIME_WORDS] + i * DECIMAL_DIGITS, one->committed_at);
        memcpy(at[BASES] + i * 8, &one->base, 8);
        memcpy(at[SPANS] + i * 8, &span, 8);
        memcpy(at[ROW_SPANS] + i * 8, &row_span, 8);
        put_padded(at[NAMES] + i * widths[NAMES], one->name, widths[NAMES]);
        put_padded(at[ORIGINS] + i * widths[ORIGINS], one->origin, widths[ORIGINS]);
    }
    joined = PyBytes_FromStringAndSize((const char *)rows->begin, (Py_ssize_t)rows->size);
    if (joined == NULL)
        goto end;
    answer = Py_BuildValue("(s#OOOOOOOOOOOOO)", (const char *)found[0].coordinator.at,
                           (Py_ssize_t)found[0].coordinator.size, made[IDS], made[PRINTS], made[LEAVES], made[STAMPS],
                           made[STAMP_WORDS], made[TIMES], made[TIME_WORDS], any_base ? made[BASES] : Py_None, made[SPANS],
                           made[ROW_SPANS], made[NAMES], made[ORIGINS], joined);
end:
    Py_XDECREF(joined);
    for (int column = 0; column < COLUMNS; column++)
        Py_XDECREF(made[column]);
    return answer;
}

static PyObject *read_commits(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *payloads, *answer = NULL;
    const char *mesh;
    Py_ssize_t mesh_size;
    size_t total = 0;
    if (!PyArg_ParseTuple(args, "Os#", &payloads, &mesh, &mesh_size))
        return NULL;
    Py_ssize_t count = PyList_Size(payloads);
    if (count < 0)
        return NULL;
    for (Py_ssize_t at = 0; at < count; at++) {
        Py_ssize_t size = PyBytes_Size(PyList_GetItem(payloads, at));
        if (size < 0)
            return NULL;
        total += (size_t)size;
    }
    Text mesh_text = {(const uint8_t *)mesh, (size_t)mesh_size};
    Rows rows = {PyMem_Malloc(total + 1), 0};
    Commit *found = PyMem_Malloc((size_t)(count + 1) * sizeof(Commit));
    if (rows.begin == NULL || found == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    Py_ssize_t plain = (int64_t)total > SPAN_MAX ? 0 : read_payloads(payloads, count, mesh_text, &rows, found);
    if (plain < 0)
        goto end;
    if (count == 0 || plain < count) {
        Py_INCREF(Py_None);
        answer = Py_None;
    } else {
        answer = columns_of_commits(payloads, found, (size_t)count, &rows);
    }
end:
    PyMem_Free(rows.begin);
    PyMem_Free(found);
    return answer;
}

static PyObject *make_records(PyObject *self, PyObject *args)
{
    (void)self;
    const char *mesh, *coordinator, *ids, *prints, *names, *times, *revisions;
    Py_ssize_t mesh_size, coordinator_size, ids_size, prints_size, names_size, times_size, revisions_size;
    long long incarnation, epoch, number, sequence;
    if (!PyArg_ParseTuple(args, "s#s#LLLLy#y#y#y#y#", &mesh, &mesh_size, &coordinator, &coordinator_size, &incarnation,
                          &epoch, &number, &sequence, &ids, &ids_size, &prints, &prints_size, &names, &names_size,
                          &times, &times_size, &revisions, &revisions_size))
        return NULL;
    size_t count = (size_t)ids_size / ID_BYTES;
    if (count == 0 || (size_t)ids_size != count * ID_BYTES || (size_t)prints_size != count * PRINT_BYTES ||
        (size_t)times_size != count * 8 || (size_t)revisions_size != count * 8 || (size_t)names_size % count != 0 ||
        incarnation < 0 || epoch < 0 || number < 0 || sequence < 0 || mesh_size > 0xffff || coordinator_size > 0xffff ||
        (size_t)names_size / count < MISSION_SIZE || (size_t)names_size / count > 0xffff) {
        PyErr_SetString(PyExc_ValueError, "the columns do not fit each other");
        return NULL;
    }
    size_t width = (size_t)names_size / count;
    Authority by = {{(const uint8_t *)mesh, (size_t)mesh_size},
                    {(const uint8_t *)coordinator, (size_t)coordinator_size},
                    (uint64_t)incarnation,
                    (uint64_t)epoch};
    size_t room = RECORD_BYTES_MAX + by.mesh.size + by.coordinator.size + width;
    uint8_t *packed = PyMem_Malloc(count * room), *at = packed;
    PyObject *spans = room_for(count, 8), *joined = NULL, *answer = NULL;
    if (packed == NULL || spans == NULL)
        goto end;
    for (size_t i = 0; i < count; i++) {
        int64_t time, revision, begin = at - packed;
        Text entity = {(const uint8_t *)names + i * width + MISSION_SIZE, width - MISSION_SIZE};
        while (entity.size > 0 && entity.at[entity.size - 1] == ' ')
            entity.size--;
        memcpy(&time, times + i * 8, 8);
        memcpy(&revision, revisions + i * 8, 8);
        at = put_record(at, &by, (const uint8_t *)ids + i * ID_BYTES, (const uint8_t *)prints + i * PRINT_BYTES,
                        (uint64_t)number + i, (uint64_t)sequence + i, (uint64_t)time, entity, (uint64_t)revision);
        int64_t span = begin << SPAN_BITS | (int64_t)(at - packed - begin);
        memcpy(PyBytes_AsString(spans) + i * 8, &span, 8);
    }
    joined = PyBytes_FromStringAndSize((const char *)packed, at - packed);
    if (joined != NULL)
        answer = Py_BuildValue("(OO)", joined, spans);
end:
    if (packed == NULL)
        PyErr_NoMemory();
    PyMem_Free(packed);
    Py_XDECREF(joined);
    Py_XDECREF(spans);
    return answer;
}

#endif
