// Runs t7bridge: Python in WebAssembly, with the user's files mounted where they are.
//
// The page starts this source as a blob, so that the page's content security policy holds here, too.
// Files are read in place by WORKERFS. Outputs go to the origin's private file system, whose files are on disk, or,
// where a browser has none, to memory.

const OUT = "/out";
const HANDLES = 8; // files that one run may write; handles can only be made between runs
let python;
let run;
let folder; // of the private file system, or null
let spare = [];
let mounted = 0;
let reader;
let garbage;
let writing = {}; // of the present run: its number, and the bytes that are expected

onmessage = async ({ data }) => {
  try {
    if (data.type === "start") await start(data.base, data.session);
    else if (data.type === "open") open(data);
    else if (data.type === "run") await answer(data);
  } catch (error) {
    postMessage({ type: "failed", number: data.number, message: String(error?.message ?? error) });
  }
};

async function start(base, session) {
  const { loadPyodide } = await import(`${base}pyodide/pyodide.mjs`);
  const library = fetch(`${base}t7bridge.zip`).then((response) => {
    if (!response.ok) throw new Error(`t7bridge.zip: ${response.status}`);
    return response.arrayBuffer();
  });
  python = await loadPyodide({ indexURL: `${base}pyodide/` });
  python.unpackArchive(await library, "zip", { extractDir: "/lib/t7bridge" });
  await openStore(session);
  python.FS.filesystems.WORKERFS.stream_ops.read = readFile;
  python.FS.mkdir(OUT);
  if (folder) python.FS.mount(diskFiles(python.FS), {}, OUT);
  run = python.runPython("import sys; sys.path.insert(0, '/lib/t7bridge'); import bridge; bridge.run");
  await fill();
  postMessage({ type: "ready" });
}

// As in WORKERFS, with a little garbage after each piece. What a reader returns is freed by the next collection of young
// objects, and reading alone makes none: a browser would hold hundreds of megabytes.
function readFile(stream, buffer, offset, length, position) {
  if (position >= stream.node.size) return 0;
  reader ??= new FileReaderSync();
  const piece = new Uint8Array(reader.readAsArrayBuffer(stream.node.contents.slice(position, position + length)));
  buffer.set(piece, offset);
  for (let bytes = 0; bytes < piece.length; bytes += 1 << 10) garbage = new Array(32);
  return piece.length;
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
    spare.push({ file, access: await file.createSyncAccessHandle() });
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
  const before = new Set(names());
  const result = run(args, cwd).toJs({ dict_converter: Object.fromEntries });
  const outputs = [];
  for (const name of names()) if (!before.has(name)) outputs.push({ name, file: await taken(name) });
  await fill();
  postMessage({ type: "done", number, ...result, outputs });
}

function names() {
  return python.FS.readdir(OUT).filter((name) => !name.startsWith("."));
}

async function taken(name) {
  const path = `${OUT}/${name}`;
  const node = python.FS.lookupPath(path).node;
  if (!node.disk) {
    const bytes = python.FS.readFile(path);
    python.FS.unlink(path);
    return new Blob([bytes]);
  }
  const { file, access } = node.disk;
  access.flush();
  access.close();
  node.disk = null; // the file is the page's now
  python.FS.unlink(path);
  return file.getFile();
}

function tell(bytes) {
  writing.written += bytes;
  if (writing.written - writing.told < 1 << 22) return; // every 4 MiB
  writing.told = writing.written;
  postMessage({ type: "progress", number: writing.number, written: writing.written, expected: writing.expected });
}

// A file system of Emscripten whose files are those of the origin's private file system. 
function diskFiles(FS) {
  const errors = { notEmpty: 55, noEntry: 44, noSpace: 51, invalid: 28 };
  const system = {
    mount: () => create(null, "/", 0o40777),
  };
  function create(parent, name, mode) {
    const node = FS.createNode(parent, name, mode, 0);
    node.node_ops = nodes;
    node.stream_ops = streams;
    node.time = Date.now();
    if (FS.isDir(mode)) node.contents = {};
    if (parent) parent.contents[name] = node;
    return node;
  }
  const sizeOf = (node) => (node.disk ? node.disk.access.getSize() : 4096);
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
      if (attributes.size !== undefined && node.disk) node.disk.access.truncate(attributes.size);
    },
    lookup(parent, name) {
      const node = parent.contents[name];
      if (!node) throw new FS.ErrnoError(errors.noEntry);
      return node;
    },
    mknod(parent, name, mode) {
      const node = create(parent, name, mode);
      if (FS.isFile(mode)) {
        node.disk = spare.pop();
        if (!node.disk) {
          delete parent.contents[name];
          throw new FS.ErrnoError(errors.noSpace);
        }
      }
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
    if (!node.disk) return;
    node.disk.access.truncate(0);
    spare.push(node.disk);
    node.disk = null;
  }
  const streams = {
    read: (stream, buffer, offset, length, position) =>
      stream.node.disk.access.read(buffer.subarray(offset, offset + length), { at: position }),
    write(stream, buffer, offset, length, position) {
      const written = stream.node.disk.access.write(buffer.subarray(offset, offset + length), { at: position });
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
  return system;
}
