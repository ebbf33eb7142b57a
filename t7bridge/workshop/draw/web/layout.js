"use strict";
// The boxes of what is open. Each container has its positions from the file (`places`), with those inside it closed, or as
// open as at first; where more is open, the rest makes room.
function layouts(nodes, places, open, spread) {
  const contents = places.contents, built = new Map();
  const inside = entries => entries.flatMap(e => Array.isArray(e[8]) ? inside(e[8][3]) : e[0] < 0 ? [] : [e[0]]);
  // The ids of the blocks that a container shows, if it is open: of repeated ones the first.
  const shown = id => places.of[id] ? inside(contents[places.of[id][spread.has(id) ? 1 : 0]][3]).map(child => nodes[id].children[child]) : [];

  function box(owner, [child, x, y, w, h, text, hidden = 0, repeat = 1, own = ""], strict) {
    const n = child < 0 ? null : owner < 0 ? nodes[0] : nodes[nodes[owner].children[child]], lines = text.split("\n");
    const b = { id: n ? n.id : -1, x, y, w, h, lines, aside: 0, kids: [], edges: [], count: repeat, repeat: repeat > 1 ? owner : -1, cls: "" };
    const content = n && n.children && open.has(n.id) ? contentOf(n.id) : Array.isArray(own) ? arranged(owner, own, strict) : null;
    if (strict && !content && Array.isArray(own)) return null;
    b.cls = n ? classes(n) : content ? "n c" : own + " n";
    if (repeat > 1) b.cls += " repeat";
    if (!content) return b;
    if (n && hidden) lines.length -= hidden;
    if (owner < 0) return Object.assign(b, content);  // the model itself: its content has room for its texts
    b.w = Math.max(w, content.w); b.h = Math.max(h, content.h); b.aside = (b.w - content.w) / 2; b.kids = content.kids; b.edges = content.edges;
    return b;
  }
  function classes(n) {
    const found = [n.kind === "end" ? "e n" : n.children ? "n c" : "n"];
    if (n.mark && n.mark !== "weights") found.push(n.mark);
    if ((n.weights || []).some(w => w.shared)) found.push("shared");
    return found.join(" ");
  }
  // Positions inside an open container: those at first, if everything has at least its size at first.
  function contentOf(id) {
    if (!built.has(id)) {
      const [closed, wide, first] = places.of[id];
      built.set(id, spread.has(id) ? arranged(id, contents[wide]) : first >= 0 && arranged(id, contents[first], true) || arranged(id, contents[closed]));
    }
    return built.get(id);
  }
  function arranged(owner, [w, h, columns, entries, arrows], strict) {
    const kids = entries.map(e => box(owner, e, strict));
    if (strict && kids.some((k, i) => !k || k.w < entries[i][3] - 1 || k.h < entries[i][4] - 1 || k.id >= 0 && nodes[k.id].children && !k.kids.length && isFirst.has(k.id))) return null;
    const column = x => { let i = 0; while (i < columns.length && columns[i] <= x) i++; return i; };
    const down = [...columns, 0].map(() => []);
    kids.forEach((k, i) => { const e = entries[i]; down[column(e[1])].push([e[2], e[2] + e[4], k.h - e[4]]); });
    const across = shifts(kids.map((k, i) => [k.x, k.x + entries[i][3], k.w - entries[i][3]])), below = down.map(shifts);
    const moved = (x, y) => [x + across(x), y + below[column(x)](y)];
    kids.forEach((k, i) => {  // in the middle of its room
      const e = entries[i], [left, top] = moved(e[1], e[2]), right = e[1] + e[3] + across(e[1] + e[3]), low = e[2] + e[4] + below[column(e[1])](e[2] + e[4]);
      k.x = (left + right - k.w) / 2; k.y = (top + low - k.h) / 2;
    });
    const edges = arrows.map(([a, b, flat, text = "", x = 0, y = 0]) => {
      const points = [];
      for (let i = 0; i < flat.length; i += 2) points.push(moved(flat[i], flat[i + 1]));
      // Each end stays where it was across its box. What leaves or enters upright does so still.
      const dock = (number, x) => kids[number].x + kids[number].w * Math.min(Math.max((x - entries[number][1]) / entries[number][3], 0), 1);
      const ends = [[dock(a, flat[0]), kids[a].y + kids[a].h], [dock(b, flat[flat.length - 2]), kids[b].y]];
      const last = points.length - 1, place = moved(x, y), aside = [ends[0][0] - points[0][0], ends[1][0] - points[last][0]];
      if (last > 1 && flat[0] === flat[2]) points[1][0] = ends[0][0];
      if (last > 1 && flat[flat.length - 2] === flat[flat.length - 4]) points[last - 1][0] = ends[1][0];
      points[0] = ends[0]; points[last] = ends[1];
      // So does a label beside the arrow; one on a bend has moved with that.
      const down = Math.min(Math.max((y - flat[1]) / (flat[flat.length - 1] - flat[1] || 1), 0), 1);
      if (last === 1) place[0] += aside[0] + (aside[1] - aside[0]) * down; else if (y <= flat[5]) place[0] += aside[0];
      return { a, b, points, text, at: place };
    });
    return { kids, edges, w: w + across(Infinity), h: h + Math.max(...below.map(by => by(Infinity))) };
  }
  const isFirst = new Set(places.open), apart = (p, q) => Math.abs(p[0] - q[0]) + Math.abs(p[1] - q[1]) > .5;

  // How far each place moves where spans (start, end, growth) grow: as little as possible, half to each side.
  function shifts(spans) {
    spans = spans.filter(s => s[2] > .1);
    if (!spans.length) return () => 0;
    const marks = [...new Set(spans.flatMap(s => [s[0], s[1]]))].sort((a, b) => a - b), last = marks[marks.length - 1];
    const low = pushed(marks, spans), high = pushed(marks.map(m => -m).reverse(), spans.map(([from, to, by]) => [-to, -from, by]));
    const by = marks.map(m => (low.get(m) + low.get(last) - high.get(-m)) / 2);
    return place => {
      let a = 0, b = marks.length;
      while (a < b) { const m = a + b >> 1; if (marks[m] <= place) a = m + 1; else b = m; }
      if (!a || a === marks.length) return a ? by[a - 1] : 0;
      return by[a - 1] + (by[a] - by[a - 1]) * (place - marks[a - 1]) / (marks[a] - marks[a - 1]);
    };
  }
  function pushed(marks, spans) {  // the least movement of each mark if the first one stays
    const ending = new Map(), found = new Map();
    spans.forEach(([from, to, by]) => ending.set(to, [...(ending.get(to) || []), [from, by]]));
    let moved = 0;
    for (const mark of marks) {
      for (const [from, by] of ending.get(mark) || []) moved = Math.max(moved, found.get(from) + by);
      found.set(mark, moved);
    }
    return found;
  }
  const root = () => { built.clear(); const b = box(-1, places.root); b.x = b.y = 0; return b; };
  return { root, shown };
}
