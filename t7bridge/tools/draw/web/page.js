"use strict";
(() => {
  const graph = JSON.parse(document.getElementById("graph").textContent), nodes = graph.nodes;
  const SVG = "http://www.w3.org/2000/svg", START = 110, MOST = 6000;
  const COLORS = { conv: "#3f7fd6", linear: "#5867d8", recurrent: "#9a5bd0", norm: "#3a9d74", activation: "#c9832b", pool: "#2b9fb5", shape: "#8a93a3", join: "#a9708f", loss: "#c95050", unmapped: "#d33", container: "#8a93a3", other: "#74808f", end: "#6aa36a" };
  const hash = new Map(location.hash.slice(1).split("&").filter(Boolean).map(p => [p.split("=")[0], decodeURIComponent(p.split("=")[1] || "")]));
  const el = (name, text, cls) => { const e = document.createElement(name); if (text != null) e.textContent = text; if (cls) e.className = cls; return e; };
  const sv = (name, attrs, text) => { const e = document.createElementNS(SVG, name); for (const k in attrs) e.setAttribute(k, attrs[k]); if (text != null) e.textContent = text; return e; };
  const group3 = n => String(n).replace(/\B(?=(\d{3})+$)/g, " ");
  const short = n => n >= 1e9 ? (n / 1e9).toFixed(2) + " G" : n >= 1e6 ? (n / 1e6).toFixed(2) + " M" : n >= 1e4 ? (n / 1e3).toFixed(1) + " k" : String(n);
  const shapes = n => (n.output || []).map(s => s.join("×") || "scalar").join(", ");
  const cut = (s, n) => s.length > n ? s.slice(0, n - 1) + "…" : s;

  // Containers, and repeated blocks, that are unfolded.
  const parent = new Array(nodes.length).fill(-1);
  nodes.forEach(n => (n.children || []).forEach(c => { parent[c] = n.id; }));
  const open = new Set(), spread = new Set();
  const shown = n => {  // the items of a container: {id, last, count, period} with runs of equal blocks once
    const items = [], kids = n.children, runs = new Map((spread.has(n.id) ? [] : n.repeats || []).map(r => [r[0], r]));
    for (let i = 0; i < kids.length;) {
      const r = runs.get(i);
      if (!r) { items.push({ ids: [kids[i]], count: 1 }); i++; continue; }
      items.push({ ids: kids.slice(i, i + r[1]), count: r[2], last: kids[i + r[1] * r[2] - 1] });
      i += r[1] * r[2];
    }
    return items;
  };
  function unfoldSome(most) {
    open.clear(); spread.clear();
    let count = 1;
    const queue = [0];
    for (let q = 0; q < queue.length; q++) {
      const n = nodes[queue[q]];
      if (!n.children) continue;
      const ids = shown(n).flatMap(i => i.ids);
      if (q && count + ids.length > most) continue;
      open.add(n.id); count += ids.length; queue.push(...ids);
      if (count > MOST) break;
    }
  }
  unfoldSome(START);
  const all = () => unfoldSome(MOST);

  // Layout: each container by itself, inside first.
  const pen = document.createElement("canvas").getContext("2d"), widths = new Map();
  const wide = (text, font) => { const k = font + text; let w = widths.get(k); if (w === undefined) { pen.font = font; widths.set(k, w = pen.measureText(text).width); } return w; };
  const T = "600 13px system-ui,Helvetica,Arial,sans-serif", S = "11px system-ui,Helvetica,Arial,sans-serif", PAD = 12, GAP = 30;
  const label = n => cut(n.name ? n.name + ": " + n.title : n.title, 60);
  function texts(n, item, closed) {
    if (n.kind === "end") return [[(n.lines || [""])[0], "s"]];
    const t = [[label(n) + (item.count > 1 && item.ids.length === 1 ? "  ×" + item.count : ""), "t"]];
    const weights = (n.lines || []).filter(l => !/ elements$/.test(l));
    weights.slice(0, 5).forEach(l => t.push([cut(l, 56), "s"]));
    const p = n.parameters ? short(n.parameters) + " parameters" : "";
    const inside = closed ? group3(n.children.filter(c => nodes[c].kind !== "end").length) + " inside" : "";
    if (p || inside) t.push([[inside, p].filter(Boolean).join(" · "), "s"]);
    return t;
  }
  function box(item) {
    if (item.ids.length > 1) {  // a sequence of blocks that repeats
      const kids = item.ids.map(id => box({ ids: [id], count: 1 }));
      const b = { item, id: -1, lines: [["×" + item.count, "t"]], kids, edges: [], repeat: parent[item.ids[0]], cls: "n c repeat" };
      chain(b, true);
      return b;
    }
    const n = nodes[item.ids[0]], isOpen = !!n.children && open.has(n.id);
    const shared = (n.weights || []).some(w => w.shared);
    const b = { item, id: n.id, lines: texts(n, item, n.children && !isOpen), kids: [], edges: [], cls: (n.kind === "end" ? "e n" : n.children ? "n c" : "n") + (n.mark === "again" || n.mark === "unmapped" ? " " + n.mark : "") + (shared ? " shared" : "") };
    if (item.count > 1) { b.repeat = parent[n.id]; b.cls += " repeat"; }
    if (!isOpen) return size(b);
    const items = shown(n), place = new Map();
    b.kids = items.map(box);
    items.forEach((i, at) => i.ids.forEach(id => place.set(id, at)));
    if (n.kind === "chain") chain(b, true);
    else if (n.kind === "side" || !(n.edges || []).length) side(b);
    else flow(b, n.edges.filter(e => place.has(e[0]) && place.has(e[1])).map(e => [place.get(e[0]), place.get(e[1]), e[2]]));
    return b;
  }
  function size(b) {
    b.head = b.lines.length * 16 + 10;
    b.w = Math.max(...b.lines.map(([t, c]) => wide(t, c === "t" ? T : S))) + 2 * PAD + (b.id >= 0 && nodes[b.id].children || b.repeat >= 0 ? 26 : 0);
    b.h = b.head;
    return b;
  }
  function around(b, w, h) {
    size(b);
    const dx = Math.max(b.w - w - 2 * PAD, 0) / 2 + PAD, dy = b.head;
    b.kids.forEach(k => { k.x += dx; k.y += dy; });
    b.edges.forEach(e => e.points.forEach(p => { p[0] += dx; p[1] += dy; }));
    b.w = Math.max(b.w, w + 2 * PAD); b.h = b.head + h + PAD;
  }
  const out = b => b.id >= 0 ? shapes(nodes[b.id]) : b.kids.length ? out(b.kids[b.kids.length - 1]) : "";
  function chain(b) {
    const w = Math.max(...b.kids.map(k => k.w)), total = b.kids.reduce((s, k) => s + k.h + GAP, -GAP);
    const column = total < 1100 ? total + 1 : Math.max(1100, Math.sqrt(total * (w + 2 * GAP) * .6));
    let x = 0, y = 0, low = 0;
    const lift = column < total ? GAP / 2 : 0;
    b.kids.forEach((k, i) => {
      if (i) {
        const last = b.kids[i - 1], m = x + w / 2, from = last.y + last.h;
        if (y + GAP + k.h > column) {
          x += w + 2 * GAP; y = 0;
          const s = x - GAP, foot = from + 9;
          b.edges.push({ a: i - 1, b: i, text: out(last), points: [[m, from + lift], [m, foot + lift], [s, foot + lift], [s, lift - 9], [x + w / 2, lift - 9], [x + w / 2, lift]] });
        } else { y += GAP; b.edges.push({ a: i - 1, b: i, text: out(last), points: [[m, from + lift], [m, y + lift]] }); }
      }
      k.x = x + (w - k.w) / 2; k.y = y; y += k.h; low = Math.max(low, y);
    });
    b.kids.forEach(k => { k.y += lift; });
    around(b, x + w, low + 2 * lift);
  }
  function side(b) {
    const area = b.kids.reduce((s, k) => s + (k.w + GAP) * (k.h + GAP), 0), most = Math.max(1500, Math.sqrt(area * 1.8));
    let x = 0, y = 0, row = 0, w = 0;
    for (const k of b.kids) {
      if (x && x + k.w > most) { x = 0; y += row + GAP; row = 0; }
      k.x = x; k.y = y; x += k.w + GAP; row = Math.max(row, k.h); w = Math.max(w, x - GAP);
    }
    around(b, w, y + row);
  }
  function flow(b, edges) {
    if (b.kids.length > 900 || edges.length > 2500) { ranks(b, edges); return; }
    const g = new dagre.graphlib.Graph({ multigraph: true });
    g.setGraph({ rankdir: "TB", nodesep: 24, ranksep: 38, edgesep: 16, marginx: 0, marginy: 0, ranker: edges.length > 250 ? "longest-path" : "network-simplex" });
    b.kids.forEach((k, i) => g.setNode(i, { width: k.w, height: k.h }));
    edges.forEach((e, i) => g.setEdge(e[0], e[1], { number: i }, String(i)));
    dagre.layout(g);
    let left = Infinity, top = Infinity, right = -Infinity, low = -Infinity;
    const see = (x, y) => { left = Math.min(left, x); right = Math.max(right, x); top = Math.min(top, y); low = Math.max(low, y); };
    b.kids.forEach((k, i) => { const n = g.node(i); k.x = n.x - k.w / 2; k.y = n.y - k.h / 2; see(k.x, k.y); see(k.x + k.w, k.y + k.h); });
    g.edges().forEach(e => { const v = g.edge(e), f = edges[v.number]; v.points.forEach(p => see(p.x, p.y)); b.edges.push({ a: f[0], b: f[1], text: [f[2], out(b.kids[f[0]])].filter(Boolean).join("  "), curve: true, points: v.points.map(p => [p.x, p.y]) }); });
    b.kids.forEach(k => { k.x -= left; k.y -= top; });
    b.edges.forEach(e => e.points.forEach(p => { p[0] -= left; p[1] -= top; }));
    around(b, right - left, low - top);
  }
  function ranks(b, edges) {  // for very large graphs: layers by longest path, in the order of the file
    const n = b.kids.length, rank = new Array(n).fill(0), wait = new Array(n).fill(0), next = b.kids.map(() => []);
    edges.forEach(e => { next[e[0]].push(e[1]); wait[e[1]]++; });
    const order = [...wait.keys()].filter(i => !wait[i]);
    for (let q = 0; q < order.length; q++) for (const e of next[order[q]]) { rank[e] = Math.max(rank[e], rank[order[q]] + 1); if (!--wait[e]) order.push(e); }
    const rows = [];
    b.kids.forEach((k, i) => (rows[rank[i]] = rows[rank[i]] || []).push(k));
    let y = 0, w = 0;
    const total = r => r.reduce((s, k) => s + k.w + 24, -24);
    rows.forEach(r => { w = Math.max(w, total(r)); });
    rows.forEach(r => { let x = (w - total(r)) / 2; r.forEach(k => { k.x = x; k.y = y; x += k.w + 24; }); y += Math.max(...r.map(k => k.h)) + 38; });
    edges.forEach(e => {
      const a = b.kids[e[0]], c = b.kids[e[1]], p = [a.x + a.w / 2, a.y + a.h], q = [c.x + c.w / 2, c.y];
      const far = rank[e[1]] - rank[e[0]] > 1, s = Math.max(a.x + a.w, c.x + c.w) + 20 + Math.min(80, rank[e[1]] - rank[e[0]]);
      b.edges.push({ a: e[0], b: e[1], text: edges.length < 3000 ? e[2] : "", curve: far, points: far ? [p, [s, p[1] + 20], [s, q[1] - 20], q] : [p, q] });
    });
    around(b, w + 110, y - 38);
  }

  // Drawing.
  const header = el("header"), title = el("b", graph.file), about = el("span", null, "dim"), search = el("input"), hits = el("div"), panel = el("div"), legend = el("div");
  search.placeholder = "Search  ( / )"; search.id = "search"; hits.id = "hits"; hits.hidden = true; panel.id = "panel"; panel.hidden = true; legend.id = "legend";
  const root = nodes[0];
  about.textContent = [graph.path, nodes.filter(n => n.kind !== "end").length + " modules", group3(graph.parameters) + " parameters", graph.output && "output " + cut(graph.output, 40)].filter(Boolean).join(" · ");
  header.append(title, about, el("span", null, "space"));
  const button = (text, tip, act) => { const b = el("button", text); b.title = tip; b.onclick = act; header.append(b); };
  button("−", "zoom out ( - )", () => zoom(1 / 1.3)); button("+", "zoom in ( + )", () => zoom(1.3)); button("fit", "show all ( 0 )", () => fit());
  button("unfold", "unfold all ( e )", () => { all(); render(); fit(); }); button("fold", "fold ( c )", () => { unfoldSome(1); render(); fit(); }); button("◐", "light or dark ( t )", () => theme());
  header.append(search);
  const svg = sv("svg", { id: "view", tabindex: 0, role: "img", "aria-label": "model" }), defs = sv("defs", {}), tip = sv("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" });
  tip.append(sv("path", { d: "M0,0 L8,4 L0,8 z" })); defs.append(tip);
  const world = sv("g", {}); svg.append(defs, world);
  document.body.append(header, svg, legend, panel, hits);
  const used = new Set(nodes.map(n => n.category));
  Object.keys(COLORS).filter(c => used.has(c) && c !== "end").forEach(c => { const s = el("span"), i = el("i"); i.style.background = COLORS[c]; s.append(i, c); legend.append(s); });
  [["again", "same module again"], ["shared", "shared weights"]].forEach(([k, t]) => { if (nodes.some(n => n.mark === k || (n.weights || []).some(w => k === "shared" && w.shared))) { const s = el("span"), i = el("i", null, "dash"); if (k === "shared") i.style.borderColor = "#c98a1b"; s.append(i, t); legend.append(s); } });
  let top = null, selected = -1, found = new Set(), at = { x: 0, y: 0, k: 1 };
  const spots = new Map();
  function path(points, curve) {
    if (!curve || points.length < 3) return "M" + points.map(p => p[0].toFixed(1) + "," + p[1].toFixed(1)).join(" L");
    let d = "M" + points[0].map(v => v.toFixed(1)).join(",");
    for (let i = 1; i < points.length - 1; i++) { const [x, y] = points[i], n = points[i + 1], last = i === points.length - 2; d += " Q" + x.toFixed(1) + "," + y.toFixed(1) + " " + (last ? n[0] : (x + n[0]) / 2).toFixed(1) + "," + (last ? n[1] : (y + n[1]) / 2).toFixed(1); }
    return d;
  }
  function paint(b, x, y, into) {
    const n = b.id >= 0 ? nodes[b.id] : null, g = sv("g", { class: b.cls + (b.id === selected ? " sel" : "") + (found.has(b.id) ? " hit" : "") });
    if (b.item.count > 1) g.append(sv("rect", { class: "b", x: x + 4, y: y + 4, width: b.w, height: b.h, rx: 6 }));
    g.append(sv("rect", { class: "b", x, y, width: b.w, height: b.h, rx: n && n.kind === "end" ? 10 : 6 }));
    if (n && n.kind !== "end" && !b.kids.length) g.append(sv("rect", { x, y: y + 3, width: 4, height: b.h - 6, rx: 2, fill: COLORS[n.category] || COLORS.other }));
    const fold = n && n.children || b.repeat >= 0, mid = x + b.w / 2 - (fold ? 8 : 0);
    b.lines.forEach(([t, c], i) => g.append(sv("text", { class: c, x: mid, y: y + 18 + i * 16, "text-anchor": "middle" }, t)));
    if (fold) {
      const f = sv("g", { class: "fold" }), isOpen = b.kids.length && b.id >= 0;
      f.append(sv("rect", { x: x + b.w - 24, y: y + 5, width: 18, height: 18, rx: 4 }), sv("text", { class: "t", x: x + b.w - 15, y: y + 18.5, "text-anchor": "middle" }, isOpen ? "−" : b.repeat >= 0 && !(n && n.children) || b.id < 0 ? "×" : "+"));
      f.addEventListener("click", e => { e.stopPropagation(); toggle(b); });
      g.append(f);
    }
    g.addEventListener("click", e => { e.stopPropagation(); if (n && !moved) select(b.id); });
    if (fold) g.addEventListener("dblclick", e => { e.stopPropagation(); toggle(b); });
    into.append(g);
    if (n) spots.set(b.id, { x, y, w: b.w, h: b.h, g });
    b.kids.forEach(k => paint(k, x + k.x, y + k.y, into));
    b.edges.forEach(e => {
      const points = e.points.map(p => [p[0] + x, p[1] + y]);
      const on = b.kids[e.a].id === selected && selected >= 0 || b.kids[e.b].id === selected && selected >= 0;
      into.append(sv("path", { class: on ? "f on" : "f", d: path(points, e.curve), "marker-end": "url(#tip)" }));
      if (e.text) { const q = points.length > 2 ? points[points.length >> 1] : [points[0][0], (points[0][1] + points[1][1]) / 2 + 4]; const p = points.length > 3 && !e.curve ? [points[0][0], points[0][1] + 12] : q; into.append(sv("text", { class: "l", x: p[0] + 6, y: p[1] }, cut(e.text, 44))); }
    });
  }
  function render() {
    spots.clear(); world.replaceChildren();
    top = box({ ids: [0], count: 1 }); top.x = top.y = 0;
    paint(top, 0, 0, world); move();
  }
  function move() { world.setAttribute("transform", "translate(" + at.x.toFixed(2) + "," + at.y.toFixed(2) + ") scale(" + at.k.toFixed(4) + ")"); }
  function room() { const r = svg.getBoundingClientRect(); return { w: r.width || 800, h: r.height || 600 }; }
  function fit(whole) {
    const r = room(), k = Math.min((r.w - 40) / top.w, (r.h - 40) / top.h, 1.4);
    at.k = whole ? k : Math.max(k, Math.min(.18, (r.w - 40) / top.w));
    at.x = (r.w - top.w * at.k) / 2; at.y = Math.max(20, (r.h - top.h * at.k) / 2);
    if (top.w * at.k > r.w) at.x = 20;
    move();
  }
  function zoom(f, px, py) {
    const r = room(), x = px == null ? r.w / 2 : px, y = py == null ? r.h / 2 : py, k = Math.min(6, Math.max(.01, at.k * f));
    at.x = x - (x - at.x) * k / at.k; at.y = y - (y - at.y) * k / at.k; at.k = k; move();
  }
  function toggle(b) {
    const old = b.id >= 0 ? spots.get(b.id) : null, sx = old ? old.x * at.k + at.x : 0, sy = old ? old.y * at.k + at.y : 0;
    if (b.repeat >= 0 && (b.id < 0 || !nodes[b.id].children || open.has(b.id))) { spread.add(b.repeat); }
    else if (open.has(b.id)) { if (spread.has(b.id)) spread.delete(b.id); else open.delete(b.id); }
    else open.add(b.id);
    render();
    const now = b.id >= 0 && spots.get(b.id);
    if (old && now) { at.x = sx - now.x * at.k; at.y = sy - now.y * at.k; move(); }
  }
  function select(id, center) {
    selected = id; render(); show(id);
    const s = spots.get(id), r = room();
    if (center && s) { at.k = Math.max(at.k, .8); at.x = r.w / 2 - (s.x + s.w / 2) * at.k; at.y = Math.min(r.h / 2 - (s.y + Math.min(s.h, r.h / at.k) / 2) * at.k, r.h); move(); }
  }
  function reveal(id) {
    for (let p = parent[id], c = id; p >= 0; c = p, p = parent[p]) {
      open.add(p);
      if (!shown(nodes[p]).some(i => i.ids.includes(c))) spread.add(p);
    }
    select(id, true);
  }

  // The panel.
  function rows(name, pairs) {
    pairs = pairs.filter(p => p[1] != null && p[1] !== "");
    if (!pairs.length) return;
    if (name) panel.append(el("h3", name));
    const t = el("table");
    pairs.forEach(([k, v]) => { const tr = el("tr"), td = el("td"); if (v instanceof Node) td.append(v); else td.textContent = v; tr.append(el("td", k), td); t.append(tr); });
    panel.append(t);
  }
  function link(id) { const a = el("a", nodes[id].key || nodes[id].path || nodes[id].title); a.onclick = () => reveal(id); return a; }
  function bars(s) {
    const b = s.bins, m = Math.max(...b), g = sv("svg", { class: "bars", width: 300, height: 44 });
    b.forEach((v, i) => g.append(sv("rect", { x: i * 300 / b.length, y: 40 - 38 * v / m, width: 300 / b.length - 1, height: 38 * v / m + 1, fill: COLORS.conv })));
    return g;
  }
  function show(id) {
    const n = nodes[id], num = v => Number(v).toPrecision(4);
    panel.replaceChildren(); panel.hidden = false;
    const x = el("button", "×", "x"); x.onclick = () => { panel.hidden = true; selected = -1; render(); };
    panel.append(x, el("h2", label(n)));
    rows("", [["Lua class", n.class && !/^(torch|__torch__|collections)\b/.test(n.class) ? n.class : ""], ["PyTorch class", n.torch || (n.mark === "unmapped" ? "none" : "")], ["class", /^(torch|__torch__|collections)\b/.test(n.class || "") ? n.class : ""], ["path", n.path], ["state dict", n.key], ["output", shapes(n)], ["parameters", n.parameters && group3(n.parameters)], ["the same as", n.same_as != null ? link(n.same_as) : ""]]);
    if (n.lines && n.mark === "unmapped") panel.append(el("p", n.lines[0]));
    rows("arguments", Object.entries(n.arguments || {}));
    if (n.weights) {
      panel.append(el("h3", "weights"));
      n.weights.forEach(w => {
        panel.append(el("div", w.name + "  " + (w.shape.join("×") || "scalar") + "  " + w.type + (w.kind ? "  (" + w.kind + ")" : "") + (w.shared ? "  shares " + w.shared : "")));
        const s = w.statistics;
        if (s && s.min != null) panel.append(el("small", "min " + num(s.min) + "  max " + num(s.max) + "  mean " + num(s.mean) + "  std " + num(s.std) + "  zeros " + s.zeros + (s.nan ? "  NaN " + s.nan : "")));
        if (s && s.bins) panel.append(bars(s));
      });
    }
    rows("fields", Object.entries(n.fields || {}));
    const p = parent[id];
    if (p >= 0) {
      const ins = [], outs = [];
      (nodes[p].edges || []).forEach(e => { if (e[1] === id) ins.push(e[0]); if (e[0] === id) outs.push(e[1]); });
      const list = ids => { const s = el("span"); ids.slice(0, 20).forEach((i, k) => { if (k) s.append(", "); s.append(nodes[i].kind === "end" ? (nodes[i].lines || [""])[0] : link(i)); }); return s; };
      rows("flow", [["takes", ins.length ? list(ins) : ""], ["goes to", outs.length ? list(outs) : ""], ["inside", link(p)]]);
    }
  }

  // Search, keys, mouse.
  let list = [], chosen = 0;
  search.oninput = () => {
    const q = search.value.trim().toLowerCase();
    hits.replaceChildren(); chosen = 0;
    list = q ? nodes.filter(n => n.kind !== "end" && [n.name, n.title, n.class, n.torch, n.key, n.path].some(t => t && t.toLowerCase().includes(q))) : [];
    found = new Set(list.map(n => n.id));
    list.slice(0, 60).forEach((n, i) => { const d = el("div", label(n) + "  "); d.append(el("small", n.key || n.path || "")); if (!i) d.className = "on"; d.onclick = () => { hits.hidden = true; reveal(n.id); }; hits.append(d); });
    if (q) hits.append(el("div", list.length + " found"));
    hits.hidden = !q; render();
  };
  search.onkeydown = e => {
    if (e.key === "Enter" && list.length) { reveal(list[chosen % list.length].id); chosen++; hits.hidden = true; e.preventDefault(); }
    if (e.key === "Escape") { search.value = ""; search.oninput(); svg.focus(); }
    e.stopPropagation();
  };
  function theme(name) {
    const c = document.documentElement.classList, dark = name ? name === "dark" : !(c.contains("dark") || !c.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
    c.remove("light", "dark"); c.add(dark ? "dark" : "light"); document.documentElement.style.colorScheme = dark ? "dark" : "light";
  }
  document.addEventListener("keydown", e => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const step = d => { if (selected < 0) return select(0, true); const p = parent[selected]; if (p < 0) return; const k = nodes[p].children, i = k.indexOf(selected) + d; if (k[i] != null) reveal(k[i]); };
    const keys = { "/": () => search.focus(), "+": () => zoom(1.3), "=": () => zoom(1.3), "-": () => zoom(1 / 1.3), "0": () => fit(true), e: () => { all(); render(); fit(); }, c: () => { unfoldSome(1); render(); fit(); }, t: () => theme(), ArrowDown: () => step(1), ArrowRight: () => { const k = selected >= 0 && nodes[selected].children; if (k) reveal(k[0]); else step(1); }, ArrowUp: () => step(-1), ArrowLeft: () => { if (selected > 0) reveal(parent[selected]); }, Enter: flip, " ": flip, Escape: () => { panel.hidden = true; hits.hidden = true; selected = -1; found = new Set(); render(); } };
    function flip() { if (selected >= 0 && nodes[selected].children) { if (open.has(selected)) open.delete(selected); else open.add(selected); render(); } }
    if (keys[e.key]) { keys[e.key](); e.preventDefault(); }
  });
  svg.addEventListener("wheel", e => { e.preventDefault(); const r = svg.getBoundingClientRect(); zoom(Math.exp(-e.deltaY * (e.deltaMode ? .05 : .0015)), e.clientX - r.left, e.clientY - r.top); }, { passive: false });
  let drag = null, moved = false;
  svg.addEventListener("pointerdown", e => { drag = { x: e.clientX - at.x, y: e.clientY - at.y, sx: e.clientX, sy: e.clientY }; moved = false; });
  svg.addEventListener("pointermove", e => { if (!drag) return; if (Math.abs(e.clientX - drag.sx) + Math.abs(e.clientY - drag.sy) > 4) { moved = true; svg.classList.add("drag"); } if (moved) { at.x = e.clientX - drag.x; at.y = e.clientY - drag.y; move(); } });
  addEventListener("pointerup", () => { drag = null; svg.classList.remove("drag"); });
  if (hash.get("theme")) theme(hash.get("theme"));
  if (hash.get("unfold") === "all") all();
  if (hash.get("unfold") === "none") unfoldSome(1);
  render(); fit();
  if (hash.get("select")) { const n = nodes.find(n => n.key === hash.get("select") || n.path === hash.get("select")); if (n) reveal(n.id); }
  addEventListener("resize", () => { if (!moved) fit(); });
})();
