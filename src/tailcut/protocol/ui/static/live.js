// The connection: server-sent events, and what the page says while there are none.

const SILENT_MS = 4000;

export class Live {
  constructor(address, { begin, snapshot, gone }) {
    this.address = address;
    this.handlers = { begin, snapshot, gone };
    this.status = document.getElementById("status");
    this.wait = 1000;
    this.heard = performance.now();
    this.open();
    setInterval(() => this.watch(), 1000);
  }

  open() {
    this.source = new EventSource(this.address);
    this.source.addEventListener("begin", (event) => this.receive("begin", event));
    this.source.addEventListener("snapshot", (event) => this.receive("snapshot", event));
    this.source.addEventListener("error", () => this.failed());
  }

  receive(kind, event) {
    this.heard = performance.now();
    this.wait = 1000;
    this.say("live", "live");
    this.handlers[kind](JSON.parse(event.data));
  }

  say(state, words) {
    if (this.status.dataset.state === state) return;
    this.status.dataset.state = state;
    this.status.textContent = words;
    document.body.dataset.connection = state;
  }

  failed() {
    this.say("lost", "disconnected, trying again");
    if (this.source.readyState === EventSource.CLOSED) this.explain();
  }

  watch() {
    if (performance.now() - this.heard > SILENT_MS) this.say("lost", "no news, waiting for the server");
  }

  // The browser gives up where the reply was an error. Ask what it is: the session may have ended.
  async explain() {
    const retry = () => setTimeout(() => this.open(), this.wait);
    this.wait = Math.min(this.wait * 2, 15000);
    const stop = new AbortController();
    try {
      const reply = await fetch(this.address, { signal: stop.signal });
      if (reply.status === 401) location.reload();
      else if (reply.status === 404) this.handlers.gone((await reply.json()).error);
      else retry();
    } catch {
      retry();
    } finally {
      stop.abort();
    }
  }
}
