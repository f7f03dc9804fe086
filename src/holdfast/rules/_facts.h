/* What `fact_decoder.read_fact` takes, and a run of such facts in columns (`fact_columns`): again without Python. */

#ifndef HOLDFAST_FACTS_H
#define HOLDFAST_FACTS_H

#include "_envelope.h"
#include "_leaf.h"

/* Where the mesh stands in a plain fact: behind the head, "holdfast", "1.0" and an id. */
enum { MESH_AT = 3 + 9 + 4 + 18 };
/* A row of the columns says in one number where its envelope begins, how long it is, and how long its subject is. */
enum { SUBJECT_BITS = 11, SIZE_BITS = 22, BEGIN_BITS = 24 };
enum { STAMP_DIGITS = 19 };
#define COLUMNS_BYTES_MAX ((size_t)1 << BEGIN_BITS)

typedef struct {
    const uint8_t *raw, *id;
    size_t size;
    Text mesh, origin, subject;
    int64_t lamport;
} PlainFact;

/* One fact: all that `read_fact` asks of it. `origin` is a name that was checked, or empty. */
static int read_plain_fact(const uint8_t *raw, size_t size, Text origin, PlainFact *found)
{
    Plain plain;
    Text op;
    if (size < MESH_AT)
        return 0;
    /* Looked up before the rest is read; `read_plain` makes sure that they are what they seem. */
    Cursor c = {raw + MESH_AT, raw + size};
    if (!take_text(&c, &found->mesh) || !is_mesh(found->mesh) || !take_text(&c, &op) || !is(op, "fact.append") ||
        !take_text(&c, &found->subject))
        return 0;
    Names names = {found->mesh, origin};
    if (!read_plain(raw, size, &names, &plain) || plain.kind != 0)
        return 0;
    /* Of version 7 only, and behind the fingerprint no base. */
    if (plain.id[6] >> 4 != 7 || plain.print[PRINT_BYTES] != 0xc0)
        return 0;
    found->raw = raw;
    found->size = size;
    found->id = plain.id;
    found->origin = plain.origin;
    found->lamport = plain.lamport;
    return 1;
}

/* Where a subject would begin that is so short that one byte says its length. */
static size_t subject_at(const PlainFact *one)
{
    size_t size = one->subject.size;
    return (size_t)(one->subject.at - one->raw) - (size > 31) - (size > 0xff);
}

static int is_of_run(const PlainFact *one, const PlainFact *other)
{
    return same(one->mesh, other->mesh) && same(one->origin, other->origin);
}

typedef struct {
    uint8_t *payload, *ids, *spans, *stamps, *digits, *leaves;
} FactColumns;

/* Writes `count` facts into columns that have room for them; their bytes fit into COLUMNS_BYTES_MAX. */
static void put_facts(const PlainFact *facts, size_t count, const FactColumns *to)
{
    size_t begin = 0;
    for (size_t at = 0; at < count; at++) {
        const PlainFact *one = &facts[at];
        int64_t span = (int64_t)begin << (SIZE_BITS + SUBJECT_BITS) | (int64_t)one->size << SUBJECT_BITS |
                       (int64_t)one->subject.size;
        memcpy(to->payload + begin, one->raw, one->size);
        memcpy(to->ids + at * ID_BYTES, one->id, ID_BYTES);
        memcpy(to->spans + at * sizeof span, &span, sizeof span);
        memcpy(to->stamps + at * sizeof one->lamport, &one->lamport, sizeof one->lamport);
        uint64_t number = (uint64_t)one->lamport;
        for (int i = STAMP_DIGITS - 1; i >= 0; i--) {
            to->digits[at * STAMP_DIGITS + (size_t)i] = (uint8_t)('0' + number % 10);
            number /= 10;
        }
        put_leaf(one->raw, one->size, to->leaves + at * PRINT_BYTES);
        begin += one->size;
    }
}

#endif
