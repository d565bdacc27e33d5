// w(p): what an estimator of groups of n makes of ∇p; `estimator_weight`, `likelihood_weight`.

const likelihoodWeight = (p, order) => (order === null ? 1 / p : p > 0 ? (1 - (1 - p) ** order) / p : order);

// p ↦ w(p), a binomial sum over the number c of right answers in a group of n.
function estimatorWeight(estimator, n) {
  const logs = [0];
  for (let i = 1; i <= n; i++) logs.push(logs[i - 1] + Math.log(i));
  const terms = Array.from({ length: n + 1 }, (_, c) => {
    const a = advantagesOf(estimator, Array.from({ length: n }, (_, i) => Number(i < c)));
    return { choices: Math.exp(logs[n] - logs[c] - logs[n - c]), right: c ? c * a[0] : 0, wrong: c < n ? (n - c) * a[n - 1] : 0 };
  });
  return (p) => terms.reduce((sum, { choices, right, wrong }, c) => {
    const givenRight = p ** Math.max(c - 1, 0) * (1 - p) ** (n - c), givenWrong = p ** c * (1 - p) ** Math.max(n - c - 1, 0);
    return sum + choices * (right * givenRight - wrong * givenWrong);
  }, 0) / n;
}

FIGURES.weight = {
  title: "The weight of a prompt by its solve rate",
  drawings: 1,
  controls: () => [
    { name: "n", label: "group size N", min: 2, max: 64, step: 1 },
    { name: "order", label: "order T", min: 1, max: 64, step: 1 },
  ],
  draw(view) {
    const { n, order } = view.values, grid = between(0.9991, 0.0009, 160, "logit");
    const weights = Object.fromEntries(view.data.methods.map(({ label, advantage }) => [label, estimatorWeight(advantage, n)]));
    const lines = [
      { name: "log p: 1/p", colour: view.data.log, weight: (p) => likelihoodWeight(p, null), dash: "2 3" },
      ...view.data.methods.map(({ label, colour }) => ({ name: label, colour, weight: weights[label] })),
      { name: `T = ${order}`, colour: view.data.any, weight: (p) => likelihoodWeight(p, order), dash: "6 4" },
    ];
    view.say(`N = ${n}: MaxRL weighs a 1 % prompt ${(weights.MaxRL(0.01) / weights.MaxRL(0.5)).toFixed(1)} times a 50 % one`);
    const plot = chart(view.svgs[0], view, {
      height: 300, names: lines.map(({ name }) => name),
      x: { from: 0.9992, to: 0.0008, scale: "logit", ticks: [0.999, 0.99, 0.9, 0.5, 0.1, 0.01, 0.001].map((p) => [p, String(p)]), label: "solve rate p of a prompt, harder" },
      y: { from: 0.7, to: 1300, scale: "log", ticks: [1, 2, 5, 10, 20, 50, 100, 1000], label: "weight of ∇p" },
    });
    const ends = lines.map(({ name, colour, weight, dash }) => {
      const points = grid.map((p) => [p, weight(p)]);
      plot.line(points, { stroke: view.colour(colour), "stroke-dasharray": dash ?? null });
      return { name, colour, y: points.at(-1)[1] };
    });
    plot.ends(ends);
  },
};
