// Scan with the camera of this device: one frame in flight, the newest one wins.

import {clock, request} from "./api.js";

const $ = id => document.getElementById(id);
const WIDTH = 1280, HEIGHT = 720, QUALITY = 0.8;
const SOCKET_WAIT_MS = 3000, RETRY_MS = 1000, SLOW_MS = 1500;
const parameters = new URLSearchParams(location.search);
const showsView = parameters.get("view") !== "off";

// Figures of this scan, for tests and for the line at the top.
const stats = window.scanStats = {sent: 0, acknowledged: 0, posed: 0, inFlight: 0, mostInFlight: 0, transport: "", delays: [], says: [], cuts: 0, began: 0, ended: 0, name: "", errors: []};
const captured = new Map();
let scan = null, running = false, socket = null, lock = null, video = $("camera"), canvas = document.createElement("canvas"), upright = null, posedSeen = -1;

function say(text) {
  if (stats.says.at(-1)?.text === text || (!stats.says.length && !text)) return;
  stats.says.push({text, at: performance.now(), sent: stats.sent});
  $("guidance").textContent = text; $("guidance").hidden = !text;
}
const note = text => { $("note").textContent = text; $("note").hidden = !text; };

async function openCamera() {
  if (!navigator.mediaDevices) throw new Error("The camera needs an encrypted address: start the server with --tls and open its https address.");
  const wanted = {width: {ideal: WIDTH}, height: {ideal: HEIGHT}, frameRate: {ideal: 30}};
  const stream = await navigator.mediaDevices.getUserMedia({audio: false, video: {...wanted, facingMode: {ideal: "environment"}}});
  video.srcObject = stream;
  await video.play();
  for (const track of stream.getVideoTracks()) {
    track.addEventListener("ended", () => { if (running) stop("The camera was taken away: the scan was ended."); });
    const can = track.getCapabilities ? track.getCapabilities() : {};
    // A steady focus keeps the focal length; few phones allow it.
    if (can.focusMode?.includes("continuous")) track.applyConstraints({advanced: [{focusMode: "continuous"}]}).catch(() => {});
  }
}

async function keepAwake() {
  try { lock = await navigator.wakeLock?.request("screen"); } catch { /* battery saver: the phone decides */ }
}

// A new picture of the camera as JPEG with its time, or null where the phone was turned.
async function picture() {
  const width = video.videoWidth, height = video.videoHeight;
  if (!width) return null;
  if (upright === null) upright = width >= height;
  if ((width >= height) !== upright) { say("Turn the phone back: all pictures of a scan are taken the same way up"); return null; }
  const scale = Math.min(1, WIDTH / Math.max(width, height));
  canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale);
  const at = performance.timeOrigin + performance.now();
  canvas.getContext("2d", {alpha: false}).drawImage(video, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise(resolve => canvas.toBlob(resolve, "image/jpeg", QUALITY));
  return blob && {blob, at};
}

const nextFrame = () => new Promise(resolve => {
  const late = setTimeout(resolve, 250);
  if (video.requestVideoFrameCallback) video.requestVideoFrameCallback(() => { clearTimeout(late); resolve(); });
});

function heard(message) {
  if (message.posed !== undefined && message.posed > posedSeen) {
    const now = performance.timeOrigin + performance.now();
    for (let i = posedSeen + 1; i <= message.posed; i++) if (captured.has(i)) { stats.delays.push(now - captured.get(i)); captured.delete(i); }
    posedSeen = message.posed;
    if (!stats.posed) showView();
    stats.posed = posedSeen + 1;
  }
  if (message.say !== undefined) say(message.say);
}

function acknowledged(message, at) {
  stats.inFlight -= 1;
  if (message.error) {
    // A frame that was under way when the person stopped the scan comes after its end.
    if (!running) return;
    stats.errors.push(message.error);
    if (message.ended !== false) stop(message.error); else note(message.error);
    return;
  }
  if (message.ack !== undefined) { stats.acknowledged += 1; captured.set(message.ack, at); if (!stats.began) { stats.began = performance.now(); note("Scanning. Move slowly, and come back to where you began."); } }
  heard(message);
}

function openSocket() {
  return new Promise((resolve, reject) => {
    const address = new URL(`api/scans/${scan.id}/stream`, location.href);
    address.protocol = address.protocol.replace("http", "ws");
    address.search = "";
    const made = new WebSocket(address);
    made.binaryType = "arraybuffer";
    const limit = setTimeout(() => { made.close(); reject(new Error("the web socket does not open")); }, SOCKET_WAIT_MS);
    made.onopen = () => { clearTimeout(limit); resolve(made); };
    made.onerror = () => { clearTimeout(limit); reject(new Error("the web socket does not open")); };
  });
}

async function overSocket() {
  socket = await openSocket();
  stats.transport = "socket";
  let waiting = null;
  const closed = new Promise(resolve => { socket.onclose = () => { if (waiting) waiting({lost: true}); resolve(); }; });
  socket.onmessage = event => {
    const message = JSON.parse(event.data);
    if (message.ack !== undefined || message.error) { if (waiting) waiting(message); } else heard(message);
  };
  while (running && socket.readyState === WebSocket.OPEN) {
    await nextFrame();
    const taken = await picture();
    if (!taken || !running) continue;
    if (socket.readyState !== WebSocket.OPEN) break;  // it closed in the meantime: no answer would come
    const head = new DataView(new ArrayBuffer(8));
    head.setFloat64(0, taken.at, true);
    const answer = new Promise(resolve => { waiting = resolve; });
    stats.sent += 1; stats.inFlight += 1; stats.mostInFlight = Math.max(stats.mostInFlight, stats.inFlight);
    socket.send(new Blob([head, taken.blob]));
    const message = await answer;
    waiting = null;
    if (message.lost) { stats.inFlight -= 1; break; }
    acknowledged(message, taken.at);
  }
  socket.close();
  await closed;
}

async function overPost() {
  stats.transport = "post";
  let failures = 0, watching = true;
  (async () => {
    while (watching && running) {
      await new Promise(resolve => setTimeout(resolve, 200));
      await request("GET", `api/scans/${scan.id}`, undefined, {timeout: 5000}).then(heard, () => {});
    }
  })();
  try {
    while (running) {
      await nextFrame();
      const taken = await picture();
      if (!taken || !running) continue;
      stats.sent += 1; stats.inFlight += 1; stats.mostInFlight = Math.max(stats.mostInFlight, stats.inFlight);
      try {
        const answer = await request("POST", `api/scans/${scan.id}/frames?captured=${taken.at}`, taken.blob, {timeout: 130000});
        acknowledged(answer, taken.at);
        failures = 0;
      } catch (error) {
        if ([400, 404].includes(error.status)) { acknowledged({error: error.message}, taken.at); return; }
        stats.inFlight -= 1;
        if (!failures) { stats.cuts += 1; note("The connection is cut. Stay where you are: the scan goes on when it is back."); }
        failures += 1;
        await new Promise(resolve => setTimeout(resolve, RETRY_MS));
      }
    }
  } finally { watching = false; }
}

async function stream() {
  let socketWorks = null;
  while (running) {
    try {
      if (socketWorks === false) { await overPost(); continue; }
      await overSocket();
      socketWorks = true;
    } catch {
      if (socketWorks === null && stats.transport === "") { socketWorks = false; continue; }
    }
    if (!running) break;
    stats.cuts += 1;
    note("The connection is cut. Stay where you are: the scan goes on when it is back.");
    await new Promise(resolve => setTimeout(resolve, RETRY_MS));
    // The server may have ended the scan in the meantime.
    await request("GET", `api/scans/${scan.id}`, undefined, {timeout: 5000}).catch(error => error.status === 404 && stop(error.message));
  }
}

function showView() {
  if (!showsView) return;
  const frame = $("view");
  frame.src = `view/${encodeURIComponent(stats.name)}/#small`;
  $("view-box").hidden = false;
  $("toggle-view").hidden = false;
}

function figures() {
  if (!running || !stats.began) return;
  const seconds = (performance.now() - stats.began) / 1000;
  const recent = stats.delays.slice(-20).sort((a, b) => a - b);
  const delay = recent.length ? recent[recent.length >> 1] : 0;
  $("figures").textContent = delay > SLOW_MS ? `${stats.acknowledged} · ${(delay / 1000).toFixed(1)} s behind` : `${clock(seconds)} · ${stats.acknowledged} frames`;
}

async function begin() {
  $("shutter").disabled = true;
  try {
    if (!video.srcObject) await openCamera();
    scan = await request("POST", "api/scans", {name: parameters.get("name")});
  } catch (error) { note(cameraError(error)); return; } finally { $("shutter").disabled = false; }
  stats.name = scan.name;
  running = true; upright = null;
  $("shutter").classList.add("on"); $("shutter").ariaLabel = "Stop scanning"; $("after").hidden = true;
  note("The network is being loaded: aim at the place where you begin.");
  keepAwake();
  stream();
}

async function stop(reason = "") {
  if (!running) return;
  running = false;
  stats.ended = performance.now();
  say("");
  $("figures").textContent = `${stats.acknowledged} frames`;
  $("shutter").classList.remove("on"); $("shutter").ariaLabel = "Start scanning";
  if (socket) socket.close();
  try { lock?.release(); } catch { /* it is gone */ }
  note(reason || "The scan is being refined.");
  for (let attempt = 0; attempt < 30; attempt++) {
    try { await request("POST", `api/scans/${scan.id}/end`, {}); break; }
    catch (error) { if (error.status) break; await new Promise(resolve => setTimeout(resolve, RETRY_MS)); }
  }
  $("view-box").hidden = true; $("view").removeAttribute("src"); $("toggle-view").hidden = true;
  const open = Object.assign(document.createElement("a"), {className: "button", href: `view/${encodeURIComponent(stats.name)}/`, textContent: "Open it"});
  $("after").replaceChildren(open); $("after").hidden = false;
  stats.done = true;
  if (!reason) watchRefinement(stats.name);
}

// Say how far the refinement of a scan is, until it ends or another scan begins.
async function watchRefinement(name) {
  while (!running && stats.name === name) {
    try {
      const state = await request("GET", "api/state");
      const job = state.jobs.find(each => each.kind === "scan" && each.name === name);
      if (running || stats.name !== name) return;
      if (job?.error) return note(job.error);
      if (!job || job.state === "stopped") {
        const result = state.results.find(each => each.name === name);
        return note(result ? `Ready, here and on the start page. ${result.verdict ? `It is ${result.verdict}: ${result.reason}.` : ""}` : "No frame was reconstructed.");
      }
      const {step, done, total} = job.progress || {};
      note(step && total ? `${step === "frames" ? "Reconstructing all frames in full size" : step === "refining" ? "Refining" : step === "mesh" ? "Making the mesh" : "Refining: " + step}, ${Math.round(100 * done / total)} %` : "The scan is being refined.");
    } catch { /* the connection is cut: ask again */ }
    await new Promise(resolve => setTimeout(resolve, 2 * RETRY_MS));
  }
}

function cameraError(error) {
  if (error.name === "NotAllowedError") return "The camera is not allowed: allow it for this page in the browser's settings, then reload.";
  if (error.name === "NotFoundError") return "This device has no camera.";
  return error.message;
}

$("shutter").onclick = () => running ? stop() : begin();
$("toggle-view").onclick = () => { const hide = !$("view-box").hidden; $("view-box").hidden = hide; $("toggle-view").textContent = hide ? "Show 3D" : "Hide 3D"; };
document.addEventListener("visibilitychange", () => { if (!document.hidden && running) keepAwake(); });
setInterval(figures, 500);
openCamera().catch(error => note(cameraError(error)));
