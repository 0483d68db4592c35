// Requests to the server. Addresses are relative, so that the page works below any path.

export class ServerError extends Error {
  constructor(message, status, data) { super(message); this.status = status; this.data = data; }
}

export async function request(method, path, body, {signal, timeout = 60000} = {}) {
  const headers = {"X-Stream-Recon": "1"};
  if (body !== undefined && !(body instanceof Blob)) { headers["Content-Type"] = "application/json"; body = JSON.stringify(body); }
  const limit = AbortSignal.timeout(timeout);
  const response = await fetch(path, {method, headers, body, credentials: "same-origin", cache: "no-store",
    signal: signal && AbortSignal.any ? AbortSignal.any([signal, limit]) : signal || limit});
  let data = null;
  try { data = await response.json(); } catch { /* no JSON */ }
  if (!response.ok) throw new ServerError((data && data.error) || `the server answers ${response.status}`, response.status, data);
  return data;
}

export const bytes = n => n >= 1e9 ? `${(n / 1e9).toFixed(1)} GB` : n >= 1e6 ? `${(n / 1e6).toFixed(1)} MB` : `${Math.ceil(n / 1e3)} kB`;

export function clock(seconds) {
  const s = Math.round(seconds), m = Math.floor(s / 60), two = n => String(n).padStart(2, "0");
  return m >= 60 ? `${Math.floor(m / 60)}:${two(m % 60)}:${two(s % 60)}` : `${m}:${two(s % 60)}`;
}

// An element with properties and children; text is never read as HTML.
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}
