"use strict";
// A model: zoom, search, folding, and a panel for the selected node.
(() => {
  const SVG = "http://www.w3.org/2000/svg", MOST = 6000, ROUND = 8;
  const KINDS = ["conv", "linear", "recurrent", "norm", "activation", "pool", "shape", "join", "loss", "unmapped", "other"], colour = kind => "var(--k-" + kind + ")";
  const read = id => JSON.parse(document.getElementById(id).textContent), graph = read("graph"), places = read("places");
  const cut = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text, label = n => cut(n.name ? n.name + ": " + n.title : n.title, 60);
  const sizes = list => list.map(s => s === null ? "?" : s.some(x => x === null || Array.isArray(x)) ? "(" + sizes(s) + ")" : s.join("×") || "scalar").join(", "), shapes = n => sizes(n.output || []);
  const hash = new Map(location.hash.slice(1).split("&").filter(Boolean).map(p => [p.split("=")[0], decodeURIComponent(p.split("=")[1] || "")]));
  const el = (name, text, cls) => { const e = document.createElement(name); if (text != null) e.textContent = text; if (cls) e.className = cls; return e; };
  const sv = (name, attrs, text) => { const e = document.createElementNS(SVG, name); for (const k in attrs) e.setAttribute(k, attrs[k]); if (text != null) e.textContent = text; return e; };

  function theme(name) {
    const c = document.documentElement.classList, dark = name ? name === "dark" : !(c.contains("dark") || !c.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
    c.remove("light", "dark"); c.add(dark ? "dark" : "light"); document.documentElement.style.colorScheme = dark ? "dark" : "light";
  }

  function view() {
    const nodes = graph.nodes, parent = new Array(nodes.length).fill(-1);
    nodes.forEach(n => (n.children || []).forEach(c => { parent[c] = n.id; }));
    const open = new Set(places.open), spread = new Set(), host = el("div", null, "host");
    const svg = sv("svg", { class: "view", tabindex: 0, role: "img", "aria-label": "model " + graph.file }), world = sv("g", {});
    const room = () => { const r = svg.getBoundingClientRect(); return { w: r.width || 800, h: (r.height || 600) - 44 }; };  // above the legend
    const { root: whole, shown } = layouts(nodes, places, open, spread);

    // What is around the drawing.
    const header = el("header"), names = el("div", null, "names"), about = el("div", null, "dim"), search = el("input"), hits = el("div", null, "hits"), panel = el("div", null, "panel"), legend = el("div", null, "legend");
    search.placeholder = "Search  ( / )"; search.className = "search"; hits.hidden = true; panel.hidden = true;
    const again = nodes.filter(n => n.mark === "again" || (n.weights || []).some(w => w.shared)).length;
    const facts = [["input", graph.input.length && cut(sizes(graph.input), 48) + (/guess/.test(graph.shapes) ? " (a guess)" : "")], ["output", cut(sizes(graph.output), 48)], ["", graph.parameters.toLocaleString("en") + " parameters"], ["", graph.contents], ["", again ? again + " share weights" : ""], ["", graph.path === "root" ? "" : graph.path]];
    about.textContent = facts.filter(f => f[1]).map(f => (f[0] ? f[0] + " " : "") + cut(f[1], 70)).join(" · ");
    about.title = about.textContent;
    names.append(el("b", graph.file), about);
    header.append(names, el("span", null, "space"));
    const button = (text, tip, act) => { const b = el("button", text); b.title = tip; b.onclick = act; header.append(b); };
    button("−", "zoom out ( - )", () => zoom(1 / 1.3)); button("+", "zoom in ( + )", () => zoom(1.3)); button("fit", "show all ( 0 )", () => fit(true));
    button("unfold", "unfold all ( e )", () => unfold(true)); button("fold", "fold ( c )", () => unfold(false));
    button("◐", "light or dark ( t )", () => theme());
    header.append(search);
    const defs = sv("defs", {}), tip = sv("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto", class: "tip" });
    tip.append(sv("path", { d: "M0,0 L8,4 L0,8 z" })); defs.append(tip); svg.append(defs, world);
    const map = sv("svg", { class: "map", role: "img", "aria-label": "the whole model" }), tiles = sv("g", {}), sight = sv("rect", { class: "sight" });
    map.append(tiles, sight);
    host.append(header, svg, legend, map, panel, hits);
    document.body.append(host);
    const used = new Set(nodes.map(n => n.category)), mark = (color, text, cls) => { const s = el("span"), i = el("i", null, cls); i.style[cls ? "borderColor" : "background"] = color; s.append(i, text); legend.append(s); };
    KINDS.filter(c => used.has(c)).forEach(c => mark(colour(c), c));
    if (nodes.some(n => n.mark === "again")) mark("var(--line)", "same module again", "dash");
    if (nodes.some(n => (n.weights || []).some(w => w.shared))) mark("#c98a1b", "shared weights", "dash");
    if (nodes.some(n => n.repeats)) mark("#9373c9", "repeated, shown once", "dash");
    // The signs in labels and at the ends of repeated blocks.
    const texts = JSON.stringify(places.contents), sign = (pattern, text, meaning) => { if (pattern.test(texts)) { const s = el("span"); s.append(el("b", text), " " + meaning); legend.append(s); } };
    sign(/"#\d/, "#0", "first input of a block"); sign(/"\[\d/, "[0]", "first element of a list"); sign(/"last /, "last X", "what X returned one repetition before");

    // Drawing.
    let top = null, selected = -1, found = new Set(), at = { x: 0, y: 0, k: 1 }, moved = false;
    const spots = new Map(), lines = new Map();
    function path(points) {  // with rounded corners
      const at = p => p.map(v => v.toFixed(1)).join(",");
      const towards = (p, q) => { const d = Math.hypot(q[0] - p[0], q[1] - p[1]), t = d ? Math.min(ROUND, d / 2) / d : 0; return [p[0] + (q[0] - p[0]) * t, p[1] + (q[1] - p[1]) * t]; };
      return "M" + points.map((p, i) => i && i < points.length - 1 ? "L" + at(towards(p, points[i - 1])) + " Q" + at(p) + " " + at(towards(p, points[i + 1])) : at(p)).join(" L").replace(/LL/g, "L");
    }
    function paint(b, x, y, into) {
      const n = b.id >= 0 ? nodes[b.id] : null, isEnd = b.cls.startsWith("e "), g = sv("g", { class: b.cls });
      if (b.count > 1) g.append(sv("rect", { class: "b", x: x + 4, y: y + 4, width: b.w, height: b.h, rx: 6 }));
      g.append(sv("rect", { class: "b", x, y, width: b.w, height: b.h, rx: isEnd ? 10 : 6 }));
      if (n && n.kind !== "end" && !b.kids.length) {
        const fill = colour(n.category);
        tiles.append(sv("rect", { x, y, width: b.w, height: b.h, fill }));
        g.append(sv("rect", { class: "tint", x, y, width: b.w, height: b.h, rx: 6, fill }));
        g.append(sv("rect", { x, y: y + 3, width: 4, height: b.h - 6, rx: 2, fill }));
      }
      const fold = n && n.children || b.repeat >= 0, mid = x + b.w / 2 - (fold ? 8 : 0);
      b.lines.forEach((text, i) => g.append(sv("text", { class: i || isEnd ? "s" : "t", x: mid, y: y + 17 + i * 16, "text-anchor": "middle" }, text)));
      if (fold) {
        const f = sv("g", { class: "fold" }), isOpen = b.kids.length && b.id >= 0;
        f.append(sv("rect", { x: x + b.w - 24, y: y + 5, width: 18, height: 18, rx: 4 }), sv("text", { class: "t", x: x + b.w - 15, y: y + 18.5, "text-anchor": "middle" }, isOpen ? "−" : b.repeat >= 0 && !(n && n.children) || b.id < 0 ? "×" : "+"));
        f.addEventListener("click", e => { e.stopPropagation(); if (!moved) toggle(b); });
        g.append(f);
      }
      g.addEventListener("click", e => { e.stopPropagation(); if (n && !moved) select(b.id); });
      if (fold) g.addEventListener("dblclick", e => { e.stopPropagation(); toggle(b); });
      into.append(g);
      if (n) spots.set(b.id, { x, y, w: b.w, h: b.h, g });
      x += b.aside;
      b.kids.forEach(k => paint(k, x + k.x, y + k.y, into));
      b.edges.forEach(e => {
        const line = sv("path", { class: "f", d: path(e.points.map(p => [p[0] + x, p[1] + y])), "marker-end": "url(#tip)" });
        [b.kids[e.a].id, b.kids[e.b].id].forEach(id => { if (id >= 0) lines.set(id, [...(lines.get(id) || []), line]); });
        into.append(line);
        if (e.text) into.append(sv("text", { class: "l", x: x + e.at[0], y: y + e.at[1] }, e.text));
      });
    }
    function render() {
      spots.clear(); lines.clear(); world.replaceChildren(); tiles.replaceChildren();
      top = whole();
      map.setAttribute("viewBox", "0 0 " + top.w + " " + top.h);
      paint(top, 0, 0, world); emphasize(); move();
    }
    function emphasize() {
      world.querySelectorAll(".sel,.hit,.on").forEach(e => e.classList.remove("sel", "hit", "on"));
      found.forEach(id => { if (spots.has(id)) spots.get(id).g.classList.add("hit"); });
      if (spots.has(selected)) spots.get(selected).g.classList.add("sel");
      (lines.get(selected) || []).forEach(line => line.classList.add("on"));
    }
    function move() {
      const r = room(), place = { x: -at.x / at.k, y: -at.y / at.k, width: r.w / at.k, height: r.h / at.k };
      world.setAttribute("transform", "translate(" + at.x.toFixed(2) + "," + at.y.toFixed(2) + ") scale(" + at.k.toFixed(4) + ")");
      for (const name in place) sight.setAttribute(name, place[name].toFixed(1));
      map.style.display = place.width < top.w || place.height < top.h ? "" : "none";
    }
    // The whole, or as much as is readable: then from the input or the first block on.
    function fit(whole) {
      const r = room(), k = Math.min((r.w - 40) / top.w, (r.h - 40) / top.h, 1.3), first = nodes.find(n => n.kind === "end" && parent[n.id] === 0) || nodes[(nodes[0].children || [0])[0]], s = spots.get(first.id);
      const start = (middle, size, space) => size * at.k <= space ? (space - size * at.k) / 2 : Math.max(space - 20 - size * at.k, Math.min(20, space / 2 - middle * at.k));
      at.k = whole ? k : Math.max(k, 1);
      at.x = start(s ? s.x + s.w / 2 : 0, top.w, r.w); at.y = start(s ? s.y : 0, top.h, r.h);
      moved = false; move();
    }
    function zoom(f, px, py) {
      const r = room(), x = px == null ? r.w / 2 : px, y = py == null ? r.h / 2 : py, k = Math.min(6, Math.max(.01, at.k * f));
      at.x = x - (x - at.x) * k / at.k; at.y = y - (y - at.y) * k / at.k; at.k = k; move();
    }
    function unfold(all) {  // level by level, as long as there are not too many blocks
      open.clear(); spread.clear(); open.add(0);
      for (let level = [0], count = 1; all && level.length;) {
        const next = level.flatMap(shown);
        count += next.length; level = next.filter(id => nodes[id].children);
        if (count + level.reduce((sum, id) => sum + shown(id).length, 0) > MOST) break;
        level.forEach(id => open.add(id));
      }
      render(); fit();
    }
    function set(id, isOpen) {
      if (isOpen) open.add(id); else open.delete(id);
    }
    function toggle(b) {
      const old = b.id >= 0 ? spots.get(b.id) : null, sx = old ? old.x * at.k + at.x : 0, sy = old ? old.y * at.k + at.y : 0;
      if (b.repeat >= 0 && (b.id < 0 || !nodes[b.id].children || open.has(b.id))) spread.add(b.repeat);
      else if (open.has(b.id)) { if (spread.has(b.id)) spread.delete(b.id); else set(b.id, false); }
      else set(b.id, true);
      render();
      const now = b.id >= 0 && spots.get(b.id);
      if (old && now) { at.x = sx - now.x * at.k; at.y = sy - now.y * at.k; move(); }
    }
    function select(id, center) {
      selected = id; emphasize(); show(id);
      if (center) centre(id);
    }
    function centre(id) {
      const s = spots.get(id), r = room();
      if (!s) return;
      at.k = Math.max(at.k, .8); at.x = r.w / 2 - (s.x + s.w / 2) * at.k; at.y = Math.min(r.h / 2 - (s.y + Math.min(s.h, r.h / at.k) / 2) * at.k, r.h); move();
    }
    function uncover(id) {
      let changed = !spots.has(id);
      for (let p = parent[id], c = id; p >= 0; c = p, p = parent[p]) {
        if (!open.has(p)) { open.add(p); changed = true; }
        if (!shown(p).includes(c)) { spread.add(p); changed = true; }
      }
      if (changed) render();
    }
    function reveal(id) { uncover(id); select(id, true); }

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
      b.forEach((v, i) => g.append(sv("rect", { x: i * 300 / b.length, y: 40 - 38 * v / m, width: 300 / b.length - 1, height: 38 * v / m + 1, fill: colour("conv") })));
      return g;
    }
    function hide() { panel.hidden = true; selected = -1; beside(); emphasize(); }
    // The drawing ends where the panel begins, and what was selected stays in sight; without the panel it goes back.
    let shift = null;
    function beside() {
      const before = host.classList.contains("side"), s = spots.get(selected);
      host.classList.toggle("side", !panel.hidden);
      if (!before && !panel.hidden) {
        const r = room(), x = s ? Math.max(0, Math.min((s.x + s.w) * at.k + at.x + 20 - r.w, s.x * at.k + at.x)) : 0, y = s ? Math.max(0, Math.min((s.y + Math.min(s.h, 60)) * at.k + at.y + 20 - r.h, s.y * at.k + at.y)) : 0;
        at.x -= x; at.y -= y; shift = { x, y, to: [at.x, at.y, at.k].join() };
      } else if (before && panel.hidden && shift.to === [at.x, at.y, at.k].join()) { at.x += shift.x; at.y += shift.y; }
      move();
    }
    function show(id) {
      if (id < 0) { panel.hidden = true; beside(); return; }
      const n = nodes[id], num = v => Number(v).toPrecision(4), python = /^(torch|__torch__|collections)\b/.test(n.class || "");
      panel.replaceChildren(); panel.hidden = false; beside();
      const x = el("button", "×", "x"); x.onclick = hide;
      panel.append(x, el("h2", label(n)));
      rows("", [["Lua class", python ? "" : n.class], ["PyTorch class", n.torch || (n.mark === "unmapped" ? "none" : "")], ["class", python ? n.class : ""], ["path", n.path], ["state dict", n.key], ["output", shapes(n)], ["parameters", n.parameters && n.parameters.toLocaleString("en")], ["the same as", n.same_as != null ? link(n.same_as) : ""]]);
      if (n.lines && n.mark === "unmapped") panel.append(el("p", n.lines[0]));
      rows("arguments", Object.entries(n.arguments || {}).map(([name, text]) => [(n.argument_names || [])[name] || name, text]));
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

    // Search, mouse and keys.
    let list = [], chosen = 0;
    search.oninput = () => {
      const q = search.value.trim().toLowerCase();
      hits.replaceChildren(); chosen = 0;
      list = q ? nodes.filter(n => n.kind !== "end" && [n.name, n.title, n.class, n.torch, n.key, n.path].some(t => t && t.toLowerCase().includes(q))) : [];
      found = new Set(list.map(n => n.id));
      list.slice(0, 60).forEach((n, i) => { const d = el("div", label(n) + "  "); d.append(el("small", n.key || n.path || "")); if (!i) d.className = "on"; d.onclick = () => { hits.hidden = true; reveal(n.id); }; hits.append(d); });
      if (q) hits.append(el("div", list.length + " found"));
      hits.hidden = !q; emphasize();
    };
    search.onkeydown = e => {
      if (e.key === "Enter" && list.length) { reveal(list[chosen % list.length].id); chosen++; hits.hidden = true; e.preventDefault(); }
      if (e.key === "Escape") { search.value = ""; search.oninput(); hide(); svg.focus(); }
      e.stopPropagation();
    };
    function step(d) {
      if (selected < 0) return select(0, true);
      const p = parent[selected];
      if (p < 0) return;
      const kids = nodes[p].children, i = kids.indexOf(selected) + d;
      if (kids[i] != null) reveal(kids[i]);
    }
    function flip() { if (selected >= 0 && nodes[selected].children) { set(selected, !open.has(selected)); render(); } }
    const keys = {
      "/": () => search.focus(), "+": () => zoom(1.3), "=": () => zoom(1.3), "-": () => zoom(1 / 1.3), "0": () => fit(true), e: () => unfold(true), c: () => unfold(false), t: () => theme(),
      ArrowDown: () => step(1), ArrowUp: () => step(-1), ArrowRight: () => { const kids = selected >= 0 && nodes[selected].children; if (kids) reveal(kids[0]); else step(1); }, ArrowLeft: () => { if (selected > 0) reveal(parent[selected]); },
      Enter: flip, " ": flip, Escape: () => { hits.hidden = true; found = new Set(); hide(); },
    };
    svg.addEventListener("wheel", e => { e.preventDefault(); const r = svg.getBoundingClientRect(); moved = true; zoom(Math.exp(-e.deltaY * (e.deltaMode ? .05 : .0015)), e.clientX - r.left, e.clientY - r.top); }, { passive: false });
    const travel = e => {
      if (!e.buttons) return;
      const p = new DOMPoint(e.clientX, e.clientY).matrixTransform(map.getScreenCTM().inverse()), r = room();
      at.x = r.w / 2 - p.x * at.k; at.y = r.h / 2 - p.y * at.k; moved = true; move();
    };
    map.addEventListener("pointerdown", travel); map.addEventListener("pointermove", travel);
    let drag = null;
    svg.addEventListener("pointerdown", e => { drag = { x: e.clientX - at.x, y: e.clientY - at.y, sx: e.clientX, sy: e.clientY }; moved = false; });
    svg.addEventListener("pointermove", e => { if (!drag) return; if (Math.abs(e.clientX - drag.sx) + Math.abs(e.clientY - drag.sy) > 4) { moved = true; svg.classList.add("drag"); } if (moved) { at.x = e.clientX - drag.x; at.y = e.clientY - drag.y; move(); } });
    addEventListener("pointerup", () => { drag = null; svg.classList.remove("drag"); });
    addEventListener("resize", () => { if (!moved && selected < 0) fit(); });
    if (hash.has("unfold")) unfold(hash.get("unfold") === "all"); else { render(); fit(); }
    if (hash.get("select")) { const n = nodes.find(n => n.key === hash.get("select") || n.path === hash.get("select")); if (n) reveal(n.id); }
    document.addEventListener("keydown", e => {
      if (e.ctrlKey || e.metaKey || e.altKey || !keys[e.key]) return;
      keys[e.key](); e.preventDefault();
    });
  }

  if (hash.get("theme")) theme(hash.get("theme"));
  view();
})();
