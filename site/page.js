// The page: takes files, shows what `inspect` and `draw` say, and saves what `convert` and `module` write.

const $ = (id) => document.getElementById(id);
const base = new URL(".", location.href).href;
const LUA = /^format +a Lua Torch file$/m; // as `inspect` says it

let worker;
const asked = new Map(); // questions to the worker by number
let count = 0;
let ready;
let current = null; // the file that is shown
let busy = false;
const opened = [];

function begin() {
  ready = start();
  return ready;
}

async function start() {
  const session = `t7bridge-${Date.now()}-${Math.random().toString(36).slice(2)}`;
  const source = await sourceOfWorker();
  worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })), { type: "module" });
  await new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => {
      if (data.type === "ready") resolve();
      else if (data.type === "failed" && data.number === undefined) reject(new Error(data.message));
      else heard(data);
    };
    worker.onerror = (event) => reject(new Error(event.message || "the worker does not start"));
    worker.postMessage({ type: "start", base, session });
  });
  // After a restart the files are opened again, before anything else is asked.
  for (const entry of opened) entry.place = await placeOf(entry.file);
}

async function placeOf(file) {
  const { place } = await send({ type: "open", files: [file] });
  return place;
}

let workerSource; // fetched once, for starting again without a request
async function sourceOfWorker() {
  workerSource ??= await (await fetch("worker.js")).text();
  return workerSource;
}

function heard(data) {
  const question = asked.get(data.number);
  if (!question) return;
  if (data.type === "progress") {
    question.progress?.(data.written / Math.max(1, data.expected));
    return;
  }
  asked.delete(data.number);
  if (data.type === "failed") question.reject(Object.assign(new Error(data.message), { said: data.said }));
  else question.resolve(data);
}

// Wait until Python is there, and call a function that sends a question to it.
async function ask(question) {
  const began = ready;
  await began;
  if (began !== ready) throw new Cancelled(); // meanwhile
  return question();
}

function send(message, progress) {
  const number = ++count;
  return new Promise((resolve, reject) => {
    asked.set(number, { resolve, reject, progress });
    worker.postMessage({ ...message, number });
  });
}

let restarting = null;
function restart() {
  restarting ??= startAgain().finally(() => {
    restarting = null;
  });
  return restarting;
}

async function startAgain() {
  say("Loading Python again …");
  worker.terminate();
  for (const question of asked.values()) question.reject(new Cancelled());
  asked.clear();
  await begin();
  say("Ready.");
}

function refused(error) {
  say(`Python does not start: ${error.message}`, true);
}

class Cancelled extends Error {}

function say(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

// Opening

async function take(files) {
  const list = [...files];
  if (!list.length) return;
  try {
    say(list.length > 1 ? `Opening ${list.length} files …` : `Opening ${list[0].name} …`);
    const entries = [];
    for (const file of list) entries.push(opened.find((entry) => isSame(entry.file, file)) ?? (await open(file)));
    await show(entries[0]);
  } catch (error) {
    say(error.message, true);
  }
}

async function open(file) {
  const place = await repeated(() => ask(() => placeOf(file)));
  const entry = { file, name: file.name, place, text: null, safety: null, drawing: null, results: [] };
  opened.push(entry);
  return entry;
}

function isSame(one, other) {
  return one.name === other.name && one.size === other.size && one.lastModified === other.lastModified;
}

// What is cancelled is a conversion; Python starts again, and what was asked besides is asked again.
async function repeated(question) {
  for (;;) {
    try {
      return await question();
    } catch (error) {
      if (!(error instanceof Cancelled)) throw error;
    }
  }
}

async function show(entry) {
  current = entry;
  $("work").hidden = false;
  $("opened").replaceChildren(
    ...opened.map((other) => {
      const button = element("button", { type: "button", textContent: other.name });
      button.setAttribute("aria-current", other === entry);
      button.onclick = () => {
        show(other);
        $("opened").querySelector("[aria-current=true]").focus(); // the buttons are others now
      };
      return button;
    }),
  );
  $("opened").hidden = opened.length < 2;
  $("text").textContent = entry.text ?? "…";
  $("text").classList.toggle("bad", Boolean(entry.failed));
  $("result").replaceChildren(...entry.results);
  warn(entry);
  offer(entry);
  if (entry.text === null) {
    say(`Reading ${entry.name} …`);
    const answer = await repeated(() => verb(entry, ["inspect", entry.name]));
    entry.text = answer.code === 0 ? answer.output : answer.messages;
    entry.isLua = LUA.test(answer.output);
    entry.failed = answer.code !== 0;
    if (current !== entry) return;
    $("text").textContent = entry.text;
    $("text").classList.toggle("bad", entry.failed);
    offer(entry);
  }
  if (!entry.isLua && !entry.safety) await scan(entry);
  if (current !== entry) return;
  say(entry.failed ? `${entry.name} cannot be read.` : `${entry.name}: ${size(entry.file.size)}.`, entry.failed);
  draw(entry);
}

// Whether a pickle is safe is what people want to know first; a file that cannot be read may be a program, too.
async function scan(entry) {
  const { code, output } = await repeated(() => verb(entry, ["scan", entry.name]));
  const lines = output.trim().split("\n").filter(Boolean);
  let text = ""; // what scan does not know, it says nothing about
  if (code === 0) text = "scan found nothing in this file that runs code when it is loaded.";
  else if (lines.length) text = "Loading this file may run code: scan names what torch.load(weights_only=True) does not take.";
  entry.safety = { text, lines: code === 0 ? [] : lines };
  if (current === entry) warn(entry);
}

function warn({ safety }) {
  $("safety").hidden = !safety?.text;
  $("safety").classList.toggle("bad", Boolean(safety?.lines.length));
  $("safety").querySelector("strong").textContent = safety?.text ?? "";
  $("safety").querySelector("pre").textContent = safety?.lines.join("\n") ?? "";
}

async function draw(entry) {
  entry.drawing ??= drawn(entry);
  const drawing = entry.drawing;
  const content = await drawing;
  // Meanwhile there may be another file, or another part of this one. A frame that is shown again loads again.
  const isWanted = current === entry && entry.drawing === drawing;
  if (isWanted && content !== $("drawing").firstChild) $("drawing").replaceChildren(content);
}

async function drawn(entry) {
  if (entry.failed) return element("p", { textContent: "There is nothing to draw." });
  const answer = await repeated(() => verb(entry, ["draw", ...part(), entry.name, "-o", "drawing.html"]));
  if (!answer.outputs.length) return element("p", { textContent: answer.messages });
  const html = new Blob([await answer.outputs[0].file.text()], { type: "text/html" });
  const frame = element("iframe", { title: `Drawing of ${entry.name}`, src: URL.createObjectURL(html) });
  frame.setAttribute("sandbox", "allow-scripts");
  return frame;
}

function cancel() {
  if (document.activeElement === $("cancel")) $("targets").firstChild.focus();
  restart().catch(refused);
}

function redraw() {
  if (current) draw(current);
}

// Converting

function offer(entry) {
  const stem = entry.name.replace(/\.[^.]*$/, "") || "model";
  const suffixes = [".pt", ".safetensors", ".npz", ".t7"].filter((suffix) => !entry.name.endsWith(suffix));
  const targets = suffixes.map((suffix) => [suffix, "convert", stem + suffix]);
  const folder = stem === entry.name ? `${stem}_model` : stem; // on a disk it would have the file's own name
  if (entry.isLua) targets.push(["model.py with its weights", "module", `${folder}.zip`]);
  targets.push(["drawing, .svg", "draw", `${stem}.svg`]);
  const isReadable = entry.text !== null && !entry.failed;
  $("targets").replaceChildren(
    ...targets.map(([label, name, target], index) => {
      const button = element("button", { type: "button", textContent: label, disabled: !isReadable });
      if (index === 0) button.className = "first";
      button.onclick = () => convert(entry, name, target);
      return button;
    }),
  );
  occupy(busy);
}

// Not `disabled`: the button that was pressed would lose the keyboard's focus.
function occupy(isBusy) {
  busy = isBusy;
  for (const button of $("targets").children) button.setAttribute("aria-disabled", busy);
  $("progress").hidden = !busy;
}

function part() {
  const at = $("at").value.trim();
  return at ? ["--at", at] : [];
}

function commandOf(entry, name, target) {
  const options = part();
  if (name === "convert") {
    for (const id of ["mode", "dtype", "encoding"]) {
      const value = $(id).value;
      if (value && (id !== "encoding" || target.endsWith(".t7"))) options.push(`--${id}`, value);
    }
    return ["convert", ...options, entry.name, target];
  }
  return [name, ...options, entry.name, "-o", target];
}

async function convert(entry, name, target) {
  if (busy) return;
  occupy(true);
  say(`Writing ${target} …`);
  const command = commandOf(entry, name, target);
  const bar = $("progress").querySelector("progress");
  const text = $("progress").querySelector("span");
  bar.removeAttribute("value");
  text.textContent = target;
  try {
    const answer = await verb(entry, command, (fraction) => {
      bar.value = Math.min(1, fraction);
      text.textContent = `${target}: ${Math.round(100 * Math.min(1, fraction))} %`;
    });
    // The command line writes a folder where the page packs one.
    const shown = command.map(quoted).join(" ").replace(/\.zip('?)$/, "$1");
    const parts = [element("pre", { className: "dim", textContent: `t7bridge ${shown}` })];
    for (const { name: file, file: bytes } of answer.outputs) {
      const link = element("a", { href: URL.createObjectURL(bytes), download: file, textContent: `Save ${file}` });
      parts.push(link, document.createTextNode(` (${size(bytes.size)})`));
      link.click();
    }
    const said = (answer.messages + answer.output).trim();
    if (said) parts.push(element("pre", { className: answer.code > 1 ? "bad" : "", textContent: said }));
    const result = element("div", {});
    result.append(...parts);
    entry.results.unshift(result);
    if (current === entry) $("result").replaceChildren(...entry.results);
    say(answer.code > 1 ? `${target} was not written.` : `${target} is done.`, answer.code > 1);
  } catch (error) {
    if (!(error instanceof Cancelled)) say(error.message, true);
  } finally {
    occupy(false);
  }
}

async function verb(entry, args, progress) {
  try {
    return await ask(() => send({ type: "run", args, cwd: entry.place, expected: entry.file.size }, progress));
  } catch (error) {
    if (error instanceof Cancelled) throw error;
    // A browser's stack is a tenth of a process's, and Python does not survive its end. If it ended while it freed what
    // it had refused, it had said why.
    await restart();
    const fallback = `t7bridge: error: ${entry.name}: ends Python in a browser (${error.message}); the command line reads such files.\n`;
    const messages = error.said?.includes("error: ") ? error.said : fallback;
    return { code: 2, output: "", messages, outputs: [] };
  }
}

// Small things

function element(name, properties) {
  return Object.assign(document.createElement(name), properties);
}

function quoted(word) {
  return /^[\w./:=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

function size(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  const units = ["kB", "MB", "GB"];
  let value = bytes;
  let unit = -1;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value.toFixed(value < 10 ? 1 : 0)} ${units[unit]}`;
}

function choose(tab) {
  for (const [name, panel] of [["tab-text", "text"], ["tab-drawing", "drawing"]]) {
    $(name).setAttribute("aria-selected", name === tab);
    $(name).tabIndex = name === tab ? 0 : -1;
    $(panel).hidden = name !== tab;
  }
  if (tab === "tab-drawing") redraw();
}

$("choose").onclick = () => $("files").click();
$("files").onchange = () => {
  take($("files").files);
  $("files").value = ""; // the same file may be chosen again
};
$("cancel").onclick = cancel;
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && busy) cancel();
});
$("tab-text").onclick = () => choose("tab-text");
$("tab-drawing").onclick = () => choose("tab-drawing");
$("views").onkeydown = (event) => {
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
  const next = $("tab-text").ariaSelected === "true" ? "tab-drawing" : "tab-text";
  choose(next);
  $(next).focus();
};
$("sample").onclick = async () => take([new File([await sample], "resnet_small.t7")]);
$("at").onchange = () => {
  for (const entry of opened) entry.drawing = null;
  redraw();
};
$("from").onsubmit = async (event) => {
  event.preventDefault();
  const address = $("address").value;
  say(`Loading ${address} …`);
  try {
    await take([await loaded(address)]);
  } catch (error) {
    say(`${address} cannot be loaded: ${error.message}`, true);
  }
};
async function loaded(address) {
  const { protocol, pathname } = new URL(address);
  if (protocol !== "https:") throw new Error("only https addresses can be.");
  let response;
  try {
    response = await fetch(address);
  } catch {
    // A browser does not say which.
    throw new Error("its server does not answer, or does not allow other sites to read it (CORS). Save the file, and drop it here.");
  }
  if (!response.ok) throw new Error(`the server answers ${response.status} ${response.statusText}`.trim() + ".");
  return new File([await response.blob()], decodeURIComponent(pathname.split("/").pop()) || "model");
}
for (const kind of ["dragover", "dragleave", "drop"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") dropped(event.dataTransfer);
  });
}

async function dropped({ items, files }) {
  const isFolder = [...items].filter((item) => item.kind === "file").map((item) => item.webkitGetAsEntry?.()?.isDirectory);
  const list = [...files];
  await take(list.filter((_, index) => !isFolder[index]));
  const folder = list.find((_, index) => isFolder[index]);
  if (folder) say(`${folder.name} is a folder: drop the files that are in it.`, true);
}

// Inside the documentation's front page, which has the files.
if (parent !== window) {
  addEventListener("message", ({ origin, data }) => {
    if (origin === location.origin && Array.isArray(data?.files)) take(data.files);
  });
  parent.postMessage("t7bridge takes files", location.origin);
}

const sample = fetch("sample.t7").then((response) => response.blob());
begin()
  .then(() => say("Ready."))
  .catch(refused);
