// msgpack in its shortest form: nil, booleans, integers, strings, bytes, arrays and maps. No floats, no extensions.
// Integers beyond 2^53 are BigInt when they are read.

export function encode(value) {
  const out = []
  put(value, out)
  return Buffer.concat(out)
}

function head(out, ...bytes) {
  out.push(Buffer.from(bytes))
}

function sized(out, code, bytes, value) {
  const buffer = Buffer.alloc(1 + bytes)
  buffer[0] = code
  buffer.writeUIntBE(value, 1, bytes)
  out.push(buffer)
}

function put(value, out) {
  if (value === null || value === undefined) head(out, 0xc0)
  else if (value === false) head(out, 0xc2)
  else if (value === true) head(out, 0xc3)
  else if (typeof value === 'number' || typeof value === 'bigint') putInteger(value, out)
  else if (typeof value === 'string') putText(value, out)
  else if (Buffer.isBuffer(value)) putBytes(value, out)
  else if (Array.isArray(value)) {
    if (value.length < 16) head(out, 0x90 | value.length)
    else if (value.length < 65536) sized(out, 0xdc, 2, value.length)
    else sized(out, 0xdd, 4, value.length)
    for (const part of value) put(part, out)
  } else {
    const keys = Object.keys(value)
    if (keys.length > 15) throw new Error('a larger map than this client needs')
    head(out, 0x80 | keys.length)
    for (const key of keys) {
      put(key, out)
      put(value[key], out)
    }
  }
}

function putInteger(value, out) {
  if (value < 0) throw new Error('no number of this protocol is negative')
  if (value < 128) head(out, Number(value))
  else if (value < 256) sized(out, 0xcc, 1, Number(value))
  else if (value < 65536) sized(out, 0xcd, 2, Number(value))
  else if (value < 4294967296) sized(out, 0xce, 4, Number(value))
  else {
    const buffer = Buffer.alloc(9)
    buffer[0] = 0xcf
    buffer.writeBigUInt64BE(BigInt(value), 1)
    out.push(buffer)
  }
}

function putText(value, out) {
  const raw = Buffer.from(value, 'utf8')
  if (raw.length < 32) head(out, 0xa0 | raw.length)
  else if (raw.length < 256) sized(out, 0xd9, 1, raw.length)
  else if (raw.length < 65536) sized(out, 0xda, 2, raw.length)
  else sized(out, 0xdb, 4, raw.length)
  out.push(raw)
}

function putBytes(raw, out) {
  if (raw.length < 256) sized(out, 0xc4, 1, raw.length)
  else if (raw.length < 65536) sized(out, 0xc5, 2, raw.length)
  else sized(out, 0xc6, 4, raw.length)
  out.push(raw)
}

export function decode(raw) {
  const reader = { raw, at: 0 }
  const value = take(reader)
  if (reader.at !== raw.length) throw new Error('something stands behind it')
  return value
}

function bytes(reader, count) {
  if (reader.at + count > reader.raw.length) throw new Error('it is cut off')
  const part = reader.raw.subarray(reader.at, reader.at + count)
  reader.at += count
  return part
}

const number = (reader, count) => bytes(reader, count).readUIntBE(0, count)
const text = (reader, count) => bytes(reader, count).toString('utf8')
const copy = (reader, count) => Buffer.from(bytes(reader, count))
const list = (reader, count) => Array.from({ length: count }, () => take(reader))

function map(reader, count) {
  const found = {}
  for (let n = 0; n < count; n++) found[take(reader)] = take(reader)
  return found
}

function take(reader) {
  const code = number(reader, 1)
  if (code < 0x80) return code
  if (code < 0x90) return map(reader, code & 15)
  if (code < 0xa0) return list(reader, code & 15)
  if (code < 0xc0) return text(reader, code & 31)
  switch (code) {
    case 0xc0: return null
    case 0xc2: return false
    case 0xc3: return true
    case 0xc4: return copy(reader, number(reader, 1))
    case 0xc5: return copy(reader, number(reader, 2))
    case 0xc6: return copy(reader, number(reader, 4))
    case 0xcc: return number(reader, 1)
    case 0xcd: return number(reader, 2)
    case 0xce: return number(reader, 4)
    case 0xcf: {
      const wide = bytes(reader, 8).readBigUInt64BE()
      return wide <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(wide) : wide
    }
    case 0xd9: return text(reader, number(reader, 1))
    case 0xda: return text(reader, number(reader, 2))
    case 0xdb: return text(reader, number(reader, 4))
    case 0xdc: return list(reader, number(reader, 2))
    case 0xdd: return list(reader, number(reader, 4))
    case 0xde: return map(reader, number(reader, 2))
  }
  throw new Error(`0x${code.toString(16)} is not used in this protocol`)
}
