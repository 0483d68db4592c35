// Scan with the camera of this device over /v1/stream: one frame waits for its acknowledgement, the next is the newest.

import {clock, request} from "./api.js";

const $ = id => document.getElementById(id);
const WIDTH = 1280, HEIGHT = 720, QUALITY = 0.8;
const SOCKET_WAIT_MS = 5000, RETRY_MS = 1000, SLOW_MS = 1500, MOST_ATTEMPTS = 600;
const parameters = new URLSearchParams(location.search);
const showsView = parameters.get("view") !== "off";

// Figures of this scan, for tests and for the line at the top.
const stats = window.scanStats = {sent: 0, acknowledged: 0, posed: 0, mostInFlight: 0, delays: [], says: [], cuts: 0, began: 0, ended: 0, name: "", errors: []};
// The scan that takes pictures.
let running = null, lock = null, upright = null;
const video = $("camera"), canvas = document.createElement("canvas");

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
    track.addEventListener("ended", () => { if (running) stop(running, "The camera was taken away: the scan was ended."); });
    const can = track.getCapabilities ? track.getCapabilities() : {};
    // A steady focus keeps the focal length; few phones allow it.
    if (can.focusMode?.includes("continuous")) track.applyConstraints({advanced: [{focusMode: "continuous"}]}).catch(() => {});
  }
}

async function keepAwake() {
  try { lock = await navigator.wakeLock?.request("screen"); } catch { /* battery saver: the phone decides */ }
}

// A new picture of the camera as JPEG in base64 with its time, or null where the phone was turned.
async function picture() {
  const width = video.videoWidth, height = video.videoHeight;
  if (!width) return null;
  if (upright === null) upright = width >= height;
  if ((width >= height) !== upright) { say("Turn the phone back: all pictures of a scan are taken the same way up"); return null; }
  const scale = Math.min(1, WIDTH / Math.max(width, height));
  canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale);
  const at = performance.now();
  canvas.getContext("2d", {alpha: false}).drawImage(video, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise(resolve => canvas.toBlob(resolve, "image/jpeg", QUALITY));
  if (!blob) return null;
  const reader = new FileReader();
  await new Promise(resolve => { reader.onload = resolve; reader.readAsDataURL(blob); });
  return {data: reader.result.split(",")[1], at};
}

const nextFrame = () => new Promise(resolve => {
  const late = setTimeout(resolve, 250);
  if (video.requestVideoFrameCallback) video.requestVideoFrameCallback(() => { clearTimeout(late); resolve(); });
});

// A new connection that begins or resumes the session. What the server refuses has a code.
function connect(scan) {
  return new Promise((resolve, reject) => {
    const address = new URL("v1/stream", location.href);
    address.protocol = address.protocol.replace("http", "ws");
    address.search = "";
    const socket = scan.socket = new WebSocket(address);
    const failed = () => { socket.close(); reject(new Error("The web socket does not open: a proxy in between has to pass it.")); };
    const limit = setTimeout(failed, SOCKET_WAIT_MS);
    socket.onopen = () => socket.send(JSON.stringify({type: "session.config", ...(scan.id ? {session_id: scan.id, received: scan.received} : {keep: scan.title})}));
    socket.onerror = socket.onclose = () => { clearTimeout(limit); failed(); };
    socket.onmessage = event => {
      clearTimeout(limit);
      const message = JSON.parse(event.data);
      if (message.type === "error") { socket.onclose = socket.onerror = null; reject(Object.assign(new Error(message.message), {code: message.code})); return; }
      scan.id = message.session_id;
      scan.name = stats.name = message.name || scan.name;
      scan.pending.forEach((_, frame) => { if (frame > message.last_frame) scan.pending.delete(frame); });  // lost: a newer one is sent
      socket.onmessage = next => heard(scan, JSON.parse(next.data));
      socket.onerror = null;
      resolve(socket);
    };
  });
}

function heard(scan, message) {
  if (message.seq) { if (message.seq <= scan.received) return; scan.received = message.seq; }
  switch (message.type) {
    case "video.ack":
      scan.pending.delete(message.frame);
      stats.acknowledged += 1;
      // The second one comes once the run has taken the first.
      if (stats.acknowledged === 2) { stats.began = performance.now(); note("Scanning. Move slowly, and come back to where you began."); }
      break;
    case "result":
      stats.delays.push(performance.now() - scan.captured.get(message.frame));
      scan.captured.delete(message.frame);
      if (!stats.posed) showView();
      stats.posed += 1;
      break;
    case "guidance": if (running === scan) say(message.text); break;
    case "session.done": leave(scan, "The scan was ended."); break;
    case "error":
      stats.errors.push(message.message);
      if (message.code === "invalid_frame") { scan.pending.delete(message.frame); note(message.message); }
      // Other errors close the connection, and the session is resumed.
      else if (["engine_failed", "no_room"].includes(message.code)) leave(scan, message.message);
  }
  scan.wake();
}

// The session is over. Where nobody stopped it, the reason is shown.
function leave(scan, reason) {
  scan.over = true;
  stop(scan, reason);
  scan.socket.close(1000);
  stats.done = true;
}

// Send frames while the connection lives: the next one once the last one is acknowledged.
async function send(scan, socket) {
  const closed = new Promise(resolve => { socket.onclose = resolve; });
  socket.addEventListener("close", () => scan.wake());
  const open = () => socket.readyState === WebSocket.OPEN;
  while (running === scan && open()) {
    await nextFrame();
    const taken = await picture();
    if (!taken || running !== scan || !open()) continue;
    const frame = stats.sent++, began = scan.began ??= taken.at;
    scan.pending.set(frame, true); scan.captured.set(frame, taken.at);
    stats.mostInFlight = Math.max(stats.mostInFlight, scan.pending.size);
    socket.send(JSON.stringify({type: "video.frame", frame, time: (taken.at - began) / 1000, data: taken.data, received: scan.received}));
    while (scan.pending.size && open() && running === scan) await new Promise(resolve => { scan.wake = resolve; });
  }
  if (open()) socket.send(JSON.stringify({type: "video.done", received: scan.received}));
  await closed;
}

// Keep the session connected until it is over.
async function stream(scan, socket) {
  for (let attempts = 0; !scan.over && attempts < MOST_ATTEMPTS; attempts++) {
    try {
      socket ??= await connect(scan);
      attempts = 0;
      if (running === scan && stats.cuts) note("Scanning. Move slowly, and come back to where you began.");
      await send(scan, socket);
    } catch (error) {
      if (error.code) { leave(scan, error.message); return; }
    }
    socket = null;
    if (scan.over) return;
    if (!attempts) { stats.cuts += 1; if (running === scan) note("The connection is cut. Stay where you are: the scan goes on when it is back."); }
    await new Promise(resolve => setTimeout(resolve, RETRY_MS));
  }
  if (!scan.over) leave(scan, "The connection is cut: the scan was ended.");
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
  const scan = {title: parameters.get("name") || "", id: "", name: "", received: 0, pending: new Map(), captured: new Map(), over: false, wake() {}};
  let socket = null;
  try {
    if (!video.srcObject) await openCamera();
    socket = await connect(scan);
  } catch (error) { note(cameraError(error)); return; } finally { $("shutter").disabled = false; }
  Object.assign(stats, {sent: 0, acknowledged: 0, posed: 0, delays: [], began: 0, cuts: 0, done: false});
  running = scan; upright = null;
  $("shutter").classList.add("on"); $("shutter").ariaLabel = "Stop scanning"; $("after").hidden = true;
  note("The network is being loaded: aim at the place where you begin.");
  keepAwake();
  stream(scan, socket);
}

function stop(scan, reason = "") {
  if (running !== scan) return;
  running = null;
  stats.ended = performance.now();
  say("");
  $("figures").textContent = `${stats.acknowledged} frames`;
  $("shutter").classList.remove("on"); $("shutter").ariaLabel = "Start scanning";
  try { lock?.release(); } catch { /* it is gone */ }
  note(reason || "The scan is being refined.");
  scan.wake();
  $("view-box").hidden = true; $("view").removeAttribute("src"); $("toggle-view").hidden = true;
  const open = Object.assign(document.createElement("a"), {className: "button", href: `view/${encodeURIComponent(scan.name)}/`, textContent: "Open it"});
  $("after").replaceChildren(open); $("after").hidden = false;
  if (!reason) watchRefinement(scan.name);
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

$("shutter").onclick = () => running ? stop(running) : begin();
$("toggle-view").onclick = () => { const hide = !$("view-box").hidden; $("view-box").hidden = hide; $("toggle-view").textContent = hide ? "Show 3D" : "Hide 3D"; };
document.addEventListener("visibilitychange", () => { if (!document.hidden && running) keepAwake(); });
setInterval(figures, 500);
openCamera().catch(error => note(cameraError(error)));
