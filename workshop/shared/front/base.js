// A figure that moves in the page. FIGURES[name] has `controls(data)`, the `drawings` that it needs,
// `draw(view)`, and `build(lab, view)` where it has parts of its own. mountFigure(host, name, state,
// changed) draws into a shadow root of `host`, calls `changed` with the values a reader leaves, and
// returns `set` for values from elsewhere, and `remove`.

const FIGURES = {};
const GOOD = "#0072B2", BAD = "#D55E00", GREY = "#6b6b6b", INK = "var(--ink)";
const SCALES = { linear: (x) => x, log: Math.log, logit: (p) => Math.log(p) - Math.log1p(-p) };

function mountFigure(host, name, given, changed = () => {}) {
  const figure = FIGURES[name], root = host.attachShadow({ mode: "open" });
  const view = { values: { ...given.values }, data: given.data, colour, choose, say };
  put(root, "style", {}, STYLE);
  const lab = put(root, "div", { class: "lab", role: "group", "aria-label": figure.title, "data-lm-suppress-shortcuts": "true" });
  lab.addEventListener("keydown", (event) => event.stopPropagation()); // Jupyter would take the keys
  const controls = put(lab, "div", { class: "controls" });
  const set = figure.controls(view.data).map(makeControl);
  const start = structuredClone(given.values);
  put(controls, "button", { type: "button", onclick: () => choose(structuredClone(start)) }, "reset");
  const headline = put(lab, "h3", { "aria-live": "polite" });
  figure.build?.(lab, view);
  const drawings = put(lab, "div", { class: "drawings" });
  view.svgs = Array.from({ length: figure.drawings }, () => put(put(drawings, "div"), "svg", { role: "img" }));
  if (given.hint) put(lab, "p", { class: "hint" }, put(null, "i", {}, `Try: ${given.hint}`));

  function makeControl({ name, label, options, show = short, ...range }) {
    const line = put(controls, "label", {}, put(null, "span", {}, label));
    const move = (event) => choose({ [name]: options ? control.value : Number(control.value) }, event.type === "change");
    const control = options
      ? put(line, "select", { name, onchange: move })
      : put(line, "input", { type: "range", name, ...range, oninput: move, onchange: move });
    for (const [value, text] of Object.entries(options ?? {})) put(control, "option", { value }, text);
    const output = options ? null : put(line, "output");
    return () => {
      const value = view.values[name];
      if (String(value) !== control.value && !(Math.abs(value - control.value) < 1e-9)) control.value = value;
      if (options) return;
      output.textContent = show(value);
      control.setAttribute("aria-valuetext", show(value));
      showPart(control);
    };
  }

  function choose(values, left = true) {
    Object.assign(view.values, values);
    draw();
    if (left) changed({ ...view.values });
  }

  function colour(hex, wanted = 3) {
    return hex.startsWith("#") ? contrasting(hex, view.paper, wanted) : hex;
  }

  function say(text) {
    if (headline.textContent !== text) headline.textContent = text;
  }

  function draw() {
    for (const show of set) show();
    for (const [tone, hex] of [["good", GOOD], ["bad", BAD]]) {
      lab.style.setProperty(`--${tone}`, colour(hex));
      lab.style.setProperty(`--${tone}-text`, colour(hex, 4.5));
    }
    figure.draw(view);
    view.svgs.forEach((svg) => keepInside(svg));
  }

  const remove = followPage(host, lab, view, draw);
  return {
    set(values) {
      Object.assign(view.values, values);
      draw();
    },
    remove,
  };
}

// Axes in an SVG: `x` and `y` have from, to, a scale, ticks (value, or [value, text]), a label. What it
// returns places and draws by values of the axes; names of lines stand at their right ends.
function chart(svg, view, { x, y, title = "", height = 240, names = [] }) {
  const width = widthOf(svg, 250), texts = (axis) => axis.ticks.map((tick) => (Array.isArray(tick) ? tick : [tick, short(tick)]));
  blank(svg, width, height);
  svg.setAttribute("aria-label", [title, ...names].join("; ") || `${y.label} against ${x.label}`);
  const widest = (words, attributes) => Math.max(0, ...words.map((word) => sizeOf(svg, word, attributes).width));
  const left = 8 + widest(texts(y).map(([, text]) => text)) + (y.label ? 16 : 0);
  const box = { left, right: width - 6 - (names.length ? widest(names, { class: "end" }) + 6 : 4), top: title ? 26 : 8, bottom: height - (x.label ? 34 : 20) };
  const placed = ({ from, to, scale = "linear" }, low, high) => {
    const of = SCALES[scale], [a, b] = [of(from), of(to)];
    return (value) => low + ((of(value) - a) / (b - a)) * (high - low);
  };
  const across = placed(x, box.left, box.right), up = placed(y, box.bottom, box.top);
  const frame = { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top };
  const id = `in-${Math.random().toString(36).slice(2)}`;
  put(put(put(svg, "defs"), "clipPath", { id }), "rect", frame);
  for (const [value, text] of texts(x)) {
    put(svg, "line", { class: "grid", x1: across(value), x2: across(value), y1: box.top, y2: box.bottom });
    put(svg, "text", { x: across(value), y: box.bottom + 14, "text-anchor": "middle" }, text);
  }
  for (const [value, text] of texts(y)) {
    put(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: up(value), y2: up(value) });
    put(svg, "text", { x: box.left - 5, y: up(value) + 4, "text-anchor": "end" }, text);
  }
  put(svg, "rect", { ...frame, class: "frame" });
  if (title) put(svg, "text", { class: "title", x: box.left, y: 15 }, title);
  if (x.label) put(svg, "text", { x: box.right, y: box.bottom + 29, "text-anchor": "end" }, `${x.label} →`);
  if (y.label) put(svg, "text", { transform: `translate(11 ${box.top}) rotate(-90)`, "text-anchor": "end" }, `${y.label} →`);
  const inside = put(svg, "g", { "clip-path": `url(#${id})` });
  const plot = {
    box, x: across, y: up,
    // A line through [x, y], broken where y is not a number.
    line(points, attributes = {}) {
      let d = "", pen = "M";
      for (const [a, b] of points) {
        if (Number.isFinite(b)) d += `${pen}${across(a).toFixed(1)} ${up(b).toFixed(1)}`;
        pen = Number.isFinite(b) ? "L" : "M";
      }
      return put(inside, "path", { class: "curve", d, stroke: INK, "stroke-width": 2, ...attributes });
    },
    dot: (a, b, attributes = {}) => put(svg, "circle", { cx: across(a), cy: up(b), r: 5, fill: INK, stroke: "var(--paper)", "stroke-width": 1.5, ...attributes }),
    text: (a, b, words, attributes = {}) => put(svg, "text", { x: across(a), y: up(b), ...attributes }, words),
    area: (a, b, attributes) => put(inside, "rect", { x: Math.min(across(a), across(b)), width: Math.abs(across(b) - across(a)), y: box.top, height: frame.height, ...attributes }),
    bar: (x0, x1, y0, y1, attributes) => put(inside, "rect", { class: "bar", x: across(x0), width: Math.max(0, across(x1) - across(x0)), y: Math.min(up(y0), up(y1)), height: Math.abs(up(y1) - up(y0)), ...attributes }),
    // Names of lines at their right ends, apart from each other.
    ends(lines) {
      const at = lines.map(({ name, y, colour }) => ({ name, colour, y: Math.min(Math.max(up(y), box.top + 6), box.bottom) + 4 })).sort((a, b) => a.y - b.y);
      for (let turn = 0; turn < 40; turn++)
        at.slice(1).forEach((line, i) => {
          const lack = 13 - (line.y - at[i].y);
          if (lack > 0.1) (at[i].y -= lack / 2), (line.y += lack / 2);
        });
      for (const { name, y, colour } of at) put(svg, "text", { class: "end", x: box.right + 6, y, style: `fill: ${view.colour(colour, 4.5)}` }, name);
    },
  };
  return plot;
}

const between = (from, to, steps, scale = "linear") => {
  const of = SCALES[scale], back = { linear: (z) => z, log: Math.exp, logit: (z) => 1 / (1 + Math.exp(-z)) }[scale];
  return Array.from({ length: steps + 1 }, (_, i) => back(of(from) + ((of(to) - of(from)) * i) / steps));
};
const percent = (share) => `${Math.round(100 * share)} %`;
