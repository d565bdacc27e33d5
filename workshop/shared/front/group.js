// The group lab: which answers are right, how long each is, and by what method they are judged.

const pushesOf = ({ advantage, aggregation }, rewards, lengths, constant) => {
  const advantages = advantagesOf(advantage, rewards, lengths), weights = tokenWeights(aggregation, lengths, constant);
  return advantages.map((a, i) => ({ advantage: a, token: a * weights[i], answer: a * weights[i] * lengths[i] }));
};

FIGURES.group = {
  title: "A group of answers to one prompt",
  drawings: 0,
  controls: ({ methods }) => [
    { name: "method", label: "method", options: Object.fromEntries(methods.map(({ key, label }) => [key, label])) },
  ],
  build(lab, view) {
    const table = put(lab, "table", { class: "answers" });
    const head = put(put(table, "thead"), "tr");
    for (const title of ["answer", "its length, tokens", "advantage", "push per token × 1000", "of the whole answer"]) put(head, "th", { scope: "col" }, title);
    const body = put(table, "tbody");
    view.rows = view.values.rewards.map((_, i) => {
      const row = put(body, "tr"), name = String.fromCharCode(65 + i);
      const verdict = put(put(row, "td"), "button", {
        type: "button",
        onclick: () => view.choose({ rewards: view.values.rewards.map((reward, j) => (i === j ? 1 - reward : reward)) }),
      });
      const line = put(put(row, "td"), "span"), resize = (event) =>
        view.choose({ lengths: view.values.lengths.map((length, j) => (i === j ? Number(slider.value) : length)) }, event.type === "change");
      const slider = put(line, "input", { type: "range", min: 1, max: view.data.longest, step: 1, "aria-label": `length of ${name}`, oninput: resize, onchange: resize });
      return { row, name, verdict, slider, length: put(line, "output"), cells: [0, 1, 2].map(() => put(row, "td")) };
    });
  },
  draw(view) {
    const { rewards, lengths } = view.values, method = view.data.methods.find(({ key }) => key === view.values.method);
    const pushes = pushesOf(method, rewards, lengths, view.data.longest);
    const most = ["advantage", "token", "answer"].map((what) => Math.max(1e-12, ...pushes.map((push) => Math.abs(push[what]))));
    view.rows.forEach(({ row, name, verdict, slider, length, cells }, i) => {
      const right = rewards[i] > 0;
      row.className = right ? "right" : "wrong";
      verdict.textContent = `${name} ${right ? "✓" : "✗"}`;
      verdict.setAttribute("aria-label", `${name} is ${right ? "right" : "wrong"}`);
      slider.value = lengths[i];
      showPart(slider);
      length.textContent = lengths[i];
      [pushes[i].advantage, 1000 * pushes[i].token, pushes[i].answer].forEach((value, column) =>
        cells[column].replaceChildren(signed(value), meter(value / most[column] / (column === 1 ? 1000 : 1))));
    });
    const count = rewards.filter(Boolean).length, silent = pushes.every(({ token }) => token === 0);
    const sizes = pushes.map(({ token }) => Math.abs(token)), least = Math.min(...sizes.filter(Boolean));
    const odds = silent ? "no token is pushed" : `the strongest push on a token is ${short(Math.max(...sizes) / least)} times the weakest`;
    view.say(`${method.label}, ${count} of ${rewards.length} right: ${odds}`);
  },
};

// A bar from the middle, to the right for more than 0.
function meter(share) {
  const svg = put(null, "svg", { class: "meter", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(document.createElementNS(SVG, "line"), document.createElementNS(SVG, "rect"));
  const [line, bar] = svg.children, width = 50 * Math.min(1, Math.abs(share));
  const set = (node, attributes) => Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
  set(line, { class: "zero", x1: 50, x2: 50, y1: 0, y2: 10 });
  set(bar, { x: share < 0 ? 50 - width : 50, width, y: 1, height: 8, fill: share < 0 ? "var(--bad)" : "var(--good)" });
  return svg;
}
