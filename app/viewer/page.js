// Runs before the viewer's client. TITLE, PICTURE and FULL_SCREEN are replaced by strings.
(() => {
  // The client unpacks itself into one more script, which the page's policy has to know as its own.
  const nonce = document.currentScript.nonce;
  if (nonce) {
    const make = Document.prototype.createElement;
    document.createElement = function (name, ...options) {
      const element = make.call(this, name, ...options);
      if (String(name).toLowerCase() === "script") { element.nonce = nonce; delete document.createElement; }
      return element;
    };
  }

  // Notices of the client library that say nothing about the reconstruction.
  const hidden = ["Software WebGL rendering detected", "Could not detect browser version"];
  let folded = false;
  const tidy = () => {
    for (const note of document.querySelectorAll(".mantine-Notification-root"))
      if (hidden.some(text => note.textContent.includes(text))) note.style.display = "none";
    if (!folded && matchMedia("(max-width: 36em)").matches) {
      const handle = document.querySelector('div[style*="cursor: pointer"][style*="height: 3.5em"]');
      if (handle) { folded = true; handle.click(); handle.dataset.streamReconMenu = ""; }
    }
    if (document.title !== TITLE) document.title = TITLE;
    readCut();
    readCaption();
  };
  new MutationObserver(tidy).observe(document, {childList: true, subtree: true});

  const style = document.createElement("style");
  style.textContent = `
    [data-stream-recon-menu]::after { content: 'Menu'; margin-left: auto; padding: 0 1em; font: bold 14px sans-serif }
    html:not(.has-status) body { background: #141414 !important }
    html:not(.has-status) #root { animation: 5s step-end unseen }
    @keyframes unseen { from { visibility: hidden } }
    html:not(.has-mesh) [data-stream-recon-mesh] { visibility: hidden }`;
  document.documentElement.append(style);

  // A caption says that the scene loads until some of it is drawn, and that the mesh does while a rough shape stands for
  // it. On a phone the folded panel hides what it says: there the caption says what happens, or what to do. A small view
  // beside a camera's picture (#small) has no room for it. A file has neither a status nor a nonce.
  const asked = {}, drawn = {};
  let hasScene = !nonce, mesh = "";
  const isSmall = location.hash === "#small";
  // The client makes the address of its web socket from the page's, and a web socket's has no such part.
  if (isSmall) history.replaceState(null, "", location.pathname + location.search);
  const caption = document.createElement("div");
  caption.style.cssText = "position: fixed; top: 8px; left: 8px; right: 8px; z-index: 5; pointer-events: none; " +
    "font: 14px sans-serif; color: white; text-shadow: 0 0 3px black, 0 0 3px black";
  const said = name => {
    const found = document.querySelector(`[data-stream-recon-${name}]`);
    return found ? found.getAttribute(`data-stream-recon-${name}`) : "";
  };
  const readCaption = () => {
    if (!document.body) return;
    const isPhone = matchMedia("(max-width: 36em)").matches, status = said("status");
    hasScene = hasScene || Boolean(status);
    mesh = said("mesh");
    document.documentElement.classList.toggle("has-status", hasScene);
    document.documentElement.classList.toggle("has-mesh", Boolean(drawn.mesh));
    const loading = !drawn.scene ? (status ? `${status}: loading the scene` : "Loading the scene")
      : mesh && !drawn.mesh ? `A rough shape: loading the ${mesh}` : "";
    const words = isSmall ? "" : loading || (isPhone ? said("hint") || said("verdict") || status : "");
    if (caption.textContent !== words) {
      caption.textContent = words;
      const verdict = document.querySelector("[data-stream-recon-verdict]");
      const isVerdict = verdict && words === said("verdict");
      caption.style.borderLeft = isVerdict ? `4px solid ${verdict.dataset.colour}` : "";
      caption.style.paddingLeft = isVerdict ? "8px" : "";
    }
    if (!caption.isConnected) document.body.append(caption);
  };

  const savePicture = () => {
    const scene = [...document.querySelectorAll("canvas")].sort((a, b) => b.width - a.width)[0];
    const copy = document.createElement("canvas");
    copy.width = scene.width; copy.height = scene.height;
    const context = copy.getContext("2d");
    context.fillStyle = getComputedStyle(document.body).backgroundColor;
    context.fillRect(0, 0, copy.width, copy.height);
    context.drawImage(scene, 0, 0);
    copy.toBlob(blob => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = TITLE.replace(/[^\w.-]+/g, "-") + ".png";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }, "image/png");
  };
  const toggleFullScreen = () => {
    if (document.fullscreenElement) document.exitFullscreen();
    else if (document.documentElement.requestFullscreen) document.documentElement.requestFullscreen().catch(() => {});
  };
  const buttons = {[PICTURE]: savePicture, [FULL_SCREEN]: toggleFullScreen};
  document.addEventListener("click", event => {
    const button = event.target.closest && event.target.closest("button");
    const action = button && buttons[button.textContent.trim()];
    if (action) action();
  }, true);

  // What is behind a plane, and what is too unsure, is not drawn. The client library has no such thing, so its shaders
  // of surfaces and points get a test. The panel gives planes in the world and a percentage as JSON in an attribute.
  const MAX_PLANES = 8;
  const values = new Float32Array(4 * MAX_PLANES);
  let cut = {planes: [], hide: 0}, text = "", version = 1, turn = "", count = 0;

  const rotated = (q, [x, y, z]) => {
    const [w, a, b, c] = q, tx = 2 * (b * z - c * y), ty = 2 * (c * x - a * z), tz = 2 * (a * y - b * x);
    return [x + w * tx + b * tz - c * ty, y + w * ty + c * tx - a * tz, z + w * tz + a * ty - b * tx];
  };
  const update = () => {
    const tree = window.__viserSceneTree, root = tree && tree.getState()[""];
    const q = root && root.wxyz;
    turn = String(q);
    // Without the turn of the client's world the planes are not known: then nothing is cut.
    count = q ? Math.min(cut.planes.length, MAX_PLANES) : 0;
    cut.planes.slice(0, count).forEach(([x, y, z, d], k) => values.set([...rotated(q, [x, y, z]), d], 4 * k));
    version += 1;
    if (window.__viserMutable) window.__viserMutable.requestRender();
  };
  const readCut = () => {
    const found = document.querySelector("[data-stream-recon-cut]");
    const now = found ? found.dataset.streamReconCut : text;
    if (now === text) return;
    text = now;
    cut = JSON.parse(now);
    update();
  };
  // The client turns its world when the up direction changes.
  setInterval(() => {
    const tree = window.__viserSceneTree, root = tree && cut.planes.length && tree.getState()[""];
    if (root && String(root.wxyz) !== turn) update();
  }, 500);

  const MAIN = /void\s+main\s*\(\s*(?:void)?\s*\)/;
  const wanted = source => MAIN.test(source) && source.includes("uniform mat4 viewMatrix") &&
    (/#define SHADER_TYPE Mesh(Basic|Standard|Physical)Material/.test(source) ||
     source.includes("point_shading_enabled"));
  const vertex = source => source.replace(MAIN, `
    in float _unsure;
    out highp vec4 cutPosition;
    out highp float cutUnsure;
    uniform highp int cutCount;
    void mainUncut()`) + `
    void main() {
      mainUncut();
      cutPosition = cutCount > 0 ? inverse(viewMatrix) * inverse(projectionMatrix) * gl_Position : vec4(0.0);
      cutUnsure = _unsure;
    }`;
  const fragment = source => source.replace(MAIN, `
    in highp vec4 cutPosition;
    in highp float cutUnsure;
    uniform highp vec4 cutPlanes[${MAX_PLANES}];
    uniform highp int cutCount;
    uniform highp float cutHide;
    void mainUncut()`) + `
    void main() {
      if (cutUnsure > 100.0 - cutHide) discard;
      for (int k = 0; k < cutCount; k++)
        if (dot(cutPlanes[k].xyz, cutPosition.xyz) + cutPlanes[k].w * cutPosition.w < 0.0) discard;
      mainUncut();
    }`;
  if (!window.WebGL2RenderingContext) { drawn.scene = drawn.mesh = true; return; }
  const gl = WebGL2RenderingContext.prototype, {shaderSource, useProgram} = gl;
  gl.shaderSource = function (shader, source) {
    if (wanted(source))
      source = this.getShaderParameter(shader, this.SHADER_TYPE) === this.VERTEX_SHADER ? vertex(source) : fragment(source);
    shaderSource.call(this, shader, source);
  };
  const programs = new WeakMap();
  gl.useProgram = function (program) {
    useProgram.call(this, program);
    if (program && !programs.has(program)) {
      const place = name => this.getUniformLocation(program, name);
      programs.set(program, {planes: place("cutPlanes[0]"), count: place("cutCount"), hide: place("cutHide"),
        unsure: this.getAttribLocation(program, "_unsure"), version: 0});
    }
    this.cutProgram = program ? programs.get(program) : null;
  };
  // A surface or points have more elements than a camera's picture, and splats more than lines. The client's own axes,
  // which are drawn before it is connected, do not count.
  const awaitPicture = (context, what) => {  // software draws seconds after it was asked to
    asked[what] = true;
    const fence = context.fenceSync(context.SYNC_GPU_COMMANDS_COMPLETE, 0);
    const look = () => {
      if (context.getSyncParameter(fence, context.SYNC_STATUS) === context.SIGNALED) { drawn[what] = true; readCaption(); }
      else setTimeout(look, 100);
    };
    setTimeout(look, 100);
  };
  // Of triangles only the rough shape and keyframes' surfaces have percentages.
  const isMesh = (context, program) => !context.getVertexAttrib(program.unsure, context.VERTEX_ATTRIB_ARRAY_ENABLED);
  const LEAST_DRAWN = 5000, LEAST_SPLATS = 20000, HIDE_ROUGH = 2;
  for (const name of ["drawArrays", "drawElements", "drawArraysInstanced", "drawElementsInstanced"]) {
    const draw = gl[name], isIndexed = name.includes("Elements");
    gl[name] = function (...args) {
      const program = this.cutProgram, isCut = program && program.count;
      const elements = isIndexed ? args[1] * (args[4] || 1) : args[2] * (args[3] || 1);
      if (hasScene && elements > (isCut ? LEAST_DRAWN : LEAST_SPLATS)) {
        if (!asked.scene) awaitPicture(this, "scene");
        if (mesh && !asked.mesh && isCut && isIndexed && isMesh(this, program)) { awaitPicture(this, "mesh"); update(); }
      }
      if (isCut && program.version !== version) {
        program.version = version;
        this.uniform4fv(program.planes, values);
        this.uniform1i(program.count, count);
        this.uniform1f(program.hide, Math.max(cut.hide, asked.mesh ? HIDE_ROUGH : 0));
      }
      draw.apply(this, args);
    };
  }
})();
