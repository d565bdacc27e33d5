// Every estimate of the gradient that a batch of n answers out of three can give, by its chance.

const CLOUD = { rewards: [1, 0, 0.5], step: 2.5 };
const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const answersAt = (p) => [p, 0.625 * (1 - p), 0.375 * (1 - p)];

function softmax(logits) {
  const most = Math.max(...logits), powers = logits.map((z) => Math.exp(z - most));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}

// Where a step along a gradient leads: the new probabilities.
const afterStep = (probs, gradient) => softmax(probs.map((p, i) => Math.log(p) + CLOUD.step * gradient[i]));

// The chance of each batch (how often it holds each answer) with its estimate and where that leads.
function batchesOf(probs, n, b) {
  const logs = [0], found = [];
  for (let i = 1; i <= n; i++) logs.push(logs[i - 1] + Math.log(i));
  for (let i = 0; i <= n; i++)
    for (let j = 0; i + j <= n; j++) {
      const counts = [i, j, n - i - j];
      const chance = Math.exp(counts.reduce((sum, count, y) => sum + count * Math.log(probs[y]) - logs[count], logs[n]));
      const pulls = counts.map((count, y) => (count / n) * (CLOUD.rewards[y] - b)), all = pulls[0] + pulls[1] + pulls[2];
      const gradient = pulls.map((pull, y) => pull - probs[y] * all);
      found.push({ chance, gradient, end: afterStep(probs, gradient) });
    }
  return found;
}

// How often a step makes the expected reward smaller.
function downhill(probs, batches) {
  const now = dot(probs, CLOUD.rewards);
  return batches.reduce((sum, { chance, end }) => sum + (dot(end, CLOUD.rewards) < now - 1e-12 ? chance : 0), 0);
}

const trueGradient = (probs) => probs.map((p, y) => p * (CLOUD.rewards[y] - dot(probs, CLOUD.rewards)));

// Standard deviation of a batch's gradient over the length of its mean: `baseline_moments`.
function noiseToSignal(probs, n, b) {
  const signal = trueGradient(probs), squares = dot(probs, probs);
  const second = probs.reduce((sum, p, y) => sum + p * (CLOUD.rewards[y] - b) ** 2 * (1 - 2 * p + squares), 0);
  return Math.sqrt((second - dot(signal, signal)) / n / dot(signal, signal));
}

FIGURES.cloud = {
  title: "A cloud of gradient estimates",
  drawings: 2,
  controls: () => [
    { name: "b", label: "baseline b, reward", min: -1.5, max: 1.5, step: 0.05 },
    { name: "n", label: "answers n", min: 1, max: 64, step: 1 },
    { name: "p", label: "p of answer A", min: 0.05, max: 0.9, step: 0.05 },
  ],
  draw(view) {
    const { b, n, p } = view.values, probs = answersAt(p), batches = batchesOf(probs, n, b);
    const noise = noiseToSignal(probs, n, b);
    view.say(`${percent(downhill(probs, batches))} of the steps go downhill: ${short(noise)} times as much noise as signal`);
    drawTriangle(view.svgs[0], view, probs, batches);
    const grid = between(-1.5, 1.5, 60).map((x) => [x, noiseToSignal(probs, n, x)]);
    const most = 1.08 * Math.max(...grid.map(([, y]) => y)), best = dot(probs, CLOUD.rewards);
    const unit = 10 ** Math.floor(Math.log10(most)), step = unit * (most / unit > 5 ? 2 : most / unit > 2 ? 1 : 0.5);
    const plot = chart(view.svgs[1], view, {
      title: "Noise over signal, exact", height: 280,
      x: { from: -1.6, to: 1.6, ticks: [-1, 0, 1], label: "baseline b" },
      y: { from: 0, to: most, ticks: between(0, step * Math.floor(most / step), Math.floor(most / step)).map((y) => Number(y.toPrecision(3))) },
    });
    plot.line(grid);
    for (const [name, x, tone, down] of [["mean", best, GREY, 16], ["here", b, BAD, -9]]) {
      plot.dot(x, noiseToSignal(probs, n, x), { fill: view.colour(tone), r: 6 });
      put(view.svgs[1], "text", { x: plot.x(x), y: plot.y(noiseToSignal(probs, n, x)) + down, "text-anchor": "middle", class: "name", style: `fill: ${view.colour(tone, 4.5)}` }, name);
    }
  },
};

function drawTriangle(svg, view, probs, batches) {
  const width = widthOf(svg, 250), height = 280, size = Math.min(width - 70, (height - 66) / 0.866);
  blank(svg, width, height);
  const corners = [[0, -1], [-0.5, 0], [0.5, 0]].map(([x, y]) => [width / 2 + x * size, height - 24 + y * size * 0.866]);
  const at = (distribution) => [0, 1].map((axis) => dot(distribution, corners.map((corner) => corner[axis])));
  put(svg, "text", { class: "title", x: 0, y: 15 }, "Where a step along each leads");
  // the darker, the higher the expected reward; a line of equal reward joins two sides
  const [a, low, half] = corners, mix = (from, to, part) => from.map((v, i) => v + part * (to[i] - v));
  for (let part = 1; part > 0.01; part -= 0.1) {
    const side = mix(a, low, part), other = part <= 0.5 ? mix(a, half, 2 * part) : mix(half, low, 2 * part - 1);
    const shape = part <= 0.5 ? [a, side, other] : [a, side, other, half];
    put(svg, "path", { d: `M${shape.map((point) => point.join(" ")).join("L")}Z`, fill: INK, "fill-opacity": 0.035 });
  }
  put(svg, "path", { class: "frame", d: `M${corners.map((corner) => corner.join(" ")).join("L")}Z` });
  const fill = view.colour(BAD);
  for (const { chance, end } of batches) {
    if (chance < 2e-4) continue;
    const [cx, cy] = at(end);
    put(svg, "circle", { cx, cy, r: Math.max(1, Math.sqrt(600 * chance)), fill, "fill-opacity": 0.6 });
  }
  const [x1, y1] = at(probs), [x2, y2] = at(afterStep(probs, trueGradient(probs)));
  const turn = (Math.atan2(y2 - y1, x2 - x1) * 180) / Math.PI;
  put(svg, "line", { x1, y1, x2, y2, stroke: INK, "stroke-width": 2.5 });
  put(svg, "path", { d: "M2 0L-8 -5L-8 5Z", fill: INK, transform: `translate(${x2} ${y2}) rotate(${turn})` });
  put(svg, "circle", { cx: x1, cy: y1, r: 5, fill: INK, stroke: "var(--paper)", "stroke-width": 1.5 });
  corners.forEach(([x, y], i) =>
    put(svg, "text", { class: "name", x, y: i ? y + 15 : y - 6, "text-anchor": "middle" }, `${"ABC"[i]}: ${CLOUD.rewards[i]}`));
  svg.setAttribute("aria-label", `Triangle of three answers; the policy is at ${probs.map((p) => p.toFixed(2)).join(", ")}.`);
}
