// A compute curve laid by hand through the points of a run: `Sigmoid`.

const sigmoidCurve = ({ A, B, C_mid, R_0 }) => (compute) => R_0 + (A - R_0) / (1 + (C_mid / compute) ** B);
const rootMeanSquare = (curve, points) => Math.sqrt(mean(points.map(([c, r]) => (curve(c) - r) ** 2)));

FIGURES.fit = {
  title: "A compute curve fitted by hand",
  drawings: 1,
  controls: () => [
    { name: "A", label: "A, pass rate", min: 0.45, max: 0.8, step: 0.005, show: (x) => x.toFixed(3) },
    { name: "B", label: "B, exponent", min: 0.5, max: 4, step: 0.05, show: (x) => x.toFixed(2) },
    { name: "C_mid", label: "C mid, GPU-hours", min: 2000, max: 30000, step: 250, show: (x) => x.toLocaleString("en") },
  ],
  draw(view) {
    const { points, stop, R_0 } = view.data, curve = sigmoidCurve({ ...view.values, R_0 });
    const parts = [points.filter(([c]) => c <= stop), points.filter(([c]) => c > stop)];
    const [seen, beyond] = parts.map((part) => rootMeanSquare(curve, part).toFixed(4));
    view.say(`Error on the filled points ${seen}, beyond ${beyond}`);
    const [from, to] = [0.9 * points[0][0], 1.05 * points.at(-1)[0]], rewards = points.map(([, r]) => r);
    const [low, high] = [Math.min(R_0, ...rewards) - 0.02, Math.max(...rewards) + 0.04];
    const plot = chart(view.svgs[0], view, {
      height: 290,
      x: { from, to, scale: "log", label: "GPU-hours", ticks: [1000, 2000, 5000, 10000, 20000, 50000, 100000].filter((c) => c > from && c < to).map((c) => [c, c.toLocaleString("en")]) },
      y: { from: low, to: high, label: "pass rate, held out", ticks: between(0, 1, 20).filter((y) => y > low && y < high).map((y) => [y, y.toFixed(2)]) },
    });
    plot.area(from, stop, { fill: "var(--faint)", "fill-opacity": 0.35 });
    const [good, bad] = [view.colour(GOOD), view.colour(BAD)];
    for (const [c, r] of parts[0]) plot.dot(c, r, { r: 3, fill: good, stroke: "none" });
    for (const [c, r] of parts[1]) plot.dot(c, r, { r: 3, fill: "var(--paper)", stroke: "var(--muted)", "stroke-width": 1.2 });
    plot.line(between(from, to, 160, "log").map((c) => [c, curve(c)]), { stroke: bad });
    plot.line([[from, view.values.A], [to, view.values.A]], { stroke: bad, "stroke-width": 1, "stroke-dasharray": "2 3" });
    plot.text(from * 1.05, Math.min(view.values.A, high), `A = ${view.values.A.toFixed(3)}`, { dy: -4, style: `fill: ${view.colour(BAD, 4.5)}` });
  },
};
