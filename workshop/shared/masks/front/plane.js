// The plane: probability when sampled across, probability now up, one for each sign of advantage.

const LOW = -6.2, HIGH = 4.4; // logits at its edges: probabilities .002 and .988
const TICKS = { ".01": 0.01, ".1": 0.1, ".5": 0.5, ".9": 0.9 };
const RADIUS = 5.2;

function drawPlane(svg, sign, view) {
  const width = widthOf(svg, 260), height = Math.round(Math.min(Math.max(width * 0.66, 250), 330));
  blank(svg, width, height);
  const ticks = Math.max(...Object.keys(TICKS).map((text) => sizeOf(svg, text).width));
  const box = { left: Math.ceil(sizeOf(svg, "π").height + ticks) + 6, top: 24, right: width - 4, bottom: height - 34 };
  const place = {
    ...box,
    x: (z) => box.left + ((z - LOW) / (HIGH - LOW)) * (box.right - box.left),
    y: (z) => box.bottom - ((z - LOW) / (HIGH - LOW)) * (box.bottom - box.top),
  };
  const tokens = view.tokens.filter((token) => token.advantage * sign > 0);
  const frame = { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top };
  const defs = put(svg, "defs"), clip = `inside-${sign}`;
  put(put(defs, "clipPath", { id: clip }), "rect", frame);
  const inside = put(svg, "g", { "clip-path": `url(#${clip})` });
  view.compared.forEach((mask, which) => drawMask(inside, defs, mask, which, sign, place, view));
  put(inside, "line", { class: "diagonal", x1: place.x(LOW), y1: place.y(LOW), x2: place.x(HIGH), y2: place.y(HIGH) });
  put(svg, "rect", { ...frame, class: "frame" });
  drawAxes(svg, sign, place);
  nameAreas(svg, sign, tokens, place, view);
  drawDots(svg, tokens, place, view);
  const title = svg.querySelector(".title");
  readUnderPointer(svg, sign, width, title, place, view);
  keepInside(svg);
  svg.setAttribute("aria-label", describePlane(sign, tokens, view));
}

function drawAxes(svg, sign, { left, right, top, bottom, x, y }) {
  for (const [text, p] of Object.entries(TICKS)) {
    put(svg, "text", { x: x(logit(p)), y: bottom + 14, "text-anchor": "middle" }, text);
    put(svg, "text", { x: left - 5, y: y(logit(p)) + 4, "text-anchor": "end" }, text);
  }
  put(svg, "text", { x: right, y: bottom + 29, "text-anchor": "end" }, "π when sampled, μ →");
  const above = -sizeOf(svg, "π now →").y;
  put(svg, "text", { transform: `translate(${above} ${top}) rotate(-90)`, "text-anchor": "end" }, "π now →");
  const title = sign > 0 ? "Good tokens, Â > 0" : "Bad tokens, Â < 0";
  put(svg, "text", { class: "title", x: left, y: 15 }, title);
}

// The area a mask silences, hatched in its colour (where two overlap, the hatches cross), its wall,
// and the line from which a weight is capped.
function drawMask(inside, defs, mask, which, sign, place, view) {
  if (mask.ratio === "sequence") return;
  const stroke = view.colour(mask), hatch = `hatch-${sign}-${which}`;
  const pattern = put(defs, "pattern", {
    id: hatch, width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${which ? -45 : 45})`,
  });
  put(pattern, "rect", { width: 8, height: 8, fill: stroke, "fill-opacity": 0.14 });
  put(pattern, "rect", { width: 1.6, height: 8, fill: stroke, "fill-opacity": 0.7 });
  const { area, walls } = view.remember(["shape", mask.region, sign, place.right, place.bottom], () =>
    maskShape(mask.region, sign, place));
  put(inside, "path", { class: "area", d: area, fill: `url(#${hatch})`, "data-mask": mask.key });
  put(inside, "path", { class: "wall", d: walls, stroke });
  if (mask.region.type !== "WeightClip") return;
  const line = [];
  for (let z = LOW; z < HIGH; z += 0.05) {
    const pi = sigmoid(z) * mask.region.max;
    if (pi < 0.999) line.push(`${place.x(z).toFixed(1)} ${place.y(logit(pi)).toFixed(1)}`);
  }
  put(inside, "path", { class: "wall cap", d: `M${line.join("L")}`, stroke });
}

// SVG paths around what a region silences, and along the edges of it inside the plane.
function maskShape(region, sign, { x, y }, columns = 96) {
  const column = (z) => ({ z, runs: maskedRuns(region, sigmoid(z), sign, LOW, HIGH) });
  const pieces = [[column(LOW)]];
  for (let i = 1; i <= columns; i++) {
    const next = column(LOW + ((HIGH - LOW) * i) / columns), piece = pieces.at(-1), last = piece.at(-1);
    if (next.runs.length === last.runs.length) piece.push(next);
    else {
      // the number of runs changes in between: go up to that place from both sides
      const same = (z) => column(z).runs.length === last.runs.length;
      const [before, after] = edgeBetween(same, last.z, next.z);
      const towards = (from, to) => [0.5, 0.75, 0.9, 0.97, 0.99, 1].map((part) => from + part * (to - from));
      piece.push(...towards(last.z, before).map(column));
      pieces.push([...towards(next.z, after).reverse().map(column), next]);
    }
  }
  const path = (points) => points.map(([z, to]) => `${x(z).toFixed(1)} ${y(to).toFixed(1)}`).join("L");
  let area = "", walls = "";
  for (const piece of pieces)
    for (let r = 0; r < piece[0].runs.length; r++) {
      if (piece.some(({ runs }) => runs.length <= r)) continue;
      const [floor, roof] = [0, 1].map((side) => piece.map(({ z, runs }) => [z, runs[r][side]]));
      area += `M${path(floor)}L${path([...roof].reverse())}Z`;
      for (const edge of [floor, roof])
        if (edge.some(([, z]) => z > LOW && z < HIGH)) walls += `M${path(edge)}`;
    }
  return { area, walls };
}

// Name each cap in the corner and each area in the middle of its widest part, away from where
// tokens go.
function nameAreas(svg, sign, tokens, place, view) {
  const { left, right, top, bottom, x, y } = place, [a, b] = view.compared;
  const walls = view.compared.filter((mask) => mask.ratio !== "sequence");
  const named = { class: "area-name" }, corner = { right: left, bottom: top };
  for (const mask of walls.filter(({ region }) => region.type === "WeightClip")) {
    const text = `${mask.label}: w held at ${short(mask.region.max)}`, box = sizeOf(svg, text, named);
    put(svg, "text", { ...named, x: left + 8, y: corner.bottom + 4 - box.y, style: `fill: ${view.colour(mask, 4.5)}` }, text);
    corner.right = Math.max(corner.right, left + 8 + box.width);
    corner.bottom += 4 + box.height;
  }
  const texts = walls.length > 1
    ? { 1: `only ${a.label}`, 2: `only ${b.label}`, 3: "both" }
    : { [walls[0] === a ? 1 : 2]: `${walls[0]?.label} silences` };
  const places = view.remember(["names", sign, right, bottom, walls.map((m) => m.region), texts, corner], () => {
    const size = 5, columns = Math.floor((right - left) / size), rows = Math.floor((bottom - top) / size);
    const sets = new Int8Array(rows * columns);
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < columns; c++) {
        const [mu, pi] = [LOW + ((c + 0.5) / columns) * (HIGH - LOW), HIGH - ((r + 0.5) / rows) * (HIGH - LOW)].map(sigmoid);
        for (const mask of walls)
          if (!regionAt(mask.region, mu, pi, sign).keep) sets[r * columns + c] += mask === a ? 1 : 2;
      }
    for (const token of tokens) {
      const column = (x(logit(token.mu)) - left) / size;
      const path = [token.mu, token.end].map((p) => (y(logit(p)) - top) / size).sort((p, q) => p - q);
      for (let r = Math.max(0, Math.floor(path[0] - 2)); r < Math.min(rows, path[1] + 3); r++)
        for (let c = Math.max(0, Math.floor(column - 5)); c < Math.min(columns, column + 6); c++) sets[r * columns + c] = -1;
    }
    for (let r = 0; r < (corner.bottom - top) / size; r++)
      for (let c = 0; c < (corner.right - left) / size; c++) sets[r * columns + c] = -1;
    return Object.entries(texts).flatMap(([set, text]) => {
      const box = sizeOf(svg, text, named), [wide, high] = [box.width + 8, box.height].map((length) => Math.ceil(length / size));
      const found = roomiest(sets, Number(set), rows, columns, wide, high);
      const middle = found && top + (found.row + high / 2) * size;
      return found ? [{ set, text, x: left + (found.column + wide / 2) * size, y: middle - box.y - box.height / 2 }] : [];
    });
  });
  for (const { set, text, x, y } of places) {
    const fill = set === "3" ? "var(--ink)" : view.colour(set === "1" ? a : b, 4.5);
    put(svg, "text", { class: "area-name", x, y, "text-anchor": "middle", style: `fill: ${fill}` }, text);
  }
}

// Where in a grid a box of cells fits into one set, with the widest margin and near its middle.
function roomiest(sets, set, rows, columns, wide, high) {
  const sums = new Int32Array((rows + 1) * (columns + 1)), step = columns + 1;
  let [cells, middleRow, middleColumn] = [0, 0, 0];
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < columns; c++) {
      const is = sets[r * columns + c] === set ? 1 : 0;
      cells += is, middleRow += is * r, middleColumn += is * c;
      sums[(r + 1) * step + c + 1] = is + sums[r * step + c + 1] + sums[(r + 1) * step + c] - sums[r * step + c];
    }
  for (const margin of [4, 2, 1, 0]) {
    let best = null;
    for (let row = margin; row + high + margin <= rows; row++)
      for (let column = margin; column + wide + margin <= columns; column++) {
        const [r1, r2, c1, c2] = [row - margin, row + high + margin, column - margin, column + wide + margin];
        const full = sums[r2 * step + c2] - sums[r1 * step + c2] - sums[r2 * step + c1] + sums[r1 * step + c1];
        if (full < (r2 - r1) * (c2 - c1)) continue;
        const far = Math.hypot(column + wide / 2 - middleColumn / cells, row + high / 2 - middleRow / cells);
        if (!best || far < best.far) best = { far, row, column };
      }
    if (best) return best;
  }
  return null;
}

// A dot per token on its stem from the diagonal, where it began: its left half is hollow where the
// first mask silences it, its right half where the second does.
function drawDots(svg, tokens, { x, y, top, bottom }, view) {
  const dots = tokens.map((token) => ({ token, x: x(logit(token.mu)), y: y(logit(token.pi)) }));
  const chosen = dots.find(({ token }) => token.name === view.token.name);
  if (chosen) put(svg, "line", { class: "cut", x1: chosen.x, x2: chosen.x, y1: top, y2: bottom });
  for (const dot of dots)
    put(svg, "line", { class: "stem", x1: dot.x, x2: dot.x, y1: y(logit(dot.token.mu)), y2: dot.y });
  const labels = view.moving ? view.labels : nameDots(svg, dots);
  view.labels = { ...view.labels, ...labels };
  for (const dot of dots) {
    const { token } = dot;
    const group = put(svg, "g", { class: "dot", "data-token": token.name, onclick: () => view.choose({ token: token.name }) });
    put(group, "circle", { cx: dot.x, cy: dot.y, r: 11, fill: "transparent" });
    put(group, "circle", { cx: dot.x, cy: dot.y, r: RADIUS + 1.4, fill: "var(--paper)" });
    put(group, "circle", { cx: dot.x, cy: dot.y, r: RADIUS, fill: "var(--ink)" });
    const r = RADIUS - 1.3;
    const hollow = { fill: "var(--paper)", class: "hollow" };
    if (token.silent.every(Boolean)) put(group, "circle", { ...hollow, cx: dot.x, cy: dot.y, r });
    else token.silent.forEach((silent, which) => {
      const half = `M${dot.x} ${dot.y - r}A${r} ${r} 0 0 ${which} ${dot.x} ${dot.y + r}Z`;
      if (silent) put(group, "path", { ...hollow, d: half });
    });
    if (dot === chosen) put(group, "circle", { class: "ring", cx: dot.x, cy: dot.y, r: RADIUS + 4 });
    const [dx, dy, anchor] = labels[token.name] ?? LABELS[0];
    put(group, "text", { class: "name", x: dot.x + dx, y: dot.y + dy, "text-anchor": anchor }, token.name);
  }
}

const LABELS = [
  [9, 4, "start"], [-9, 4, "end"], [0, -10, "middle"], [0, 19, "middle"],
  [8, -7, "start"], [-8, 16, "end"], [8, 16, "start"], [-8, -7, "end"],
];

// For each dot the place of its name inside the drawing that covers the fewest other names and dots.
function nameDots(svg, dots) {
  const { width, height } = svg.viewBox.baseVal;
  const long = Math.max(...dots.map(({ token }) => sizeOf(svg, token.name, { class: "name" }).width));
  const leaves = ([left, top, right, bottom]) => left < 0 || top < 0 || right > width || bottom > height;
  const taken = [];
  const boxes = dots.map(({ x, y }) => [x - 9, y - 9, x + 9, y + 9]);
  const overlaps = (p) => (q) => p[0] < q[2] && q[0] < p[2] && p[1] < q[3] && q[1] < p[3];
  return Object.fromEntries(dots.map(({ token, x, y }, index) => {
    const boxOf = ([dx, dy, anchor]) => {
      const from = x + dx - { start: 0, middle: long / 2, end: long }[anchor];
      return [from, y + dy - 10, from + long, y + dy + 1];
    };
    const others = boxes.filter((_, other) => other !== index);
    const cost = (label) => {
      const [box, count] = [boxOf(label), (boxes) => boxes.filter(overlaps(boxOf(label))).length];
      return 100 * leaves(box) + 2 * count(taken) + count(others);
    };
    const best = LABELS.reduce((a, b) => (cost(b) < cost(a) ? b : a));
    taken.push(boxOf(best));
    return [token.name, best];
  }));
}

// In the corner of the plane the numbers under the pointer, or who has no wall in it. Numbers that
// need the room of the title get it.
function readUnderPointer(svg, sign, width, title, { left, right, top, bottom }, view) {
  const judge = view.compared.find((mask) => mask.ratio === "sequence");
  const said = judge ? `${judge.label} has no wall here` : "";
  const text = put(svg, "text", { class: "readout", x: right, y: 15, "text-anchor": "end", lengthAdjust: "spacingAndGlyphs" });
  const walls = view.compared.filter((mask) => mask.ratio !== "sequence");
  const say = (words) => {
    text.removeAttribute("textLength");
    text.textContent = words;
    const room = right - left - title.getComputedTextLength() - 8, wide = text.getComputedTextLength() > room;
    title.setAttribute("visibility", wide && words !== said ? "hidden" : "visible");
    if (wide && words === said) text.setAttribute("textLength", room);
    else keepInside(svg, [text]);
  };
  say(said);
  svg.onpointerleave = () => say(said);
  svg.onpointermove = (event) => {
    const box = svg.getBoundingClientRect();
    const across = (((event.clientX - box.left) * width) / box.width - left) / (right - left);
    const up = (bottom - ((event.clientY - box.top) * width) / box.width) / (bottom - top);
    const outside = Math.min(across, up) < 0 || Math.max(across, up) > 1;
    const [mu, pi] = [across, up].map((part) => sigmoid(LOW + part * (HIGH - LOW)));
    const weights = walls.map((mask) => `${mask.label} ${short(regionAt(mask.region, mu, pi, sign).weight)}`);
    say(outside ? said : `${short(mu)} → ${short(pi)}, ρ ${short(pi / mu)}; w: ${weights.join(", ")}`);
  };
}

function describePlane(sign, tokens, view) {
  const parts = view.compared.map((mask, which) => {
    const names = tokens.filter((token) => token.silent[which]).map((token) => token.name);
    return `${mask.label} silences ${names.join(", ") || "none"}`;
  });
  const of = sign > 0 ? "positive" : "negative";
  return `Probability when sampled against probability now, tokens of ${of} advantage. ${parts.join("; ")}.`;
}
