// “Ask the model”: eight answers written and verified in the page, and what it thought at each token.

import { Policy, draw } from "./model.js";
import { VERDICTS, valueOf, verdict } from "./verdict.js";

const ANSWERS = 8;
const LONGEST = 80;
const SHOWN = 6; // bars
const RATE = 0.02; // of a step of REINFORCE
// What is asked, of which models: more than one answer side by side.
const WORLDS = {
  "tiny-sums": {
    label: "sums: the base",
    models: { "tiny-sums": "the base" },
    problems: ["37+8-5+9", "60-7+3", "12+9-4+8-6", "5+7", "48-9+6-2+7"],
  },
  "tiny-habits": {
    label: "habits: before and after RL",
    models: { "tiny-habits": "the base", "tiny-habits-teacher": "after 80 steps of RL" },
    problems: ["40--8+2", "4+5*3", "40-(8-3)", "3+4^2", "(2+3)^2", "40-8+3"],
  },
};

const loaded = new Map();
const load = (name) => {
  if (!loaded.has(name)) loaded.set(name, Policy.load(new URL(`models/${name}`, import.meta.url).href, load));
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

// The answers of one model, under way.
class Column {
  constructor(policy, title, problem, opening) {
    Object.assign(this, { policy, title, run: policy.start(`${problem}=?${opening}`, ANSWERS) });
    const given = policy.encode(opening).slice(1);
    this.answers = Array.from({ length: ANSWERS }, () => ({
      ids: [...given],
      steps: given.map(() => null),
      finished: false,
      mark: make("span", { className: "mark" }),
      text: make("span", { className: "text" }),
    }));
    this.live = this.answers; // a row of the run each
    const rows = this.answers.map(({ mark, text }) => make("li", {}, mark, text));
    this.box = make("div", {}, make("h4", { textContent: title }), make("ol", { className: "answers" }, ...rows));
  }

  // One more token for every answer that is not at its end; how many.
  step(temperature) {
    const { live } = this;
    if (!live.length) return 0;
    live.forEach((answer, row) => {
      const logp = this.run.logp(row, temperature);
      const id = draw(logp, Math.random());
      answer.steps.push({ logp, id, hidden: this.run.state(row) });
      answer.finished = id === this.policy.eos;
      if (!answer.finished) answer.ids.push(id);
    });
    const going = [...live.keys()].filter((row) => !live[row].finished);
    if (going.length && going.length < live.length) this.run = this.run.rows(going);
    this.live = going.map((row) => live[row]);
    if (going.length) this.run.step(this.live.map((answer) => answer.ids.at(-1)));
    return live.length;
  }

  // Show the tokens that are not yet shown.
  write() {
    this.answers.forEach((answer, row) => {
      for (let at = answer.text.children.length; at < answer.ids.length; at++) {
        const [id, step] = [answer.ids[at], answer.steps[at]];
        const token = make("button", { type: "button", textContent: this.policy.tokens[id] });
        token.dataset.at = `${row} ${at}`;
        if (step) token.style.setProperty("--p", Math.exp(step.logp[id]).toFixed(3));
        else token.className = "forced";
        answer.text.append(token);
      }
    });
  }

  // Mark each answer with its verdict; how many are right.
  judge(right) {
    this.write();
    return this.answers.filter((answer) => {
      const name = verdict(this.policy.decode(answer.ids), right, answer.finished);
      answer.mark.className = `mark ${name === "ok" ? "good" : "bad"}`;
      answer.mark.textContent = `${name === "ok" ? "✓" : "✗"} ${VERDICTS[name]}`;
      return (answer.right = name === "ok");
    }).length;
  }

  // REINFORCE with the group's mean as baseline; false where all answers are worth the same.
  learn(temperature) {
    const mean = this.answers.filter(({ right }) => right).length / ANSWERS;
    const told = this.answers.map(({ right, steps }) => ({ advantage: right - mean, steps: steps.filter(Boolean) }));
    if (told.every(({ advantage }) => advantage === 0)) return false;
    this.policy.learn(told, RATE, temperature);
    return true;
  }
}

class Ask {
  constructor(host) {
    this.model = make("select", {}, ...Object.entries(WORLDS).map(([value, { label }]) => make("option", { value, textContent: label })));
    this.problem = make("input", { value: WORLDS["tiny-sums"].problems[0], size: 12, spellcheck: false });
    this.opening = make("input", { value: "", size: 12, placeholder: "<think>", spellcheck: false });
    this.heat = make("input", { type: "range", min: 0.1, max: 1.6, step: 0.1, value: 1 });
    this.degrees = make("output", { textContent: "1.0" });
    this.ask = make("button", { type: "submit", textContent: "Ask eight times" });
    this.other = make("button", { type: "button", textContent: "Another sum" });
    this.learn = make("button", { type: "button", textContent: "Learn from these, ask again", disabled: true });
    this.forget = make("button", { type: "button", textContent: "Forget", hidden: true });
    const heat = labelled("temperature", this.heat);
    heat.append(this.degrees);
    this.form = make("form", {}, labelled("model", this.model), labelled("problem", this.problem), labelled("it must begin with", this.opening), heat, this.ask, this.other, this.learn, this.forget);
    this.score = make("p", { className: "score", ariaLive: "polite", textContent: "One megabyte of weights is fetched for the first question." });
    this.list = make("div", { className: "columns" });
    this.bars = make("div", { className: "bars", hidden: true });
    host.replaceChildren(this.form, this.score, this.list, this.bars);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    this.other.addEventListener("click", () => this.change(1));
    this.model.addEventListener("change", () => this.change(0));
    this.learn.addEventListener("click", () => this.teach());
    this.forget.addEventListener("click", () => {
      for (const { policy } of this.columns) policy.forget();
      this.run();
    });
    this.heat.addEventListener("input", () => (this.degrees.textContent = Number(this.heat.value).toFixed(1)));
    this.list.addEventListener("click", (event) => event.target.closest("button[data-at]") && this.explain(event.target.closest("button[data-at]")));
  }

  // The question that stands there, unless one has been asked.
  first() {
    if (!this.asked) this.run();
  }

  change(by) {
    const { problems } = WORLDS[this.model.value];
    const at = problems.indexOf(this.problem.value.trim());
    this.problem.value = problems[(at + by + problems.length) % problems.length] ?? problems[0];
    if (at < 0) this.problem.value = problems[0];
    this.run();
  }

  // A step of REINFORCE for the first model that stands there, from what it has just written.
  teach() {
    if (this.columns[0].learn(this.temperature)) this.run();
    else this.score.textContent = "All eight are worth the same: no advantage, nothing to learn. Ask again, or make it warmer.";
  }

  async run() {
    const asked = (this.asked = {}); // a later question takes over
    this.learn.disabled = true;
    try {
      const problem = this.problem.value.trim().replace(/=\?$/, "");
      const right = valueOf(problem);
      const { models } = WORLDS[this.model.value];
      this.score.textContent = Object.keys(models).every((name) => loaded.has(name)) ? "…" : "fetching the weights …";
      const policies = await Promise.all(Object.keys(models).map(load));
      if (this.asked !== asked) return;
      const temperature = (this.temperature = Number(this.heat.value)), opening = this.opening.value;
      let began = performance.now();
      let [tokens, worked] = [0, 0];
      this.bars.hidden = true;
      this.columns = policies.map((policy, at) => new Column(policy, Object.values(models)[at], problem, opening));
      this.list.replaceChildren(...this.columns.map(({ box }) => box));
      this.columns.forEach((column, at) => (column.box.dataset.column = at));
      for (let t = this.columns[0].answers[0].ids.length; t < LONGEST && this.columns.some(({ live }) => live.length); t++) {
        for (const column of this.columns) tokens += column.step(temperature);
        if (t % 4) continue;
        worked += performance.now() - began;
        for (const column of this.columns) column.write();
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

  // The verdicts, and what they come to.
  tell(right, tokens, rate) {
    const { lessons } = this.columns[0].policy;
    this.learn.disabled = false;
    this.forget.hidden = !lessons;
    const several = this.columns.length > 1;
    const told = this.columns.map((column) => {
      const good = column.judge(right), wrong = ANSWERS - good;
      const pass = (k) => {
        let none = 1; // the chance that k of the eight hold no right one
        for (let i = 0; i < k; i++) none *= Math.max(0, wrong - i) / (ANSWERS - i);
        return (1 - none).toFixed(2);
      };
      return `${several ? `${column.title}: ` : ""}${good} of ${ANSWERS} say ${right}, pass@1 ${pass(1)}, pass@2 ${pass(2)}, pass@4 ${pass(4)}`;
    });
    const after = lessons ? `After ${lessons} step${lessons > 1 ? "s" : ""} of REINFORCE: ` : "";
    this.score.textContent =
      `${after}${told.join("; ")}. ${tokens} tokens, ${Math.round(rate)} a second. ` +
      "The redder a token, the less likely it was: click one.";
    this.form.dataset.rate = Math.round(rate);
  }

  explain(token) {
    const [row, at] = token.dataset.at.split(" ").map(Number);
    const { policy, answers } = this.columns[token.closest("[data-column]").dataset.column];
    const step = answers[row].steps[at];
    if (!step) return;
    this.list.querySelector(".chosen")?.classList.remove("chosen");
    token.classList.add("chosen");
    const order = [...step.logp.keys()].sort((a, b) => step.logp[b] - step.logp[a]).slice(0, SHOWN);
    if (!order.includes(step.id)) order.push(step.id);
    const before = policy.decode(answers[row].ids.slice(0, at));
    this.bars.replaceChildren(
      make("p", {}, "After ", make("code", { textContent: `${this.problem.value}=?${before}` }), " it could have written:"),
      ...order.map((id) => {
        const share = Math.exp(step.logp[id]);
        const bar = make("span", { className: `bar${id === step.id ? " drawn" : ""}` });
        bar.style.width = `${(100 * share).toFixed(1)}%`;
        const track = make("span", { className: "track" }, bar);
        return make("div", {}, make("code", { textContent: policy.tokens[id] }), track, make("span", { textContent: share.toFixed(3) }));
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
