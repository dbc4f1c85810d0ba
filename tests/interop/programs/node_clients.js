// Node's own clients, `node_clients.js SCENARIO URL CA-FILE`; run by tests/interop/node.rs. Throws if a result is wrong.
const assert = require('assert');
const crypto = require('crypto');
const fs = require('fs');
const http2 = require('http2');
const https = require('https');
const { once } = require('events');
const WebSocket = require('ws');

const [scenario, url, caFile] = process.argv.slice(2);
const ca = fs.readFileSync(caFile);

const read = async (stream) => {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return Buffer.concat(pieces);
};

// Sends a request on an HTTP/2 session. Returns head, body and trailers of the response.
const sendRequest = async (session, fields, body) => {
  const stream = session.request(fields, { endStream: body === undefined });
  let trailers = {};
  stream.on('trailers', (found) => { trailers = found; });
  if (body !== undefined) stream.end(body);
  const [head] = await once(stream, 'response');
  return { head, body: await read(stream), trailers };
};

const connect = async () => {
  const session = http2.connect(url, { ca });
  session.on('goaway', (code) => { if (code) throw new Error(`GOAWAY ${code}`); });
  await once(session, 'connect');
  assert.strictEqual(session.alpnProtocol, 'h2');
  return session;
};

const scenarios = {
  async http2() {
    const session = await connect();
    const body = crypto.randomBytes(2_000_000);
    const sha256 = crypto.createHash('sha256').update(body).digest('hex');
    const uploads = [...Array(8)].map(() => sendRequest(session, { ':method': 'POST', ':path': '/seen' }, body));
    for (const { head, body: text } of await Promise.all(uploads)) {
      assert.strictEqual(head[':status'], 200);
      assert.strictEqual(JSON.parse(text).sha256, sha256);
    }
    const responses = await Promise.all([...Array(90).keys()].map((n) => sendRequest(session, { ':path': `/bytes/${n * 1000}` })));
    assert.deepStrictEqual(responses.map(({ body }) => body.length), [...Array(90).keys()].map((n) => n * 1000));
    const { trailers } = await sendRequest(session, { ':path': '/trailers', te: 'trailers' });
    assert.strictEqual(trailers['x-sum'], '4');
    // A stream that is closed by its client takes nothing with it.
    const events = session.request({ ':path': '/events' });
    await once(events, 'data');
    events.close(http2.constants.NGHTTP2_CANCEL);
    for (let left = 1; left > 0;) {
      left = JSON.parse((await sendRequest(session, { ':method': 'POST', ':path': '/next' }, '')).body).streams;
    }
    session.close();
  },

  async events() {
    const session = await connect();
    const events = session.request({ ':path': '/events' });
    const pieces = events.setEncoding('utf8').iterator();
    for (let number = 0; number < 5; number += 1) {
      const { value } = await pieces.next();
      assert.strictEqual(value, `id: ${number}\ndata: event ${number}\n\n`);
      await sendRequest(session, { ':method': 'POST', ':path': '/next' }, '');
    }
    session.destroy();
  },

  async limited() {
    const session = await connect();
    const statuses = [];
    for (let turn = 0; turn < 3; turn += 1) statuses.push((await sendRequest(session, { ':path': '/bytes/1' })).head[':status']);
    assert.deepStrictEqual(statuses, [200, 200, 429]);
    const { head, body } = await sendRequest(session, { ':path': '/bytes/1' });
    assert(Number(head['retry-after']) > 0, head['retry-after']);
    assert.deepStrictEqual(JSON.parse(body)['violated-policies'], ['two']);
    session.close();
  },

  // An agent keeps connections of HTTP/1.1, also after a refusal that left an upload unread.
  async agent() {
    const agent = new https.Agent({ keepAlive: true, maxSockets: 1, ca });
    const sockets = new Set();
    for (let turn = 0; turn < 6; turn += 1) {
      const method = turn % 2 ? 'POST' : 'GET';
      const request = https.request(`${url}/seen`, { agent, method });
      request.end(turn % 2 ? Buffer.alloc(20_000) : undefined);
      const [response] = await once(request, 'response');
      assert.strictEqual(response.statusCode, turn < 2 ? 200 : 429);
      await read(response);
      sockets.add(request.socket);
    }
    assert.strictEqual(sockets.size, 1);
    agent.destroy();
  },

  async websocket() {
    const socket = new WebSocket(`${url.replace('https:', 'wss:')}/socket`, { ca });
    await once(socket, 'open');
    assert(socket.extensions.includes('permessage-deflate'), socket.extensions);
    for (const message of [Buffer.from('text'), crypto.randomBytes(300_000)]) {
      socket.send(message);
      const [found, binary] = await once(socket, 'message');
      assert(binary && message.equals(found));
    }
    socket.ping('beat');
    assert.strictEqual(String((await once(socket, 'pong'))[0]), 'beat');
    socket.send('leave');
    const [code, reason] = await once(socket, 'close');
    assert.deepStrictEqual([code, String(reason)], [4001, 'as asked']);
  },
};

process.on('unhandledRejection', (error) => { throw error; });
scenarios[scenario]();
