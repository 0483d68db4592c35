// One upload in pieces. It goes on after a cut connection by itself, and after a closed page when the file is dropped again.

import {request, ServerError} from "./api.js";

const REMEMBERED = "stream-recon-uploads";
const LONGEST_WAIT_MS = 15000;
const SHORTEST_PIECE = 262144, USUAL_PIECE = 4000000;

const remembered = () => { try { return JSON.parse(localStorage.getItem(REMEMBERED)) || {}; } catch { return {}; } };
function remember(key, id) {
  const all = remembered();
  if (id) all[key] = id; else delete all[key];
  try { localStorage.setItem(REMEMBERED, JSON.stringify(all)); } catch { /* a private window: it cannot go on later */ }
}

export class Upload {
  constructor(blob, title, options, onChange, fingerprint) {
    Object.assign(this, {blob, title, options, onChange, fingerprint});
    this.offset = 0; this.length = SHORTEST_PIECE; this.piece = USUAL_PIECE; this.id = null; this.state = "waiting"; this.error = ""; this.rate = null; this.answer = null;
    this.stopper = new AbortController();
  }

  cancel() {
    this.stopper.abort();
    this.state = "cancelled";
    remember(this.fingerprint, null);
    if (this.id) request("DELETE", `api/uploads/${this.id}`).catch(() => {});
  }

  async run() {
    let wait = 500;
    while (this.state !== "cancelled") {
      try {
        if (!this.id) await this.begin();
        await this.send();
        this.state = "done";
        remember(this.fingerprint, null);
        this.onChange(this);
        return this.answer;
      } catch (error) {
        if (this.state === "cancelled") return null;
        if (error instanceof ServerError && error.status === 409 && error.data?.offset !== undefined) { this.offset = error.data.offset; continue; }
        if (error instanceof ServerError && (error.status < 500 || (error.status === 507 && !this.id))) { this.state = "failed"; this.error = error.message; remember(this.fingerprint, null); this.onChange(this); return null; }
        this.state = "interrupted"; this.error = error instanceof ServerError ? error.message : "the connection is cut: it goes on by itself"; this.onChange(this);
        await new Promise(resolve => { setTimeout(resolve, wait); addEventListener("online", resolve, {once: true}); });
        wait = Math.min(2 * wait, LONGEST_WAIT_MS);
        if (this.id) await request("GET", `api/uploads/${this.id}`).then(found => { this.offset = found.offset; wait = 500; }, error => {
          if (error instanceof ServerError && error.status === 404) { this.id = null; this.offset = 0; }
        });
      }
    }
    return null;
  }

  async begin() {
    const known = remembered()[this.fingerprint];
    if (known) {
      try {
        const found = await request("GET", `api/uploads/${known}`);
        if (found.size === this.blob.size) { this.id = known; this.offset = found.offset; return; }
      } catch (error) { if (!(error instanceof ServerError)) throw error; }
    }
    const made = await request("POST", "api/uploads", {name: this.title, size: this.blob.size, options: this.options});
    this.id = made.id; this.piece = made.piece; this.offset = made.offset;
    remember(this.fingerprint, this.id);
  }

  // Pieces grow while they take little time, and shrink where they take long, so that a cut costs little.
  async send() {
    this.state = "sending"; this.error = "";
    const began = performance.now(), first = this.offset;
    for (;;) {
      this.onChange(this);
      const at = performance.now();
      const part = this.blob.slice(this.offset, Math.min(this.offset + this.length, this.blob.size));
      const answer = await request("PATCH", `api/uploads/${this.id}?offset=${this.offset}`, part, {signal: this.stopper.signal, timeout: 600000});
      if (answer.name) { this.offset = this.blob.size; this.answer = answer; return; }
      this.offset = answer.offset; this.job = answer.job ?? null; this.waits = answer.waits ?? false;
      const now = performance.now();
      this.rate = (this.offset - first) / ((now - began) / 1000);
      if (now - at < 1000) this.length = Math.min(2 * this.length, this.piece);
      else if (now - at > 8000) this.length = Math.max(this.length >> 1, SHORTEST_PIECE);
    }
  }
}
