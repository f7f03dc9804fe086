/* What a plain envelope is, and a plain Push frame: the rules of `envelope`, `bodies` and `canonical` for the usual case,
 * on bytes, without Python. A reader here returns 1 if what it reads is surely good, and 0 for all else. */

#ifndef HOLDFAST_ENVELOPE_H
#define HOLDFAST_ENVELOPE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_sha256.h"

/* As in rules/limits.py; a test compares them. */
#define ENVELOPE_BYTES_MAX (2 * 1024 * 1024)
#define MESSAGE_BYTES_MAX (1024 * 1024)
#define VALUE_BYTES_MAX (1024 * 1024)
#define KEY_BYTES_MAX 1024
#define PATH_BYTES_MAX 1024
#define SUBJECT_BYTES_MAX 1024
#define PREDICATE_BYTES_MAX 256
#define PEER_ID_BYTES_MAX 128
#define MESH_SLUG_CHARS_MAX 64
#define REF_CHARS_MAX 128
#define TAGS_MAX 64
#define TAG_BYTES_MAX 128
#define SOURCE_TIME_MS_MAX 253402300800000LL

enum { ID_BYTES = 16, PRINT_BYTES = 32, FIELDS = 24, PUSH_TAG = 24 };
/* A value is plain up to these; the rules allow more. */
enum { DEPTH_MAX = 16, KEYS_MAX = 24, DIGITS_MAX = 18, FRACTION_DIGITS_MAX = 15, ZEROS_MAX = 3 };
/* A span is an offset and a length in one number. */
enum { SPAN_BITS = 31 };
#define SPAN_MAX ((1LL << SPAN_BITS) - 1)

typedef struct {
    const uint8_t *at;
    size_t size;
} Text;

typedef struct {
    const uint8_t *at, *end;
} Cursor;

typedef struct {
    Text mesh;   /* whose envelopes are read */
    Text member; /* the name of who pushes: it was checked, whatever its alphabet */
} Names;

typedef struct {
    const uint8_t *id, *print;
    Text ref, origin;
    int64_t lamport;
    size_t size;
    int kind, priority;
} Plain;

static const char *const KINDS[] = {"change", "topic", "dm", "queue"};
static const char *const PRIORITIES[] = {"now", "next", "low"};

static int same(Text one, Text other)
{
    return one.size == other.size && memcmp(one.at, other.at, one.size) == 0;
}

static int is(Text text, const char *word)
{
    return text.size == strlen(word) && memcmp(text.at, word, text.size) == 0;
}

static int which(Text text, const char *const *words, int count)
{
    for (int i = 0; i < count; i++)
        if (is(text, words[i]))
            return i;
    return -1;
}

/* --- msgpack, in its shortest form only -------------------------------------------------------------------------- */

static size_t left(const Cursor *c)
{
    return (size_t)(c->end - c->at);
}

static int take_byte(Cursor *c, uint8_t wanted)
{
    if (left(c) < 1 || *c->at != wanted)
        return 0;
    c->at++;
    return 1;
}

/* A whole number of some bytes, big end first. */
static int take_number(Cursor *c, int bytes, uint64_t *found)
{
    if (left(c) < (size_t)bytes)
        return 0;
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++)
        number = number << 8 | c->at[i];
    c->at += bytes;
    *found = number;
    return 1;
}

static int take_uint(Cursor *c, int64_t *found)
{
    static const uint64_t least[] = {1ULL << 7, 1ULL << 8, 1ULL << 16, 1ULL << 32};
    uint64_t number;
    if (left(c) < 1)
        return 0;
    uint8_t head = *c->at++;
    if (head < 0x80) {
        *found = head;
        return 1;
    }
    if (head < 0xcc || head > 0xcf || !take_number(c, 1 << (head - 0xcc), &number))
        return 0;
    if (number < least[head - 0xcc] || number > INT64_MAX)
        return 0;
    *found = (int64_t)number;
    return 1;
}

static int take_bytes(Cursor *c, uint64_t size, Text *found)
{
    if (size > left(c))
        return 0;
    found->at = c->at;
    found->size = (size_t)size;
    c->at += size;
    return 1;
}

static int take_text(Cursor *c, Text *found)
{
    uint64_t size;
    if (left(c) < 1)
        return 0;
    uint8_t head = *c->at++;
    if ((head & 0xe0) == 0xa0)
        return take_bytes(c, head & 0x1f, found);
    if (head == 0xd9)
        return take_number(c, 1, &size) && size > 31 && take_bytes(c, size, found);
    if (head == 0xda)
        return take_number(c, 2, &size) && size > 0xff && take_bytes(c, size, found);
    return 0; /* no text of ours is so long */
}

static int take_bin(Cursor *c, Text *found)
{
    uint64_t size;
    if (left(c) < 1)
        return 0;
    switch (*c->at++) {
    case 0xc4:
        return take_number(c, 1, &size) && take_bytes(c, size, found);
    case 0xc5:
        return take_number(c, 2, &size) && size > 0xff && take_bytes(c, size, found);
    case 0xc6:
        return take_number(c, 4, &size) && size > 0xffff && take_bytes(c, size, found);
    default:
        return 0;
    }
}

static int take_array(Cursor *c, uint64_t *count)
{
    if (left(c) < 1)
        return 0;
    uint8_t head = *c->at++;
    if ((head & 0xf0) == 0x90) {
        *count = head & 0x0f;
        return 1;
    }
    if (head == 0xdc)
        return take_number(c, 2, count) && *count > 15;
    return head == 0xdd && take_number(c, 4, count) && *count > 0xffff;
}

static int take_nil(Cursor *c)
{
    return take_byte(c, 0xc0);
}

static int take_word(Cursor *c, const char *word)
{
    Text text;
    return take_text(c, &text) && is(text, word);
}

/* --- names and text ---------------------------------------------------------------------------------------------- */

/* The bytes of one character that is not ASCII, 0 if it is not UTF-8. */
static size_t wide_character(const uint8_t *at, size_t size)
{
    size_t length = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    uint32_t code = at[0] & (0xffu >> (length + 1));
    if (at[0] < 0xc2 || at[0] > 0xf4 || length > size)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3f);
    }
    if (length == 3 && (code < 0x800 || (code >= 0xd800 && code < 0xe000)))
        return 0;
    return length == 4 && (code < 0x10000 || code > 0x10ffff) ? 0 : length;
}

/* A key as `names.check_key` allows it. */
static int is_key(Text text, size_t most)
{
    if (text.size == 0 || text.size > most)
        return 0;
    for (size_t i = 0; i < text.size;) {
        uint8_t byte = text.at[i];
        size_t length = byte < 0x80 ? byte != 0 : wide_character(text.at + i, text.size - i);
        if (length == 0)
            return 0;
        i += length;
    }
    return 1;
}

static int is_printable(Text text)
{
    for (size_t i = 0; i < text.size; i++)
        if (text.at[i] < 0x20 || text.at[i] > 0x7e)
            return 0;
    return 1;
}

/* The name of a peer: one that was checked before, or of the plain alphabet. */
static int is_peer(Text text, const Names *names)
{
    if (text.size == 0)
        return 0;
    if (same(text, names->member))
        return 1;
    return text.size <= PEER_ID_BYTES_MAX && is_printable(text) && text.at[0] != ' ' &&
           text.at[text.size - 1] != ' ';
}

/* The name of a mesh, as `names.check_mesh` allows it. */
static int is_mesh(Text text)
{
    for (size_t i = 0; i < text.size; i++) {
        uint8_t byte = text.at[i];
        int is_word = (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9');
        if (!is_word && (i == 0 || (byte != '.' && byte != '_' && byte != '-')))
            return 0;
    }
    return text.size > 0 && text.size <= MESH_SLUG_CHARS_MAX;
}

static int is_hex(Text text)
{
    for (size_t i = 0; i < text.size; i++) {
        uint8_t byte = text.at[i];
        if (!((byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f')))
            return 0;
    }
    return 1;
}

/* An id that a new envelope may bear: a UUID of version 8, or of version 7 with a time before the year 10000. */
static int is_new_id(const uint8_t *id)
{
    if (id[8] >> 6 != 2)
        return 0;
    uint64_t time = 0;
    for (int i = 0; i < 6; i++)
        time = time << 8 | id[i];
    return id[6] >> 4 == 8 || (id[6] >> 4 == 7 && time < SOURCE_TIME_MS_MAX);
}

/* The text of an id, in the one form in which it is written. */
static int is_id_text(Text text)
{
    if (text.size != 36)
        return 0;
    for (size_t i = 0; i < text.size; i++) {
        Text one = {text.at + i, 1};
        if (i == 8 || i == 13 || i == 18 || i == 23 ? text.at[i] != '-' : !is_hex(one))
            return 0;
    }
    uint8_t version = text.at[14], variant = text.at[19];
    return (version == '7' || version == '8') && strchr("89ab", variant) != NULL;
}

/* --- JSON as our own writers spell it ----------------------------------------------------------------------------- */

static int take_json(Cursor *c, int depth);

/* Which bytes of a word are zero: not 0 if any is. */
static uint64_t zero_bytes(uint64_t word)
{
    return (word - 0x0101010101010101ULL) & ~word & 0x8080808080808080ULL;
}

/* How many bytes at least of a text are plain ASCII within JSON, eight at a time. */
static size_t plain_text(const uint8_t *at, size_t size)
{
    const uint64_t each = 0x0101010101010101ULL;
    size_t passed = 0;
    for (uint64_t word; size - passed >= sizeof word; passed += sizeof word) {
        memcpy(&word, at + passed, sizeof word);
        uint64_t low = (word - each * 0x20) & ~word & each * 0x80;
        if (low | (word & each * 0x80) | zero_bytes(word ^ each * '"') | zero_bytes(word ^ each * '\\') |
            zero_bytes(word ^ each * 0x7f))
            break;
    }
    return passed;
}

/* Text without escapes. */
static int take_json_text(Cursor *c, Text *found)
{
    if (!take_byte(c, '"'))
        return 0;
    const uint8_t *begin = c->at;
    c->at += plain_text(c->at, left(c));
    while (c->at < c->end && *c->at != '"') {
        uint8_t byte = *c->at;
        size_t length = byte < 0x80 ? byte >= 0x20 && byte < 0x7f && byte != '\\' : wide_character(c->at, left(c));
        if (length == 0)
            return 0;
        c->at += length;
    }
    found->at = begin;
    found->size = (size_t)(c->at - begin);
    return take_byte(c, '"');
}

/* What follows the point of a number whose whole part has `digits`. Of few digits in all, and none of them a needless zero:
 * such a number is held by every reader so that every writer spells it like this. */
static int take_json_fraction(Cursor *c, const uint8_t *whole, size_t digits, int negative)
{
    const uint8_t *begin = c->at;
    size_t zeros = 0;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9')
        c->at++;
    size_t size = (size_t)(c->at - begin);
    if (size == 0 || (c->at < c->end && (*c->at == 'e' || *c->at == 'E')))
        return 0;
    if (*whole == '0') {
        while (zeros < size && begin[zeros] == '0')
            zeros++;
        if (zeros == size)
            return size == 1 && !negative;
        digits = 0;
    }
    return zeros <= ZEROS_MAX && digits + size - zeros <= FRACTION_DIGITS_MAX && (begin[size - 1] != '0' || size == 1);
}

/* A number that every reader holds exactly: a whole one of at most so many digits, or a fraction. */
static int take_number_of(Cursor *c, size_t digits_max)
{
    int negative = take_byte(c, '-');
    const uint8_t *begin = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9')
        c->at++;
    size_t digits = (size_t)(c->at - begin);
    if (digits == 0 || digits > digits_max || (*begin == '0' && digits > 1))
        return 0;
    if (take_byte(c, '.'))
        return take_json_fraction(c, begin, digits, negative);
    return (*begin != '0' || !negative) && (c->at == c->end || (*c->at != 'e' && *c->at != 'E'));
}

static int take_json_number(Cursor *c)
{
    return take_number_of(c, DIGITS_MAX);
}

static int take_json_object(Cursor *c, int depth)
{
    Text keys[KEYS_MAX];
    c->at++;
    if (take_byte(c, '}'))
        return 1;
    for (int count = 0; count < KEYS_MAX; count++) {
        if (!take_json_text(c, &keys[count]))
            return 0;
        for (int i = 0; i < count; i++)
            if (same(keys[i], keys[count]))
                return 0;
        if (!take_byte(c, ':') || !take_json(c, depth + 1))
            return 0;
        if (take_byte(c, '}'))
            return 1;
        if (!take_byte(c, ','))
            return 0;
    }
    return 0;
}

static int take_json_list(Cursor *c, int depth)
{
    c->at++;
    if (take_byte(c, ']'))
        return 1;
    for (;;) {
        if (!take_json(c, depth + 1))
            return 0;
        if (take_byte(c, ']'))
            return 1;
        if (!take_byte(c, ','))
            return 0;
    }
}

static int take_json_word(Cursor *c, const char *word)
{
    size_t size = strlen(word);
    if (left(c) < size || memcmp(c->at, word, size) != 0)
        return 0;
    c->at += size;
    return 1;
}

static int take_json(Cursor *c, int depth)
{
    Text text;
    if (left(c) < 1 || depth > DEPTH_MAX)
        return 0;
    switch (*c->at) {
    case '"':
        return take_json_text(c, &text);
    case '{':
        return take_json_object(c, depth);
    case '[':
        return take_json_list(c, depth);
    case 't':
        return take_json_word(c, "true");
    case 'f':
        return take_json_word(c, "false");
    case 'n':
        return take_json_word(c, "null");
    default:
        return take_json_number(c);
    }
}

static int take_value(Cursor *c)
{
    Text raw;
    if (!take_bin(c, &raw) || raw.size > VALUE_BYTES_MAX)
        return 0;
    Cursor json = {raw.at, raw.at + raw.size};
    return take_json(&json, 0) && json.at == json.end;
}

/* --- the envelope ------------------------------------------------------------------------------------------------- */

typedef struct {
    Text version, op, entity, owner, origin, print, body, reply_to, to_kind, to_ref, priority;
    int has_to;
} Fields;

static int has_owner(const Fields *f)
{
    return same(f->owner, f->origin); /* everybody writes their own, and no name is empty */
}

static int is_change(const Fields *f)
{
    Cursor c = {f->body.at, f->body.at + f->body.size};
    Text text;
    uint64_t count;
    if (f->has_to || f->reply_to.size > 0 || !is(f->version, "1.0"))
        return 0;
    if (is(f->op, "state.set")) {
        if (f->owner.size > 0 || !is_key(f->entity, KEY_BYTES_MAX) || !take_byte(&c, 0x91) || !take_value(&c))
            return 0;
    } else if (is(f->op, "fact.append")) {
        if (f->owner.size > 0 || !is_key(f->entity, SUBJECT_BYTES_MAX) || !take_byte(&c, 0x92))
            return 0;
        if (!take_text(&c, &text) || !is_key(text, PREDICATE_BYTES_MAX) || !take_value(&c))
            return 0;
    } else if (is(f->op, "memory.set")) {
        if (!has_owner(f) || !is_key(f->entity, KEY_BYTES_MAX) || !take_byte(&c, 0x92) || !take_value(&c))
            return 0;
        if (!take_array(&c, &count) || count > TAGS_MAX)
            return 0;
        for (uint64_t i = 0; i < count; i++)
            if (!take_text(&c, &text) || !is_key(text, TAG_BYTES_MAX))
                return 0;
    } else if (is(f->op, "state.delete")) {
        if (f->owner.size > 0 || !is_key(f->entity, KEY_BYTES_MAX) || !take_byte(&c, 0x90))
            return 0;
    } else if (is(f->op, "memory.forget")) {
        if (!has_owner(f) || !is_key(f->entity, KEY_BYTES_MAX) || !take_byte(&c, 0x90))
            return 0;
    } else {
        return 0;
    }
    return c.at == c.end;
}

static void add_field(Sha256 *sum, Text text)
{
    sha256_add(sum, text.at, text.size);
    sha256_add(sum, (const uint8_t *)"", 1);
}

typedef struct {
    Text kind, ref, reply_to, priority, meta, content_type, content;
} Request;

/* The fingerprint of a request, by version 1 or 2 of the formula (see `fingerprint`). */
static void print_of(const Request *asked, int formula, uint8_t *print)
{
    static const Text one = {(const uint8_t *)"1", 1}, two = {(const uint8_t *)"2", 1};
    static const char digits[] = "0123456789abcdef";
    uint8_t hash[PRINT_BYTES], hex[2 * PRINT_BYTES];
    Sha256 sum;
    sha256_begin(&sum);
    sha256_add(&sum, asked->content.at, asked->content.size);
    sha256_end(&sum, hash);
    for (int i = 0; i < PRINT_BYTES; i++) {
        hex[2 * i] = (uint8_t)digits[hash[i] >> 4];
        hex[2 * i + 1] = (uint8_t)digits[hash[i] & 15];
    }
    sha256_begin(&sum);
    add_field(&sum, formula == 1 ? one : two);
    add_field(&sum, asked->kind);
    add_field(&sum, asked->ref);
    add_field(&sum, asked->reply_to);
    add_field(&sum, asked->priority);
    add_field(&sum, asked->meta);
    if (formula == 2)
        add_field(&sum, asked->content_type);
    sha256_add(&sum, hex, sizeof hex);
    sha256_end(&sum, print);
}

/* Whether the fingerprint is that of the content. */
static int has_its_print(const Fields *f, Text content, Text content_type, int formula)
{
    Request asked = {f->to_kind, f->to_ref, f->reply_to, f->priority, {(const uint8_t *)"", 0}, content_type, content};
    uint8_t print[PRINT_BYTES];
    print_of(&asked, formula, print);
    return memcmp(print, f->print.at, PRINT_BYTES) == 0;
}

static int is_message(const Fields *f)
{
    Cursor c = {f->body.at, f->body.at + f->body.size};
    Text content, type;
    int formula = is(f->version, "1.0") ? 1 : is(f->version, "1.1") ? 2 : 0;
    if (formula == 0 || !f->has_to || f->owner.size > 0 || !is(f->op, "message.send"))
        return 0;
    if (!is_key(f->to_ref, REF_CHARS_MAX) || (is(f->to_kind, "dm") && (f->to_ref.size != 64 || !is_hex(f->to_ref))))
        return 0;
    if (f->reply_to.size > 0 && !is_id_text(f->reply_to))
        return 0;
    /* A message is about its destination. */
    size_t kind = f->to_kind.size;
    if (f->entity.size != kind + 1 + f->to_ref.size || f->entity.at[kind] != '/' ||
        memcmp(f->entity.at, f->to_kind.at, kind) != 0 ||
        memcmp(f->entity.at + kind + 1, f->to_ref.at, f->to_ref.size) != 0)
        return 0;
    if (!take_byte(&c, 0x92) || !take_bin(&c, &content) || !take_text(&c, &type) || c.at != c.end)
        return 0;
    if (content.size > MESSAGE_BYTES_MAX || type.size > KEY_BYTES_MAX || !is_printable(type))
        return 0;
    return has_its_print(f, content, type, formula);
}

static int take_base(Cursor *c, int64_t lamport, const Names *names)
{
    int64_t before;
    Text peer;
    if (take_nil(c))
        return 1;
    return take_byte(c, 0x93) && take_uint(c, &before) && before >= 1 && before < lamport && take_text(c, &peer) &&
           is_peer(peer, names) && take_nil(c);
}

static int take_count(Cursor *c, int64_t *found)
{
    return take_uint(c, found) && *found >= 1 && *found < INT64_MAX;
}

static int take_to(Cursor *c, Fields *f, int *kind)
{
    f->has_to = 0;
    *kind = 0;
    if (take_nil(c))
        return 1;
    f->has_to = 1;
    if (!take_byte(c, 0x92) || !take_text(c, &f->to_kind) || !take_text(c, &f->to_ref))
        return 0;
    *kind = which(f->to_kind, KINDS, 4);
    return *kind > 0;
}

/* One envelope: all that `broker.decode_push` asks of it. */
static int read_plain(const uint8_t *raw, size_t size, const Names *names, Plain *found)
{
    static const Text nowhere = {(const uint8_t *)"", 0};
    Cursor c = {raw, raw + size};
    Fields f;
    Text id, mesh, meta, write_class;
    int64_t epoch, seq, lamport, created_at;
    if (size > ENVELOPE_BYTES_MAX || !take_byte(&c, 0xdc) || !take_byte(&c, 0) || !take_byte(&c, FIELDS))
        return 0;
    if (!take_word(&c, "holdfast") || !take_text(&c, &f.version) || !take_bin(&c, &id) || id.size != ID_BYTES ||
        !is_new_id(id.at) || !take_text(&c, &mesh) || !same(mesh, names->mesh))
        return 0;
    if (!take_text(&c, &f.op) || !take_text(&c, &f.entity) || !is_key(f.entity, PATH_BYTES_MAX) ||
        !take_text(&c, &f.owner) || !take_text(&c, &f.origin) || !is_peer(f.origin, names))
        return 0;
    if (!take_count(&c, &epoch) || !take_count(&c, &seq) || !take_count(&c, &lamport) || !take_uint(&c, &created_at) ||
        created_at >= SOURCE_TIME_MS_MAX)
        return 0;
    if (!take_text(&c, &write_class) || !(is(write_class, "queued") || is(write_class, "append-only")) ||
        !take_word(&c, "committed") || !take_bin(&c, &f.print) || f.print.size != PRINT_BYTES)
        return 0;
    if (!take_base(&c, lamport, names) || !take_bin(&c, &meta) || meta.size > 0 || !take_bin(&c, &f.body) ||
        !take_to(&c, &f, &found->kind) || !take_text(&c, &f.reply_to) || !take_text(&c, &f.priority))
        return 0;
    found->priority = which(f.priority, PRIORITIES, 3);
    if (found->priority < 0 || !take_nil(&c) || !take_nil(&c) || !take_nil(&c) || c.at != c.end)
        return 0;
    if (f.has_to ? !is_message(&f) : !is_change(&f))
        return 0;
    found->id = id.at;
    found->print = f.print.at;
    found->ref = f.has_to ? f.to_ref : nowhere;
    found->origin = f.origin;
    found->lamport = lamport;
    found->size = size;
    return 1;
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

typedef struct {
    Text mesh;
    int64_t epoch;
    uint64_t count;
    const uint8_t *begin; /* of the frame */
    Cursor items;
} Push;

static int open_push(const uint8_t *raw, size_t size, Push *push)
{
    Cursor c = {raw, raw + size};
    if (!take_byte(&c, 0x94) || !take_byte(&c, PUSH_TAG) || !take_text(&c, &push->mesh) ||
        !is_mesh(push->mesh) || !take_uint(&c, &push->epoch) || !take_array(&c, &push->count))
        return 0;
    push->begin = raw;
    push->items = c;
    /* An item takes four bytes at least: nobody gets room for items that did not come. */
    return push->count <= left(&c) / 4;
}

/* The number and the span of each item; `numbers` and `spans` need not be aligned. */
static int read_items(const Push *push, uint8_t *numbers, uint8_t *spans)
{
    Cursor c = push->items;
    for (uint64_t i = 0; i < push->count; i++) {
        int64_t number;
        Text raw;
        if (!take_byte(&c, 0x92) || !take_uint(&c, &number) || !take_bin(&c, &raw))
            return 0;
        int64_t span = (int64_t)(raw.at - push->begin) << SPAN_BITS | (int64_t)raw.size;
        memcpy(numbers + 8 * i, &number, 8);
        memcpy(spans + 8 * i, &span, 8);
    }
    return c.at == c.end;
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

enum { ANSWER_BYTES_MAX = 1 + 9 + 2 + 9 + 9 + 2 + ID_BYTES + 1 + 9 + 1 };

static uint8_t *put_uint(uint8_t *at, uint64_t number)
{
    int bytes = number < 0x80 ? 0 : number <= 0xff ? 1 : number <= 0xffff ? 2 : number <= 0xffffffff ? 4 : 8;
    if (bytes == 0) {
        *at++ = (uint8_t)number;
        return at;
    }
    *at++ = (uint8_t)(bytes == 1 ? 0xcc : bytes == 2 ? 0xcd : bytes == 4 ? 0xce : 0xcf);
    for (int i = bytes - 1; i >= 0; i--)
        *at++ = (uint8_t)(number >> 8 * i);
    return at;
}

/* PushAnswer(number, 201, epoch, seq, ticket, true, seen, nil) */
static uint8_t *put_answer(uint8_t *at, uint64_t number, uint64_t epoch, uint64_t seq, uint64_t seen,
                           const uint8_t *ticket)
{
    *at++ = 0x98;
    at = put_uint(at, number);
    at = put_uint(at, 201);
    at = put_uint(at, epoch);
    at = put_uint(at, seq);
    *at++ = 0xc4;
    *at++ = ID_BYTES;
    memcpy(at, ticket, ID_BYTES);
    at += ID_BYTES;
    *at++ = 0xc3;
    at = put_uint(at, seen);
    *at++ = 0xc0;
    return at;
}

#endif
