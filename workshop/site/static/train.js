// "Train it here": two methods train the same small model side by side, in the page.

const STEPS = 80, EVERY = 10;
const RATES = { 0.0001: "low", 0.0003: "medium", 0.001: "high" };
const COLOURS = ["var(--rl-good)", "var(--rl-bad)"];
const SVG = "http://www.w3.org/2000/svg";
const OWN = "own";
const CALM = matchMedia("(prefers-reduced-motion: reduce)");

const here = (path) => new URL(path, import.meta.url).href;
let told; // methods, problems: asked for once

function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

function draw(parent, tag, attributes, text = "") {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  parent.append(node);
  return node;
}

const labelled = (text, control) => make("label", {}, make("span", { textContent: text }), control);
const options = (choices) => Object.entries(choices).map(([value, text]) => make("option", { value, textContent: text }));
const percent = (share) => (share === undefined ? "–" : `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`);

// One method: what it is, its worker, what its run has told.
class Column {
  constructor(data, row, number, changed) {
    Object.assign(this, { data, number });
    const labels = Object.fromEntries(Object.entries(data.rows).map(([key, { label }]) => [key, label]));
    const masks = Object.fromEntries(Object.entries(data.masks).map(([key, { label }]) => [key, label]));
    this.row = make("select", {}, ...options({ ...labels, [OWN]: "my own" }));
    this.parts = {
      advantage: make("select", {}, ...options(data.advantages)),
      mask: make("select", {}, ...options(masks)),
      aggregation: make("select", {}, ...options(data.aggregations)),
    };
    this.row.addEventListener("change", () => (this.take(this.row.value), changed()));
    for (const part of Object.values(this.parts)) part.addEventListener("change", () => ((this.row.value = OWN), changed()));
    this.facts = make("dl", { className: "facts" });
    this.answers = make("ol", { className: "answers" });
    const own = make("details", {}, make("summary", { textContent: "Make it your own" }), labelled("advantage", this.parts.advantage), labelled("mask", this.parts.mask), labelled("mean", this.parts.aggregation));
    const head = make("div", { className: "head" }, labelled(number ? "second method" : "first method", this.row), own);
    this.box = make("section", { ariaLabel: number ? "second method" : "first method" }, head, this.facts, this.answers);
    this.box.style.setProperty("--line", COLOURS[number]);
    this.take(row);
    this.clear();
  }

  take(row) {
    this.row.value = row;
    for (const [name, select] of Object.entries(this.parts)) if (row !== OWN) select.value = this.data.rows[row][name];
  }

  get method() {
    const [advantage, mask, aggregation] = ["advantage", "mask", "aggregation"].map((name) => this.parts[name].value);
    const { ratio, region } = this.data.masks[mask], rewards = this.data.rows[this.row.value]?.rewards ?? [0, 1];
    return { advantage, rewards, ratio, region, aggregation };
  }

  get name() {
    const chosen = this.row.selectedOptions[0].textContent;
    return this.row.value === OWN ? `my own ${this.number + 1}` : chosen;
  }

  clear() {
    this.worker?.terminate();
    this.worker = null;
    Object.assign(this, { steps: [], measured: [], eight: null, seconds: [] });
    this.write();
  }

  // Begin the run; resolves when the model is there.
  start(settings) {
    this.clear();
    const { data } = this, { shown, problems } = data;
    const worker = (this.worker = new Worker(here("train-worker.js"), { type: "module" }));
    worker.postMessage({ start: { model: here(`models/${data.model}`), method: this.method, problems, shown, every: EVERY, ...data.settings, ...settings } });
    return this.next("ready");
  }

  // One step more; resolves when it is done.
  step() {
    this.worker.postMessage({ go: 1 });
    return this.next("done");
  }

  next(word) {
    const { worker } = this;
    return new Promise((resolve, reject) => {
      worker.onerror = (event) => reject(new Error(event.message || "the worker could not be started"));
      worker.onmessage = ({ data }) => {
        if (worker !== this.worker) return resolve();
        if (data.failed) return reject(new Error(data.failed));
        if (data.step) (this.steps.push(data.step), this.seconds.push(data.seconds));
        if (data.measured) this.measured.push(data.measured);
        if (data.eight) this.eight = data.eight;
        if (data[word]) resolve();
        this.write();
      };
    });
  }

  write() {
    const [step, seen] = [this.steps.at(-1), this.measured.at(-1)];
    const facts = {
      "right, on sums kept from training": percent(seen?.accuracy),
      "solved at least once in eight": percent(seen?.pass8),
      "entropy of a token": step ? `${step.entropy.toFixed(3)} nats` : "–",
      "tokens that the mask silences": percent(step?.silenced),
    };
    this.facts.replaceChildren(...Object.entries(facts).map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value }))));
    const { texts, right } = this.eight ?? { texts: Array(8).fill(""), right: [] };
    this.answers.replaceChildren(
      ...texts.map((text, n) => {
        const mark = text ? (right[n] ? "✓" : "✗") : "·", word = make("span", { className: "unseen", textContent: right[n] ? "right" : "wrong" });
        return make("li", { className: text ? (right[n] ? "good" : "bad") : "" }, make("b", { ariaHidden: true, textContent: mark }), ...(text ? [word] : []), make("span", { className: "text", textContent: text || " " }));
      }),
    );
  }
}

class Panel {
  constructor(host, data) {
    Object.assign(this, { host, data, at: 0, goal: STEPS });
    const rows = host.dataset.train.split(" ");
    this.columns = rows.map((row, number) => new Column(data, row, number, () => this.reset()));
    this.go = make("button", { type: "button", className: "go", onclick: () => (this.running ? this.pause() : this.play()) });
    this.again = make("button", { type: "button", textContent: "Reset", onclick: () => this.reset() });
    this.keep = make("button", { type: "button", textContent: "Save a picture of this run", disabled: true, onclick: () => this.save() });
    this.seed = make("input", { type: "number", min: 1, max: 999, value: 1, onchange: () => this.reset() });
    this.rate = make("select", { onchange: () => this.reset() }, ...options(RATES));
    this.rate.value = String(data.settings.rate);
    const bar = make("div", { className: "bar" }, this.go, this.again, labelled("seed", this.seed), labelled("learning rate", this.rate), this.keep);
    this.status = make("p", { className: "status", ariaLive: "polite" });
    this.chart = document.createElementNS(SVG, "svg");
    this.chart.setAttribute("role", "img");
    const question = make("p", { className: "question" }, "Eight answers to ", make("code", { textContent: `${data.shown}=?` }), ", asked again after every step:");
    host.replaceChildren(bar, this.status, this.chart, question, make("div", { className: "columns" }, ...this.columns.map(({ box }) => box)));
    host.classList.add("ready");
    this.reset();
    new ResizeObserver(() => this.plot()).observe(host);
  }

  reset() {
    this.run = null;
    Object.assign(this, { running: false, at: 0, goal: STEPS });
    for (const column of this.columns) column.clear();
    this.say("Nothing has been trained yet. Press “Train”: a run takes about a minute.");
    this.show();
  }

  async play() {
    const run = (this.run ??= {});
    this.running = true;
    if (this.at >= this.goal) this.goal += STEPS;
    this.show();
    try {
      if (!this.columns[0].worker) {
        this.say("Fetching the model, 180 kilobytes …");
        await this.both((column) => column.start({ seed: Number(this.seed.value) || 1, rate: Number(this.rate.value) }));
      }
      while (this.run === run && this.running && this.at < this.goal) {
        await this.both((column) => column.step());
        if (this.run !== run) return;
        this.at += 1;
        this.show();
      }
      if (this.run === run) this.pause();
    } catch (error) {
      if (this.run === run) (this.reset(), this.say(`It could not run: ${error.message}.`));
    }
  }

  both(act) {
    return Promise.all(this.columns.map(act));
  }

  pause() {
    this.running = false;
    this.show();
  }

  say(text) {
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  show() {
    const { at, goal, running } = this;
    this.go.textContent = running ? "Pause" : at === 0 ? "Train" : at < goal ? "Go on" : `${STEPS} more steps`;
    this.keep.disabled = at === 0;
    if (at) this.say(this.sentence());
    this.plot();
  }

  // What has happened, without a symbol; it changes when something was measured.
  sentence() {
    if (this.columns[0].measured.length < 2) return `Both are learning: ${this.data.settings.prompts} sums a step, eight answers to each, and only the verdicts to learn from.`;
    const told = this.columns.map((column) => {
      const [first, last] = [column.measured[0], column.measured.at(-1)];
      return `${column.name}: ${percent(last.accuracy)} right after ${last.step} steps (${percent(first.accuracy)} before)`;
    });
    return `${told.join("; ")}. These are sums that neither was trained on.`;
  }

  plot() {
    const width = Math.max(300, Math.floor(this.host.clientWidth)), height = 170;
    chart(this.chart, this.columns, { width, height, goal: this.goal });
  }

  // The picture of this run, as PNG.
  async save() {
    const svg = picture(this.columns, { seed: this.seed.value, shown: this.data.shown, at: this.at, goal: this.goal });
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(svg))}`;
    await image.decode();
    const canvas = make("canvas", { width: 1200, height: 675 });
    canvas.getContext("2d").drawImage(image, 0, 0, 1200, 675);
    make("a", { href: canvas.toDataURL("image/png"), download: "my-run.png" }).click();
  }
}

// The share of right answers in the last batches.
function recent(steps, at) {
  const last = steps.slice(Math.max(0, at - 4), at + 1);
  return last.reduce((sum, { right }) => sum + right, 0) / last.length;
}

// Right answers over steps: what was measured on sums kept apart, and, paler, the last five batches.
function chart(svg, columns, { width, height, goal, ink = "var(--rl-ink)", muted = "var(--rl-muted)", line = "var(--rl-line)", colours = COLOURS }) {
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.setAttribute("width", width);
  const words = columns.map(({ name, measured }) => `${name} ${measured.map(({ accuracy }) => percent(accuracy)).join(", ")}`);
  svg.setAttribute("aria-label", `Share of right answers on sums kept from training, every ${EVERY} steps: ${words.join("; ")}`);
  const [left, right, top, bottom] = [38, width - 128, 10, height - 24];
  const x = (step) => left + (step / goal) * (right - left), y = (share) => bottom - share * (bottom - top);
  const font = { "font-family": "system-ui, sans-serif", "font-size": 12, fill: muted };
  for (const share of [0, 0.5, 1]) {
    draw(svg, "line", { x1: left, x2: right, y1: y(share), y2: y(share), stroke: line });
    draw(svg, "text", { x: left - 5, y: y(share) + 4, "text-anchor": "end", ...font }, percent(share));
  }
  for (let step = 0; step <= goal; step += goal / 4) draw(svg, "text", { x: x(step), y: height - 7, "text-anchor": "middle", ...font }, step === goal ? `step ${step}` : step);
  const ends = [];
  columns.forEach(({ name, steps, measured }, n) => {
    const path = (points) => points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
    const style = { fill: "none", stroke: colours[n], "stroke-linejoin": "round" };
    if (steps.length) draw(svg, "path", { ...style, d: path(steps.map(({ step }, i) => [step, recent(steps, i)])), "stroke-opacity": 0.35 });
    if (measured.length) draw(svg, "path", { ...style, d: path(measured.map(({ step, accuracy }) => [step, accuracy])), "stroke-width": 2.5 });
    for (const { step, accuracy } of measured) draw(svg, "circle", { cx: x(step), cy: y(accuracy), r: 3.5, fill: colours[n] });
    ends.push({ name, n, y: y(measured.at(-1)?.accuracy ?? 0.5) + 4 });
  });
  if (Math.abs(ends[0].y - ends[1].y) < 15) {
    const [upper, lower] = ends[0].y <= ends[1].y ? ends : [ends[1], ends[0]], middle = (upper.y + lower.y) / 2;
    [upper.y, lower.y] = [middle - 8, middle + 8];
  }
  for (const { name, n, y: at } of ends) draw(svg, "text", { ...font, x: right + 8, y: Math.min(at, bottom), fill: colours[n], "font-weight": 600, ...(name.length > 17 && { textLength: 118, lengthAdjust: "spacingAndGlyphs" }) }, name);
}

// A picture to keep: both curves, the numbers, the last eight answers of each.
function picture(columns, { seed, shown, at, goal }) {
  const svg = document.createElementNS(SVG, "svg"), colours = ["#0072b2", "#c05500"];
  for (const [name, value] of Object.entries({ xmlns: SVG, width: 1200, height: 675, viewBox: "0 0 1200 675" })) svg.setAttribute(name, value);
  draw(svg, "rect", { width: 1200, height: 675, fill: "#ffffff" });
  const write = (text, x, y, size, fill, more = {}) => draw(svg, "text", { x, y, fill, "font-size": size, "font-family": "system-ui, sans-serif", ...more }, text);
  write("I trained a language model in a web page", 50, 62, 34, "#222222", { "font-weight": 700 });
  write(`${columns.map(({ name }) => name).join(" against ")}, ${at} steps, seed ${seed}. Share of right answers on sums kept from training.`, 50, 96, 19, "#5f5f5f");
  const curves = draw(svg, "svg", { x: 50, y: 115 }), data = columns.map(({ name, steps, measured }) => ({ name, steps, measured }));
  chart(curves, data, { width: 1100, height: 280, goal, muted: "#5f5f5f", line: "#d9d9d9", colours });
  columns.forEach((column, n) => {
    const x = 50 + 560 * n, last = column.measured.at(-1);
    write(`${column.name}: ${percent(last.accuracy)} right, ${percent(last.pass8)} solved once in eight`, x, 432, 18, colours[n], { "font-weight": 700 });
    column.eight.texts.forEach((text, row) => {
      const good = column.eight.right[row], shownText = text.length > 58 ? `${text.slice(0, 56)} …` : text;
      write(`${good ? "✓" : "✗"} ${shownText}`, x, 460 + 22 * row, 14, good ? "#0072b2" : "#c05500", { "font-family": "ui-monospace, DejaVu Sans Mono, monospace" });
    });
  });
  write(`rlbook · eight answers to ${shown}=?`, 50, 655, 15, "#5f5f5f");
  return svg;
}

// A panel is built when it is near; one that says `data-auto` begins by itself once it is seen.
const panels = new Map();
const near = new IntersectionObserver(async (entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    told ??= fetch(here("train.json")).then((answer) => answer.json());
    panels.set(target, new Panel(target, await told));
    if ("auto" in target.dataset && !CALM.matches && !navigator.connection?.saveData) seen.observe(target);
  }
}, { rootMargin: "400px" });
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    const panel = panels.get(target);
    if (!panel.at && !panel.running) panel.play();
  }
}, { threshold: 0.1 });
for (const host of document.querySelectorAll("[data-train]")) near.observe(host);
