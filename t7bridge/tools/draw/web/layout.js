"use strict";
// Sizes and places of boxes. Each container is laid out by itself, inside first; nothing here draws.
function layouts(nodes, parent, open, spread, room) {
  const T = "600 13px system-ui,Helvetica,Arial,sans-serif", S = "11px system-ui,Helvetica,Arial,sans-serif";
  const PAD = 12, GAP = 30, DAGRE_NODES = 700, DAGRE_EDGES = 2000, FAR = 6, CLOSE = 18;
  const pen = document.createElement("canvas").getContext("2d"), widths = new Map();
  const cut = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;
  const sizes = list => list.map(s => s === null ? "?" : Array.isArray(s[0]) ? "(" + sizes(s) + ")" : s.join("×") || "scalar").join(", ");
  const shapes = n => sizes(n.output || []);
  const label = n => cut(n.name ? n.name + ": " + n.title : n.title, 60);
  function wide(text, font) {
    const key = font + text;
    let width = widths.get(key);
    if (width === undefined) { pen.font = font; widths.set(key, width = pen.measureText(text).width); }
    return width;
  }

  // The items of a container, runs of equal blocks once: the ids of one repetition, and how many there are.
  function shown(n) {
    const items = [], kids = n.children, runs = new Map((spread.has(n.id) ? [] : n.repeats || []).map(r => [r[0], r]));
    for (let i = 0; i < kids.length;) {
      const run = runs.get(i) || [i, 1, 1];
      items.push({ ids: kids.slice(i, i + run[1]), count: run[2], all: kids.slice(i, i + run[1] * run[2]) });
      i += run[1] * run[2];
    }
    return items;
  }
  const inside = new Map();
  function classesInside(n) {  // of layers at any depth, and whether something branches
    if (inside.has(n.id)) return inside.get(n.id);
    const found = { counts: new Map(), branches: n.kind === "graph" && (n.edges || []).length >= n.children.length };
    inside.set(n.id, found);
    for (const id of n.children) {
      const child = nodes[id];
      if (child.kind === "end") continue;
      if (!child.children) { found.counts.set(child.title, (found.counts.get(child.title) || 0) + 1); continue; }
      const below = classesInside(child);
      below.counts.forEach((count, title) => found.counts.set(title, (found.counts.get(title) || 0) + count));
      found.branches = found.branches || below.branches;
    }
    return found;
  }
  function texts(n, item, closed) {
    if (n.kind === "end") return [[(n.lines || [""])[0], "s"]];
    const lines = [[label(n) + (item.count > 1 && item.ids.length === 1 ? "  ×" + item.count : ""), "t"]];
    (n.lines || []).filter(line => !/ elements$/.test(line)).slice(0, 5).forEach(line => lines.push([cut(line, 56), "s"]));
    if (closed) {
      const found = classesInside(n), most = [...found.counts].sort((a, b) => b[1] - a[1]).slice(0, 3);
      if (most.length) lines.push([cut(most.map(([title, count]) => title + (count > 1 ? " ×" + count : "")).join(", "), 56), "s"]);
      if (found.branches) lines.push(["branches inside", "s"]);
    }
    if (n.parameters) lines.push([n.parameters.toLocaleString("en") + " parameters", "s"]);
    if (n.changes_inside && closed) lines.push([n.changes_inside + (n.changes_inside > 1 ? " differences inside" : " difference inside"), "s"]);
    return lines;
  }
  function box(item) {
    if (item.ids.length > 1) {  // a sequence of blocks that repeats
      const kids = item.ids.map(id => box({ ids: [id], count: 1 }));
      const b = { item, id: -1, lines: [["×" + item.count, "t"]], kids, edges: [], repeat: parent[item.ids[0]], cls: "n c repeat" };
      const all = nodes[b.repeat].kind === "graph" && nodes[b.repeat].edges || [], ids = item.ids, second = item.all.slice(ids.length, 2 * ids.length), ends = new Map();
      const edges = all.map(e => [ids.indexOf(e[0]), ids.indexOf(e[1]), e[2]]).filter(e => e[0] >= 0 && e[1] >= 0);
      all.filter(e => second.includes(e[1]) && !second.includes(e[0])).forEach(([from, to, text]) => {  // an end names each block that it takes from
        if (!ends.has(from)) {
          const n = nodes[from], name = n.kind === "end" ? (n.lines || [""])[0] : label(n);
          ends.set(from, kids.length);
          kids.push(size({ item: { ids: [], count: 1 }, id: -1, lines: [[(ids.includes(from) ? "last " : "") + name, "s"]], kids: [], edges: [], cls: "e n ghost" }));
        }
        edges.push([ends.get(from), second.indexOf(to), text]);
      });
      if (edges.length) flow(b, edges); else chain(b);
      return b;
    }
    const n = nodes[item.ids[0]], isOpen = !!n.children && open.has(n.id);
    const shared = (n.weights || []).some(w => w.shared), marks = [n.kind === "end" ? "e n" : n.children ? "n c" : "n"];
    if (n.mark && n.mark !== "weights") marks.push(n.mark);
    if (shared) marks.push("shared");
    if (n.change) marks.push("d-" + n.change.kind);
    else if (n.changes_inside && !isOpen) marks.push("d-inside");
    const b = { item, id: n.id, lines: texts(n, item, n.children && !isOpen), kids: [], edges: [], cls: marks.join(" ") };
    if (item.count > 1) { b.repeat = parent[n.id]; b.cls += " repeat"; }
    if (!isOpen) return size(b);
    const items = shown(n), place = new Map();
    b.kids = items.map(box);
    items.forEach((each, at) => each.all.forEach(id => place.set(id, at)));
    const links = new Map();  // one for all repetitions, without a label if they differ
    (n.edges || []).map(e => [place.get(e[0]), place.get(e[1]), e[2]]).filter(e => e[0] !== e[1]).forEach(e => {
      const key = e[0] + " " + e[1], known = links.get(key);
      if (known) { if (known[2] !== e[2]) known[2] = ""; } else links.set(key, e);
    });
    const edges = [...links.values()];
    if (n.kind === "chain") chain(b);
    else if (n.kind === "side" || !edges.length) side(b);
    else if (branches(b, edges)) row(b, edges);
    else flow(b, edges);
    return b;
  }
  function size(b) {
    b.head = b.lines.length * 16 + 10;
    b.w = Math.max(...b.lines.map(([t, c]) => wide(t, c === "t" ? T : S))) + 2 * PAD + (b.id >= 0 && nodes[b.id].children || b.repeat >= 0 ? 26 : 0);
    b.h = b.head;
    return b;
  }
  function nudge(edges, dx, dy) {
    edges.forEach(e => [...e.points, ...(e.at ? [e.at] : [])].forEach(p => { p[0] += dx; p[1] += dy; }));
  }
  function around(b, w, h) {
    size(b);
    const dx = Math.max(b.w - w - 2 * PAD, 0) / 2 + PAD, dy = b.head;
    b.kids.forEach(k => { k.x += dx; k.y += dy; });
    nudge(b.edges, dx, dy);
    b.w = Math.max(b.w, w + 2 * PAD); b.h = b.head + h + PAD;
  }
  const out = b => b.id >= 0 ? shapes(nodes[b.id]) : b.kids.length ? out(b.kids[b.kids.length - 1]) : "";
  // What an arrow carries: "2: [0]" is "#1 [0]", counted from 0, and the shape is that of the element alone.
  function carried(text, b) {
    const found = /^(\d+)?(?:: )?(?:\[(\d+)\])?$/.exec(text), several = b.id >= 0 && nodes[b.id].output || [];
    if (!found) return [text, out(b)].filter(Boolean).join("  ");
    const [, place, step] = found, one = step && several.length > 1 ? (several[step] || []).join("×") : out(b);
    return [place && "#" + (place - 1), step && "[" + step + "]", one].filter(Boolean).join(" ");
  }

  // Parts one below the other, in as many columns as show them largest. A part is {w, h, port}: where arrows enter and leave it.
  function columns(parts) {
    const total = parts.reduce((sum, p) => sum + p.h + GAP, -GAP), tallest = Math.max(...parts.map(p => p.h));
    const { w: W, h: H } = room();
    let best = null;
    for (let count = 1; count <= 40; count = count < 8 ? count + 1 : Math.ceil(count * 1.3)) {
      const limit = count === 1 ? Infinity : Math.max(total / count * 1.04, tallest);
      let x = 0, y = 0, left = 0, right = 0, low = 0, starts = [0];
      const places = [];
      parts.forEach((p, i) => {
        if (i && y + GAP + p.h > limit) { starts.push(i); x += left + right + 2 * GAP; y = 0; left = right = 0; }
        else if (i) y += GAP;
        left = Math.max(left, p.port); right = Math.max(right, p.w - p.port);
        places.push(y); y += p.h; low = Math.max(low, y);
      });
      const found = { starts, places, w: x + left + right, h: low }, scale = Math.min(W / (found.w + 60), H / (found.h + 60), 1);
      if (!best || scale > best.scale * 1.12) best = { ...found, scale };
      if (total < 700 || starts.length < count - 1) break;
    }
    let x = 0;
    best.xs = [];
    const edges = new Map();  // left edge of the column that begins with a part
    best.starts.forEach((start, c) => {
      const column = parts.slice(start, best.starts[c + 1]), left = Math.max(...column.map(p => p.port));
      column.forEach((p, i) => { best.xs[start + i] = x + left - p.port; });
      edges.set(start, x);
      x += left + Math.max(...column.map(p => p.w - p.port)) + 2 * GAP;
    });
    best.isStart = new Set(best.starts);
    best.edge = i => edges.get(i);
    best.lift = best.starts.length > 1 ? GAP / 2 : 0;
    return best;
  }
  function turn(from, to, left, low) {  // an arrow from the foot of a column to the head of the next
    const side = left - GAP;
    return [from, [from[0], low + 9], [side, low + 9], [side, -9], [to[0], -9], to];
  }
  function chain(b) {
    const found = columns(b.kids.map(k => ({ w: k.w, h: k.h, port: k.w / 2 })));
    b.kids.forEach((k, i) => {
      k.x = found.xs[i]; k.y = found.places[i];
      if (!i) return;
      const last = b.kids[i - 1], from = [last.x + last.w / 2, last.y + last.h], to = [k.x + k.w / 2, k.y];
      b.edges.push({ a: i - 1, b: i, text: out(last), points: found.isStart.has(i) ? turn(from, to, found.edge(i), from[1]) : [from, to] });
    });
    shift(b, 0, found.lift);
    around(b, found.w, found.h + 2 * found.lift);
  }
  function shift(b, dx, dy) {
    b.kids.forEach(k => { k.x += dx; k.y += dy; });
    nudge(b.edges, dx, dy);
  }
  function side(b) {
    const area = b.kids.reduce((sum, k) => sum + (k.w + GAP) * (k.h + GAP), 0), most = Math.max(1200, Math.sqrt(area * 1.8));
    let x = 0, y = 0, tall = 0, w = 0;
    for (const k of b.kids) {
      if (x && x + k.w > most) { x = 0; y += tall + GAP; tall = 0; }
      k.x = x; k.y = y; x += k.w + GAP; tall = Math.max(tall, k.h); w = Math.max(w, x - GAP);
    }
    around(b, w, y + tall);
  }

  // Branches between one input and one output: from left to right in their order.
  function branches(b, edges) {
    const count = b.kids.length - 2;
    return count > 0 && edges.length === 2 * count && edges.every(e => e[0] === count && e[1] < count || e[1] === count + 1 && e[0] < count)
      && new Set(edges.map(e => e[0] === count ? e[1] : e[0] + count)).size === 2 * count;
  }
  function row(b, edges) {
    const count = b.kids.length - 2, [first, last] = b.kids.slice(count), kids = b.kids.slice(0, count);
    const w = Math.max(kids.reduce((sum, k) => sum + k.w + GAP, -GAP), first.w, last.w), h = Math.max(...kids.map(k => k.h));
    let x = (w - kids.reduce((sum, k) => sum + k.w + GAP, -GAP)) / 2;
    kids.forEach(k => { k.x = x; k.y = first.h + 44 + (h - k.h) / 2; x += k.w + GAP; });
    first.x = (w - first.w) / 2; first.y = 0;
    last.x = (w - last.w) / 2; last.y = first.h + h + 88;
    edges.forEach(([from, to, text]) => {
      const down = to < count, k = b.kids[down ? to : from], m = k.x + k.w / 2;
      const spread = end => end.x + end.w / 2 + (count > 1 ? ((down ? to : from) / (count - 1) - .5) * end.w * .7 : 0);
      if (down) b.edges.push({ a: from, b: to, text, curve: true, at: [m, k.y - 12], points: [[spread(first), first.h], [spread(first), first.h + 8], [m, first.h + 34], [m, k.y]] });
      else b.edges.push({ a: from, b: to, text: carried(text, k), curve: true, at: [m, k.y + k.h + 14], points: [[m, k.y + k.h], [m, last.y - 34], [spread(last), last.y - 8], [spread(last), last.y]] });
    });
    around(b, w, last.y + last.h);
  }

  // A graph: cut at the nodes that all its flow passes through. What branches between two of these is laid out by dagre
  // and hangs on the upper one; where only one arrow leads on, a new column may begin.
  function flow(b, all) {
    const edges = near(b, all), rank = ranksOf(b.kids.length, edges), levels = [], change = [], starting = [];
    rank.forEach((r, i) => { (levels[r] = levels[r] || []).push(i); starting[r] = starting[r] || []; });
    edges.forEach((e, i) => {
      const [from, to] = [rank[e[0]], Math.max(rank[e[1]], rank[e[0]] + 1)];
      change[from + 1] = (change[from + 1] || 0) + 1; change[to] = (change[to] || 0) - 1;
      starting[from].push(e);
    });
    const cuts = [];
    let passing = 0;
    levels.forEach((level, r) => { passing += change[r] || 0; if (level.length === 1 && !passing) cuts.push(r); });
    if (cuts.length < 3) {
      const found = stretch(b, [...b.kids.keys()], edges);
      shift(b, -found.left, -found.top);
      return around(b, found.w, found.h);
    }
    const wide = b.kids.reduce((sum, k) => sum + k.w, 0) / b.kids.length * 1.6 + 60, tall = levels.reduce((sum, level) => sum + Math.max(...level.map(i => b.kids[i].h)) + GAP, 0);
    const enough = Math.max(900, Math.sqrt(tall * wide * room().h / room().w));  // height of a column
    const groups = [], between = (lists, low, high) => lists.slice(low, high).flat();
    function begin(node, above, text) {
      b.kids[node].x = b.kids[node].y = 0;
      groups.push({ members: [node], edges: [], above, text });
    }
    function hang(top, added, own) {
      if (b.kids[top].y > enough) {  // the node is named again at the head of the next column
        b.kids.push(size({ ...b.kids[top], kids: [], edges: [], lines: b.kids[top].lines.slice(0, 1), cls: "n ghost", again: true }));
        begin(b.kids.length - 1, top, "");
        own = own.map(e => e[0] === top ? [b.kids.length - 1, e[1], e[2]] : e);
        top = b.kids.length - 1;
      }
      const group = groups[groups.length - 1], k = b.kids[top], x = k.x, y = k.y, mark = b.edges.length;
      stretch(b, [top, ...added], own);
      const dx = x - k.x, dy = y - k.y, made = b.edges.slice(mark);
      [top, ...added].forEach(i => { b.kids[i].x += dx; b.kids[i].y += dy; });
      nudge(made, dx, dy);
      group.members.push(...added); group.edges.push(...made);
    }
    cuts.forEach((r, c) => {
      const node = levels[r][0], before = c ? cuts[c - 1] : -1, members = between(levels, before + 1, r), own = between(starting, Math.max(before, 0), r);
      if (!c) { begin(node, -1, ""); if (members.length) hang(node, members, own); return; }
      if (!members.length && own.length === 1) begin(node, levels[before][0], own[0][2]);
      else hang(levels[before][0], [...members, node], own);
    });
    const end = cuts[cuts.length - 1], rest = between(levels, end + 1);
    if (rest.length) hang(levels[end][0], rest, between(starting, end));
    groups.forEach(g => {
      const xs = g.members.flatMap(i => [b.kids[i].x, b.kids[i].x + b.kids[i].w]), ys = g.members.flatMap(i => [b.kids[i].y, b.kids[i].y + b.kids[i].h]);
      g.edges.forEach(e => e.points.forEach(p => { xs.push(p[0]); ys.push(p[1]); }));
      const least = list => list.reduce((p, q) => Math.min(p, q)), most = list => list.reduce((p, q) => Math.max(p, q)), head = b.kids[g.members[0]];
      g.left = least(xs); g.top = least(ys); g.w = most(xs) - g.left; g.h = most(ys) - g.top; g.port = head.x + head.w / 2 - g.left;
    });
    const found = columns(groups);
    groups.forEach((g, i) => {
      const dx = found.xs[i] - g.left, dy = found.places[i] - g.top;
      g.members.forEach(m => { b.kids[m].x += dx; b.kids[m].y += dy; });
      nudge(g.edges, dx, dy);
    });
    groups.forEach((g, i) => {
      if (g.above < 0) return;
      const a = b.kids[g.above], k = b.kids[g.members[0]], from = [a.x + a.w / 2, a.y + a.h], to = [k.x + k.w / 2, k.y], middle = (from[1] + to[1]) / 2;
      const points = found.isStart.has(i) ? turn(from, to, found.edge(i), from[1]) : Math.abs(from[0] - to[0]) < 1 ? [from, to] : [from, [from[0], middle], [to[0], middle], to];
      b.edges.push({ a: g.above, b: g.members[0], text: carried(g.text, a), points });
    });
    shift(b, 0, found.lift);
    around(b, found.w, found.h + 2 * found.lift);
  }
  // An end of the graph that is far from a node is named beside the node, instead of an arrow along the whole picture.
  function near(b, edges) {
    const count = b.kids.length, rank = ranksOf(count, edges), isEnd = i => b.kids[i].id >= 0 && nodes[b.kids[i].id].kind === "end";
    const degree = new Array(count).fill(0);
    edges.forEach(e => { degree[e[0]]++; degree[e[1]]++; });
    return edges.map(([from, to, text]) => {
      if (rank[to] - rank[from] <= FAR || degree[isEnd(from) ? from : to] < 2 || isEnd(from) === isEnd(to)) return [from, to, text];
      const end = isEnd(from) ? from : to;
      b.kids.push(size({ ...b.kids[end], lines: [[b.kids[end].lines[0][0] + " " + carried(text, { id: -1, kids: [] }), "s"]], kids: [], edges: [], cls: "e n ghost" }));
      degree[end]--;
      return end === from ? [b.kids.length - 1, to, ""] : [from, b.kids.length - 1, ""];
    });
  }
  function ranksOf(count, edges) {
    const rank = new Array(count).fill(0), wait = new Array(count).fill(0), next = Array.from({ length: count }, () => []);
    edges.forEach(e => { next[e[0]].push(e[1]); wait[e[1]]++; });
    const order = [...wait.keys()].filter(i => !wait[i]), sources = new Set(order.slice(1));
    for (let q = 0; q < order.length; q++) for (const e of next[order[q]]) { rank[e] = Math.max(rank[e], rank[order[q]] + 1); if (!--wait[e]) order.push(e); }
    sources.forEach(i => { if (next[i].length) rank[i] = Math.max(0, Math.min(...next[i].map(e => rank[e])) - 1); });
    return rank;
  }
  // Some of the children of a box, by dagre; the extent of what was placed. Nodes that only follow one another stand close
  // together, and equal stretches are laid out once.
  const known = new Map();
  function stretch(b, members, edges) {
    if (members.length > DAGRE_NODES || edges.length > DAGRE_EDGES) return layers(b, members, edges);
    const number = new Map(members.map((m, i) => [m, i])), links = edges.map(e => [number.get(e[0]), number.get(e[1])]);
    const outs = members.map(() => 0), ins = members.map(() => 0), next = members.map(() => -1), run = members.map(() => -1), boxes = [];
    links.forEach(([from, to]) => { outs[from]++; ins[to]++; next[from] = to; });
    const follows = members.map(() => false), close = i => outs[i] === 1 && ins[next[i]] === 1 && i && next[i] !== members.length - 1;
    members.forEach((_, i) => { if (close(i)) follows[next[i]] = true; });
    members.forEach((_, i) => {
      if (follows[i]) return;
      const list = [i];
      while (close(list[list.length - 1])) list.push(next[list[list.length - 1]]);
      list.forEach(each => { run[each] = boxes.length; });
      const kids = list.map(each => b.kids[members[each]]);
      boxes.push({ kids, w: Math.max(...kids.map(k => k.w)), h: kids.reduce((sum, k) => sum + k.h + CLOSE, -CLOSE) });
    });
    const outer = links.map(([from, to], i) => [run[from], run[to], i]).filter(([from, to]) => from !== to);
    const key = JSON.stringify([boxes.map(k => [Math.ceil(k.w), k.h]), outer.map(e => [e[0], e[1]])]);
    if (!known.has(key)) known.set(key, byDagre(boxes, outer));
    const { places, bends, extent } = known.get(key), points = new Map(outer.map((e, i) => [e[2], bends[i]]));
    boxes.forEach((group, i) => {
      let y = places[i][1] - group.h / 2;
      group.kids.forEach(k => { k.x = places[i][0] - k.w / 2; k.y = y; y += k.h + CLOSE; });
    });
    edges.forEach((e, i) => {
      const a = b.kids[e[0]], c = b.kids[e[1]], inner = [[a.x + a.w / 2, a.y + a.h], [c.x + c.w / 2, c.y]];
      b.edges.push({ a: e[0], b: e[1], text: carried(e[2], a), curve: points.has(i), points: points.has(i) ? docked(points.get(i), a, c) : inner });
    });
    return { ...extent, w: extent.right - extent.left, h: extent.low - extent.top };
  }
  // dagre ends an arrow at the border of a stretch, which is as wide as its widest box: it ends at the box itself, from above.
  function docked(bends, a, c) {
    const points = bends.map(p => [p[0], p[1]]), last = points.length - 1;
    const at = (k, y, p, towards) => Math.abs(p[1] - y) < 1 && p[0] >= k.x && p[0] <= k.x + k.w ? p : [Math.min(Math.max(towards[0], k.x + 8), k.x + k.w - 8), y];
    points[0] = at(a, a.y + a.h, points[0], points[1]);
    points[last] = at(c, c.y, points[last], points[last - 1]);
    return points;
  }
  function byDagre(boxes, links) {
    const g = new dagre.graphlib.Graph({ multigraph: true });
    g.setGraph({ rankdir: "TB", nodesep: 24, ranksep: 38, edgesep: 16, marginx: 0, marginy: 0, ranker: links.length > 250 ? "longest-path" : "network-simplex" });
    boxes.forEach((k, i) => g.setNode(i, { width: Math.ceil(k.w), height: k.h }));
    links.forEach((e, i) => g.setEdge(e[0], e[1], {}, String(i)));
    dagre.layout(g);
    const sign = mirrored(boxes.map((_, i) => [i, g.node(i)])) ? -1 : 1, extent = { left: Infinity, top: Infinity, right: -Infinity, low: -Infinity };
    const see = (x, y) => { extent.left = Math.min(extent.left, x); extent.right = Math.max(extent.right, x); extent.top = Math.min(extent.top, y); extent.low = Math.max(extent.low, y); };
    const places = boxes.map((k, i) => [sign * g.node(i).x, g.node(i).y]);
    places.forEach(([x, y], i) => { see(x - boxes[i].w / 2, y - boxes[i].h / 2); see(x + boxes[i].w / 2, y + boxes[i].h / 2); });
    const bends = links.map((e, i) => g.edge(e[0], e[1], String(i)).points.map(p => [sign * p.x, p.y]));
    bends.forEach(points => points.forEach(p => see(p[0], p[1])));
    return { places, bends, extent };
  }
  function mirrored(placed) {  // whether more neighbours stand against the order of the file than with it
    const rows = new Map();
    placed.forEach(([i, n]) => { const key = Math.round(n.y); rows.set(key, [...(rows.get(key) || []), [i, n.x]]); });
    let against = 0, along = 0;
    rows.forEach(list => { list.sort((p, q) => p[0] - q[0]); for (let i = 1; i < list.length; i++) if (list[i][1] < list[i - 1][1]) against++; else along++; });
    return against > along;
  }
  function layers(b, members, edges) {  // for very large graphs: layers by longest path, in the order of the file
    const number = new Map(members.map((m, i) => [m, i])), rank = ranksOf(members.length, edges.map(e => [number.get(e[0]), number.get(e[1])])), rows = [];
    members.forEach((m, i) => (rows[rank[i]] = rows[rank[i]] || []).push(b.kids[m]));
    const total = r => r.reduce((sum, k) => sum + k.w + 24, -24), w = Math.max(...rows.map(total));
    let y = 0;
    rows.forEach(r => { let x = (w - total(r)) / 2; r.forEach(k => { k.x = x; k.y = y; x += k.w + 24; }); y += Math.max(...r.map(k => k.h)) + 38; });
    edges.forEach(e => {
      const a = b.kids[e[0]], c = b.kids[e[1]], p = [a.x + a.w / 2, a.y + a.h], q = [c.x + c.w / 2, c.y], reach = rank[number.get(e[1])] - rank[number.get(e[0])];
      const s = Math.max(a.x + a.w, c.x + c.w) + 20 + Math.min(80, reach);
      b.edges.push({ a: e[0], b: e[1], text: edges.length < 3000 ? e[2] : "", curve: reach > 1, points: reach > 1 ? [p, [s, p[1] + 20], [s, q[1] - 20], q] : [p, q] });
    });
    return { left: 0, top: 0, w: w + 110, h: y - 38 };
  }
  const branching = n => {
    const count = (n.children || []).length - 2;
    return n.kind === "graph" && count > 0 && count <= 8 && (n.edges || []).length === 2 * count && nodes[n.children[count]].kind === "end" && n.edges.every(e => e[0] === n.children[count] || e[1] === n.children[count + 1]);
  };
  return { box, shown, branching, label, sizes, shapes, cut, length: text => wide(text, S) };
}
