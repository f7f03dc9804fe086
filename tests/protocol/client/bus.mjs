// What peers of the bus sign, written from docs/protocol/bus.md: parcels and capabilities.

import { createPublicKey, sign, verify } from 'node:crypto'
import { blake3 } from './blake3.mjs'
import { encode } from './msgpack.mjs'

const SPKI = Buffer.from('302a300506032b6570032100', 'hex')
const EACH = 1
const tag = (what) => Buffer.from(`holdfast bus ${what} 1\0`)
const number = (value, size) => {
  const raw = Buffer.alloc(size)
  raw.writeUIntBE(value, 0, size)
  return raw
}

export function isSigned(key, text, signature) {
  const made = createPublicKey({ key: Buffer.concat([SPKI, key]), format: 'der', type: 'spki' })
  return verify(null, text, made, signature)
}

export const signHello = (key, role, transcript) =>
  sign(null, Buffer.concat([tag(`hello ${role}`), transcript]), key.secret)

// --- parcels ----------------------------------------------------------------------------------------------------

// [kind, key, incarnation, name] as bytes
const recipientOf = ([kind, key, life, name]) =>
  Buffer.concat([Buffer.from([kind]), ...(kind === 1 ? [key, life] : [Buffer.from(name)])])

function signedTexts(mode, sender, to, heads) {
  const front = Buffer.concat([sender, number(to.length, 2), to])
  if (mode === EACH) return heads.map((head) => Buffer.concat([tag('envelope'), front, head]))
  return [Buffer.concat([tag('batch'), front, number(heads.length, 4), ...heads])]
}

export function makeParcel(key, recipient, payloads, first, nonces, mode) {
  const to = recipientOf(recipient)
  const heads = payloads.map((payload, at) => {
    const sequence = Buffer.alloc(8)
    sequence.writeBigUInt64BE(first + BigInt(at))
    return Buffer.concat([nonces.subarray(24 * at, 24 * (at + 1)), sequence, blake3(payload)])
  })
  const signatures = signedTexts(mode, key.public, to, heads).map((text) => sign(null, text, key.secret))
  return Buffer.concat([
    Buffer.from([1, mode]), key.public, number(to.length, 2), to, number(payloads.length, 4), ...signatures,
    ...payloads.map((payload) => number(payload.length, 4)), ...heads, ...payloads,
  ])
}

// The messages of a parcel for the peer `me`, or an error with the code of the first check that it fails.
export function openParcel(raw, me) {
  const refuse = (code) => { throw Object.assign(new Error(code), { code }) }
  let at = 0
  const take = (size) => {
    if (at + size > raw.length) refuse('bad_envelope')
    at += size
    return raw.subarray(at - size, at)
  }
  const [version, mode] = take(2)
  if (version !== 1 || ![1, 2].includes(mode)) refuse('bad_envelope')
  const sender = take(32)
  const to = take(take(2).readUInt16BE())
  const direct = to[0] === 1 && to.length === 49
  if (!direct && !([2, 3].includes(to[0]) && to.length > 1)) refuse('bad_envelope')
  const count = take(4).readUInt32BE()
  if (count < 1 || count > 1024) refuse('over_limit')
  const some = (size, many) => Array.from({ length: many }, () => take(size))
  const signatures = some(64, mode === EACH ? count : 1)
  const lengths = some(4, count).map((length) => length.readUInt32BE())
  if (lengths.some((length) => length > 2 ** 21)) refuse('over_limit')
  const heads = some(64, count)
  const payloads = lengths.map(take)
  if (at !== raw.length) refuse('bad_envelope')
  signedTexts(mode, sender, to, heads).forEach((text, n) => {
    if (!isSigned(sender, text, signatures[n])) refuse('bad_signature')
  })
  payloads.forEach((payload, n) => {
    if (!blake3(payload).equals(heads[n].subarray(32))) refuse('bad_payload_id')
  })
  if (direct && !to.subarray(1).equals(Buffer.concat([me.key, me.life]))) refuse('wrong_recipient')
  return payloads.map((payload, n) => ({ payload, sequence: heads[n].readBigUInt64BE(24), sender }))
}

// --- capabilities -----------------------------------------------------------------------------------------------

const stepText = (before, [holder, name, scopes, issued, expires]) => Buffer.concat([
  tag('capability'), number(before.length, 1), before, encode([holder, name, scopes, issued, expires]),
])

export function makeCapability(issuer, keys, steps) {
  const signed = []
  let before = issuer
  steps.forEach((step, at) => {
    const fields = step.slice(0, 5)
    before = sign(null, stepText(before, fields), keys[at].secret)
    signed.push([...fields, before])
  })
  return encode([1, issuer, signed])
}

export function isCapability([, issuer, steps]) {
  let [signer, before] = [issuer, issuer]
  return steps.every((step) => {
    const good = isSigned(signer, stepText(before, step), step[5])
    signer = step[0]
    before = step[5]
    return good
  })
}
