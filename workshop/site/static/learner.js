// A run of reinforcement learning in the page: sample, verify, learn. A method is a row of choices:
//
//   { advantage: "group_normalize", rewards: [0, 1], ratio: "token", region: {…}, aggregation: "token_mean" }
//
// with the names and meanings of the package's table; KL penalties, filters and penalties on length
// are left out.

import { Adam, backward, forward } from "./backprop.js";
import { draw } from "./model.js";
import { advantagesOf, applyRegion } from "./numbers.js"; // of the mask lab and of the group lab
import { valueOf, verdict } from "./verdict.js";

export const LIMIT = 64; // tokens of an answer
export const GROUP = 8; // answers to a prompt
const EPS = 1e-6;

// ---- what a method makes of a batch ----

// A of each answer of each group, from which of them are right and how long they are.
export function batchAdvantages({ advantage, rewards: [low, high] }, groups) {
  const rewards = groups.map(({ right }) => right.map((ok) => (ok ? high : low)));
  const within = (estimator) => rewards.map((each, g) => advantagesOf(estimator, each, groups[g].lengths));
  const times = (factor, all) => all.map((each) => each.map((a) => factor * a));
  if (advantage === "batch_mean_baseline") {
    const mean = averageOf(rewards.flat());
    return rewards.map((each) => each.map((reward) => reward - mean));
  }
  if (advantage === "batch_normalize" || advantage === "batch_normalize_raw") {
    const centred = within("group_center"), population = (advantage === "batch_normalize" ? centred : rewards).flat();
    const mean = averageOf(population), squares = population.reduce((total, x) => total + (x - mean) ** 2, 0);
    return times(1 / (Math.sqrt(squares / Math.max(population.length - 1, 1)) + EPS), centred);
  }
  if (advantage === "gpg") {
    const alive = rewards.filter((each) => each.some((reward) => reward !== each[0])).length;
    return times(groups.length / Math.max(alive, 1), within("group_center"));
  }
  return within(advantage);
}

// ∂loss/∂log π of every token of one update, answers in the order of `groups`, each of which has
// `logps` and `old`, an array per answer, and `advantages`; how many tokens have a signal, and how
// many of these the mask silences.
export function slopesOf({ ratio, region, aggregation }, groups, limit = LIMIT) {
  const lengths = groups.map(({ old }) => old.map((each) => each.length)), total = lengths.flat();
  const sums = lengths.map((each) => each.reduce((a, b) => a + b, 0)), tokens = sums.reduce((a, b) => a + b, 0);
  const share = {
    sequence_mean: (g, length) => 1 / (total.length * length),
    token_mean: () => 1 / tokens,
    prompt_mean: (g) => 1 / (groups.length * sums[g]),
    constant: () => 1 / (total.length * limit),
    sequence_sum: () => 1 / total.length,
  }[aggregation];
  let [signal, silenced] = [0, 0];
  const slopes = groups.flatMap(({ logps, old, advantages }, g) =>
    old.map((before, n) => {
      const moved = before.map((logp, t) => logps[n][t] - logp), whole = Math.exp(averageOf(moved));
      const weight = share(g, before.length), advantage = advantages[n];
      return before.map((logp, t) => {
        const rho = { none: 1, token: Math.exp(moved[t]), sequence: whole }[ratio];
        const token = { mu: Math.exp(logp), pi: Math.exp(logps[n][t]), ratio: rho, advantage };
        const { keep, weight: w } = applyRegion(region, token);
        if (advantage) (signal += 1), (silenced += !keep);
        return -w * advantage * weight;
      });
    }),
  );
  return { slopes, signal, silenced };
}

const averageOf = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// ---- chance ----

// Numbers from [0, 1), the same for the same seed (mulberry32).
export function dice(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), 1 | state);
    x ^= x + Math.imul(x ^ (x >>> 7), 61 | x);
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
}

// ---- sampling ----

// `count` answers to a problem: their ids, log π of each token, the entropies met, which are right.
export function answered(policy, problem, count, random) {
  const prompt = policy.encode(`${problem}=?`), right = valueOf(problem);
  const answers = Array.from({ length: count }, () => ({ ids: [], old: [], finished: false }));
  let run = policy.start(`${problem}=?`, count), live = answers, entropy = 0;
  for (let t = 0; t < LIMIT && live.length; t++) {
    live.forEach((answer, row) => {
      const logp = run.logp(row), id = draw(logp, random());
      for (const x of logp) entropy -= x * Math.exp(x);
      answer.ids.push(id);
      answer.old.push(logp[id]);
      answer.finished = id === policy.eos;
    });
    const going = [...live.keys()].filter((row) => !live[row].finished);
    if (going.length && going.length < live.length) run = run.rows(going);
    live = going.map((row) => live[row]);
    if (live.length) run.step(live.map(({ ids }) => ids.at(-1)));
  }
  const texts = answers.map(({ ids, finished }) => policy.decode(finished ? ids.slice(0, -1) : ids));
  return {
    prompt, texts, entropy,
    answers: answers.map(({ ids }) => ids),
    old: answers.map(({ old }) => old),
    lengths: answers.map(({ ids }) => ids.length),
    right: answers.map(({ finished }, n) => verdict(texts[n], right, finished) === "ok"),
  };
}

// ---- a run ----

export class Learner {
  // `problems` are { train, held }: lists of sums. One seed gives every method the same prompts, and
  // the same chance.
  constructor(policy, method, problems, { seed = 1, rate = 1e-3, prompts = 8, parts = 4 } = {}) {
    Object.assign(this, { policy, method, problems, seed, prompts, parts, steps: 0 });
    this.adam = new Adam(policy, rate);
    this.choose = dice(1000 * seed);
    this.random = dice(1000 * seed + 1);
  }

  // One batch, sampled and then learned in parts, one update each: the answers of the later parts
  // come from a policy that is some updates old.
  step() {
    const groups = Array.from({ length: this.prompts }, () => {
      const { train } = this.problems;
      return answered(this.policy, train[Math.floor(this.choose() * train.length)], GROUP, this.random);
    });
    batchAdvantages(this.method, groups).forEach((advantages, g) => (groups[g].advantages = advantages));
    let [signal, silenced] = [0, 0];
    const size = Math.ceil(groups.length / this.parts);
    for (let from = 0; from < groups.length; from += size) {
      const told = this.update(groups.slice(from, from + size));
      signal += told.signal;
      silenced += told.silenced;
    }
    this.steps += 1;
    const tokens = groups.flatMap(({ lengths }) => lengths).reduce((a, b) => a + b);
    return {
      step: this.steps,
      right: averageOf(groups.flatMap(({ right }) => right.map(Number))),
      entropy: groups.reduce((sum, { entropy }) => sum + entropy, 0) / tokens,
      length: tokens / (this.prompts * GROUP),
      silenced: signal ? silenced / signal : 0,
    };
  }

  update(groups) {
    // a group without advantages has no gradient, but counts where shares are taken
    const alive = groups.filter(({ advantages }) => advantages.some(Boolean));
    if (!alive.length) return { signal: 0, silenced: 0 };
    const pass = forward(this.policy, alive);
    let at = 0;
    for (const group of groups)
      group.logps = alive.includes(group) ? group.answers.map(() => pass.logps[at++]) : group.old;
    const told = slopesOf(this.method, groups);
    at = 0;
    const slopes = groups.flatMap((group) => {
      const own = told.slopes.slice(at, (at += group.answers.length));
      return alive.includes(group) ? own : [];
    });
    this.adam.step(backward(this.policy, pass, slopes));
    return told;
  }

  // Problems that it never trains on: the share of right answers and of problems with one among eight.
  evaluate() {
    const random = dice(7); // the same for all steps and methods
    const groups = this.problems.held.map((problem) => answered(this.policy, problem, GROUP, random));
    return {
      step: this.steps,
      accuracy: averageOf(groups.flatMap(({ right }) => right.map(Number))),
      pass8: averageOf(groups.map(({ right }) => Number(right.some(Boolean)))),
    };
  }

  // Eight answers to one problem, to be looked at.
  show(problem) {
    const { texts, right } = answered(this.policy, problem, GROUP, dice(11));
    return { texts, right };
  }
}
