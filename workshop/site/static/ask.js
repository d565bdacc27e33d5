// “Ask the model”: eight answers written and verified in the page, and what it thought at each token.

import { Policy, draw } from "./model.js";
import { VERDICTS, valueOf, verdict } from "./verdict.js";

const ANSWERS = 8;
const LONGEST = 80;
const SHOWN = 6; // bars
const MODELS = {
  "tiny-sums": { label: "sums: the base", problems: ["37+8-5+9", "60-7+3", "12+9-4+8-6", "5+7", "48-9+6-2+7"] },
  "tiny-habits": {
    label: "habits: the base",
    problems: ["40--8+2", "4+5*3", "40-(8-3)", "3+4^2", "(2+3)^2", "40-8+3"],
  },
  "tiny-habits-teacher": { label: "habits: after 80 steps of RL" },
};
MODELS["tiny-habits-teacher"].problems = MODELS["tiny-habits"].problems;

const loaded = new Map();
const load = (name) => {
  if (!loaded.has(name)) loaded.set(name, Policy.load(new URL(`models/${name}`, import.meta.url).href));
  return loaded.get(name);
};

function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

function labelled(text, control) {
  return make("label", {}, make("span", { textContent: text }), control);
}

class Ask {
  constructor(host) {
    this.model = make("select", {}, ...Object.entries(MODELS).map(([value, { label }]) => make("option", { value, textContent: label })));
    this.problem = make("input", { value: MODELS["tiny-sums"].problems[0], size: 12, spellcheck: false });
    this.opening = make("input", { value: "", size: 12, placeholder: "<think>", spellcheck: false });
    this.heat = make("input", { type: "range", min: 0.1, max: 1.6, step: 0.1, value: 1 });
    this.degrees = make("output", { textContent: "1.0" });
    this.ask = make("button", { type: "submit", textContent: "Ask eight times" });
    this.other = make("button", { type: "button", textContent: "Another sum" });
    const heat = labelled("temperature", this.heat);
    heat.append(this.degrees);
    this.form = make("form", {}, labelled("model", this.model), labelled("problem", this.problem), labelled("it must begin with", this.opening), heat, this.ask, this.other);
    this.score = make("p", { className: "score", ariaLive: "polite", textContent: "One megabyte of weights is fetched for the first question." });
    this.list = make("ol", { className: "answers" });
    this.bars = make("div", { className: "bars", hidden: true });
    host.replaceChildren(this.form, this.score, this.list, this.bars);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    this.other.addEventListener("click", () => this.change(1));
    this.model.addEventListener("change", () => this.change(0));
    this.heat.addEventListener("input", () => (this.degrees.textContent = Number(this.heat.value).toFixed(1)));
    this.list.addEventListener("click", (event) => event.target.closest("button[data-at]") && this.explain(event.target.closest("button[data-at]")));
  }

  // The question that stands there, unless one has been asked.
  first() {
    if (!this.asked) this.run();
  }

  change(by) {
    const { problems } = MODELS[this.model.value];
    const at = problems.indexOf(this.problem.value.trim());
    this.problem.value = problems[(at + by + problems.length) % problems.length] ?? problems[0];
    if (at < 0) this.problem.value = problems[0];
    this.run();
  }

  async run() {
    const asked = (this.asked = {}); // a later question takes over
    try {
      const problem = this.problem.value.trim().replace(/=\?$/, "");
      const right = valueOf(problem);
      this.score.textContent = loaded.has(this.model.value) ? "…" : "fetching the weights …";
      const policy = (this.policy = await load(this.model.value));
      const temperature = Number(this.heat.value);
      let began = performance.now();
      let [tokens, worked] = [0, 0];
      let run = policy.start(`${problem}=?${this.opening.value}`, ANSWERS);
      const given = policy.encode(this.opening.value).slice(1);
      this.begin(given);
      let live = this.answers; // a row of the run each
      for (let t = given.length; t < LONGEST && live.length; t++) {
        live.forEach((answer, row) => {
          const logp = run.logp(row, temperature);
          const id = draw(logp, Math.random());
          tokens += 1;
          answer.steps.push({ logp, id });
          if (id === policy.eos) answer.finished = true;
          else answer.ids.push(id);
        });
        const going = [...live.keys()].filter((row) => !live[row].finished);
        if (going.length < live.length) run = run.rows(going);
        live = going.map((row) => live[row]);
        run.step(live.map((answer) => answer.ids.at(-1)));
        if (t % 4) continue;
        worked += performance.now() - began;
        this.answers.forEach((answer) => this.write(answer));
        await new Promise((next) => setTimeout(next));
        if (this.asked !== asked) return;
        began = performance.now();
      }
      worked += performance.now() - began;
      this.tell(right, tokens, (1000 * tokens) / worked);
    } catch (error) {
      this.score.textContent = `${error.message}.`;
    }
  }

  // Empty rows, each with the opening that was asked for.
  begin(given) {
    this.bars.hidden = true;
    this.answers = Array.from({ length: ANSWERS }, () => ({
      ids: [...given],
      steps: given.map(() => null),
      finished: false,
      mark: make("span", { className: "mark" }),
      text: make("span", { className: "text" }),
    }));
    this.list.replaceChildren(...this.answers.map(({ mark, text }) => make("li", {}, mark, text)));
  }

  // Show the tokens of an answer that are not yet shown.
  write(answer) {
    for (let at = answer.text.children.length; at < answer.ids.length; at++) {
      const [id, step] = [answer.ids[at], answer.steps[at]];
      const token = make("button", { type: "button", textContent: this.policy.tokens[id] });
      token.dataset.at = `${this.answers.indexOf(answer)} ${at}`;
      if (step) token.style.setProperty("--p", Math.exp(step.logp[id]).toFixed(3));
      else token.className = "forced";
      answer.text.append(token);
    }
  }

  // The verdicts, and what they come to.
  tell(right, tokens, rate) {
    let good = 0;
    for (const answer of this.answers) {
      this.write(answer);
      const name = verdict(this.policy.decode(answer.ids), right, answer.finished);
      good += name === "ok";
      answer.mark.className = `mark ${name === "ok" ? "good" : "bad"}`;
      answer.mark.textContent = `${name === "ok" ? "✓" : "✗"} ${VERDICTS[name]}`;
    }
    const wrong = ANSWERS - good;
    const pass = (k) => {
      let none = 1; // the chance that k of the eight hold no right one
      for (let i = 0; i < k; i++) none *= Math.max(0, wrong - i) / (ANSWERS - i);
      return (1 - none).toFixed(2);
    };
    this.score.textContent =
      `${good} of ${ANSWERS} say ${right}: pass@1 ${pass(1)}, pass@2 ${pass(2)}, pass@4 ${pass(4)}. ` +
      `${tokens} tokens, ${Math.round(rate)} a second. The redder a token, the less likely it was: click one.`;
    this.form.dataset.rate = Math.round(rate);
  }

  explain(token) {
    const [row, at] = token.dataset.at.split(" ").map(Number);
    const step = this.answers[row].steps[at];
    if (!step) return;
    this.list.querySelector(".chosen")?.classList.remove("chosen");
    token.classList.add("chosen");
    const order = [...step.logp.keys()].sort((a, b) => step.logp[b] - step.logp[a]).slice(0, SHOWN);
    if (!order.includes(step.id)) order.push(step.id);
    const before = this.policy.decode(this.answers[row].ids.slice(0, at));
    this.bars.replaceChildren(
      make("p", {}, "After ", make("code", { textContent: `${this.problem.value}=?${before}` }), " it could have written:"),
      ...order.map((id) => {
        const share = Math.exp(step.logp[id]);
        const bar = make("span", { className: `bar${id === step.id ? " drawn" : ""}` });
        bar.style.width = `${(100 * share).toFixed(1)}%`;
        const track = make("span", { className: "track" }, bar);
        return make("div", {}, make("code", { textContent: this.policy.tokens[id] }), track, make("span", { textContent: share.toFixed(3) }));
      }),
    );
    this.bars.hidden = false;
  }
}

// The first question is asked when a reader comes to it, and only then are weights fetched.
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting || navigator.connection?.saveData) continue;
    seen.unobserve(target);
    panels.get(target).first();
  }
}, { threshold: 0.4 });
const panels = new Map();
for (const host of document.querySelectorAll("[data-ask]")) {
  panels.set(host, new Ask(host));
  seen.observe(host);
}
