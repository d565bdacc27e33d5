// The lab. mountMaskLab(host, state, changed) draws into a shadow root of `host` and calls `changed`
// with every choice a reader makes; it returns `set` for choices made elsewhere, and `remove`.

const BANDS = [["< .1", 0, 0.1], [".1–.5", 0.1, 0.5], [".5–.9", 0.5, 0.9], ["≥ .9", 0.9, Infinity]];
const SECONDS = 6; // one play of all updates

// What a reader may change of a mask: symbol, index, the settings it sets, its range, whether log.
function controlsOf({ region, ratio }) {
  const edge = (index, name, range) => ({ symbol: "ε", index, names: [name], ...range });
  if (region.type === "WeightClip") return [{ symbol: "cap", names: ["max"], min: 1, max: 10, step: 0.1 }];
  if (region.type === "DivergenceMask") {
    const range = region.kind === "tv" ? { max: 0.5, step: 0.01 } : { max: 0.3, step: 0.005 };
    return [{ symbol: "δ", names: ["low", "high"], min: 0, ...range }];
  }
  if (region.type !== "RatioClip") return [];
  if (ratio === "sequence") {
    const range = { min: -4, max: -0.3, step: 0.01, log: true };
    return [edge("low", "low", range), edge("high", "high", range)];
  }
  const edges = [edge("low", "low", { min: 0, max: 0.6, step: 0.01 }), edge("high", "high", { min: 0, max: 1, step: 0.01 })];
  return region.dual === null ? edges : [...edges, { symbol: "c", names: ["dual"], min: 1.1, max: 10, step: 0.1 }];
}

// What a mask silences, in one line.
function ruleOf({ region, ratio }) {
  if (region.type === "NoTrustRegion") return "silences nothing: w = ρ";
  if (region.type === "WeightClip") return "silences nothing, but holds w at the cap";
  if (region.type === "DivergenceMask") return "silences what moves its way and is already D > δ from μ";
  if (ratio === "sequence") return "silences good answers with s > 1+ε, bad ones with s < 1−ε";
  const dual = region.dual === null ? "" : " or ρ > c";
  return `silences good tokens with ρ > 1+ε, bad ones with ρ < 1−ε${dual}`;
}

function mountMaskLab(host, given, changed = () => {}) {
  const state = structuredClone(given), root = host.attachShadow({ mode: "open" });
  const memory = new Map();
  const view = { state, moving: false, labels: {}, choose, remember };
  let frame = null;

  put(root, "style", {}, STYLE);
  const lab = put(root, "div", { class: "lab", role: "group", "aria-label": "Mask lab", "data-lm-suppress-shortcuts": "true" });
  lab.addEventListener("keydown", (event) => event.stopPropagation()); // Jupyter would take the keys

  const cards = put(lab, "div", { class: "cards" });
  const sides = { left: makeCard("left", "first mask"), right: makeCard("right", "second mask") };
  const headline = put(lab, "h3", { "aria-live": "polite" });
  const planes = put(lab, "div", { class: "planes" });
  const plane = [1, -1].map((sign) => [sign, put(planes, "svg", { role: "img" })]);
  const middle = put(lab, "div", { class: "row" });
  const player = put(middle, "div", { class: "player" });
  const play = put(player, "button", { type: "button", onclick: () => (frame === null ? start() : stop()) });
  const track = put(player, "div");
  const steps = put(track, "svg", { role: "img" });
  const slider = put(track, "input", {
    type: "range", min: 0, max: state.updates, step: 1, "aria-label": "updates since the tokens were sampled",
    oninput: () => (stop(), choose({ update: Number(slider.value) })),
  });
  const { left: first, right: second, token, update, masks } = given;
  const reset = () => (stop(), choose(structuredClone({ left: first, right: second, token, update, masks })));
  const tally = put(put(middle, "div"), "table");
  const { chips, needles } = makeStrip();
  const details = put(lab, "div", { class: "row details" });
  const left = put(details, "div");
  const facts = put(left, "p", { class: "facts" });
  const table = put(left, "table");
  const slice = put(put(details, "div"), "svg", { role: "img" });
  put(lab, "button", { type: "button", class: "reset", onclick: reset }, "reset");
  if (state.hint) put(lab, "p", { class: "hint" }, put(null, "i", {}, `Try: ${state.hint}`));

  // ---- choices ----

  function choose(choices) {
    Object.assign(state, choices);
    draw();
    changed(choices);
  }

  // Results that depend on nothing but `key`.
  function remember(key, calculate) {
    const text = JSON.stringify(key);
    if (memory.size > 300) memory.clear();
    if (!memory.has(text)) memory.set(text, calculate());
    return memory.get(text);
  }

  function walk(event, name) {
    const tokens = state.answers.map((answer) => answer.tokens.map((_, position) => answer.name + (position + 1)));
    const row = tokens.findIndex((names) => names.includes(name)), at = tokens[row].indexOf(name);
    const all = tokens.flat(), here = all.indexOf(name);
    const beside = (by) => all[(here + by + all.length) % all.length];
    const other = (by) => {
      const names = tokens[(row + by + tokens.length) % tokens.length];
      return names[Math.min(at, names.length - 1)];
    };
    const keys = {
      ArrowRight: () => beside(1), ArrowLeft: () => beside(-1), ArrowDown: () => other(1), ArrowUp: () => other(-1),
      Home: () => tokens[row][0], End: () => tokens[row].at(-1),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    const token = keys[event.key]();
    choose({ token });
    chips[token].focus();
  }

  function start() {
    const from = state.update >= state.updates ? 0 : state.update;
    const began = performance.now() - (from / state.updates) * SECONDS * 1000;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const next = (now) => {
      const update = Math.max(0, Math.min(((now - began) / (SECONDS * 1000)) * state.updates, state.updates));
      state.update = calm ? Math.floor(update) : update;
      frame = host.isConnected && update < state.updates ? requestAnimationFrame(next) : null;
      view.moving = frame !== null;
      if (frame === null) choose({ update: state.updates });
      else draw();
    };
    frame = requestAnimationFrame(next);
    view.moving = true;
  }

  function stop() {
    if (frame === null) return;
    cancelAnimationFrame(frame);
    frame = null;
    view.moving = false;
    choose({ update: Math.round(state.update) });
  }

  // ---- parts ----

  function makeCard(side, label) {
    const box = put(cards, "div", { class: "card" });
    const line = put(box, "div", { class: "settings" });
    const select = put(line, "select", { "aria-label": label, onchange: () => choose({ [side]: select.value }) });
    for (const { key, label } of state.masks) put(select, "option", { value: key }, label);
    return { box, select, settings: put(line, "span", { class: "sliders" }), rule: put(box, "div", { class: "rule" }) };
  }

  function makeStrip() {
    const strip = put(lab, "div", { class: "strip", role: "radiogroup", "aria-label": "tokens of the answers" });
    const chips = {}, needles = {};
    for (const answer of state.answers) {
      const line = put(strip, "div", { class: "answer" });
      put(line, "span", { class: "who" }, put(null, "b", {}, answer.name), ` ${answer.title}`);
      const tokens = put(line, "div", { class: "tokens" });
      answer.tokens.forEach(({ text }, position) => {
        const name = answer.name + (position + 1);
        chips[name] = put(tokens, "span", {
          class: "token", role: "radio", "data-token": name,
          onclick: () => choose({ token: name }), onkeydown: (event) => walk(event, name),
        }, put(null, "span", {}, text.trim()), put(null, "i"), put(null, "i"));
      });
      needles[answer.name] = put(line, "svg", { class: "needle", role: "img" });
    }
    return { chips, needles };
  }

  // ---- drawing ----

  function draw() {
    const maskOf = (key) => state.masks.find((mask) => mask.key === key);
    const both = [maskOf(state.left), maskOf(state.right)];
    const ends = Object.fromEntries(state.answers.flatMap((answer) =>
      answer.tokens.map(({ pi }, position) => [answer.name + (position + 1), pi])));
    view.colour = (mask, wanted = 3) => remember(["colour", mask.colour, view.paper, wanted], () => contrasting(mask.colour, view.paper, wanted));
    view.compared = both[0] === both[1] ? both.slice(0, 1) : both;
    view.answers = answersAt(state.answers, state.updates, state.update);
    view.tokens = view.answers.flatMap((answer) => answer.tokens).map((token) => ({
      ...token, end: ends[token.name], silent: both.map((mask) => !applyMask(mask, token).keep),
    }));
    view.token = view.tokens.find((token) => token.name === state.token) ?? view.tokens[0];
    drawCard(sides.left, both[0]);
    drawCard(sides.right, both[1]);
    headline.textContent = finding();
    for (const [sign, svg] of plane) drawPlane(svg, sign, view);
    play.textContent = view.moving ? "❚❚ pause" : "▶ play";
    play.setAttribute("aria-label", view.moving ? "pause" : "play the updates");
    slider.value = Math.round(state.update);
    showPart(slider);
    slider.setAttribute("aria-valuetext", `update ${slider.value} of ${state.updates}`);
    drawSteps(steps, view);
    drawTally();
    drawStrip();
    drawFacts();
    drawTable();
    drawSlice(slice, view);
  }

  function finding() {
    const [a, b] = view.compared, update = Math.round(state.update);
    const when = update < state.updates ? `Update ${update}: ` : "";
    const names = (test) => view.tokens.filter(({ silent }) => test(...silent)).map(({ name }) => name);
    const [byA, byB, byBoth] = [names((first) => first), names((_, second) => second), names((first, second) => first && second)];
    if (!byA.length && !byB.length) return `${when}${b ? "neither" : a.label} silences ${b ? "a" : "no"} token`;
    const one = `${when}${a.label} silences ${byA.length || "none"} of ${view.tokens.length} tokens`;
    if (!b) return one;
    const list = byBoth.length > 5 ? `${byBoth.length} of them` : byBoth.join(", ");
    const shared = !byA.length || !byB.length ? "" : byBoth.length ? `; both silence ${list}` : "; never the same ones";
    return `${one}, ${b.label} ${byB.length || "none"}${shared}`;
  }

  function drawCard({ box, select, settings, rule }, mask) {
    box.style.setProperty("--colour", view.colour(mask));
    box.style.setProperty("--text", view.colour(mask, 4.5));
    select.value = mask.key;
    rule.textContent = ruleOf(mask);
    const controls = controlsOf(mask);
    if (settings.dataset.mask !== mask.key) {
      settings.dataset.mask = mask.key;
      settings.replaceChildren(...controls.map((control) => makeSlider(control, mask.key)));
    }
    controls.forEach(({ names, symbol, index, log }, position) => {
      const [, input, output] = settings.children[position].children, value = mask.region[names[0]];
      const place = log ? Math.log10(value) : value;
      if (Math.abs(Number(input.value) - place) > input.step / 2) input.value = place;
      showPart(input);
      output.textContent = short(value);
      input.setAttribute("aria-label", [symbol, ...(index ? [index] : []), "of", mask.label].join(" "));
      input.setAttribute("aria-valuetext", short(value));
    });
  }

  function makeSlider({ symbol, index, names, min, max, step, log }, key) {
    const line = put(null, "label", {}, put(null, "span", {}, symbol, ...(index ? [put(null, "sub", {}, index)] : [])));
    const move = () => {
      const value = log ? Number((10 ** input.value).toPrecision(3)) : Number(input.value);
      const { region } = state.masks.find((mask) => mask.key === key);
      for (const name of names) region[name] = value;
      draw();
    };
    const input = put(line, "input", {
      type: "range", min, max, step, "data-setting": names.join(" "),
      oninput: move, onchange: () => changed({ masks: structuredClone(state.masks) }),
    });
    put(line, "output", {});
    return line;
  }

  function chipOf(mask) {
    return put(null, "span", { class: "chip", style: `background: ${view.colour(mask)}` });
  }

  function drawTally() {
    const groups = [["all", () => true], ["Â > 0", ({ advantage }) => advantage > 0], ["Â < 0", ({ advantage }) => advantage < 0],
      ...BANDS.map(([name, low, high]) => [`μ ${name}`, ({ mu }) => mu >= low && mu < high])];
    const rows = view.compared.map((mask, which) => [[chipOf(mask), mask.label], ...groups.map(([, belongs]) => {
      const group = view.tokens.filter(belongs);
      return [group.length ? `${group.filter(({ silent }) => silent[which]).length}/${group.length}` : "–"];
    })]);
    fill(tally, ["silenced by", ...groups.map(([name]) => name)], rows);
  }

  function drawStrip() {
    const colours = view.compared.map((mask) => view.colour(mask));
    const hatch = (which) => {
      const line = `color-mix(in srgb, ${colours[which]} 45%, transparent)`, tint = `color-mix(in srgb, ${colours[which]} 14%, transparent)`;
      return `repeating-linear-gradient(${which ? 45 : -45}deg, ${line} 0 1.2px, ${tint} 1.2px 7px)`;
    };
    for (const token of view.tokens) {
      const chip = chips[token.name], chosen = token === view.token;
      const by = view.compared.filter((_, which) => token.silent[which]);
      chip.style.backgroundImage = by.map((mask) => hatch(view.compared.indexOf(mask))).join(", ") || "none";
      const said = `${token.name}: ${by.length ? `silenced by ${by.map(({ label }) => label).join(" and ")}` : "learns"}`;
      const state = { "aria-checked": chosen, tabindex: chosen ? 0 : -1, "aria-label": `${said}, ${token.text.trim()}`, title: said };
      for (const [name, value] of Object.entries(state)) chip.setAttribute(name, value);
      chip.querySelectorAll("i").forEach((bar, which) => {
        const mask = view.compared[which];
        const push = mask ? Math.abs(applyMask(mask, token).weight * token.advantage) : 0;
        bar.style.height = `${Math.min(2.2 * push, 4.4).toFixed(2)}px`;
        bar.style.background = colours[which] ?? "none";
      });
    }
    for (const answer of view.answers) drawNeedle(needles[answer.name], answer, view);
  }

  function drawFacts() {
    const { name, text, mu, pi, ratio, advantage } = view.token;
    const numbers = { "μ": short(mu), "π now": short(pi), "ρ": short(ratio), "Â": signed(advantage),
      "TV": short(divergence("tv", mu, pi)), "KL": short(divergence("kl", mu, pi)) };
    facts.replaceChildren(put(null, "span", {}, put(null, "b", {}, name), " ", put(null, "code", {}, text.trim())));
    for (const [label, number] of Object.entries(numbers)) put(facts, "span", {}, `${label} `, put(null, "b", {}, number));
  }

  function drawTable() {
    const rows = state.masks.map((mask) => {
      const { name, value, limit, keep, weight } = verdict(mask, view.token);
      const push = weight * view.token.advantage;
      return [[chipOf(mask), mask.label], [`${name} ${short(value)}`], [limit], [keep ? short(weight) : "silenced"], [keep ? signed(push) : "0"]];
    });
    fill(table, [`${view.token.name} under`, "looks at", "keeps", "weight w", "push w·Â"], rows);
    [...table.tBodies[0].rows].forEach((row, index) => {
      const mask = state.masks[index];
      row.dataset.mask = mask.key;
      row.classList.toggle("compared", view.compared.includes(mask));
      row.classList.toggle("silenced", !applyMask(mask, view.token).keep);
    });
  }

  function fill(table, titles, rows) {
    table.replaceChildren();
    const head = put(put(table, "thead"), "tr"), body = put(table, "tbody");
    for (const title of titles) put(head, "th", { scope: "col" }, title);
    for (const cells of rows) {
      const row = put(body, "tr");
      for (const content of cells) put(row, "td", {}, ...content);
    }
  }

  const unfollow = followPage(host, lab, view, draw);
  return {
    set(choices) {
      Object.assign(state, structuredClone(choices));
      draw();
    },
    remove() {
      stop();
      unfollow();
    },
  };
}
