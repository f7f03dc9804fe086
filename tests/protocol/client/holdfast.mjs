// The rules of the protocol, written from docs/protocol: keys, hello, envelopes, fingerprints, ids, the one order.

import { createHash, createPrivateKey, createPublicKey, randomBytes, sign, verify } from 'node:crypto'
import { decode, encode } from './msgpack.mjs'

export const sha256 = (...parts) => parts.reduce((hash, part) => hash.update(part), createHash('sha256')).digest()
const NUL = Buffer.from([0])

// --- keys and hello ---------------------------------------------------------------------------------------------

const PKCS8 = Buffer.from('302e020100300506032b657004220420', 'hex')
const SPKI = Buffer.from('302a300506032b6570032100', 'hex')

export class Key {
  constructor(seed) {
    this.secret = createPrivateKey({ key: Buffer.concat([PKCS8, seed]), format: 'der', type: 'pkcs8' })
    this.public = createPublicKey(this.secret).export({ format: 'der', type: 'spki' }).subarray(-32)
  }

  sign(role, transcript) {
    return sign(null, Buffer.concat([words(role), transcript]), this.secret)
  }
}

const words = (role) => Buffer.from(`holdfast hello ${role} 1\0`)

export function isSignedBy(key, role, transcript, proof) {
  const made = createPublicKey({ key: Buffer.concat([SPKI, key]), format: 'der', type: 'spki' })
  return verify(null, Buffer.concat([words(role), transcript]), made, proof)
}

export const transcript = (client, server, certificate) =>
  encode([client.name, client.key, client.nonce, server.name, server.key, server.nonce, certificate])

export function parseCard(text) {
  const parts = text.split(':')
  const [kind, key] = parts.splice(-2)
  if (kind !== 'ed25519') throw new Error('this is no card')
  return { name: parts.join(':'), key: Buffer.from(key, 'base64url') }
}

export const cardOf = (name, key) => `${name}:ed25519:${key.toString('base64url')}`

export function parseInvite(text) {
  const raw = Buffer.from(text.slice('holdfast://join/'.length), 'base64url')
  const packed = raw.subarray(0, -4)
  const check = sha256(Buffer.from('holdfast invite sum 1\0'), packed).subarray(0, 4)
  if (!check.equals(raw.subarray(-4))) throw new Error('the invite was not copied whole')
  const [version, [url, card, mesh, secret]] = decode(packed)
  if (version !== 1) throw new Error('an invite of another version')
  return { url, card, mesh, secret }
}

// --- ids and fingerprints ---------------------------------------------------------------------------------------

export function newId(now = Date.now()) {
  const raw = randomBytes(16)
  raw.writeUIntBE(now, 0, 6)
  raw[6] = 0x70 | (raw[6] & 15)
  raw[8] = 0x80 | (raw[8] & 63)
  return raw
}

export function idText(raw) {
  return raw.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5')
}

export function idOfKey(key, mesh, origin) {
  const digits = key.replaceAll('-', '')
  if (/^[0-9a-f]{12}[78][0-9a-f]{3}[89ab][0-9a-f]{15}$/i.test(digits)) return Buffer.from(digits, 'hex')
  const id = sha256(['holdfast idempotency key 1', mesh, origin, key].join('\0')).subarray(0, 16)
  id[6] = 0x80 | (id[6] & 15)
  id[8] = 0x80 | (id[8] & 63)
  return id
}

export function fingerprint(version, asked) {
  const { kind, ref, replyTo = '', priority = 'next', meta = '', contentType = '', content } = asked
  const parts = [String(version), kind, ref, replyTo, priority, meta]
  if (version === 2) parts.push(contentType)
  return sha256([...parts, sha256(content).toString('hex')].join('\0'))
}

// RFC 8785: keys in the order of their UTF-16 units, numbers and strings as JSON.stringify writes them.
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  if (value === null || typeof value !== 'object') return JSON.stringify(value)
  const fields = Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`)
  return `{${fields.join(',')}}`
}

// --- envelopes --------------------------------------------------------------------------------------------------

export const FIELDS = [
  'protocol', 'version', 'id', 'mesh', 'op', 'entity', 'owner', 'origin', 'epoch', 'seq', 'lamport', 'created_at',
  'write_class', 'state', 'fingerprint', 'base', 'meta', 'body', 'to', 'reply_to', 'priority', 'fence', 'intent',
  'committed_at',
]
const DEFAULTS = {
  protocol: 'holdfast', version: '1.0', owner: '', write_class: 'queued', state: 'committed', base: null,
  meta: Buffer.alloc(0), to: null, reply_to: '', priority: 'next', fence: null, intent: null, committed_at: null,
}

export const encodeEnvelope = (fields) => encode(FIELDS.map((name) => ({ ...DEFAULTS, ...fields })[name]))

export function decodeEnvelope(raw) {
  const values = decode(raw)
  return Object.fromEntries(FIELDS.map((name, at) => [name, values[at]]))
}

// A writer of one origin in one mesh: it counts its envelopes, and keeps a Lamport clock.
export class Writer {
  constructor(mesh, origin, epoch = 1) {
    Object.assign(this, { mesh, origin, epoch, seq: 0, lamport: 0 })
  }

  saw(envelope) {
    this.lamport = Math.max(this.lamport, envelope.lamport)
  }

  write(fields) {
    this.seq += 1
    this.lamport += 1
    const { mesh, origin, epoch, seq, lamport } = this
    return encodeEnvelope({ id: newId(), mesh, origin, epoch, seq, lamport, created_at: Date.now(), ...fields })
  }

  setState(key, value) {
    const body = encode([Buffer.from(JSON.stringify(value))])
    return this.write({
      op: 'state.set', entity: key, body, fingerprint: fingerprint(1, { kind: 'state.set', ref: key, content: body }),
    })
  }

  send(kind, ref, content, { id = newId(), contentType = '' } = {}) {
    return this.write({
      id, version: '1.1', op: 'message.send', entity: `${kind}/${ref}`, to: [kind, ref],
      body: encode([content, contentType]), fingerprint: fingerprint(2, { kind, ref, contentType, content }),
    })
  }
}

// --- the one order ----------------------------------------------------------------------------------------------

export function compareVersions(a, b) {
  if (a.lamport !== b.lamport) return a.lamport < b.lamport ? -1 : 1
  return Buffer.compare(Buffer.from(a.peer), Buffer.from(b.peer)) || Buffer.compare(a.id, b.id)
}
