// Zip archives: written without compression, since weights hardly compress; read with it.

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});

function crc32(bytes) {
  let crc = ~0;
  for (const byte of bytes) crc = TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}

const LOCAL = 0x04034b50;
const CENTRAL = 0x02014b50;
const END = 0x06054b50;

/** An archive of files by name. */
export function zip(files) {
  const parts = [];
  const entries = [];
  let offset = 0;
  for (const [name, bytes] of Object.entries(files)) {
    const title = new TextEncoder().encode(name);
    // Version, flags (names in UTF-8), method, time and date (1980-01-01), checksum and sizes.
    const common = new DataView(new ArrayBuffer(26));
    common.setUint16(0, 20, true);
    common.setUint16(2, 0x800, true);
    common.setUint16(8, 0x21, true);
    common.setUint32(10, crc32(bytes), true);
    common.setUint32(14, bytes.length, true);
    common.setUint32(18, bytes.length, true);
    common.setUint16(22, title.length, true);
    const header = new Uint8Array(4 + 26 + title.length);
    new DataView(header.buffer).setUint32(0, LOCAL, true);
    header.set(new Uint8Array(common.buffer), 4);
    header.set(title, 30);
    parts.push(header, bytes);

    const entry = new Uint8Array(46 + title.length);
    const view = new DataView(entry.buffer);
    view.setUint32(0, CENTRAL, true);
    view.setUint16(4, 20, true);
    entry.set(new Uint8Array(common.buffer), 6);
    view.setUint32(42, offset, true);
    entry.set(title, 46);
    entries.push(entry);
    offset += header.length + bytes.length;
  }
  const end = new DataView(new ArrayBuffer(22));
  end.setUint32(0, END, true);
  end.setUint16(8, entries.length, true);
  end.setUint16(10, entries.length, true);
  end.setUint32(12, entries.reduce((sum, entry) => sum + entry.length, 0), true);
  end.setUint32(16, offset, true);
  return new Blob([...parts, ...entries, end.buffer], { type: "application/zip" });
}

/** The files of an archive by name, without directories. */
export async function unzip(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  const view = new DataView(bytes.buffer);
  let end = bytes.length - 22;
  while (end >= 0 && view.getUint32(end, true) !== END) end--;
  if (end < 0) throw new RangeError("zip: no directory of files in it");
  const files = {};
  let at = view.getUint32(end + 16, true);
  for (let i = view.getUint16(end + 10, true); i > 0; i--) {
    if (view.getUint32(at, true) !== CENTRAL) throw new RangeError("zip: its directory is damaged");
    const method = view.getUint16(at + 10, true);
    const size = view.getUint32(at + 20, true);
    const [name, extra, comment] = [28, 30, 32].map((field) => view.getUint16(at + field, true));
    const local = view.getUint32(at + 42, true);
    const title = new TextDecoder().decode(bytes.subarray(at + 46, at + 46 + name));
    const begin = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const data = bytes.slice(begin, begin + size);
    if (!title.endsWith("/")) files[title] = await inflate(title, method, data);
    at += 46 + name + extra + comment;
  }
  return files;
}

async function inflate(name, method, data) {
  if (method === 0) return data;
  if (method !== 8) throw new RangeError(`zip: ${name} is of method ${method}, expected 0 or 8`);
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
