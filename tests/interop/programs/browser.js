// What the browser does with the page of express.js: it reports what it has found.
const report = {};

// Each event is requested when the previous one has arrived.
const events = () => new Promise((done, fail) => {
  const found = [];
  const source = new EventSource('/events');
  source.onmessage = (event) => {
    found.push(event.data);
    if (found.length === 4) { source.close(); done(found); } else fetch('/next', { method: 'POST' });
  };
  source.onerror = () => fail(new Error('no events'));
});

const socket = () => new Promise((done, fail) => {
  const tunnel = new WebSocket(`${location.origin.replace('http', 'ws')}/socket`);
  const found = [];
  tunnel.onopen = () => tunnel.send('hello');
  tunnel.onerror = () => fail(new Error('no tunnel'));
  tunnel.onmessage = (event) => {
    found.push(event.data);
    tunnel.send(found.length < 3 ? 'x'.repeat(found.length * 50000) : 'leave');
  };
  tunnel.onclose = (event) => done({
    lengths: found.map((text) => text.length), code: event.code, reason: event.reason, extensions: tunnel.extensions,
  });
});

const upload = async () => {
  const body = new Blob([new Uint8Array(500000)]);
  const response = await fetch('/seen', { method: 'POST', body });
  return (await response.json()).length;
};

const limited = async () => {
  const statuses = [];
  let last;
  for (let turn = 0; turn < 3; turn += 1) {
    last = await fetch('/limited');
    statuses.push(last.status);
  }
  return { statuses, retryAfter: last.headers.get('retry-after'), violated: (await last.json())['violated-policies'] };
};

addEventListener('load', async () => {
  try {
    report.parts = window.parts;
    report.styles = [...document.styleSheets].map((sheet) => sheet.cssRules.length);
    report.images = [...document.images].map((image) => image.naturalWidth);
    report.events = await events();
    report.socket = await socket();
    report.upload = await upload();
    report.limited = await limited();
    const entries = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
    report.protocols = entries.map((entry) => `${new URL(entry.name).pathname} ${entry.nextHopProtocol}`);
  } catch (error) {
    report.error = `${error} ${error.stack}`;
  }
  await fetch('/report', { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(report) });
  document.title = 'reported';
});
