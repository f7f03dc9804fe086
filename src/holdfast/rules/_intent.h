/* What a plain intent is: one mission is put as a whole, as `quorum/plain_intents.py` says it in Python. And a plain entry of
 * a quorum: such an intent, behind the name and the clock of the coordinator (`quorum/coordinated.py`). On bytes, without
 * Python. A reader here returns 1 if what it reads is surely good, and 0 for all else. */

#ifndef HOLDFAST_INTENT_H
#define HOLDFAST_INTENT_H

#include "_envelope.h"

/* As in rules/limits.py; a test compares them. */
#define INTENT_BYTES_MAX (1024 * 1024)
#define ENTITY_BYTES_MAX (256 * 1024)
#define ENTITY_ID_BYTES_MAX 256
#define TITLE_BYTES_MAX 1024

/* Of whole numbers that every reader holds exactly. */
enum { EXACT_DIGITS = 15 };
#define MISSION "mission/"
enum { MISSION_SIZE = sizeof MISSION - 1 };

typedef struct {
    Text coordinator, raw, name, origin; /* `name` is "mission/ID" */
    const uint8_t *id, *print;
    int64_t lamport, committed_at, base; /* a base of -1: any */
    size_t row, row_size;                /* where the fields stand among the rows, as rows keep them */
} Commit;

/* Rows of fields, one after another. Canonical JSON is never longer than what it was read from. */
typedef struct {
    uint8_t *begin;
    size_t size;
} Rows;

static void put_row(Rows *rows, const void *bytes, size_t size)
{
    memcpy(rows->begin + rows->size, bytes, size);
    rows->size += size;
}

/* Text as our encoder escapes it, but for control characters that it writes by their number. */
static int take_escaped(Cursor *c, Text *found)
{
    if (!take_byte(c, '"'))
        return 0;
    const uint8_t *begin = c->at;
    while (c->at += plain_text(c->at, left(c)), c->at < c->end && *c->at != '"') {
        uint8_t byte = *c->at;
        size_t length;
        if (byte == '\\')
            length = left(c) > 1 && c->at[1] != 0 && strchr("\"\\bfnrt", c->at[1]) != NULL ? 2 : 0;
        else
            length = byte < 0x80 ? byte >= 0x20 && byte < 0x7f : wide_character(c->at, left(c));
        if (length == 0)
            return 0;
        c->at += length;
    }
    found->at = begin;
    found->size = (size_t)(c->at - begin);
    return take_byte(c, '"');
}

static int take_key(Cursor *c, Text *key)
{
    if (!take_json_text(c, key))
        return 0;
    for (size_t i = 0; i < key->size; i++)
        if (key->at[i] >= 0x80)
            return 0;
    return 1;
}

static int compare_keys(Text one, Text other)
{
    size_t size = one.size < other.size ? one.size : other.size;
    int order = memcmp(one.at, other.at, size);
    return order != 0 ? order : (one.size > other.size) - (one.size < other.size);
}

typedef struct {
    Text key;
    size_t begin, size;
} Member;

/* Puts the members of an object, which stand there from `begin` on, in the order of their keys. */
static int sort_members(Rows *rows, size_t begin, Member *members, int count)
{
    int sorted = 1;
    for (int i = 1; i < count; i++) {
        int order = compare_keys(members[i - 1].key, members[i].key);
        if (order == 0)
            return 0;
        sorted &= order < 0;
    }
    if (sorted)
        return 1;
    size_t size = rows->size - begin;
    uint8_t *copy = malloc(size);
    if (copy == NULL)
        return 0;
    memcpy(copy, rows->begin + begin, size);
    for (int i = 1; i < count; i++) {
        Member one = members[i];
        int at = i;
        for (; at > 0 && compare_keys(one.key, members[at - 1].key) < 0; at--)
            members[at] = members[at - 1];
        members[at] = one;
    }
    int twice = 0;
    rows->size = begin;
    for (int i = 0; i < count; i++) {
        twice |= i > 0 && same(members[i - 1].key, members[i].key);
        if (i > 0)
            put_row(rows, ",", 1);
        put_row(rows, copy + (members[i].begin - begin), members[i].size);
    }
    free(copy);
    return !twice;
}

static int copy_json(Cursor *c, Rows *rows, int depth);

static int copy_object(Cursor *c, Rows *rows, int depth, Text *title)
{
    Member members[KEYS_MAX];
    if (!take_byte(c, '{') || depth > DEPTH_MAX)
        return 0;
    put_row(rows, "{", 1);
    size_t begin = rows->size;
    int count = 0;
    while (!take_byte(c, '}')) {
        if (count == KEYS_MAX || (count > 0 && !take_byte(c, ',')))
            return 0;
        if (count > 0)
            put_row(rows, ",", 1);
        Member *one = &members[count++];
        one->begin = rows->size;
        const uint8_t *from = c->at;
        if (!take_key(c, &one->key) || !take_byte(c, ':'))
            return 0;
        put_row(rows, from, (size_t)(c->at - from));
        from = c->at;
        if (!copy_json(c, rows, depth + 1))
            return 0;
        if (title != NULL) { /* of the entity itself */
            Cursor value = {from, c->at};
            if (one->key.size == 0 || one->key.size > KEY_BYTES_MAX)
                return 0;
            if (is(one->key, "title") && !take_json_text(&value, title))
                return 0;
        }
        one->size = rows->size - one->begin;
    }
    if (!sort_members(rows, begin, members, count))
        return 0;
    put_row(rows, "}", 1);
    return 1;
}

static int copy_list(Cursor *c, Rows *rows, int depth)
{
    if (!take_byte(c, '[') || depth > DEPTH_MAX)
        return 0;
    put_row(rows, "[", 1);
    for (int first = 1; !take_byte(c, ']'); first = 0) {
        if (!first && !take_byte(c, ','))
            return 0;
        if (!first)
            put_row(rows, ",", 1);
        if (!copy_json(c, rows, depth + 1))
            return 0;
    }
    put_row(rows, "]", 1);
    return 1;
}

/* One value, and its canonical form among the rows. */
static int copy_json(Cursor *c, Rows *rows, int depth)
{
    const uint8_t *from = c->at;
    Text text;
    int good;
    if (left(c) < 1)
        return 0;
    switch (*from) {
    case '{':
        return copy_object(c, rows, depth, NULL);
    case '[':
        return copy_list(c, rows, depth);
    case '"':
        good = take_escaped(c, &text);
        break;
    case 't':
        good = take_json_word(c, "true");
        break;
    case 'f':
        good = take_json_word(c, "false");
        break;
    case 'n':
        good = take_json_word(c, "null");
        break;
    default:
        good = take_number_of(c, EXACT_DIGITS);
    }
    if (good)
        put_row(rows, from, (size_t)(c->at - from));
    return good;
}

/* The fields of a mission: all of them, its title among them. */
static int copy_fields(Text fields, Rows *rows, Commit *found)
{
    Cursor c = {fields.at, fields.at + fields.size};
    Text title = {fields.at, 0};
    found->row = rows->size;
    if (fields.size > ENTITY_BYTES_MAX || !copy_object(&c, rows, 0, &title) || c.at != c.end)
        return 0;
    found->row_size = rows->size - found->row;
    return title.size > 0 && title.size <= TITLE_BYTES_MAX;
}

/* The body of an intent that puts one mission. */
static int read_put(Text body, Rows *rows, Commit *found)
{
    Cursor c = {body.at, body.at + body.size};
    Text id, fields;
    if (body.size > INTENT_BYTES_MAX || !take_byte(&c, 0x91) || !take_byte(&c, 0x91) || !take_byte(&c, 0x98) ||
        !take_word(&c, "put") || !take_word(&c, "mission") || !take_text(&c, &id))
        return 0;
    found->base = -1;
    if (!take_nil(&c) && (!take_uint(&c, &found->base) || found->base == INT64_MAX))
        return 0;
    if (!take_bin(&c, &fields) || !take_byte(&c, 0x90) || !take_nil(&c) || !take_nil(&c) || c.at != c.end)
        return 0;
    if (id.size == 0 || id.size > ENTITY_ID_BYTES_MAX || found->name.size != MISSION_SIZE + id.size ||
        memcmp(found->name.at, MISSION, MISSION_SIZE) != 0 ||
        memcmp(found->name.at + MISSION_SIZE, id.at, id.size) != 0)
        return 0;
    /* Names are padded with blanks in their column. */
    return is_printable(id) && id.at[id.size - 1] != ' ' && copy_fields(fields, rows, found);
}

static int read_intent(Text raw, Text mesh, Rows *rows, Commit *found)
{
    static const Names nobody = {{(const uint8_t *)"", 0}, {(const uint8_t *)"", 0}};
    Cursor c = {raw.at, raw.at + raw.size};
    Text id, text, print, body, intent;
    int64_t number;
    if (raw.size > ENVELOPE_BYTES_MAX || !take_byte(&c, 0xdc) || !take_byte(&c, 0) || !take_byte(&c, FIELDS))
        return 0;
    if (!take_word(&c, "holdfast") || !take_word(&c, "1.0") || !take_bin(&c, &id) || id.size != ID_BYTES ||
        !is_new_id(id.at) || id.at[6] >> 4 != 7 || !take_text(&c, &text) || !same(text, mesh))
        return 0;
    if (!take_word(&c, "entity.change") || !take_text(&c, &found->name) || !take_word(&c, "") ||
        !take_text(&c, &found->origin) || !is_peer(found->origin, &nobody))
        return 0;
    if (!take_uint(&c, &number) || number != INT64_MAX - 1 || !take_count(&c, &number) ||
        !take_count(&c, &found->lamport) || !take_uint(&c, &number) || number >= SOURCE_TIME_MS_MAX)
        return 0;
    if (!take_word(&c, "strong") || !take_word(&c, "intent") || !take_bin(&c, &print) || print.size != PRINT_BYTES)
        return 0;
    if (!take_nil(&c) || !take_bin(&c, &text) || text.size > 0 || !take_bin(&c, &body) || !take_nil(&c) ||
        !take_word(&c, "") || !take_text(&c, &text) || which(text, PRIORITIES, 3) < 0 || !take_nil(&c))
        return 0;
    if (!take_bin(&c, &intent) || !same(intent, id) || !take_nil(&c) || c.at != c.end)
        return 0;
    found->raw = raw;
    found->id = id.at;
    found->print = print.at;
    return read_put(body, rows, found);
}

/* The payload of one entry of a quorum. `rows` has room for as many bytes as the payload has. */
static int read_commit(const uint8_t *payload, size_t size, Text mesh, Rows *rows, Commit *found)
{
    static const Names nobody = {{(const uint8_t *)"", 0}, {(const uint8_t *)"", 0}};
    Cursor c = {payload, payload + size};
    Text raw;
    return take_byte(&c, 0x93) && take_text(&c, &found->coordinator) && is_peer(found->coordinator, &nobody) &&
           take_uint(&c, &found->committed_at) && found->committed_at < INT64_MAX && take_bin(&c, &raw) &&
           c.at == c.end && read_intent(raw, mesh, rows, found);
}

/* --- writing one ---------------------------------------------------------------------------------------------------- */

static uint8_t *put_head(uint8_t *at, int small, int small_max, int wide, size_t size)
{
    if ((int)size <= small_max && size <= 0xff) {
        *at++ = (uint8_t)(small | (int)size);
        return at;
    }
    int bytes = size <= 0xff ? 1 : 2;
    *at++ = (uint8_t)(bytes == 1 ? wide : wide + 1);
    if (bytes == 2)
        *at++ = (uint8_t)(size >> 8);
    *at++ = (uint8_t)size;
    return at;
}

static uint8_t *put_plain(uint8_t *at, const uint8_t *bytes, size_t size)
{
    memcpy(at, bytes, size);
    return at + size;
}

/* No text that is written here has more than two bytes of length. */
static uint8_t *put_text(uint8_t *at, Text text)
{
    at = put_head(at, 0xa0, 31, 0xd9, text.size);
    memcpy(at, text.at, text.size);
    return at + text.size;
}

static uint8_t *put_bin(uint8_t *at, const uint8_t *bytes, size_t size)
{
    *at++ = 0xc4;
    *at++ = (uint8_t)size;
    memcpy(at, bytes, size);
    return at + size;
}

/* At most so many bytes of an intent beside the mesh, what it is about, the origin and the body. */
enum { INTENT_ROOM = 192 };

/* The envelope of an intent, as `envelope.encode` writes it. */
static uint8_t *put_intent(uint8_t *at, const uint8_t *id, Text mesh, Text name, Text origin, uint64_t lamport,
                           uint64_t created_at, const uint8_t *print, Text body)
{
    static const uint8_t head[] = "\xdc\x00\x18\xa8holdfast\xa3" "1.0";
    static const uint8_t op[] = "\xad" "entity.change", what[] = "\xa6strong\xa6intent", no_meta[] = "\xc0\xc4\x00",
                         priority[] = "\xc0\xa0\xa4next\xc0";
    static const Text none = {(const uint8_t *)"", 0};
    at = put_plain(at, head, sizeof head - 1);
    at = put_bin(at, id, ID_BYTES);
    at = put_text(at, mesh);
    at = put_plain(at, op, sizeof op - 1);
    at = put_text(at, name);
    at = put_text(at, none);
    at = put_text(at, origin);
    at = put_uint(at, (uint64_t)INT64_MAX - 1);
    at = put_uint(at, lamport);
    at = put_uint(at, lamport);
    at = put_uint(at, created_at);
    at = put_plain(at, what, sizeof what - 1);
    at = put_bin(at, print, PRINT_BYTES);
    at = put_plain(at, no_meta, sizeof no_meta - 1);
    int bytes = body.size <= 0xff ? 1 : body.size <= 0xffff ? 2 : 4;
    *at++ = (uint8_t)(bytes == 1 ? 0xc4 : bytes == 2 ? 0xc5 : 0xc6);
    for (int i = bytes - 1; i >= 0; i--)
        *at++ = (uint8_t)((uint64_t)body.size >> 8 * i);
    at = put_plain(at, body.at, body.size);
    at = put_plain(at, priority, sizeof priority - 1);
    at = put_bin(at, id, ID_BYTES);
    *at++ = 0xc0;
    return at;
}

/* --- records of commits -------------------------------------------------------------------------------------------- */

typedef struct {
    Text mesh, coordinator;
    uint64_t incarnation, epoch;
} Authority;

/* At most so many bytes beside the mesh, the coordinator and the id of the entity. */
enum { RECORD_BYTES_MAX = 160 };

/* As `encode_applied` in quorum/commit_record.py. */
static uint8_t *put_record(uint8_t *at, const Authority *by, const uint8_t *id, const uint8_t *print, uint64_t number,
                           uint64_t sequence, uint64_t committed_at, Text entity, uint64_t revision)
{
    static const Text applied = {(const uint8_t *)"applied", 7}, none = {(const uint8_t *)"", 0},
                      mission = {(const uint8_t *)MISSION, MISSION_SIZE - 1};
    *at++ = 0x9a; /* ten fields */
    *at++ = 1;
    at = put_text(at, by->mesh);
    at = put_bin(at, id, ID_BYTES);
    at = put_bin(at, print, PRINT_BYTES);
    at = put_uint(at, number);
    *at++ = 0x94;
    at = put_uint(at, by->incarnation);
    at = put_uint(at, by->epoch);
    at = put_text(at, by->coordinator);
    at = put_uint(at, sequence);
    at = put_uint(at, committed_at);
    at = put_text(at, applied);
    at = put_text(at, none);
    *at++ = 0x91;
    *at++ = 0x93;
    at = put_text(at, mission);
    at = put_text(at, entity);
    return put_uint(at, revision);
}

#endif
