// An Express application with a WebSocket server (ws), `express.js PORT`: what the tests of clients have behind the
// gateway. Run by tests/interop/site.rs.
const crypto = require('crypto');
const express = require('express');
const { WebSocketServer } = require('ws');

const app = express();
const streams = new Set();
let reports = [];

// Bytes that differ everywhere, the same for everybody.
const pattern = Buffer.alloc(1 << 16);
for (let at = 0; at < pattern.length; at += 4) pattern.writeUInt32BE((at * 2654435761) >>> 0, at);

app.get('/bytes/:count', (req, res) => {
  const count = Number(req.params.count);
  res.set('content-length', count).type('application/octet-stream');
  for (let at = 0; at < count; at += pattern.length) res.write(pattern.subarray(0, Math.min(pattern.length, count - at)));
  res.end();
});

// What has arrived of a request.
app.all('/seen', (req, res) => {
  const hash = crypto.createHash('sha256');
  let length = 0;
  req.on('data', (piece) => { hash.update(piece); length += piece.length; });
  req.on('end', () => res.json({
    method: req.method, url: req.originalUrl, version: req.httpVersion, headers: req.headers, trailers: req.trailers,
    length, sha256: hash.digest('hex'),
  }));
});

app.get('/trailers', (req, res) => {
  res.set('trailer', 'x-sum');
  res.write('body');
  res.addTrailers({ 'x-sum': '4' });
  res.end();
});

app.get('/cookies', (req, res) => {
  res.cookie('a', '1', { httpOnly: true }).cookie('b', 'x y', { secure: true });
  res.redirect('/seen');
});

// Server-sent events: the first at once, each further one on request, so that one which is held back
// anywhere is never seen.
app.get('/events', (req, res) => {
  const stream = { res, count: 0 };
  res.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' });
  res.write(`id: 0\ndata: event 0\n\n`);
  streams.add(stream);
  res.on('close', () => streams.delete(stream));
});
app.post('/next', (req, res) => {
  for (const stream of streams) {
    stream.count += 1;
    stream.res.write(`id: ${stream.count}\ndata: event ${stream.count}\n\n`);
  }
  res.json({ streams: streams.size });
});

// A page of many parts, for a browser. What it found it reports here.
const parts = [...Array(12).keys()];
app.get('/page', (req, res) => {
  const tags = parts.map((n) => n % 3 === 0 ? `<link rel="stylesheet" href="/part/${n}.css">`
    : n % 3 === 1 ? `<script src="/part/${n}.js"></script>` : `<img src="/part/${n}.svg" alt="">`);
  res.type('html').send(`<!doctype html><title>page</title><body>${tags.join('\n')}<script src="/browser.js"></script>`);
});
app.get('/part/:file', (req, res) => {
  const [number, type] = req.params.file.split('.');
  const filler = `/* ${'x'.repeat(20000)} */`;
  const texts = {
    css: `:root { --part-${number}: ${number}; } ${filler}`,
    js: `(window.parts ??= []).push(${number}); ${filler}`,
    svg: `<svg xmlns="http://www.w3.org/2000/svg" width="${Number(number) + 1}" height="1"><!-- ${filler} --></svg>`,
  };
  res.set('cache-control', 'no-store').type(type).send(texts[type]);
});
app.get('/browser.js', (req, res) => res.sendFile('browser.js', { root: __dirname }));
app.post('/report', express.json(), (req, res) => { reports.push(req.body); res.end(); });
app.get('/reports', (req, res) => res.json(reports));

const server = app.listen(Number(process.argv[2]), '127.0.0.1');
const sockets = new WebSocketServer({ server, path: '/socket', perMessageDeflate: true });
sockets.on('connection', (socket, req) => {
  socket.on('message', (message, binary) => {
    if (message.toString() === 'leave') socket.close(4001, 'as asked');
    else socket.send(message, { binary });
  });
});
