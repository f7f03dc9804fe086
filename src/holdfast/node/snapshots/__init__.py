"""A mesh as envelopes: made, packed, uploaded, taken in."""
