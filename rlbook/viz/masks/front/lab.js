// The drawing. mountMaskLab(host, state, changed) draws into a shadow root of `host`, tells
// `changed` of every choice a reader makes, and returns set(choices) for those made elsewhere.

const SVG = "http://www.w3.org/2000/svg";
const LOW = -6.2, HIGH = 4.4;
const TICKS = [0.01, 0.1, 0.5, 0.9];
const BANDS = [["< .1", 0, 0.1], [".1–.5", 0.1, 0.5], [".5–.9", 0.5, 0.9], ["≥ .9", 0.9, 1.01]];
const SECONDS = 6;

function put(parent, tag, attributes = {}, ...children) {
  const svg = parent?.namespaceURI === SVG || tag === "svg";
  const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value);
  node.append(...children);
  parent?.append(node);
  return node;
}

// Colours: METHOD_COLOURS as they are on white, moved towards white until they show on dark.
const parse = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const luminance = (rgb) => {
  const [r, g, b] = rgb.map((c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
function contrasting(hex, paper, wanted) {
  let rgb = parse(hex);
  const back = luminance(paper), target = back > 0.3 ? 0 : 255;
  const contrast = () => {
    const [a, b] = [luminance(rgb), back].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  for (let n = 0; n < 60 && contrast() < wanted; n++) rgb = rgb.map((c) => c + (target - c) * 0.06);
  return `rgb(${rgb.map(Math.round).join(" ")})`;
}
function paperUnder(node) {
  for (let at = node; at; at = at.parentElement ?? at.getRootNode().host) {
    const [r, g, b, alpha = 1] = (getComputedStyle(at).backgroundColor.match(/[\d.]+/g) ?? []).map(Number);
    if (b !== undefined && alpha > 0.5) return [r, g, b];
  }
  return [255, 255, 255];
}

// What each kind of region lets a reader change: [label, settings, low, high, step, log].
function controlsOf(mask) {
  const { region } = mask;
  if (region.type === "WeightClip") return [["cap", ["max"], 1, 10, 0.1]];
  if (region.type === "DivergenceMask")
    return region.kind === "tv" ? [["δ", ["low", "high"], 0, 0.5, 0.01]] : [["δ", ["low", "high"], 0, 0.3, 0.005]];
  if (region.type !== "RatioClip") return [];
  if (mask.ratio === "sequence")
    return [["ε low", ["low"], -4, -0.3, 0.01, true], ["ε high", ["high"], -4, -0.3, 0.01, true]];
  const edges = [["ε low", ["low"], 0, 0.6, 0.01], ["ε high", ["high"], 0, 1, 0.01]];
  return region.dual === null ? edges : [...edges, ["c", ["dual"], 1.1, 10, 0.1]];
}
const RULES = {
  NoTrustRegion: "every token keeps w = ρ",
  WeightClip: "caps w, silences no token",
  RatioClip: "silences ρ outside its window",
  sequence: "silences answers: s outside its window",
  DivergenceMask: "silences D > δ, moving away",
};

function mountMaskLab(host, given, changed = () => {}) {
  const state = structuredClone(given);
  const root = host.attachShadow({ mode: "open" });
  put(root, "style", {}, STYLE);
  const lab = put(root, "div", { class: "lab", role: "group", "aria-label": "Mask lab" });
  // Jupyter would take the keys for itself.
  lab.addEventListener("keydown", (event) => event.stopPropagation());
  lab.setAttribute("data-lm-suppress-shortcuts", "true");

  const sides = ["left", "right"];
  const maskOf = (side) => state.masks.find((m) => m.key === state[side]);
  let answers, paper = [255, 255, 255];

  // ---- skeleton ----
  const cards = put(lab, "div", { class: "cards" });
  const card = Object.fromEntries(sides.map((side) => {
    const box = put(cards, "div", { class: "card" });
    const select = put(box, "select", {
      "aria-label": side === "left" ? "first mask" : "second mask",
      onchange: () => choose({ [side]: select.value }),
    });
    for (const mask of state.masks) put(select, "option", { value: mask.key }, mask.label);
    const rule = put(box, "span", { class: "rule" });
    return [side, { box, select, rule, settings: put(box, "div", { class: "settings" }) }];
  }));
  const headline = put(lab, "h3", { "aria-live": "polite" });
  const planes = put(lab, "div", { class: "planes" });
  const plane = [1, -1].map((sign) => ({ sign, svg: put(planes, "svg", { role: "img" }) }));
  const middle = put(lab, "div", { class: "row" });
  const player = put(middle, "div", { class: "player" });
  put(player, "span");
  const steps = put(player, "svg", { role: "img", height: 40 });
  const play = put(player, "button", { type: "button", onclick: () => (running ? stop() : start()) });
  const slider = put(player, "input", {
    type: "range", min: 0, max: state.updates, step: 1, "aria-label": "updates since the tokens were sampled",
    oninput: () => { stop(); choose({ update: Number(slider.value) }); },
  });
  const tally = put(put(middle, "div"), "table");
  const strip = put(lab, "div", { class: "strip", role: "radiogroup", "aria-label": "tokens of the answers" });
  const details = put(lab, "div", { class: "row details" });
  const left = put(details, "div");
  const facts = put(left, "p", { class: "facts", "aria-live": "polite" });
  const table = put(left, "table");
  const slice = put(put(details, "div"), "svg", { role: "img" });

  const chips = {};
  const needles = {};
  for (const answer of state.answers) {
    const line = put(strip, "div", { class: "answer" });
    put(line, "span", { class: "who" }, put(null, "b", {}, answer.name), " " + answer.title);
    const tokens = put(line, "div", { class: "tokens" });
    answer.tokens.forEach((token, position) => {
      const name = answer.name + (position + 1);
      chips[name] = put(tokens, "span", {
        class: "token", role: "radio", "data-token": name,
        onclick: () => choose({ token: name }), onkeydown: (event) => walk(event, name),
      }, token.text);
      put(chips[name], "i"), put(chips[name], "i");
    });
    needles[answer.name] = put(line, "svg", { role: "img", height: 30 });
  }

  // ---- choices ----
  function choose(choices) {
    Object.assign(state, choices);
    changed(choices);
    draw();
  }
  function walk(event, name) {
    const row = state.answers.findIndex((a) => name.startsWith(a.name));
    const at = Number(name.slice(state.answers[row].name.length)) - 1;
    const goTo = (r, t) => {
      const answer = state.answers[(r + state.answers.length) % state.answers.length];
      const token = answer.name + (Math.min(Math.max(t, 0), answer.tokens.length - 1) + 1);
      choose({ token });
      chips[token].focus();
    };
    const last = state.answers[row].tokens.length - 1;
    const moves = {
      ArrowRight: () => (at < last ? goTo(row, at + 1) : goTo(row + 1, 0)),
      ArrowLeft: () => (at > 0 ? goTo(row, at - 1) : goTo(row - 1, 1e9)),
      ArrowDown: () => goTo(row + 1, at), ArrowUp: () => goTo(row - 1, at),
      Home: () => goTo(row, 0), End: () => goTo(row, last),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  }
  let running = null;
  function start() {
    const from = state.update >= state.updates ? 0 : state.update;
    const began = performance.now() - (from / state.updates) * SECONDS * 1000;
    const frame = (now) => {
      state.update = Math.min(((now - began) / (SECONDS * 1000)) * state.updates, state.updates);
      draw();
      if (state.update < state.updates && host.isConnected) running = requestAnimationFrame(frame);
      else stop();
    };
    running = requestAnimationFrame(frame);
    draw();
  }
  function stop() {
    if (running === null) return;
    cancelAnimationFrame(running);
    running = null;
    choose({ update: Math.round(state.update) });
  }

  // ---- drawing ----
  const colour = (mask, wanted = 3) => contrasting(mask.colour, paper, wanted);

  function draw() {
    answers = answersAt(state.answers, state.updates, state.update);
    const tokens = answers.flatMap((a) => a.tokens.map((t, i) => ({ ...t, name: a.name + (i + 1) })));
    const [a, b] = sides.map(maskOf);
    for (const token of tokens) token.silent = [a, b].map((mask) => !applyMask(mask, token).keep);
    sides.forEach(drawCard);
    drawHeadline(tokens, a, b);
    for (const { sign, svg } of plane) drawPlane(svg, sign, tokens, [a, b]);
    drawPlayer([a, b]);
    drawTally(tokens, [a, b]);
    drawStrip(tokens, [a, b]);
    drawToken(tokens.find((t) => t.name === state.token), [a, b]);
  }

  function drawCard(side) {
    const mask = maskOf(side), { box, select, rule, settings } = card[side];
    box.style.setProperty("--colour", colour(mask));
    box.style.setProperty("--text", colour(mask, 4.5));
    select.value = mask.key;
    rule.textContent = RULES[mask.ratio === "sequence" ? "sequence" : mask.region.type];
    if (settings.dataset.mask !== mask.key) {
      settings.dataset.mask = mask.key;
      settings.replaceChildren();
      for (const [label, names, low, high, step, log] of controlsOf(mask)) {
        const line = put(settings, "label", {}, label);
        const input = put(line, "input", {
          type: "range", min: low, max: high, step, "data-setting": names[0],
          oninput: () => {
            const value = log ? 10 ** Number(input.value) : Number(input.value);
            for (const name of names) maskOf(side).region[name] = value;
            draw();
          },
          onchange: () => changed({ masks: structuredClone(state.masks) }),
        });
        put(line, "span", { class: "num" });
      }
    }
    controlsOf(mask).forEach(([label, names, , , , log], index) => {
      const line = settings.children[index], value = mask.region[names[0]];
      const input = line.querySelector("input");
      if (root.activeElement !== input || !log) input.value = log ? Math.log10(value) : value;
      line.lastChild.textContent = short(value);
      input.setAttribute("aria-label", `${label} of ${mask.label}`);
      input.setAttribute("aria-valuetext", short(value));
    });
  }

  function drawHeadline(tokens, a, b) {
    const names = (test) => tokens.filter((t) => test(...t.silent)).map((t) => t.name);
    const count = (mask, list) => {
      const n = list.length;
      return `${mask.label} silences ${n ? n : "none"} of ${tokens.length} tokens`;
    };
    const [byA, byB, both] = [names((x) => x), names((_, y) => y), names((x, y) => x && y)];
    let text = count(a, byA);
    if (a !== b) {
      text += `, ${b.label} ${byB.length || "none"}`;
      if (byA.length && byB.length) text += both.length ? `; both of them ${both.join(", ")}` : "; never the same";
    }
    headline.textContent = text;
  }

  function drawPlane(svg, sign, tokens, masks) {
    const width = Math.max(svg.clientWidth || 420, 260), height = Math.round(Math.min(width * 0.74, 330));
    const [x0, y0, x1, y1] = [38, 24, width - 4, height - 34];
    const px = (z) => x0 + ((z - LOW) / (HIGH - LOW)) * (x1 - x0);
    const py = (z) => y1 - ((z - LOW) / (HIGH - LOW)) * (y1 - y0);
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    const id = sign > 0 ? "up" : "down", defs = put(svg, "defs");
    const clip = put(defs, "clipPath", { id: `clip-${id}` });
    put(clip, "rect", { x: x0, y: y0, width: x1 - x0, height: y1 - y0 });
    const inside = put(svg, "g", { "clip-path": `url(#clip-${id})` });
    masks.forEach((mask, which) => {
      if (mask.ratio === "sequence" || (which && mask === masks[0])) return;
      const hatch = `hatch-${id}-${which}`, stroke = colour(mask);
      const pattern = put(defs, "pattern", {
        id: hatch, width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${which ? -45 : 45})`,
      });
      put(pattern, "rect", { width: 8, height: 8, fill: stroke, "fill-opacity": 0.13 });
      put(pattern, "line", { x1: 0, y1: 0, x2: 0, y2: 8, stroke, "stroke-width": 2.2, "stroke-opacity": 0.75 });
      const { area, walls } = maskShape(mask.region, sign, px, py);
      put(inside, "path", { d: area, fill: `url(#${hatch})`, "data-mask": mask.key });
      put(inside, "path", { d: walls, fill: "none", stroke, "stroke-width": 2.2, "stroke-linejoin": "round" });
      if (mask.region.type === "WeightClip") drawCap(inside, mask, stroke, px, py, x0, y0);
    });
    put(inside, "line", { x1: px(LOW), y1: py(LOW), x2: px(HIGH), y2: py(HIGH), stroke: "var(--muted)", "stroke-dasharray": "2 3" });
    put(svg, "rect", { class: "frame", x: x0, y: y0, width: x1 - x0, height: y1 - y0 });
    for (const tick of TICKS) {
      const text = short(tick).replace("0.", ".");
      put(svg, "text", { x: px(logit(tick)), y: y1 + 14, "text-anchor": "middle", class: "tick" }, text);
      put(svg, "text", { x: x0 - 5, y: py(logit(tick)) + 4, "text-anchor": "end", class: "tick" }, text);
    }
    put(svg, "text", { x: x1, y: y1 + 29, "text-anchor": "end" }, "π when sampled →");
    put(svg, "text", { transform: `translate(10 ${y0}) rotate(-90)`, "text-anchor": "end" }, "π now →");
    put(svg, "text", { class: "title", x: x0, y: 15 }, sign > 0 ? "Good tokens, Â > 0" : "Bad tokens, Â < 0");
    const readout = put(svg, "text", { x: x1, y: 15, "text-anchor": "end", class: "readout" });
    const shown = tokens.filter((t) => t.advantage * sign > 0);
    labelAreas(svg, sign, masks, shown, { x0, y0, x1, y1, px, py });
    drawDots(svg, shown, px, py, y0, y1);
    svg.setAttribute("aria-label", describePlane(sign, shown, masks));
    svg.onpointermove = (event) => {
      const box = svg.getBoundingClientRect(), scale = width / box.width;
      const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
      if (x < x0 || x > x1 || y < y0 || y > y1) return void (readout.textContent = "");
      const mu = sigmoid(LOW + ((x - x0) / (x1 - x0)) * (HIGH - LOW));
      const pi = sigmoid(LOW + ((y1 - y) / (y1 - y0)) * (HIGH - LOW));
      const here = masks.filter((m) => m.ratio !== "sequence").map((mask) => {
        const { weight } = applyRegion(mask.region, { mu, pi, ratio: pi / mu, advantage: sign });
        return `${mask.label} ${short(weight)}`;
      });
      readout.textContent = `${short(mu)} → ${short(pi)}: w ${[...new Set(here)].join(", ")}`;
    };
    svg.onpointerleave = () => (readout.textContent = "");
  }

  function maskShape(region, sign, px, py, columns = 110) {
    const at = (i) => LOW + ((HIGH - LOW) * i) / columns;
    const runs = [];
    for (let i = 0; i <= columns; i++) runs.push(maskedRuns(region, sigmoid(at(i)), sign, LOW, HIGH));
    let area = "", walls = "";
    for (let i = 0; i <= columns; ) {
      let end = i;
      while (end < columns && runs[end + 1].length === runs[i].length) end++;
      const xs = [at(Math.max(i - 0.5, 0))], from = i;
      for (let k = i; k <= end; k++) xs.push(at(k));
      xs.push(at(Math.min(end + 0.5, columns)));
      for (let r = 0; r < runs[from].length; r++) {
        const edge = (side) => xs.map((x, k) => [x, runs[Math.min(Math.max(from + k - 1, from), end)][r][side]]);
        const [floor, roof] = [edge(0), edge(1)];
        const path = (points) => points.map(([x, y]) => `${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("L");
        area += `M${path(floor)}L${path(roof.reverse())}Z`;
        for (const line of [floor, roof])
          if (line.some(([, y]) => y > LOW + 1e-6 && y < HIGH - 1e-6)) walls += `M${path(line)}`;
      }
      i = end + 1;
    }
    return { area, walls };
  }

  function drawCap(inside, mask, stroke, px, py, x0, y0) {
    const points = [];
    for (let z = LOW; z < HIGH; z += 0.1) {
      const pi = sigmoid(z) * mask.region.max;
      if (pi < 0.9999) points.push(`${px(z).toFixed(1)} ${py(logit(pi)).toFixed(1)}`);
    }
    put(inside, "path", { d: "M" + points.join("L"), fill: "none", stroke, "stroke-width": 2.2, "stroke-dasharray": "7 4" });
    put(inside, "text", { x: x0 + 8, y: y0 + 18, class: "halo", style: `fill: ${colour(mask, 4.5)}; font-weight: 600` },
      `${mask.label}: w stays ${short(mask.region.max)}`);
  }

  // Name each area where it is widest, away from the tokens.
  function labelAreas(svg, sign, masks, tokens, { x0, y0, x1, y1, px, py }) {
    const [a, b] = masks;
    const walls = masks.filter((m, i) => m.ratio !== "sequence" && (!i || m !== a));
    for (const mask of masks.filter((m) => m.ratio === "sequence").slice(0, 1))
      put(svg, "text", { x: x1 - 6, y: y1 - 8, "text-anchor": "end", class: "halo", style: `fill: ${colour(mask, 4.5)}` },
        `${mask.label} has no wall here: it silences whole answers`);
    const size = 5, columns = Math.floor((x1 - x0) / size), rows = Math.floor((y1 - y0) / size);
    const code = [];
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < columns; c++) {
        const mu = sigmoid(LOW + ((c + 0.5) / columns) * (HIGH - LOW));
        const pi = sigmoid(HIGH - ((r + 0.5) / rows) * (HIGH - LOW));
        const what = { mu, pi, ratio: pi / mu, advantage: sign };
        let set = 0;
        for (const mask of walls) if (!applyRegion(mask.region, what).keep) set += mask === a ? 1 : 2;
        code.push(set);
      }
    for (const token of tokens) {
      const [x, y] = [(px(logit(token.mu)) - x0) / size, (py(logit(token.pi)) - y0) / size];
      for (let r = Math.max(0, Math.floor(y - 2)); r < Math.min(rows, y + 3); r++)
        for (let c = Math.max(0, Math.floor(x - 5)); c < Math.min(columns, x + 6); c++) code[r * columns + c] = -1;
    }
    const texts = { 1: `only ${a.label}`, 2: `only ${b.label}`, 3: "both" };
    if (walls.length === 1) texts[1] = texts[2] = `${walls[0].label} silences`;
    for (const set of [1, 2, 3]) {
      const sums = new Int32Array((rows + 1) * (columns + 1));
      let [n, cx, cy] = [0, 0, 0];
      for (let r = 0; r < rows; r++)
        for (let c = 0; c < columns; c++) {
          const is = code[r * columns + c] === set ? 1 : 0;
          n += is, cx += is * c, cy += is * r;
          sums[(r + 1) * (columns + 1) + c + 1] =
            is + sums[r * (columns + 1) + c + 1] + sums[(r + 1) * (columns + 1) + c] - sums[r * (columns + 1) + c];
        }
      const w = Math.ceil((texts[set].length * 6.6) / size), h = 3;
      let best = null;
      for (const margin of [4, 2, 1, 0]) {
        for (let r = margin; r + h + margin <= rows; r++)
          for (let c = margin; c + w + margin <= columns; c++) {
            const [r1, r2, c1, c2] = [r - margin, r + h + margin, c - margin, c + w + margin];
            const row = columns + 1;
            const full = sums[r2 * row + c2] - sums[r1 * row + c2] - sums[r2 * row + c1] + sums[r1 * row + c1];
            if (full < (r2 - r1) * (c2 - c1)) continue;
            const far = Math.hypot(c + w / 2 - cx / n, r + h / 2 - cy / n);
            if (!best || far < best.far) best = { far, c, r };
          }
        if (best) break;
      }
      if (!best) continue;
      const fill = set === 3 ? "var(--ink)" : colour(set === 1 ? a : b, 4.5);
      put(svg, "text", {
        x: x0 + (best.c + w / 2) * size, y: y0 + (best.r + h / 2) * size + 4, "text-anchor": "middle", class: "halo",
        style: `fill: ${fill}; font-weight: 600; font-size: 12px`, "data-area": set,
      }, texts[set]);
    }
  }

  function drawDots(svg, tokens, px, py, y0, y1) {
    const chosen = tokens.find((t) => t.name === state.token);
    if (chosen) {
      const x = px(logit(chosen.mu));
      put(svg, "line", { class: "guide", x1: x, x2: x, y1: y0, y2: y1 });
    }
    const taken = [];
    for (const token of tokens) {
      const [x, y] = [px(logit(token.mu)), py(logit(token.pi))];
      put(svg, "line", { x1: x, x2: x, y1: py(logit(token.mu)), y2: y, stroke: "var(--ink)", "stroke-opacity": 0.45 });
    }
    for (const token of tokens) {
      const [x, y] = [px(logit(token.mu)), py(logit(token.pi))];
      const dot = put(svg, "g", { class: "dot", "data-dot": token.name, onclick: () => choose({ token: token.name }) });
      put(dot, "circle", { cx: x, cy: y, r: 11, fill: "transparent" });
      put(dot, "circle", { cx: x, cy: y, r: 4.6, fill: "var(--ink)", stroke: "var(--paper)", "stroke-width": 3.4, "paint-order": "stroke" });
      const half = (side) => `M${x} ${y - 3.3}A3.3 3.3 0 0 ${side} ${x} ${y + 3.3}Z`;
      token.silent.forEach((silent, which) => silent && put(dot, "path", { d: half(which), fill: "var(--paper)" }));
      if (token === chosen) put(dot, "circle", { class: "ring", cx: x, cy: y, r: 9 });
      const places = [[9, 4, "start"], [-9, 4, "end"], [0, -10, "middle"], [0, 18, "middle"], [9, -7, "start"], [-9, 15, "end"], [9, 15, "start"], [-9, -7, "end"]];
      const box = ([dx, dy, anchor]) => {
        const from = x + dx - (anchor === "end" ? 16 : anchor === "middle" ? 8 : 0);
        return [from, y + dy - 10, from + 16, y + dy + 1];
      };
      const dots = tokens.map((t) => [px(logit(t.mu)) - 5, py(logit(t.pi)) - 5, px(logit(t.mu)) + 5, py(logit(t.pi)) + 5]);
      const hits = (p) => [...taken, ...dots].filter((o) => overlap(box(p), o)).length;
      const place = places.reduce((best, p) => (hits(p) < hits(best) ? p : best));
      taken.push(box(place));
      put(dot, "text", { class: "name halo", x: x + place[0], y: y + place[1], "text-anchor": place[2] }, token.name);
    }
  }
  const overlap = (p, q) => p[0] < q[2] && q[0] < p[2] && p[1] < q[3] && q[1] < p[3];

  function describePlane(sign, tokens, masks) {
    const parts = masks.map((mask, which) => {
      const names = tokens.filter((t) => t.silent[which]).map((t) => t.name);
      return `${mask.label} silences ${names.join(", ") || "none"}`;
    });
    return `Probability when sampled against probability now, tokens with ${sign > 0 ? "positive" : "negative"} advantage. ${parts.join("; ")}.`;
  }

  function drawPlayer(masks) {
    play.textContent = running ? "❚❚ pause" : "▶ play";
    play.setAttribute("aria-label", running ? "pause" : "play the updates");
    slider.value = Math.round(state.update);
    slider.setAttribute("aria-valuetext", `update ${slider.value} of ${state.updates}`);
    const width = Math.max(steps.clientWidth || 240, 160), height = 40, base = 34, inset = 8;
    steps.replaceChildren();
    steps.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const total = state.answers.reduce((n, a) => n + a.tokens.length, 0);
    const x = (u) => inset + (u / state.updates) * (width - 2 * inset);
    const counts = masks.map(() => []);
    for (let u = 0; u <= state.updates; u++) {
      const all = answersAt(state.answers, state.updates, u).flatMap((a) => a.tokens);
      masks.forEach((mask, which) => counts[which].push(all.filter((t) => !applyMask(mask, t).keep).length));
    }
    const most = Math.max(4, ...counts.flat()), y = (n) => base - (n / most) * 20;
    put(steps, "text", { x: inset, y: 11 }, `silenced after ${Math.round(state.update)} of ${state.updates} updates`);
    put(steps, "line", { x1: inset, x2: width - inset, y1: base, y2: base, stroke: "var(--faint)" });
    masks.forEach((mask, which) => {
      const path = counts[which].map((n, u) => `${x(Math.max(u - 0.5, 0)).toFixed(1)} ${y(n)}H${x(Math.min(u + 0.5, state.updates)).toFixed(1)}`);
      put(steps, "path", { d: "M" + path.join("V").replace(/V[\d.]+ /g, "V"), fill: "none", stroke: colour(mask), "stroke-width": which ? 2 : 3.5, "stroke-opacity": which ? 1 : 0.6 });
    });
    put(steps, "line", { x1: x(state.update), x2: x(state.update), y1: 14, y2: height, stroke: "var(--focus)", "stroke-width": 1.5 });
    steps.setAttribute("aria-label", `tokens silenced by update: ${masks.map((m, i) => `${m.label} ${counts[i].join(" ")}`).join("; ")}`);
  }

  function drawTally(tokens, masks) {
    const groups = [["all", () => true], ["Â > 0", (t) => t.advantage > 0], ["Â < 0", (t) => t.advantage < 0],
      ...BANDS.map(([name, low, high]) => ["π " + name, (t) => t.mu >= low && t.mu < high])];
    tally.replaceChildren();
    const head = put(put(tally, "thead"), "tr");
    put(head, "th", { scope: "col" }, "silenced by");
    for (const [name] of groups) put(head, "th", { scope: "col" }, name);
    const body = put(tally, "tbody");
    masks.forEach((mask, which) => {
      if (which && mask === masks[0]) return;
      const line = put(body, "tr");
      const chip = put(null, "span", { class: "chip" });
      chip.style.setProperty("--colour", colour(mask));
      put(line, "td", {}, chip, mask.label);
      for (const [, belongs] of groups) {
        const group = tokens.filter(belongs);
        put(line, "td", {}, `${group.filter((t) => t.silent[which]).length}/${group.length}`);
      }
    });
  }

  function drawStrip(tokens, masks) {
    const [a, b] = masks.map((m) => colour(m));
    const hatch = (degrees, stroke) =>
      `repeating-linear-gradient(${degrees}deg, color-mix(in srgb, ${stroke} 55%, transparent) 0 1.5px, color-mix(in srgb, ${stroke} 12%, transparent) 1.5px 6px)`;
    for (const token of tokens) {
      const chip = chips[token.name], chosen = token.name === state.token;
      const layers = token.silent.map((s, which) => s && hatch(which ? 45 : -45, which ? b : a)).filter(Boolean);
      chip.style.backgroundImage = (masks[0] === masks[1] ? layers.slice(0, 1) : layers).join(", ") || "none";
      chip.setAttribute("aria-checked", chosen);
      chip.setAttribute("tabindex", chosen ? 0 : -1);
      const by = masks.filter((_, which) => token.silent[which]).map((m) => m.label);
      chip.setAttribute("aria-label", `${token.name} ${token.text.trim()}: ${by.length ? "silenced by " + [...new Set(by)].join(" and ") : "learns"}`);
      chip.title = `${token.name}: ${by.length ? "silenced by " + [...new Set(by)].join(" and ") : "learns"}`;
      masks.forEach((mask, which) => {
        const bar = chip.querySelectorAll("i")[which];
        const push = Math.abs(applyMask(mask, token).weight * token.advantage);
        bar.style.cssText = `height: ${Math.min(2 * push, 4).toFixed(2)}px; bottom: ${which ? 0.5 : 5}px; background: ${which ? b : a}`;
      });
    }
    const judges = masks.filter((m) => m.ratio === "sequence");
    for (const answer of answers) drawNeedle(needles[answer.name], answer, judges[0]);
  }

  function drawNeedle(svg, answer, judge) {
    const width = 132, x = (s) => 66 + (Math.log(Math.min(Math.max(s, 0.62), 1.6)) / Math.log(1.6)) * 58;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} 30`);
    const mask = judge ?? state.masks.find((m) => m.ratio === "sequence");
    put(svg, "line", { x1: 6, x2: width - 6, y1: 20, y2: 20, stroke: "var(--faint)" });
    let said = `s = ${answer.sequence.toFixed(3)}`, keep = true;
    if (mask) {
      keep = applyMask(mask, { ...answer.tokens[0] }).keep;
      const [from, to] = [x(1 - mask.region.low), x(1 + mask.region.high)];
      put(svg, "rect", { x: from - 0.75, width: to - from + 1.5, y: 14, height: 12, fill: colour(mask), "fill-opacity": judge ? 0.75 : 0.3 });
      if (judge && !keep) said += " silenced";
    }
    const at = x(answer.sequence), fill = judge && !keep ? "var(--paper)" : "var(--ink)";
    put(svg, "circle", { cx: at, cy: 20, r: 4, fill, stroke: "var(--ink)", "stroke-width": 1.4, opacity: judge ? 1 : 0.55 });
    put(svg, "text", { x: width / 2, y: 9, "text-anchor": "middle" }, said);
    svg.setAttribute("aria-label", `ratio of answer ${answer.name}: ${said}`);
  }

  function drawToken(token, masks) {
    facts.replaceChildren();
    const say = (...parts) => facts.append(...parts);
    const value = (name, x) => say(` ${name} `, put(null, "b", { class: "num" }, typeof x === "string" ? x : short(x)));
    say(put(null, "b", {}, token.name), " ", put(null, "code", {}, token.text.trim()), ":");
    value("π sampled", token.mu);
    value("now", token.pi);
    value("ρ", token.ratio);
    value("Â", (token.advantage > 0 ? "+" : "−") + short(Math.abs(token.advantage)));
    value("D TV", divergence("tv", token.mu, token.pi));
    value("KL", divergence("kl", token.mu, token.pi));
    table.replaceChildren();
    const head = put(put(table, "thead"), "tr");
    for (const name of ["mask", "looks at", "keeps", "weight w", "push w·Â"]) put(head, "th", { scope: "col" }, name);
    const body = put(table, "tbody");
    for (const mask of state.masks) {
      const found = verdictOf(mask, token);
      const line = put(body, "tr", { class: masks.includes(mask) ? "chosen" : null, "data-mask": mask.key });
      const chip = put(null, "span", { class: "chip" });
      chip.style.setProperty("--colour", colour(mask));
      put(line, "td", {}, chip, mask.label);
      put(line, "td", {}, `${found.name} ${short(found.value)}`);
      put(line, "td", {}, found.limit || "all");
      put(line, "td", { class: found.keep ? null : "silent" }, found.keep ? short(found.weight) : "0, silenced");
      const push = found.weight * token.advantage;
      put(line, "td", { class: found.keep ? null : "silent" }, push ? (push > 0 ? "+" : "−") + short(Math.abs(push)) : "0");
    }
    drawSlice(token, masks);
  }

  function drawSlice(token, masks) {
    const width = Math.max(slice.clientWidth || 420, 260), height = 236;
    const [x0, y0, x1, y1] = [34, 44, width - 6, height - 32], floor = y1 - 8, lowest = y1 - 26;
    const edge = Math.log(8), top = Math.log(8), bottom = Math.log(1 / 8);
    const x = (r) => x0 + ((Math.log(r) + edge) / (2 * edge)) * (x1 - x0);
    const y = (w) => (w <= 0 ? floor : lowest - ((Math.log(w) - bottom) / (top - bottom)) * (lowest - y0));
    slice.replaceChildren();
    slice.setAttribute("viewBox", `0 0 ${width} ${height}`);
    slice.setAttribute("height", height);
    const sign = Math.sign(token.advantage);
    put(slice, "text", { class: "title", x: 0, y: 13 }, `Weight of ${token.name} against its ratio, at π sampled ${short(token.mu)}`);
    const most = Math.min(1 / token.mu, 8);
    if (most < 8) {
      put(slice, "rect", { x: x(most), y: y0, width: x1 - x(most), height: y1 - y0, fill: "var(--faint)", "fill-opacity": 0.5 });
      if (x1 - x(most) > 46) put(slice, "text", { x: x1 - 4, y: y0 + 14, "text-anchor": "end" }, "π > 1");
    }
    put(slice, "rect", { class: "frame", x: x0, y: y0, width: x1 - x0, height: y1 - y0 });
    for (const [r, text] of [[0.25, "¼"], [0.5, "½"], [1, "1"], [2, "2"], [4, "4"]]) {
      put(slice, "text", { x: x(r), y: y1 + 14, "text-anchor": "middle" }, text);
      put(slice, "text", { x: x0 - 5, y: y(r) + 4, "text-anchor": "end" }, text);
    }
    put(slice, "text", { x: x0 - 5, y: floor + 4, "text-anchor": "end" }, "0");
    put(slice, "text", { x: x1, y: y1 + 28, "text-anchor": "end" }, "ratio ρ →");
    put(slice, "line", { x1: x(1), x2: x(1), y1: y0, y2: y1, stroke: "var(--faint)" });
    const count = answers.find((a) => a.name === token.answer).tokens.length;
    let at = 0;
    const said = [];
    masks.forEach((mask, which) => {
      if (which && mask === masks[0]) return;
      const stroke = colour(mask), points = [];
      const look = (r) => applyMask(mask, { ...token, ratio: r, pi: token.mu * r, sequence: token.sequence * (r / token.ratio) ** (1 / count) });
      let d = "", before = null;
      for (let i = 0; i <= 400; i++) {
        const r = Math.exp(-edge + (2 * edge * i) / 400);
        if (r > most) break;
        const { keep, weight } = look(r);
        d += `${before === keep ? "L" : "M"}${x(r).toFixed(1)} ${y(keep ? weight : 0).toFixed(1)}`;
        if (before !== null && before !== keep) points.push(r);
        before = keep;
      }
      put(slice, "path", { d, fill: "none", stroke, "stroke-width": which ? 2.4 : 5, "stroke-opacity": which ? 1 : 0.5 });
      for (const r of points)
        put(slice, "line", { x1: x(r), x2: x(r), y1: y(look(r).keep ? look(r).weight : look(r * 0.98).weight || 1), y2: floor, stroke, "stroke-width": 1.2, "stroke-dasharray": "2 3" });
      const now = applyMask(mask, token);
      if (token.ratio > 1 / 8 && token.ratio < 8)
        put(slice, "circle", { cx: x(token.ratio), cy: y(now.keep ? now.weight : 0), r: 5, fill: now.keep ? stroke : "var(--paper)", stroke, "stroke-width": 2 });
      const wall = mask.ratio === "sequence" ? null : wallAt(mask.region, token.mu, sign);
      const text = mask.ratio === "sequence" ? `${mask.label}: by s` : wall === null ? `${mask.label}: no wall` : `${mask.label}: wall at ρ = ${short(wall)}`;
      said.push(text);
      const label = put(slice, "text", { x: at, y: 32, style: `fill: ${colour(mask, 4.5)}; font-weight: 600; font-size: 12px` }, text);
      at += (label.getComputedTextLength?.() || text.length * 6.5) + 18;
    });
    slice.setAttribute("aria-label", `Weight against ratio for ${token.name}. ${said.join("; ")}.`);
  }

  // ---- surroundings ----
  function theme() {
    paper = paperUnder(host);
    lab.dataset.theme = luminance(paper) < 0.3 ? "dark" : "light";
    lab.style.setProperty("--paper", `rgb(${paper.join(" ")})`);
    draw();
  }
  const watch = new MutationObserver(theme);
  for (const node of [document.documentElement, document.body])
    watch.observe(node, { attributes: true, attributeFilter: ["class", "style", "data-theme", "data-jp-theme-light", "data-jp-theme-name"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
  let seen = 0;
  const resize = new ResizeObserver(() => {
    if (lab.clientWidth === seen) return;
    seen = lab.clientWidth;
    theme();
  });
  resize.observe(lab);
  theme();
  return {
    set(choices) { Object.assign(state, structuredClone(choices)); draw(); },
    remove() { stop(); watch.disconnect(); resize.disconnect(); },
  };
}
