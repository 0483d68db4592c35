// The start page: uploads, jobs and results.

import {bytes, clock, make, request} from "./api.js";
import {Upload} from "./upload.js";
import {zipOf} from "./zip.js";

const $ = id => document.getElementById(id);
const STEPS = {frames: "reconstructing", refining: "refining", points: "updating points", "dense depth": "dense depth", mesh: "making the mesh"};
const IMAGE = /\.(jpe?g|png|webp|tiff?|bmp|heic|heif|avif|jp2)$/i;
const uploads = [];
const boxes = new Map();  // borders that cut the exports of a result, by its name
const awaited = new Set();  // exports that this page downloads when they are done
let state = null, timer = null, limits = {bytes: 0};

// Messages and questions

function tell(text, fine = false) {
  const place = $("message");
  place.textContent = text; place.hidden = !text; place.classList.toggle("fine", fine);
}

function ask({title, text = "", yes, input = null, check = null}) {
  $("ask-title").textContent = title; $("ask-text").textContent = text; $("ask-yes").textContent = yes;
  $("ask-input-label").hidden = input === null; $("ask-input").value = input || "";
  $("ask-check-label").hidden = check === null; $("ask-check-text").textContent = check || ""; $("ask-check").checked = false;
  const dialog = $("ask");
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise(resolve => dialog.addEventListener("close", () =>
    resolve(dialog.returnValue === "yes" ? {input: $("ask-input").value, check: $("ask-check").checked} : null), {once: true}));
}

async function act(method, path, body) {
  try {
    const answer = await request(method, path, body);
    tell("");
    await refresh();
    return answer;
  } catch (error) { tell(error.message); return null; }
}

// Uploads

function options() {
  const number = id => $(id).value ? Number($(id).value) : null;
  const marker = number("marker");
  return {stride: number("stride"), max_frames: number("max-frames"), scale: marker ? `marker:${marker}` : null, mapping: $("mapping").value === "full" ? null : $("mapping").value};
}

async function filesOf(items) {
  const found = [];
  async function walk(entry, path) {
    if (entry.isFile) {
      const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
      found.push({file, path: path + file.name});
    } else {
      const reader = entry.createReader();
      for (;;) {
        const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
        if (!some.length) break;
        for (const each of some) await walk(each, `${path}${entry.name}/`);
      }
    }
  }
  for (const item of items) await walk(item, "");
  return found;
}

// Photographs become one upload, all other files one each.
async function take(files) {
  files = files.filter(({file}) => file.size && !file.name.startsWith("."));
  const photographs = files.filter(({file}) => IMAGE.test(file.name)), others = files.filter(({file}) => !IMAGE.test(file.name));
  const total = files.reduce((sum, {file}) => sum + file.size, 0);
  if (!files.length) return tell("There is no file in it.");
  if (total > limits.bytes) return tell(`These files have ${bytes(total)}, and the server has room for ${bytes(limits.bytes)}.`);
  tell("");
  const chosen = options();
  for (const {file} of others) start(file, file.name, chosen, `${file.name}/${file.size}/${file.lastModified}`);
  if (photographs.length === 1 && !others.length) start(photographs[0].file, photographs[0].file.name, chosen, photographs[0].file.name);
  else if (photographs.length) {
    const folder = photographs[0].path.includes("/") ? photographs[0].path.split("/")[0] : "photographs";
    try {
      const blob = await zipOf(photographs.map(({file}) => file), (done, all) => tell(`Reading ${done} of ${all} photographs`, true));
      tell("");
      start(blob, `${folder}.zip`, chosen, `${folder}/${photographs.length}/${blob.size}`);
    } catch (error) { tell(error.message); }
  }
}

function start(blob, title, chosen, fingerprint) {
  const upload = new Upload(blob, title, chosen, showUploads, fingerprint);
  uploads.push(upload);
  showUploads();
  upload.run().then(answer => {
    if (answer && answer.known) tell(`${title} is here already: see ${answer.name}.`, true);
    if (answer) { uploads.splice(uploads.indexOf(upload), 1); showUploads(); refresh(); }
  });
}

// Uploads that an earlier page began.
function left() {
  const own = new Set(uploads.map(upload => upload.id));
  const found = state ? state.uploads.filter(upload => !own.has(upload.id) && upload.idle) : [];
  return found.map(upload => make("div", {class: "bar upload", "data-state": "left"}, make("div", {class: "row"},
    make("div", {}, make("div", {class: "name"}, upload.title), make("div", {class: "hint"}, `${bytes(upload.offset)} of ${bytes(upload.size)} are here. Choose the same file again, and it goes on.`)),
    make("div", {class: "actions"}, make("button", {onclick: () => act("DELETE", `api/uploads/${upload.id}`)}, "Remove")))));
}

function showUploads() {
  $("uploads").replaceChildren(...left(), ...uploads.filter(upload => upload.state !== "cancelled").map(upload => {
    const left = upload.rate ? (upload.blob.size - upload.offset) / upload.rate : null;
    const text = upload.state === "failed" ? upload.error : `${bytes(upload.offset)} of ${bytes(upload.blob.size)}${upload.rate ? `, ${bytes(upload.rate)}/s` : ""}${left ? `, ${clock(left)} left` : ""}${upload.error ? `; ${upload.error}` : ""}${upload.job ? ". It is reconstructed while it comes." : upload.waits ? ". It is reconstructed when all of it is here: the index of this file comes at its end." : ""}`;
    return make("div", {class: "bar upload", "data-state": upload.state},
      make("div", {class: "row"}, make("div", {}, make("div", {class: "name"}, upload.title), make("div", {class: upload.state === "failed" ? "error" : "hint"}, text)),
        make("div", {class: "actions"}, make("button", {onclick: () => { if (upload.state === "failed") upload.state = "cancelled"; else upload.cancel(); showUploads(); }}, upload.state === "failed" ? "Dismiss" : "Cancel"))),
      make("progress", {max: upload.blob.size, value: upload.offset, "aria-label": `Upload of ${upload.title}`}));
  }));
}

// Jobs

function jobText(job) {
  if (job.state === "queued") return "waits for its turn";
  if (job.state === "stopped") return job.error || "stopped; what is finished is kept";
  if (job.state === "done") return job.file ? `${job.file}${job.bytes ? `, ${bytes(job.bytes)}` : ""}` : "done";
  if (job.state !== "running") return "";
  const p = job.progress || {};
  if (!p.step) return {export: "exporting", store: `to ${job.output}`}[job.kind] || "starting";
  const count = p.total ? `${Math.round(p.done)} of ${Math.round(p.total)}` : `${Math.round(p.done)}`;
  const what = p.step === "refining" ? `refining, ${Math.round(p.done)} %` : p.step === "frames" ? `${job.kind === "export" ? "exporting" : "reconstructing"}: frame ${count}` : `${STEPS[p.step] || p.step}: ${count}`;
  return [what, p.fps ? `${p.fps.toFixed(1)} frames/s` : "", p.left !== null && p.left !== undefined ? `about ${clock(p.left)} left` : "", p.text, job.arrives === "now" ? "the upload goes on" : job.arrives ? "waits for the rest of its upload" : ""].filter(Boolean).join(", ");
}

const viewPath = name => `view/${encodeURIComponent(name)}/`;

function jobBar(job) {
  const kind = {reconstruct: "", scan: "Scan: ", refine: "Refine: ", store: "Store: ", export: `${job.label}: `}[job.kind];
  const actions = [];
  const open = job.state === "queued" || job.state === "running";
  if (job.viewer) actions.push(make("a", {class: "button primary", href: viewPath(job.name), target: "_blank", rel: "noopener"}, "Watch"));
  if (open) actions.push(make("button", {onclick: () => act("POST", `api/jobs/${job.id}/stop`)}, "Stop"));
  else {
    if (job.file) actions.push(make("a", {class: "button primary", href: `api/exports/${job.id}`, download: job.file}, "Download"));
    else if (!(job.live && job.kind === "reconstruct")) actions.push(make("button", {onclick: () => act("POST", `api/jobs/${job.id}/resume`)}, job.state === "stopped" ? "Resume" : "Try again"));
    actions.push(make("button", {onclick: () => act("DELETE", `api/jobs/${job.id}`)}, "Dismiss"));
  }
  const p = job.progress || {};
  return make("div", {class: "bar job", "data-job": String(job.id), "data-state": job.state, "data-kind": job.kind},
    make("div", {class: "row"}, make("div", {}, make("div", {class: "name"}, kind + job.name), make("div", {class: "hint"}, jobText(job)),
      job.error && job.state !== "stopped" ? make("div", {class: "error"}, job.error) : null), make("div", {class: "actions"}, ...actions)),
    job.state === "running" ? (p.total ? make("progress", {max: p.total, value: Math.min(p.done, p.total), "aria-label": "Progress"}) : make("progress", {"aria-label": "Progress"})) : null);
}

// Results

function card(entry, jobs) {
  const busy = jobs.some(job => job.name === entry.name && (job.state === "queued" || job.state === "running"));
  const changes = jobs.some(job => job.name === entry.name && job.state === "running" && !["export", "store"].includes(job.kind));
  const name = encodeURIComponent(entry.name);
  const facts = [`${entry.frames} frames`, entry.seconds ? clock(entry.seconds) : "", entry.metres ? "in metres" : "", busy ? "in work" : entry.interrupted ? "not complete" : entry.refined ? "refined" : ""].filter(Boolean).join(" · ");
  const box = () => boxes.get(entry.name) || "";
  const exportAs = async (format, download = false) => {
    const job = await act("POST", `api/results/${name}/export`, {format, box: box()});
    if (job && download) awaited.add(job.job);
  };
  const menu = make("details", {class: "export-menu"}, make("summary", {class: "button"}, "Export"),
    make("div", {class: "export-list"}, ...state.exports.map(({name, label}) => make("button", {onclick: event => { event.target.closest("details").open = false; exportAs(name); }}, label)),
      make("label", {class: "hint box"}, "Only what is in a box: subject, or its borders in the viewer", make("input", {value: box(), placeholder: "whole scene", autocomplete: "off", onchange: event => boxes.set(entry.name, event.target.value.trim())}))));
  return make("article", {class: "card", "data-name": entry.name},
    make("a", {href: viewPath(entry.name), target: "_blank", rel: "noopener", "aria-label": `Open ${entry.name}`}, make("img", {class: "picture", alt: "", loading: "lazy", src: `api/results/${name}/picture?${Math.floor(entry.changed)}`, onerror: event => event.target.replaceWith(make("div", {class: "picture"}))})),
    make("div", {class: "inside"}, make("div", {class: "name"}, entry.name), make("div", {class: "hint"}, facts),
      entry.verdict && !changes ? make("div", {class: `verdict ${entry.verdict}`, title: entry.reason}, make("b", {}, entry.verdict), entry.reason ? `: ${entry.reason}` : "") : null,
      make("div", {class: "row"}, make("a", {class: "button primary", href: viewPath(entry.name), target: "_blank", rel: "noopener"}, "Open"), menu),
      make("div", {class: "links"},
        make("button", {title: "Save one HTML file that shows the scene without a server", onclick: () => exportAs("html", true)}, "Share"),
        make("button", {disabled: busy, onclick: () => act("POST", `api/results/${name}/refine`)}, "Refine"),
        make("button", {disabled: busy, onclick: async () => { const answer = await ask({title: "Rename", yes: "Rename", input: entry.name}); if (answer) act("POST", `api/results/${name}/rename`, {name: answer.input}); }}, "Rename"),
        make("button", {disabled: busy, onclick: async () => {
          const answer = await ask({title: `Delete ${entry.name}?`, text: "The files that the program wrote are removed. Other files in the folder stay.", yes: "Delete", check: "Also its uploaded video or photographs"});
          if (answer) act("DELETE", `api/results/${name}`, {upload: answer.check});
        }}, "Delete"))));
}

const shownCards = new Map();

function show() {
  $("limits").textContent = `Videos of any usual format, up to ${bytes(limits.bytes)}. Uploads go on after a cut connection.`;
  $("jobs").replaceChildren(...state.jobs.map(jobBar));
  for (const job of state.jobs) if (awaited.has(job.id) && job.file) { awaited.delete(job.id); document.querySelector(`.job[data-job="${job.id}"] a[download]`).click(); }
  showUploads();
  const places = new Map();
  for (const entry of state.results) {
    const key = JSON.stringify([entry, state.jobs.filter(job => job.name === entry.name).map(job => job.state)]);
    const known = shownCards.get(entry.name);
    places.set(entry.name, known && known.key === key ? known : {key, element: card(entry, state.jobs)});
  }
  const changed = [...places.values()].some((each, i) => $("results").children[i] !== each.element) || places.size !== $("results").children.length;
  if (changed) $("results").replaceChildren(...[...places.values()].map(each => each.element));
  shownCards.clear();
  for (const [name, each] of places) shownCards.set(name, each);
  $("count").textContent = state.results.length || "";
  $("empty").hidden = state.results.length > 0;
}

async function refresh() {
  clearTimeout(timer);
  try {
    state = await request("GET", "api/state");
    limits = state.limits;
    if ($("message").dataset.lost) { delete $("message").dataset.lost; tell(""); }
    show();
  } catch (error) { tell(`The server does not answer: ${error.message}`); $("message").dataset.lost = "1"; }
  const busy = state && state.jobs.some(job => job.state === "running" || job.state === "queued");
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(refresh, busy ? 1000 : 5000);
}

// Events

const drop = $("drop");
for (const kind of ["dragenter", "dragover"]) document.addEventListener(kind, event => { event.preventDefault(); drop.classList.add("over"); });
document.addEventListener("dragleave", event => { if (!event.relatedTarget) drop.classList.remove("over"); });
document.addEventListener("drop", async event => {
  event.preventDefault();
  drop.classList.remove("over");
  const entries = [...event.dataTransfer.items].map(item => item.webkitGetAsEntry && item.webkitGetAsEntry()).filter(Boolean);
  const plain = [...event.dataTransfer.files].map(file => ({file, path: file.name}));
  take(entries.length ? await filesOf(entries) : plain);
});
$("choose-files").onclick = () => $("files").click();
$("choose-folder").onclick = () => $("folder").click();
$("choose-address").onclick = () => { $("address-form").hidden = !$("address-form").hidden; if (!$("address-form").hidden) $("address").focus(); };
for (const id of ["files", "folder"]) $(id).onchange = event => { take([...event.target.files].map(file => ({file, path: file.webkitRelativePath || file.name}))); event.target.value = ""; };
$("address-form").onsubmit = async event => {
  event.preventDefault();
  if (await act("POST", "api/sources", {address: $("address").value, options: options()})) { $("address").value = ""; $("address-form").hidden = true; }
};
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
refresh();
