/* Feeds the compiled reader harmed pushes and envelopes, for a build with sanitizers: it must never look beyond what it was
 * given. Each input lies in memory of exactly its size. What the answers are is another test's concern.
 *
 *     fuzz_compiled SEEDS ROUNDS SEED     SEEDS holds good inputs, each behind its length in four bytes
 */

#include <stdio.h>

#include "_facts.h"
#include "_intent.h"

enum { INPUTS_MAX = 256 };

static uint64_t state;

static uint64_t chance(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static uint8_t *harmed(const uint8_t *input, size_t size, size_t *left_of_it)
{
    static const uint8_t heads[] = {0x90, 0x9f, 0xc0, 0xc4, 0xc5, 0xc6, 0xcc, 0xcf, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xff};
    size_t cut = chance(4) == 0 ? chance(size + 1) : size;
    uint8_t *made = malloc(cut > 0 ? cut : 1);
    if (made == NULL)
        abort();
    memcpy(made, input, cut);
    for (uint64_t i = chance(4); i > 0 && cut > 0; i--) {
        /* Near the beginning more often: there are the lengths. */
        size_t at = chance(2) ? chance(cut) : chance(cut < 64 ? cut : 64);
        made[at] = chance(2) ? heads[chance(sizeof heads)] : (uint8_t)chance(256);
    }
    *left_of_it = cut;
    return made;
}

/* Two facts of the same bytes, in columns of exactly their size. */
static size_t in_columns(const uint8_t *raw, size_t size)
{
    static const Text origin = {(const uint8_t *)"bob", 3};
    PlainFact facts[2];
    if (!read_plain_fact(raw, size, origin, &facts[0]))
        return 0;
    facts[1] = facts[0];
    if (!is_of_run(&facts[0], &facts[1]) || subject_at(&facts[0]) + facts[0].subject.size > size)
        abort();
    const size_t widths[] = {size, ID_BYTES, 8, 8, STAMP_DIGITS, PRINT_BYTES};
    uint8_t *to[6];
    for (int i = 0; i < 6; i++)
        if ((to[i] = malloc(2 * widths[i])) == NULL)
            abort();
    FactColumns columns = {to[0], to[1], to[2], to[3], to[4], to[5]};
    put_facts(facts, 2, &columns);
    for (int i = 0; i < 6; i++)
        free(to[i]);
    return 1;
}

/* One entry of a quorum, and what is written of a good one. */
static size_t read_entry(const uint8_t *raw, size_t size)
{
    static const Text mesh = {(const uint8_t *)"team", 4};
    Commit found;
    Rows rows = {malloc(size + 1), 0};
    if (rows.begin == NULL)
        abort();
    size_t good = (size_t)read_commit(raw, size, mesh, &rows, &found);
    if (rows.size > size)
        abort();
    if (good) {
        Authority by = {mesh, found.coordinator, UINT64_MAX, UINT64_MAX};
        Text entity = {found.name.at + MISSION_SIZE, found.name.size - MISSION_SIZE}, body = {raw, size};
        uint8_t *record = malloc(RECORD_BYTES_MAX + mesh.size + found.coordinator.size + found.name.size);
        uint8_t *intent = malloc(INTENT_ROOM + mesh.size + found.name.size + found.origin.size + size);
        if (record == NULL || intent == NULL)
            abort();
        put_record(record, &by, found.id, found.print, UINT64_MAX, UINT64_MAX, UINT64_MAX, entity, UINT64_MAX);
        put_intent(intent, found.id, mesh, found.name, found.origin, UINT64_MAX, UINT64_MAX, found.print, body);
        free(record);
        free(intent);
    }
    free(rows.begin);
    return good;
}

static size_t read_all(const uint8_t *raw, size_t size)
{
    static const Names names = {{(const uint8_t *)"team", 4}, {(const uint8_t *)"bob", 3}};
    Plain plain;
    Push push;
    size_t good = (size_t)read_plain(raw, size, &names, &plain) + in_columns(raw, size) + read_entry(raw, size);
    if (!open_push(raw, size, &push))
        return good;
    uint8_t *numbers = malloc(push.count * 8 + 1), *spans = malloc(push.count * 8 + 1);
    if (numbers == NULL || spans == NULL)
        abort();
    if (read_items(&push, numbers, spans)) {
        for (uint64_t i = 0; i < push.count; i++) {
            int64_t span;
            memcpy(&span, spans + 8 * i, sizeof span);
            good += 1 + (size_t)read_plain(raw + (span >> SPAN_BITS), (size_t)(span & SPAN_MAX), &names, &plain);
        }
    }
    free(numbers);
    free(spans);
    return good;
}

static void both_hashes(const uint8_t *raw, size_t size)
{
    uint8_t one[PRINT_BYTES], other[PRINT_BYTES];
    Sha256 sum;
    sha256_blocks = sha256_plainly;
    for (int i = 0; i < 2; i++) {
        sha256_begin(&sum);
        sha256_add(&sum, raw, size / 3);
        sha256_add(&sum, raw + size / 3, size - size / 3);
        sha256_end(&sum, i ? other : one);
        sha256_choose();
    }
    if (memcmp(one, other, sizeof one) != 0)
        abort();
}

int main(int argc, char **argv)
{
    static uint8_t *inputs[INPUTS_MAX];
    static size_t sizes[INPUTS_MAX];
    size_t count = 0, good = 0;
    uint8_t head[4];
    if (argc != 4)
        return 2;
    FILE *file = fopen(argv[1], "rb");
    if (file == NULL)
        return 2;
    while (count < INPUTS_MAX && fread(head, 1, 4, file) == 4) {
        size_t size = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
        inputs[count] = malloc(size + 1);
        sizes[count] = size;
        if (inputs[count] == NULL || fread(inputs[count], 1, size, file) != size)
            return 2;
        count++;
    }
    fclose(file);
    sha256_choose();
    for (size_t i = 0; i < count; i++)
        good += read_all(inputs[i], sizes[i]);
    printf("%zu good\n", good);
    state = strtoull(argv[3], NULL, 10) * 2654435761u + 88172645463325252u;
    for (uint64_t round = strtoull(argv[2], NULL, 10); round > 0; round--) {
        size_t at = chance(count), size;
        uint8_t *input = harmed(inputs[at], sizes[at], &size);
        good += read_all(input, size);
        if (round % 64 == 0)
            both_hashes(input, size);
        free(input);
    }
    for (size_t i = 0; i < count; i++)
        free(inputs[i]);
    return good == 0;
}
