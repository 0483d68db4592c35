// A ZIP file of several files without compression, made of references: nothing is copied into memory as a whole.

const TABLE = new Uint32Array(256).map((_, n) => { for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1; return n; });

async function crc32(file) {
  let crc = 0xffffffff;
  const reader = file.stream().getReader();
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return (crc ^ 0xffffffff) >>> 0;
    for (let i = 0; i < value.length; i++) crc = TABLE[(crc ^ value[i]) & 255] ^ (crc >>> 8);
  }
}

function header(signature, fields) {
  const view = new DataView(new ArrayBuffer(fields.reduce((sum, [size]) => sum + size, 4)));
  view.setUint32(0, signature, true);
  let at = 4;
  for (const [size, value] of fields) {
    if (size === 2) view.setUint16(at, value, true);
    else if (size === 4) view.setUint32(at, value, true);
    else view.setBigUint64(at, BigInt(value), true);
    at += size;
  }
  return new Uint8Array(view.buffer);
}

const MOST = 0xfffffffe;

// `files`: array of File; names come from their relative path. Returns a Blob.
export async function zipOf(files, onProgress = () => {}) {
  const parts = [], directory = [];
  let offset = 0, directorySize = 0;
  for (const [number, file] of files.entries()) {
    const name = new TextEncoder().encode((file.webkitRelativePath || file.name).slice(-200));
    const crc = await crc32(file);
    if (file.size > MOST) throw new Error(`${file.name} is too large for a group: upload it alone`);
    const local = header(0x04034b50, [[2, 45], [2, 0x800], [2, 0], [2, 0], [2, 33], [4, crc], [4, file.size], [4, file.size], [2, name.length], [2, 0]]);
    const extra = offset > MOST ? header(0x00080001, [[8, offset]]) : new Uint8Array();
    const entry = header(0x02014b50, [[2, 45], [2, 45], [2, 0x800], [2, 0], [2, 0], [2, 33], [4, crc], [4, file.size], [4, file.size],
      [2, name.length], [2, extra.length], [2, 0], [2, 0], [2, 0], [4, 0], [4, Math.min(offset, 0xffffffff) === offset && offset <= MOST ? offset : 0xffffffff]]);
    parts.push(local, name, file);
    directory.push(entry, name, extra);
    offset += local.length + name.length + file.size;
    directorySize += entry.length + name.length + extra.length;
    onProgress(number + 1, files.length);
  }
  const count = files.length, large = offset > MOST || count > 0xfffe;
  const tail = [];
  if (large) {
    tail.push(header(0x06064b50, [[8, 44], [2, 45], [2, 45], [4, 0], [4, 0], [8, count], [8, count], [8, directorySize], [8, offset]]));
    tail.push(header(0x07064b50, [[4, 0], [8, offset + directorySize], [4, 1]]));
  }
  const few = large ? 0xffff : count;
  tail.push(header(0x06054b50, [[2, 0], [2, 0], [2, few], [2, few], [4, Math.min(directorySize, 0xffffffff)], [4, large ? 0xffffffff : offset], [2, 0]]));
  return new Blob([...parts, ...directory, ...tail], {type: "application/zip"});
}
