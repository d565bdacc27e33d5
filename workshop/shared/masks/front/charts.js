// The small drawings: weight against ratio, silenced tokens by update, an answer's ratio.

// A cut through the plane at the chosen token's mu. Both axes are logarithmic, so a token without a
// mask lies on a straight line, a cap is a plateau, and a mask drops to the floor, 0.
function drawSlice(svg, view) {
  const { token, compared } = view, width = widthOf(svg, 260);
  svg.replaceChildren();
  const keys = compared.map((mask) => put(svg, "text", { class: "key", style: `fill: ${view.colour(mask, 4.5)}` }, wallText(mask, token)));
  const top = 32 + 16 * flow(keys, 35, width), bottom = top + 156;
  const [left, right] = [30, width - 6];
  frameOf(svg, width, bottom + 32);
  const floor = bottom - 9, least = bottom - 28, far = Math.log(8);
  const x = (ratio) => left + ((Math.log(ratio) + far) / (2 * far)) * (right - left);
  const y = (weight) => (weight > 0 ? least - ((Math.log(weight) + far) / (2 * far)) * (least - top) : floor);
  const most = Math.min(1 / token.mu, 8);
  put(svg, "text", { class: "title", x: 0, y: 14 }, `The cut at ${token.name}: weight w against ratio ρ at μ = ${short(token.mu)}`);
  put(svg, "rect", { class: "impossible", x: x(most), y: top, width: right - x(most), height: bottom - top });
  if (right - x(most) > sizeOf(svg, "π > 1").width + 8)
    put(svg, "text", { x: (x(most) + right) / 2, y: top + 14, "text-anchor": "middle" }, "π > 1");
  put(svg, "rect", { class: "frame", x: left, y: top, width: right - left, height: bottom - top });
  for (const [text, value] of [["¼", 0.25], ["½", 0.5], ["1", 1], ["2", 2], ["4", 4]]) {
    put(svg, "text", { x: x(value), y: bottom + 14, "text-anchor": "middle" }, text);
    put(svg, "text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, text);
    put(svg, "line", { class: "grid", x1: x(value), x2: x(value), y1: top, y2: bottom });
  }
  put(svg, "text", { x: left - 5, y: floor + 4, "text-anchor": "end" }, "0");
  put(svg, "text", { x: right, y: bottom + 29, "text-anchor": "end" }, "ratio ρ →");
  put(svg, "line", { class: "cut", x1: x(token.ratio), x2: x(token.ratio), y1: top, y2: bottom });
  compared.forEach((mask, which) => {
    const stroke = view.colour(mask);
    const pieces = weightPieces(mask, token, most);
    const line = (points) => points.map(([r, w]) => `${x(r).toFixed(1)} ${y(w).toFixed(1)}`).join("L");
    const d = pieces.map((points) => `M${line(points)}`).join("");
    put(svg, "path", { class: which ? "curve second" : "curve first", d, stroke });
    for (let i = 1; i < pieces.length; i++) {
      const ends = [pieces[i - 1].at(-1), pieces[i][0]];
      put(svg, "path", { class: "drop", d: `M${line(ends)}`, stroke });
    }
    const { keep, weight } = applyMask(mask, token);
    put(svg, "circle", { cx: x(token.ratio), cy: y(weight), r: RADIUS, fill: keep ? stroke : "var(--paper)", stroke, "stroke-width": 2 });
  });
  keepInside(svg);
  const said = keys.map((key) => key.textContent);
  svg.setAttribute("aria-label", `Weight against ratio of ${token.name}. ${said.join("; ")}.`);
}

// Set texts side by side from the left, on further lines where they leave the width; how many lines.
function flow(texts, y, width) {
  let [from, lines] = [0, 1];
  for (const [text, length] of texts.map((text) => [text, text.getComputedTextLength()])) {
    if (from && from + length > width) [from, lines] = [0, lines + 1];
    text.setAttribute("x", from);
    text.setAttribute("y", y + 16 * (lines - 1));
    from += length + 18;
  }
  return lines;
}

// The curve [ratio, weight] of a mask along the cut, in pieces between its jumps.
function weightPieces(mask, token, most, points = 160) {
  const at = (log) => [Math.exp(log), applyMask(mask, withRatio(token, Math.exp(log))).weight];
  const keeps = (log) => applyMask(mask, withRatio(token, Math.exp(log))).keep;
  const [start, end] = [-Math.log(8), Math.log(most) - 1e-9], pieces = [[at(start)]];
  for (let i = 1; i <= points; i++) {
    const [before, now] = [i - 1, i].map((n) => start + ((end - start) * n) / points);
    if (keeps(before) !== keeps(now)) {
      const [a, b] = edgeBetween(keeps, before, now);
      pieces.at(-1).push(at(a));
      pieces.push([at(b)]);
    }
    pieces.at(-1).push(at(now));
  }
  return pieces;
}

function wallText(mask, token) {
  if (mask.ratio === "sequence") return `${mask.label} asks for s`;
  const wall = wallOf(mask.region, token.mu, Math.sign(token.advantage));
  return wall === null ? `${mask.label}: no wall` : `${mask.label}: wall at ρ = ${short(wall)}`;
}

// How many tokens each mask silences after every update.
function drawSteps(svg, view) {
  const { state, compared } = view, height = 42, width = widthOf(svg, 160);
  blank(svg, width, height);
  const base = 36, inset = 8, x = (update) => inset + (update / state.updates) * (width - 2 * inset);
  const counts = view.remember(["steps", compared], () =>
    compared.map((mask) => Array.from({ length: state.updates + 1 }, (_, update) =>
      answersAt(state.answers, state.updates, update).flatMap((answer) => answer.tokens)
        .filter((token) => !applyMask(mask, token).keep).length)));
  const most = Math.max(4, ...counts.flat()), y = (count) => base - (count / most) * 20;
  put(svg, "text", { x: inset, y: 11 }, `silenced after ${Math.round(state.update)} of ${state.updates} updates`);
  put(svg, "line", { class: "frame", x1: inset, x2: width - inset, y1: base, y2: base });
  compared.forEach((mask, which) => {
    const steps = counts[which].map((count, update) => `V${y(count).toFixed(1)}H${x(Math.min(update + 1, state.updates)).toFixed(1)}`);
    put(svg, "path", { class: which ? "curve second" : "curve first", d: `M${x(0)} ${y(counts[which][0])}${steps.join("")}`, stroke: view.colour(mask) });
  });
  put(svg, "line", { class: "now", x1: x(state.update), x2: x(state.update), y1: 15, y2: height });
  keepInside(svg);
  const said = compared.map((mask, which) => `${mask.label} ${counts[which].join(" ")}`);
  svg.setAttribute("aria-label", `Tokens silenced after each update: ${said.join("; ")}.`);
}

// The ratio s of a whole answer as a needle, against the window of a mask that asks for it.
function drawNeedle(svg, answer, view) {
  const width = 138, middle = width / 2, reach = Math.log(1.6);
  blank(svg, width, 30);
  const x = (s) => middle + Math.max(-1, Math.min(Math.log(s) / reach, 1)) * (middle - 8);
  const judge = view.compared.find((mask) => mask.ratio === "sequence");
  const mask = judge ?? view.state.masks.find((other) => other.ratio === "sequence");
  put(svg, "line", { class: "frame", x1: 6, x2: width - 6, y1: 21, y2: 21 });
  const keep = !judge || applyMask(judge, answer.tokens[0]).keep;
  if (mask?.region.type === "RatioClip") {
    const [from, to] = [x(1 - mask.region.low), x(1 + mask.region.high)];
    put(svg, "rect", { x: from - 0.75, width: to - from + 1.5, y: 14, height: 14, fill: view.colour(mask), "fill-opacity": judge ? 0.8 : 0.3 });
  }
  put(svg, "circle", { cx: x(answer.sequence), cy: 21, r: 4.2, fill: keep ? "var(--ink)" : "var(--paper)", stroke: "var(--ink)", "stroke-width": 1.5, opacity: judge ? 1 : 0.5 });
  const said = `s = ${answer.sequence.toFixed(3)}${keep ? "" : ", silenced"}`;
  put(svg, "text", { x: middle, y: 10, "text-anchor": "middle", class: keep ? null : "name" }, said);
  keepInside(svg);
  svg.setAttribute("aria-label", `Ratio of answer ${answer.name}: ${said}.`);
}
