// BLAKE3 (hash mode) from its specification: chunks of 1024 bytes, blocks of 64, a binary tree above them.

const IV = [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19]
const ORDER = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8]
const [CHUNK_START, CHUNK_END, PARENT, ROOT] = [1, 2, 4, 8]

function compress(chaining, words, counter, size, flags) {
  const s = [...chaining, ...IV.slice(0, 4), counter >>> 0, Math.floor(counter / 2 ** 32), size, flags]
  const turn = (x, by) => (x >>> by) | (x << (32 - by))
  const mix = (a, b, c, d, x, y) => {
    s[a] = (s[a] + s[b] + x) | 0
    s[d] = turn(s[d] ^ s[a], 16)
    s[c] = (s[c] + s[d]) | 0
    s[b] = turn(s[b] ^ s[c], 12)
    s[a] = (s[a] + s[b] + y) | 0
    s[d] = turn(s[d] ^ s[a], 8)
    s[c] = (s[c] + s[d]) | 0
    s[b] = turn(s[b] ^ s[c], 7)
  }
  let m = words
  for (let round = 0; round < 7; round += 1) {
    for (let at = 0; at < 4; at += 1) mix(at, 4 + at, 8 + at, 12 + at, m[2 * at], m[2 * at + 1])
    for (let at = 0; at < 4; at += 1) {
      mix(at, 4 + ((at + 1) % 4), 8 + ((at + 2) % 4), 12 + ((at + 3) % 4), m[8 + 2 * at], m[9 + 2 * at])
    }
    m = ORDER.map((from) => m[from])
  }
  return Array.from({ length: 8 }, (_, at) => (s[at] ^ s[at + 8]) >>> 0)
}

function wordsOf(block) {
  const padded = Buffer.concat([block, Buffer.alloc(64 - block.length)])
  return Array.from({ length: 16 }, (_, at) => padded.readUInt32LE(4 * at))
}

function chunk(raw, counter, root) {
  let chaining = IV
  const blocks = Math.max(1, Math.ceil(raw.length / 64))
  for (let at = 0; at < blocks; at += 1) {
    const block = raw.subarray(64 * at, 64 * (at + 1))
    const last = at === blocks - 1
    const flags = (at === 0 ? CHUNK_START : 0) | (last ? CHUNK_END : 0) | (last && root ? ROOT : 0)
    chaining = compress(chaining, wordsOf(block), counter, block.length, flags)
  }
  return chaining
}

function tree(raw, counter, root) {
  if (raw.length <= 1024) return chunk(raw, counter, root)
  // The left side is the largest power of two of chunks that leaves something for the right.
  const chunks = 2 ** Math.floor(Math.log2(Math.ceil(raw.length / 1024) - 1))
  const left = tree(raw.subarray(0, 1024 * chunks), counter, false)
  const right = tree(raw.subarray(1024 * chunks), counter + chunks, false)
  return compress(IV, [...left, ...right], 0, 64, PARENT | (root ? ROOT : 0))
}

export function blake3(raw) {
  const out = Buffer.alloc(32)
  tree(raw, 0, true).forEach((word, at) => out.writeUInt32LE(word, 4 * at))
  return out
}
