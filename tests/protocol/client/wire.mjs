// HTTP with a hello, and a WebSocket to /v1/sync, on the sockets of Node.js alone.

import { createHash, randomBytes } from 'node:crypto'
import http from 'node:http'
import https from 'node:https'
import net from 'node:net'
import tls from 'node:tls'
import { isSignedBy, parseCard, sha256, transcript } from './holdfast.mjs'
import { decode, encode } from './msgpack.mjs'

const PLAIN = Buffer.alloc(32)
const text = (raw) => raw.toString('base64url')

// --- HTTP -------------------------------------------------------------------------------------------------------

export class Service {
  constructor(url, card, name, key) {
    Object.assign(this, { url: new URL(url), card: parseCard(card), name, key, session: null })
    this.secure = this.url.protocol === 'https:'
    // Any certificate will do: the hello says whose it is.
    // A resumed session would not show its certificate.
    const options = { keepAlive: true, maxSockets: 1, maxCachedSessions: 0 }
    if (this.secure) Object.assign(options, { rejectUnauthorized: false, minVersion: 'TLSv1.3' })
    this.agent = new (this.secure ? https : http).Agent(options)
  }

  close() {
    this.agent.destroy()
  }

  call(method, path, body, headers = {}) {
    const raw = body === undefined ? undefined : Buffer.isBuffer(body) ? body : Buffer.from(JSON.stringify(body))
    const given = { ...headers }
    if (this.session) given.authorization = `Bearer ${this.session}`
    if (raw) given['content-length'] = raw.length
    return new Promise((resolve, reject) => {
      const request = (this.secure ? https : http).request(
        new URL(path, this.url), { method, headers: given, agent: this.agent },
        (answer) => {
          const parts = []
          const certificate = this.secure ? answer.socket.certificate : PLAIN
          answer.on('data', (part) => parts.push(part))
          answer.on('error', reject)
          answer.on('end', () => {
            if (!answer.complete) return reject(new Error('the answer was cut off'))
            const content = Buffer.concat(parts)
            const isJson = (answer.headers['content-type'] ?? '').startsWith('application/json')
            resolve({
              status: answer.statusCode, headers: answer.headers, certificate,
              body: isJson ? JSON.parse(content) : content,
            })
          })
        },
      )
      request.on('error', reject)
      // On a connection that is kept the certificate is that of its handshake.
      request.on('socket', (socket) => socket.once('secureConnect', () => {
        socket.certificate = sha256(socket.getPeerX509Certificate().raw)
      }))
      request.end(raw)
    })
  }

  async expect(status, method, path, body, headers) {
    const answer = await this.call(method, path, body, headers)
    if (answer.status !== status) throw new Error(`${method} ${path}: ${answer.status} ${JSON.stringify(answer.body)}`)
    return answer.body
  }

  async hello() {
    this.session = null
    const client = { name: this.name, key: this.key.public, nonce: randomBytes(32) }
    const asked = { zone: client.name, key: text(client.key), nonce: text(client.nonce) }
    const { status, body, certificate } = await this.call('POST', '/v1/hello', asked)
    if (status !== 200) throw new Error(`hello: ${status} ${JSON.stringify(body)}`)
    const server = {
      name: body.zone, key: Buffer.from(body.key, 'base64url'), nonce: Buffer.from(body.nonce, 'base64url'),
    }
    if (server.name !== this.card.name || !server.key.equals(this.card.key)) throw new Error('somebody else answers')
    const said = transcript(client, server, certificate)
    if (!isSignedBy(server.key, 'server', said, Buffer.from(body.proof, 'base64url'))) throw new Error('a false proof')
    const proof = text(this.key.sign('client', said))
    this.session = (await this.expect(200, 'POST', '/v1/hello/prove', { nonce: text(server.nonce), proof })).session
  }
}

// --- WebSocket (RFC 6455) ---------------------------------------------------------------------------------------

const BINARY = 2, CLOSE = 8, PING = 9, PONG = 10

class WebSocket {
  static open(url) {
    const at = new URL(url)
    const secure = at.protocol === 'https:'
    const where = { host: at.hostname, port: Number(at.port), rejectUnauthorized: false, minVersion: 'TLSv1.3' }
    return new Promise((resolve, reject) => {
      const socket = secure ? tls.connect(where, ready) : net.connect(where, ready)
      socket.on('error', reject)
      function ready() {
        const key = randomBytes(16).toString('base64')
        socket.write([
          `GET ${at.pathname} HTTP/1.1`, `host: ${at.host}`, 'upgrade: websocket', 'connection: Upgrade',
          `sec-websocket-key: ${key}`, 'sec-websocket-version: 13', '', '',
        ].join('\r\n'))
        let seen = Buffer.alloc(0)
        socket.on('data', function head(part) {
          seen = Buffer.concat([seen, part])
          const end = seen.indexOf('\r\n\r\n')
          if (end < 0) return
          socket.off('data', head)
          const accept = createHash('sha1').update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64')
          const lines = seen.subarray(0, end).toString('latin1')
          if (!lines.startsWith('HTTP/1.1 101') || !lines.includes(accept)) return reject(new Error(lines))
          resolve(new WebSocket(socket, secure ? sha256(socket.getPeerX509Certificate().raw) : PLAIN,
            seen.subarray(end + 4)))
        })
      }
    })
  }

  constructor(socket, certificate, rest) {
    Object.assign(this, { socket, certificate, held: rest, parts: [], messages: [], waiting: [], closed: null })
    socket.on('data', (part) => this.take(part))
    socket.on('close', () => this.end({ code: 1006, reason: '' }))
    this.take(Buffer.alloc(0))
  }

  take(part) {
    this.held = Buffer.concat([this.held, part])
    for (;;) {
      if (this.held.length < 2) return
      const [first, second] = this.held
      let length = second & 127, at = 2
      if (length === 126) { if (this.held.length < 4) return; length = this.held.readUInt16BE(2); at = 4 }
      if (length === 127) { if (this.held.length < 10) return; length = Number(this.held.readBigUInt64BE(2)); at = 10 }
      if (this.held.length < at + length) return
      const content = Buffer.from(this.held.subarray(at, at + length))
      this.held = this.held.subarray(at + length)
      this.frame(first & 15, (first & 128) !== 0, content)
    }
  }

  frame(kind, final, content) {
    if (kind === PING) this.write(PONG, content)
    else if (kind === CLOSE) {
      const code = content.length >= 2 ? content.readUInt16BE(0) : 1005
      this.end({ code, reason: content.subarray(2).toString() })
      this.socket.end()
    } else if (kind <= BINARY) {
      this.parts.push(content)
      if (!final) return
      this.messages.push(Buffer.concat(this.parts))
      this.parts = []
      this.waiting.shift()?.()
    }
  }

  end(how) {
    this.closed ??= how
    for (const wake of this.waiting.splice(0)) wake()
  }

  write(kind, content) {
    const mask = randomBytes(4)
    const head = content.length < 126 ? Buffer.from([128 | kind, 128 | content.length])
      : content.length < 65536 ? Buffer.from([128 | kind, 254, content.length >> 8, content.length & 255])
        : Buffer.concat([Buffer.from([128 | kind, 255, 0, 0, 0, 0]), Buffer.alloc(4)])
    if (content.length >= 65536) head.writeUInt32BE(content.length, 6)
    const masked = Buffer.from(content.map((byte, at) => byte ^ mask[at & 3]))
    this.socket.write(Buffer.concat([head, mask, masked]))
  }

  async message() {
    while (!this.messages.length) {
      if (this.closed) throw new Error(`closed: ${this.closed.code} ${this.closed.reason}`)
      await new Promise((wake) => this.waiting.push(wake))
    }
    return this.messages.shift()
  }
}

// --- /v1/sync ---------------------------------------------------------------------------------------------------

export const KINDS = {
  1: 'Challenge', 2: 'Welcome', 3: 'MeshMoved', 4: 'Entries', 5: 'Urgent', 6: 'Acks', 7: 'SnapshotNeeded',
  8: 'QueueMessage', 9: 'Refusal', 10: 'SnapshotWanted',
}
const NEEDS = { client_message_id_dedupe: 2, max_payload: 1, mesh_sync: 1 }

export class Sync {
  static async open(url, card, name, key) {
    const socket = await WebSocket.open(new URL('/v1/sync', url))
    const sync = new Sync(socket)
    const [nonce, serverName, serverKey, supported] = await sync.next('Challenge')
    const known = parseCard(card)
    if (serverName !== known.name || !serverKey.equals(known.key)) throw new Error('somebody else answers')
    for (const [feature, version] of Object.entries(NEEDS)) {
      if (supported[feature]?.version !== version) throw new Error(`the broker has no ${feature} of version ${version}`)
    }
    const client = { name, key: key.public, nonce: randomBytes(32) }
    const said = transcript(client, { name: serverName, key: serverKey, nonce }, socket.certificate)
    sync.say(20, name, client.key, client.nonce, key.sign('client', said), NEEDS)
    const [proof, session, , meshes] = await sync.next('Welcome')
    if (!isSignedBy(serverKey, 'server', said, proof)) throw new Error('a false proof')
    sync.session = session
    sync.meshes = Object.fromEntries(meshes.map(([mesh, serverId, epoch, base, first, seq, grants]) =>
      [mesh, { serverId, epoch, base, first, seq, grants }]))
    return sync
  }

  constructor(socket) {
    this.socket = socket
    this.aside = []
  }

  say(...frame) {
    this.socket.write(BINARY, encode(frame))
  }

  // The next frame of this kind; others wait for their turn.
  async next(kind) {
    for (;;) {
      const at = this.aside.findIndex((frame) => frame.kind === kind)
      if (at >= 0) return this.aside.splice(at, 1)[0].fields
      const [code, ...fields] = decode(await this.socket.message())
      this.aside.push({ kind: KINDS[code], fields })
    }
  }

  async push(mesh, raws) {
    this.say(24, mesh, 0, raws.map((raw, at) => [at, raw]))
    const answers = []
    while (answers.filter(Boolean).length < raws.length) {
      const [, , some] = await this.next('Acks')
      for (const [number, status, epoch, seq, , , , problem] of some) {
        answers[number] = { status, epoch, seq, code: problem?.[0] ?? null }
      }
    }
    return answers
  }

  close() {
    this.socket.write(CLOSE, Buffer.from([3, 232]))
    this.socket.socket.end()
  }
}
