// Runs t7bridge: Python in WebAssembly, with the user's files mounted where they are.
//
// The page starts this source as a blob, so that the page's content security policy holds here, too.
// Files are read in place by WORKERFS. Outputs go to the origin's private file system, whose files are on disk, or,
// where a browser has none, to memory.

const OUT = "/out";
const LIBRARY = "/library";
const STACK = 1 << 16; // bytes of Python's own stack after which it raises RecursionError, see protectStack
const WORTH_FREEING = 1 << 16; // bytes: smaller arrays are cheaper to leave to the collector
const HANDLES = 8; // files on disk that one run may write; handles can only be made between runs
const INPUT_OUTPUT_ERROR = 29; // EIO of Emscripten
let python;
let run;
let folder; // of the private file system, or null
const spare = []; // files on disk that are not used yet
let mounted = 0;
let reader;
let said = ""; // the messages of the present run
let writing = {}; // of the present run: its number, and the bytes that are expected

onmessage = async ({ data }) => {
  try {
    if (data.type === "start") await start(data.base, data.session);
    else if (data.type === "open") open(data);
    else if (data.type === "run") await answer(data);
  } catch (error) {
    postMessage({ type: "failed", number: data.number, message: String(error?.message ?? error), said });
  }
};

async function start(base, session) {
  const { loadPyodide } = await import(`${base}pyodide/pyodide.mjs`);
  const library = packed(`${base}library.gz`);
  python = await loadPyodide({ indexURL: `${base}pyodide/` });
  protectStack(python._module);
  python.FS.filesystems.WORKERFS.stream_ops.read = readFile;
  python.FS.mkdir(LIBRARY);
  python.FS.mount(python.FS.filesystems.WORKERFS, { packages: [await library] }, LIBRARY);
  await openStore(session);
  python.FS.mkdir(OUT);
  python.FS.mount(outputFiles(python.FS), {}, OUT);
  run = python.runPython(`import sys; sys.path.insert(0, "${LIBRARY}"); import bridge; bridge.run`);
  await fill();
  postMessage({ type: "ready" });
}

// Python bounds the C functions that call themselves by its stack in WebAssembly's memory, 5 MB, but the browser's own
// stack, of which they need ten times as much, has 1 MB: Python would not survive its end. 64 kB are the most of which
// comparisons, `repr`, JSON and the destruction of values end in RecursionError first; compiling a class takes 48.
function protectStack(module) {
  const top = module._emscripten_stack_get_base();
  module._PyUnstable_ThreadState_SetStackProtection(module._PyThreadState_Get(), top - STACK, STACK);
}

// The library as `build.py` packs it. A blob is kept by the browser, and takes no memory of the tab.
async function packed(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${address}: ${response.status}`);
  const blob = await new Response(response.body.pipeThrough(new DecompressionStream("gzip"))).blob();
  const end = 8 + Number(await blob.slice(0, 8).text());
  const files = JSON.parse(await blob.slice(8, end).text());
  return { metadata: { files }, blob: blob.slice(end) };
}

// As in WORKERFS, but what a reader returns is freed at once: an array of bytes that a channel takes, whose other end is
// closed, is gone. Otherwise it stays until a full collection, and a browser holds some hundred megabytes of them.
function readFile(stream, buffer, offset, length, position) {
  if (position >= stream.node.size) return 0;
  const bytes = bytesOf(stream.node.contents.slice(position, position + length));
  const count = bytes.byteLength;
  buffer.set(new Uint8Array(bytes), offset);
  if (count >= WORTH_FREEING) {
    const { port1, port2 } = new MessageChannel();
    port2.close();
    port1.postMessage(bytes, [bytes]);
  }
  return count;
}

function bytesOf(blob) {
  reader ??= new FileReaderSync();
  try {
    return reader.readAsArrayBuffer(blob);
  } catch {
    // The file was changed or removed after it was dropped: an OSError of Python.
    throw new python.FS.ErrnoError(INPUT_OUTPUT_ERROR);
  }
}

async function openStore(session) {
  try {
    const root = await navigator.storage.getDirectory();
    // Files of sessions that ended are removed after a day: another tab may still be saving them.
    for await (const name of root.keys()) {
      const [ours, begun] = name.split("-");
      if (ours === "t7bridge" && Date.now() - Number(begun) > 86400e3) await root.removeEntry(name, { recursive: true });
    }
    folder = await root.getDirectoryHandle(session, { create: true });
  } catch {
    folder = null;
  }
}

async function fill() {
  if (!folder) return;
  while (spare.length < HANDLES) {
    const file = await folder.getFileHandle(crypto.randomUUID(), { create: true });
    spare.push({ file, access: await file.createSyncAccessHandle(), isOnDisk: true });
  }
}

function open({ files, number }) {
  const place = `/in/${mounted++}`;
  python.FS.mkdirTree(place);
  python.FS.mount(python.FS.filesystems.WORKERFS, { files }, place);
  postMessage({ type: "opened", number, place });
}

async function answer({ number, args, cwd, expected }) {
  writing = { number, expected, written: 0, told: 0 };
  said = "";
  const result = run(args, cwd, (text) => {
    said += text;
  }).toJs({ dict_converter: Object.fromEntries });
  const outputs = [];
  for (const name of python.FS.readdir(OUT)) {
    if (!name.startsWith(".")) outputs.push({ name, file: await taken(`${OUT}/${name}`) });
  }
  await fill();
  postMessage({ type: "done", number, ...result, outputs });
}

async function taken(path) {
  const node = python.FS.lookupPath(path).node;
  const { file, access } = node.store;
  access.flush();
  access.close();
  node.store = null; // the file is the page's now
  python.FS.unlink(path);
  return file.getFile();
}

// What a file on disk and its handle are, in memory: for browsers that have none, and where all handles are used.
function inMemory() {
  let bytes = new Uint8Array(0);
  let size = 0;
  const resize = (length) => {
    if (length > bytes.length) {
      const grown = new Uint8Array(Math.max(length, 2 * bytes.length));
      grown.set(bytes.subarray(0, size));
      bytes = grown;
    }
    bytes.fill(0, Math.min(size, length), length);
    size = length;
  };
  const access = {
    getSize: () => size,
    truncate: resize,
    flush() {},
    close() {},
    read(buffer, { at }) {
      const part = bytes.subarray(at, Math.max(at, Math.min(at + buffer.length, size)));
      buffer.set(part);
      return part.length;
    },
    write(buffer, { at }) {
      if (at + buffer.length > size) resize(at + buffer.length);
      bytes.set(buffer, at);
      return buffer.length;
    },
  };
  return { file: { getFile: () => new Blob([bytes.subarray(0, size)]) }, access };
}

function tell(bytes) {
  writing.written += bytes;
  if (writing.written - writing.told < 1 << 22) return; // every 4 MiB
  writing.told = writing.written;
  postMessage({ type: "progress", number: writing.number, written: writing.written, expected: writing.expected });
}

// A file system of Emscripten whose files are those of the origin's private file system.
function outputFiles(FS) {
  const errors = { notEmpty: 55, noEntry: 44, invalid: 28 };
  function create(parent, name, mode) {
    const node = FS.createNode(parent, name, mode, 0);
    node.node_ops = nodes;
    node.stream_ops = streams;
    node.time = Date.now();
    if (FS.isDir(mode)) node.contents = {};
    if (parent) parent.contents[name] = node;
    return node;
  }
  const sizeOf = (node) => (node.store ? node.store.access.getSize() : 4096);
  const nodes = {
    getattr(node) {
      const time = new Date(node.time);
      const size = sizeOf(node);
      return {
        dev: 2, ino: node.id, mode: node.mode, nlink: 1, uid: 0, gid: 0, rdev: 0, size,
        atime: time, mtime: time, ctime: time, blksize: 4096, blocks: Math.ceil(size / 512),
      };
    },
    setattr(node, attributes) {
      if (attributes.mode !== undefined) node.mode = attributes.mode;
      if (attributes.size !== undefined && node.store) node.store.access.truncate(attributes.size);
    },
    lookup(parent, name) {
      const node = parent.contents[name];
      if (!node) throw new FS.ErrnoError(errors.noEntry);
      return node;
    },
    mknod(parent, name, mode) {
      const node = create(parent, name, mode);
      if (FS.isFile(mode)) node.store = spare.pop() ?? inMemory();
      return node;
    },
    rename(node, parent, name) {
      const replaced = parent.contents[name];
      if (replaced) discard(replaced);
      delete node.parent.contents[node.name];
      parent.contents[name] = node;
      node.name = name;
      node.parent = parent;
    },
    unlink(parent, name) {
      discard(parent.contents[name]);
      delete parent.contents[name];
    },
    rmdir(parent, name) {
      if (Object.keys(parent.contents[name].contents).length) throw new FS.ErrnoError(errors.notEmpty);
      delete parent.contents[name];
    },
    readdir: (node) => [".", "..", ...Object.keys(node.contents)],
  };
  function discard(node) {
    if (node.store?.isOnDisk) {
      node.store.access.truncate(0);
      spare.push(node.store);
    }
    node.store = null;
  }
  const streams = {
    read: (stream, buffer, offset, length, position) =>
      stream.node.store.access.read(buffer.subarray(offset, offset + length), { at: position }),
    write(stream, buffer, offset, length, position) {
      const written = stream.node.store.access.write(buffer.subarray(offset, offset + length), { at: position });
      stream.node.time = Date.now();
      tell(written);
      return written;
    },
    llseek(stream, offset, whence) {
      let position = offset;
      if (whence === 1) position += stream.position;
      else if (whence === 2) position += sizeOf(stream.node);
      if (position < 0) throw new FS.ErrnoError(errors.invalid);
      return position;
    },
  };
  return { mount: () => create(null, "/", 0o40777) };
}
