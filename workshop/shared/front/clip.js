// PPO's clip: objective, its derivative by log π, and who is masked; `RatioClip`.

function clipToken(ratio, advantage, low, high) {
  const keep = advantage > 0 ? ratio <= 1 + high : advantage < 0 ? ratio >= 1 - low : true;
  const clipped = Math.min(Math.max(ratio, 1 - low), 1 + high);
  return { keep, objective: Math.min(ratio * advantage, clipped * advantage), gradient: keep ? ratio * advantage : 0 };
}

FIGURES.clip = {
  title: "PPO's clip",
  drawings: 4,
  controls: () => [
    { name: "ratio", label: "ratio ρ", min: 0.4, max: 1.6, step: 0.01 },
    { name: "eps_low", label: "ε low", min: 0, max: 0.5, step: 0.01 },
    { name: "eps_high", label: "ε high", min: 0, max: 0.5, step: 0.01 },
  ],
  draw(view) {
    const { ratio, eps_low: low, eps_high: high } = view.values;
    const told = ({ keep, gradient }) => (keep ? `gradient ${signed(gradient)}` : "masked, gradient 0");
    const tokens = [1, -1].map((advantage) => clipToken(ratio, advantage, low, high));
    view.say(`ρ = ${ratio.toFixed(2)}. A = +1: ${told(tokens[0])}. A = −1: ${told(tokens[1])}.`);
    ["objective", "gradient"].forEach((what, row) =>
      [1, -1].forEach((advantage, column) => {
        const plot = chart(view.svgs[2 * row + column], view, {
          title: `${what === "gradient" ? "∂ objective / ∂ log π" : "Objective"}, A = ${signed(advantage)}`,
          x: { from: 0.4, to: 1.6, ticks: [0.5, 0.75, 1, 1.25, 1.5], label: row ? "ratio ρ = π / π old" : "" },
          y: { from: -1.8, to: 1.8, ticks: [-1, 0, 1] },
          height: row ? 210 : 195,
        });
        const edge = advantage > 0 ? 1 + high : 1 - low;
        plot.area(edge, advantage > 0 ? 1.6 : 0.4, { class: "masked" });
        plot.line([[0.4, 0], [1.6, 0]], { class: "zero" });
        if (!row) plot.line([[0.4, 0.4 * advantage], [1.6, 1.6 * advantage]], { stroke: "var(--muted)", "stroke-width": 1, "stroke-dasharray": "4 3" });
        const pieces = advantage > 0 ? [[0.4, edge], [edge + 1e-9, 1.6]] : [[0.4, edge - 1e-9], [edge, 1.6]];
        for (const [from, to] of pieces) plot.line([from, to].map((x) => [x, clipToken(x, advantage, low, high)[what]]));
        const name = { y: advantage > 0 ? plot.box.bottom - 8 : plot.box.top + 14, "text-anchor": advantage > 0 ? "start" : "end" };
        plot.text(edge + 0.015 * advantage, 0, `${advantage > 0 ? "1 + ε" : "1 − ε"} = ${edge.toFixed(2)}`, name);
        plot.dot(ratio, tokens[column][what], { r: 6, fill: view.colour(tokens[column].keep ? GOOD : BAD) });
      }),
    );
  },
};
