/* The leaf hash of an entry of the log, as `leaf.leaf_of` makes it. */

#ifndef HOLDFAST_LEAF_H
#define HOLDFAST_LEAF_H

#include "_sha256.h"

enum { LEAF_BYTES = 32 };

static void put_leaf(const uint8_t *raw, size_t size, uint8_t *to)
{
    Sha256 sum;
    sha256_begin(&sum);
    sha256_add(&sum, (const uint8_t *)"", 1);
    sha256_add(&sum, raw, size);
    sha256_end(&sum, to);
}

#endif
