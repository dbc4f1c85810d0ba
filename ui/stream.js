// Event streams over fetch, which can send a token, and the live numbers. A hidden tab has no stream.

const BUFFER_MAX = 1 << 20;

// Reads one stream until it ends. Calls `onEvent(name, data)`.
async function readStream(path, onEvent, signal) {
  const response = await request("GET", path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    let end;
    while ((end = buffer.indexOf("\n\n")) >= 0) {
      let name = "message";
      let data = "";
      for (const line of buffer.slice(0, end).split("\n")) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        if (line.startsWith("data:")) data += line.slice(5);
      }
      buffer = buffer.slice(end + 2);
      if (data) onEvent(name, JSON.parse(data));
    }
    if (buffer.length > BUFFER_MAX) throw new Error("an event of the stream is too large");
  }
}

// Keeps a stream open while the tab is visible. Returns an object with `close`.
function keepStream(path, onEvent, onState) {
  let current = null;
  let closed = false;
  async function run() {
    const own = new AbortController();
    current = own;
    let wait = 500;
    while (!closed && !own.signal.aborted) {
      try {
        onState("connecting");
        await readStream(path, (name, data) => { wait = 500; onEvent(name, data); }, own.signal);
        onState("ended");
      } catch (error) {
        if (own.signal.aborted) return;
        onState("failed", error);
        if ([401, 403, 404, 400, 422].includes(error.status)) return;
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(2 * wait, 15000);
    }
  }
  function onVisibility() {
    if (document.hidden) {
      if (current) current.abort();
    } else if (!closed && (!current || current.signal.aborted)) run();
  }
  document.addEventListener("visibilitychange", onVisibility);
  if (!document.hidden) run();
  return { close() {
    closed = true;
    document.removeEventListener("visibilitychange", onVisibility);
    if (current) current.abort();
  } };
}

// What could not be loaded and is loaded again with the next live event, which shows that the gateway responds.
const reloads = new Set();

// Runs `work` now. If the gateway does not respond, or fails, it runs again with the next live event, as long as `node` is
// on the screen. `failed(error)` shows each failure.
async function loadWithRetry(node, work, failed) {
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") return;
    failed(error);
    const isLasting = error.status >= 400 && error.status < 500 && error.status !== 429;
    if (!isLasting) reloads.add(() => node.isConnected && loadWithRetry(node, work, failed));
  }
}

function runReloads() {
  const due = [...reloads];
  reloads.clear();
  for (const run of due) run();
}

// Returns a function for live events, which calls `load` if another config is active than at the first of them.
function followConfig(load) {
  let generation = null;
  return (event) => {
    if (generation !== null && generation !== event.generation) load();
    ({ generation } = event);
  };
}

// The live numbers: the last event, and when it came.
const live = { event: null, at: 0, error: null, stream: null, onEvent: () => {} };

function openLive() {
  if (live.stream) live.stream.close();
  live.error = null;
  live.stream = keepStream("/-/live", (name, event) => {
    live.event = event;
    live.at = Date.now();
    live.error = null;
    live.onEvent(event);
    runReloads();
  }, (state, error) => {
    if (state === "failed") live.error = error;
  });
}

function closeLive() {
  if (live.stream) live.stream.close();
  live.stream = null;
}

// Calls `work` now and every `ms` while the tab is visible. Returns a function that stops it.
function poll(ms, work) {
  let stopped = false;
  const own = new AbortController();
  (async () => {
    while (!stopped) {
      if (!document.hidden) await work(own.signal).catch(() => {});
      await new Promise((resolve) => setTimeout(resolve, ms));
    }
  })();
  return () => {
    stopped = true;
    own.abort();
  };
}
