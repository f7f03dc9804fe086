// A small client of Holdfast without any of its code, for the tests:
//
//   node main.mjs vectors FOLDER                 checks every vector; prints how many of each file
//   node main.mjs member INVITE NAME SEED        joins a mesh and talks with its broker
//   node main.mjs zone URL CARD NAME SEED        reads a node's log as a zone
//   node main.mjs parcel SEED KEY LIFE TEXT...   signs messages for a peer of the bus, in both ways
//
// Each prints one JSON document with what it saw.

import { randomBytes } from 'node:crypto'
import { readFileSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import * as bus from './bus.mjs'
import * as hf from './holdfast.mjs'
import { decode, encode } from './msgpack.mjs'
import { Service, Sync } from './wire.mjs'

const hex = (text) => Buffer.from(text, 'hex')

function same(got, wanted, what) {
  const [a, b] = [got, wanted].map((value) => (Buffer.isBuffer(value) ? value.toString('hex') : value))
  if (a !== b) throw new Error(`${what}: ${a} is not ${b}`)
}

// --- vectors ----------------------------------------------------------------------------------------------------

const checks = {
  'hello.json'(v) {
    const [client, server] = [v.client_seed, v.server_seed].map((seed) => new hf.Key(hex(seed)))
    same(client.public, v.client_key, 'the key')
    const said = hf.transcript(
      { name: v.client_zone, key: hex(v.client_key), nonce: hex(v.client_nonce) },
      { name: v.server_zone, key: hex(v.server_key), nonce: hex(v.server_nonce) }, hex(v.certificate))
    same(said, v.transcript, 'the transcript')
    same(client.sign('client', said), v.client_proof, 'the proof of the client')
    same(server.sign('server', said), v.server_proof, 'the proof of the server')
    if (hf.isSignedBy(client.public, 'server', said, hex(v.client_proof))) throw new Error('the roles do not differ')
    same(hf.cardOf(v.client_zone, client.public), v.client_card, 'the card')
    same(hf.parseCard(v.client_card).name, v.client_zone, 'the name on the card')
  },
  'envelopes.json'(v) {
    const fields = { ...v.fields }
    for (const name of ['id', 'fingerprint', 'meta', 'body']) fields[name] = hex(fields[name])
    same(hf.encodeEnvelope(fields), v.raw, v.name)
    const read = hf.decodeEnvelope(hex(v.raw))
    for (const name of hf.FIELDS) same(JSON.stringify(read[name]), JSON.stringify(fields[name] ?? null), name)
    const { op, entity, meta, to, reply_to, priority } = read
    const body = decode(read.body)
    const asked = to
      ? { kind: to[0], ref: to[1], replyTo: reply_to, priority, meta, contentType: body[1], content: body[0] }
      : { kind: op, ref: op === 'task.create' ? '-' : entity, meta, content: read.body }
    same(hf.fingerprint(to ? 2 : 1, asked), v.fields.fingerprint, 'the fingerprint')
  },
  'refused_envelopes.json'(v) {
    if (!v.code || typeof v.raw !== 'string') throw new Error('it has no code')
  },
  'fingerprint.json': (v) => fingerprint(1, v),
  'fingerprint_2.json': (v) => fingerprint(2, v),
  'idempotency_key.json'(v) {
    same(hf.idText(hf.idOfKey(v.key, v.mesh, v.peer)), v.id, v.name)
  },
  'frames.json'(v) {
    const [kind, ...fields] = decode(hex(v.raw))
    same(kind, v.kind, 'the kind')
    same(encode([kind, ...fields]), v.raw, 'the bytes')
    const plain = JSON.stringify(fields, (_, value) =>
      (value?.type === 'Buffer' ? Buffer.from(value.data).toString('hex') : value))
    same(plain, JSON.stringify(v.fields), 'the fields')
  },
  'bus_hello.json'(v) {
    const [client, server] = [v.client_seed, v.server_seed].map((seed) => new hf.Key(hex(seed)))
    const said = hf.transcript(
      { name: '', key: client.public, nonce: hex(v.client_nonce) },
      { name: '', key: server.public, nonce: hex(v.server_nonce) }, hex(v.certificate))
    same(said, v.transcript, 'the transcript')
    same(bus.signHello(client, 'client', said), v.client_proof, 'the proof of the dialler')
    same(bus.signHello(server, 'server', said), v.server_proof, 'the proof of the listener')
    if (hf.isSignedBy(client.public, 'client', said, hex(v.client_proof))) throw new Error('it is good for HTTP')
  },
  'bus_messages.json'(v) {
    const fields = v.fields.map((field, at) => ([1, 4, 6].includes(at) ? hex(field) : field))
    same(encode(fields), v.raw, v.name)
    same(JSON.stringify(decode(hex(v.raw))), JSON.stringify(fields), 'the fields')
  },
  'bus_parcels.json'(v) {
    const [kind, key, life, name] = v.recipient
    const to = [kind, hex(key), hex(life), name]
    const payloads = v.payloads.map(hex)
    const first = hex(v.first_sequence).readBigUInt64BE()
    same(bus.makeParcel(new hf.Key(hex(v.seed)), to, payloads, first, hex(v.nonces), v.mode), v.raw, v.name)
    bus.openParcel(hex(v.raw), { key: to[1], life: to[2] }).forEach((message, at) => {
      same(message.payload, v.payloads[at], 'the payload')
      same(message.sequence, first + BigInt(at), 'the number')
      same(message.sender, v.sender, 'the sender')
    })
  },
  'bus_refused_parcels.json'(v, at, all, { what }) {
    const [key, life] = what.match(/[0-9a-f]{32,}/g).map(hex)
    let code = 'none'
    try { bus.openParcel(hex(v.raw), { key, life }) } catch (error) { code = error.code }
    same(code, v.code, v.name)
  },
  'bus_capabilities.json'(v) {
    const steps = v.steps.map(([holder, name, scopes, issued, expires]) => [hex(holder), name, scopes, issued, expires])
    const keys = v.seeds.map((seed) => new hf.Key(hex(seed)))
    same(bus.makeCapability(hex(v.issuer), keys, steps), v.raw, v.name)
    if (!bus.isCapability(decode(hex(v.raw)))) throw new Error(`${v.name}: a signature is wrong`)
  },
  'order.json'(v, at, all) {
    const [one, before] = [v, all[at - 1]].map((x) => x && { ...x, id: hex(x.id) })
    if (before && hf.compareVersions(before, one) >= 0) throw new Error('the order differs')
  },
}

function fingerprint(version, v) {
  const meta = v.meta ? hf.canonical(JSON.parse(v.meta)) : ''
  same(meta === '{}' ? '' : meta, v.meta_canonical, `meta of ${v.name}`)
  same(hf.fingerprint(version, {
    kind: v.kind, ref: v.ref, replyTo: v.reply_to, priority: v.priority, meta: v.meta_canonical,
    contentType: v.content_type, content: hex(v.body_hex),
  }), v.fingerprint, v.name)
}

function vectors(folder) {
  const seen = {}
  for (const name of readdirSync(folder).filter((file) => file.endsWith('.json'))) {
    if (!checks[name]) throw new Error(`nobody checks ${name}`)
    const file = JSON.parse(readFileSync(join(folder, name)))
    const all = file.vectors
    all.forEach((vector, at) => checks[name](vector, at, all, file))
    seen[name] = all.length
  }
  return seen
}

// --- a member of a mesh -----------------------------------------------------------------------------------------

async function member(invite, name, seed) {
  const { url, card, mesh, secret } = hf.parseInvite(invite)
  const key = new hf.Key(hex(seed))
  const http = new Service(url, card, name, key)
  await http.hello()
  const standing = await http.expect(200, 'POST', '/v1/join', { secret: secret.toString('base64url') })
  const at = `/api/my/meshes/${mesh}`
  await http.expect(200, 'PUT', `${at}/subscriptions/news`)

  const sync = await Sync.open(url, card, name, key)
  const place = sync.meshes[mesh]
  const writer = new hf.Writer(mesh, name)
  // Everything that is there, up to the end.
  sync.say(21, mesh, place.epoch, 0)
  const followed = []
  let upto = 0
  async function follow(until) {
    while (!until()) {
      const [, epoch, after, to, rows] = await sync.next('Entries')
      if (after > upto) throw new Error('a gap')
      for (const [seq, kind, , raw] of rows) {
        const envelope = hf.decodeEnvelope(raw)
        writer.saw(envelope)
        const body = decode(envelope.body)
        followed.push({
          seq, kind, op: envelope.op, entity: envelope.entity, origin: envelope.origin, text: body[0]?.toString() ?? '',
        })
      }
      upto = to
      sync.say(23, mesh, epoch, to)
    }
  }
  await follow(() => upto >= place.seq)

  // A change, a message and work for a queue; then the same again, and something else under one of the ids.
  const id = hf.idOfKey('order-4711', mesh, name)
  const sent = [
    writer.setState('from-js', { größe: [1, 2.5, null] }),
    writer.send('topic', 'news', Buffer.from('hello from JavaScript'), { id, contentType: 'text/plain' }),
    writer.send('queue', 'jobs', Buffer.from('resize 7.jpg')),
  ]
  const pushed = await sync.push(mesh, sent)
  const again = await sync.push(mesh, sent)
  const reused = await sync.push(mesh, [writer.send('topic', 'news', Buffer.from('something else'), { id })])
  const [foreign] = await sync.push('nowhere', [new hf.Writer('nowhere', name).setState('k', 1)])

  // Work from the queue: the first time it is given back, then it is finished.
  sync.say(25, mesh, 'jobs', 1)
  const taken = []
  for (const how of ['again', 'done']) {
    const [, queue, seq, lease, deliveries, , , raw] = await sync.next('QueueMessage')
    taken.push({ queue, deliveries, text: decode(hf.decodeEnvelope(raw).body)[0].toString() })
    sync.say(26, mesh, queue, seq, lease, how)
  }
  sync.say(25, mesh, 'jobs', 0)

  // What the others answer: the test writes it when it has seen our change.
  await follow(() => followed.some((entry) => entry.entity === 'from-python'))
  sync.close()
  const about = await http.expect(200, 'GET', at)
  http.close()
  return { grants: standing.grants, pushed, again, reused, foreign, followed, taken, mesh: about.slug }
}

// --- a zone -----------------------------------------------------------------------------------------------------

async function zone(url, card, name, seed) {
  const http = new Service(url, card, name, new hf.Key(hex(seed)))
  await http.hello()
  const consumer = `zone:${name}/reader`
  await http.expect(200, 'POST', '/v1/consumers', { consumer, from: 'start' })
  const entries = []
  for (;;) {
    const raw = await http.expect(
      200, 'POST', '/v1/facts/fetch', { consumer, limit: 2 }, { accept: 'application/msgpack' })
    const [epoch, , head, , upto, offsets, raws] = decode(raw)
    raws.forEach((one, at) => {
      const envelope = hf.decodeEnvelope(one)
      entries.push({ offset: offsets[at], op: envelope.op, entity: envelope.entity, origin: envelope.origin })
    })
    await http.expect(200, 'POST', '/v1/facts/confirm', { consumer, offset: upto, epoch })
    if (upto >= head) break
  }
  const refused = await http.call('POST', '/v1/facts/fetch', { consumer: 'zone:other/reader' })
  http.close()
  return { entries, refused: { status: refused.status, code: refused.body.error.code } }
}

// --- a peer of the bus ------------------------------------------------------------------------------------------

function parcel(seed, key, life, ...texts) {
  const payloads = texts.map((text, at) =>
    encode([1, hf.newId(), 1, 'news', Buffer.from(text), 'text/plain', Buffer.alloc(0), 'next', at || null, '', false]))
  const nonces = randomBytes(24 * texts.length)
  return [1, 2].map((mode) =>
    bus.makeParcel(new hf.Key(hex(seed)), [1, hex(key), hex(life), ''], payloads, 7n, nonces, mode).toString('hex'))
}

const [verb, ...rest] = process.argv.slice(2)
const done = await { vectors, member, zone, parcel }[verb](...rest)
process.stdout.write(`${JSON.stringify(done)}\n`)
