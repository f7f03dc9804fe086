/* SHA-256 (FIPS 180-4), by the instructions that processors of the x86 family have for it where they are there. */

#ifndef HOLDFAST_SHA256_H
#define HOLDFAST_SHA256_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define SHA256_MAY_BE_BUILT_IN
#include <cpuid.h>
#include <immintrin.h>
#endif

enum { SHA256_BLOCK = 64 };

typedef struct {
    uint32_t state[8];
    uint64_t size;
    size_t held; /* bytes that wait in `block` */
    uint8_t block[SHA256_BLOCK];
} Sha256;

static const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t sha256_turn(uint32_t word, int by)
{
    return word >> by | word << (32 - by);
}

static void sha256_plainly(uint32_t *state, const uint8_t *data, size_t blocks)
{
    for (; blocks > 0; blocks--, data += SHA256_BLOCK) {
        uint32_t w[64], s[8];
        for (int i = 0; i < 16; i++)
            w[i] = (uint32_t)data[4 * i] << 24 | (uint32_t)data[4 * i + 1] << 16 | (uint32_t)data[4 * i + 2] << 8 |
                   data[4 * i + 3];
        for (int i = 16; i < 64; i++) {
            uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (sha256_turn(a, 7) ^ sha256_turn(a, 18) ^ a >> 3) + w[i - 7] +
                   (sha256_turn(b, 17) ^ sha256_turn(b, 19) ^ b >> 10);
        }
        memcpy(s, state, sizeof s);
        for (int i = 0; i < 64; i++) {
            uint32_t e = s[4], a = s[0];
            uint32_t one = s[7] + (sha256_turn(e, 6) ^ sha256_turn(e, 11) ^ sha256_turn(e, 25)) +
                           ((e & s[5]) ^ (~e & s[6])) + sha256_k[i] + w[i];
            uint32_t two = (sha256_turn(a, 2) ^ sha256_turn(a, 13) ^ sha256_turn(a, 22)) +
                           ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
            memmove(s + 1, s, 7 * sizeof *s);
            s[4] += one;
            s[0] = one + two;
        }
        for (int i = 0; i < 8; i++)
            state[i] += s[i];
    }
}

#ifdef SHA256_MAY_BE_BUILT_IN

/* The instructions want the eight words as ABEF and CDGH, and do two rounds each. */
__attribute__((target("sha,sse4.1,ssse3"))) static void sha256_built_in(uint32_t *state, const uint8_t *data,
                                                                         size_t blocks)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i dcba = _mm_loadu_si128((const __m128i *)state);
    __m128i hgfe = _mm_loadu_si128((const __m128i *)(state + 4));
    __m128i cdab = _mm_shuffle_epi32(dcba, 0xB1), efgh = _mm_shuffle_epi32(hgfe, 0x1B);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
    for (; blocks > 0; blocks--, data += SHA256_BLOCK) {
        __m128i abef_before = abef, cdgh_before = cdgh, w[4];
        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), swap);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            __m128i now = w[i & 3];
            __m128i sum = _mm_add_epi32(now, _mm_loadu_si128((const __m128i *)(sha256_k + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
            if (i < 12) {
                /* The four words that come sixteen rounds later, where those of now lie. */
                __m128i next = _mm_sha256msg1_epu32(now, w[(i + 1) & 3]);
                next = _mm_add_epi32(next, _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
                w[i & 3] = _mm_sha256msg2_epu32(next, w[(i + 3) & 3]);
            }
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static int sha256_is_built_in(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 19) || !(c & 1u << 9))
        return 0; /* SSE 4.1, SSSE 3 */
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 29);
}

#endif

static void (*sha256_blocks)(uint32_t *, const uint8_t *, size_t) = sha256_plainly;

static void sha256_choose(void)
{
#ifdef SHA256_MAY_BE_BUILT_IN
    if (sha256_is_built_in())
        sha256_blocks = sha256_built_in;
#endif
}

static void sha256_begin(Sha256 *sum)
{
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(sum->state, first, sizeof first);
    sum->size = 0;
    sum->held = 0;
}

static void sha256_add(Sha256 *sum, const uint8_t *data, size_t size)
{
    sum->size += size;
    if (sum->held > 0) {
        size_t room = SHA256_BLOCK - sum->held, taken = size < room ? size : room;
        memcpy(sum->block + sum->held, data, taken);
        sum->held += taken;
        data += taken;
        size -= taken;
        if (sum->held < SHA256_BLOCK)
            return;
        sha256_blocks(sum->state, sum->block, 1);
        sum->held = 0;
    }
    sha256_blocks(sum->state, data, size / SHA256_BLOCK);
    sum->held = size % SHA256_BLOCK;
    if (sum->held > 0)
        memcpy(sum->block, data + (size - sum->held), sum->held);
}

static void sha256_end(Sha256 *sum, uint8_t *digest)
{
    uint64_t bits = sum->size * 8;
    sum->block[sum->held++] = 0x80;
    if (sum->held > SHA256_BLOCK - 8) {
        memset(sum->block + sum->held, 0, SHA256_BLOCK - sum->held);
        sha256_blocks(sum->state, sum->block, 1);
        sum->held = 0;
    }
    memset(sum->block + sum->held, 0, SHA256_BLOCK - sum->held);
    for (int i = 0; i < 8; i++)
        sum->block[SHA256_BLOCK - 1 - i] = (uint8_t)(bits >> 8 * i);
    sha256_blocks(sum->state, sum->block, 1);
    for (int i = 0; i < 32; i++)
        digest[i] = (uint8_t)(sum->state[i / 4] >> (24 - 8 * (i % 4)));
}

#endif
