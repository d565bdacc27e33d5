// The gradient of every weight of a small Llama, in plain JavaScript, for groups of answers that share
// a prompt; and Adam.
//
//   const pass = forward(policy, groups);     // groups: [{ prompt: ids, answers: [ids, ...] }, ...]
//   pass.logps[n][t]                          // log π of token t of answer n, answers in order
//   backward(policy, pass, slopes)            // Map of gradients by name, for slopes[n][t] = ∂loss/∂log π
//
// All tokens of all answers are rows of one matrix. A prompt's rows stand there once; its answers
// read them.

import { logSoftmax, normed, times, turn } from "./model.js";

const Numbers = Float64Array;
const EMBEDDING = "model.embed_tokens.weight", LAST = "model.norm.weight", HEAD = "lm_head.weight";
const BLOCK = {
  before: "input_layernorm", q: "self_attn.q_proj", k: "self_attn.k_proj", v: "self_attn.v_proj", out: "self_attn.o_proj",
  between: "post_attention_layernorm", gate: "mlp.gate_proj", up: "mlp.up_proj", down: "mlp.down_proj",
};

// ---- the rows ----

// Runs of rows that follow each other: prompts, and answers without their last token, after which
// nothing is predicted. `targets` say which row predicts which token of which answer.
function laidOut(groups) {
  const ids = [], positions = [], runs = [], targets = [];
  const add = (tokens, prefix) => {
    const run = { at: ids.length, length: tokens.length, prefix };
    runs.push(run);
    tokens.forEach((id, t) => (ids.push(id), positions.push((prefix?.length ?? 0) + t)));
    return run;
  };
  let answers = 0;
  for (const group of groups) {
    const prompt = add(group.prompt, null);
    for (const answer of group.answers) {
      const run = add(answer.slice(0, -1), prompt);
      answer.forEach((id, t) => targets.push({ row: t ? run.at + t - 1 : prompt.at + prompt.length - 1, id, answer: answers, t }));
      answers += 1;
    }
  }
  return { ids, positions, runs: runs.filter(({ length }) => length), targets, answers };
}

// ---- forward ----

export function forward(policy, groups) {
  const { width, inner, heads, theta, epsilon } = policy, rows = laidOut(groups), n = rows.ids.length;
  const angles = rotations(rows.positions, width / heads, theta);
  let x = new Numbers(n * width);
  rows.ids.forEach((id, row) => x.set(policy.embedding.subarray(id * width, (id + 1) * width), row * width));
  const blocks = policy.blocks.map((block) => {
    const seen = { x, h: like(x), mixed: like(x), ratios: [] };
    normed(x, block.before, epsilon, seen.h);
    for (const name of ["q", "k", "v"]) seen[name] = linear(block[name], seen.h, n, width);
    for (const name of ["q", "k"]) rotate(seen[name], angles, width, 1);
    for (const run of rows.runs) seen.ratios.push(attend(seen, run, width, heads));
    const y = (seen.y = sum(linear(block.out, seen.mixed, n, width), x));
    normed(y, block.between, epsilon, (seen.h2 = like(y)));
    seen.gate = linear(block.gate, seen.h2, n, inner);
    seen.up = linear(block.up, seen.h2, n, inner);
    seen.act = seen.gate.map((g, i) => (g / (1 + Math.exp(-g))) * seen.up[i]);
    x = sum(linear(block.down, seen.act, n, width), y);
    return seen;
  });
  const last = like(x);
  normed(x, policy.last, epsilon, last);
  const size = policy.tokens.length, logits = linear(policy.head, last, n, size), logps = Array.from({ length: rows.answers }, () => []);
  const told = new Map(); // log π of all tokens, by row
  for (const { row, id, answer } of rows.targets) {
    if (!told.has(row)) told.set(row, logSoftmax(logits.subarray(row * size, (row + 1) * size)));
    logps[answer].push(told.get(row)[id]);
  }
  return { rows, angles, blocks, x, last, told, logps };
}

// Causal attention of a run and of the prompt before it: writes `mixed`, returns the shares.
function attend(seen, run, width, heads) {
  const [keys, values] = [seen.k, seen.v].map((part) => gathered(part, run, width));
  const before = run.prefix?.length ?? 0, reach = before + run.length, size = width / heads, scale = 1 / Math.sqrt(size);
  const shares = new Numbers(heads * run.length * reach);
  for (let head = 0; head < heads; head++) {
    for (let t = 0; t < run.length; t++) {
      const from = (run.at + t) * width + head * size, row = (head * run.length + t) * reach, end = before + t + 1;
      let top = -Infinity, total = 0;
      for (let u = 0; u < end; u++) {
        let dot = 0;
        for (let i = 0, at = u * width + head * size; i < size; i++) dot += seen.q[from + i] * keys[at + i];
        shares[row + u] = dot * scale;
        if (shares[row + u] > top) top = shares[row + u];
      }
      for (let u = 0; u < end; u++) total += shares[row + u] = Math.exp(shares[row + u] - top);
      for (let u = 0; u < end; u++) {
        const share = (shares[row + u] /= total);
        for (let i = 0, at = u * width + head * size; i < size; i++) seen.mixed[from + i] += share * values[at + i];
      }
    }
  }
  return shares;
}

// ---- backward ----

export function backward(policy, pass, slopes) {
  const { width, inner, heads, epsilon } = policy, { rows, angles } = pass, n = rows.ids.length;
  const gradients = new Map(), size = policy.tokens.length;
  const keep = (name, gradient) => gradients.set(name, gradient);

  const dLogits = new Numbers(n * size);
  for (const { row, id, answer, t } of rows.targets) {
    const slope = slopes[answer][t], logp = pass.told.get(row);
    if (!slope) continue;
    for (let i = 0; i < size; i++) dLogits[row * size + i] -= slope * Math.exp(logp[i]);
    dLogits[row * size + id] += slope;
  }
  keep(HEAD, outer(dLogits, pass.last, n));
  let dx = like(pass.x);
  keep(LAST, normedBack(linear(transposed(policy.head, size), dLogits, n, width), pass.x, policy.last, epsilon, dx));
  for (let layer = policy.blocks.length; layer--; ) {
    const block = policy.blocks[layer], seen = pass.blocks[layer];
    const learn = (name, gradient) => keep(`model.layers.${layer}.${BLOCK[name]}.weight`, gradient);
    const back = (name, dy, to) => linear(transposed(block[name], dy.length / n), dy, n, to);

    learn("down", outer(dx, seen.act, n));
    const dAct = back("down", dx, inner), dGate = like(dAct), dUp = like(dAct);
    for (let i = 0; i < dAct.length; i++) {
      const g = seen.gate[i], open = 1 / (1 + Math.exp(-g));
      dUp[i] = dAct[i] * g * open;
      dGate[i] = dAct[i] * seen.up[i] * open * (1 + g * (1 - open));
    }
    learn("gate", outer(dGate, seen.h2, n));
    learn("up", outer(dUp, seen.h2, n));
    const dy = dx; // the sum passes it on as it is
    learn("between", normedBack(sum(back("gate", dGate, width), back("up", dUp, width)), seen.y, block.between, epsilon, dy));

    learn("out", outer(dy, seen.mixed, n));
    const dMixed = back("out", dy, width), d = { q: like(dy), k: like(dy), v: like(dy) };
    rows.runs.forEach((run, at) => attendBack(seen, d, dMixed, seen.ratios[at], run, width, heads));
    for (const name of ["q", "k"]) rotate(d[name], angles, width, -1);
    for (const name of ["q", "k", "v"]) learn(name, outer(d[name], seen.h, n));
    const dh = sum(back("q", d.q, width), sum(back("k", d.k, width), back("v", d.v, width)));
    learn("before", normedBack(dh, seen.x, block.before, epsilon, dy));
    dx = dy;
  }
  const dEmbedding = like(policy.embedding);
  rows.ids.forEach((id, row) => {
    for (let i = 0; i < width; i++) dEmbedding[id * width + i] += dx[row * width + i];
  });
  return keep(EMBEDDING, dEmbedding);
}

// Adds to d.q, d.k and d.v what a run's attention owes them.
function attendBack(seen, d, dMixed, shares, run, width, heads) {
  const [keys, values] = [seen.k, seen.v].map((part) => gathered(part, run, width)), dKeys = like(keys), dValues = like(values);
  const before = run.prefix?.length ?? 0, reach = before + run.length, size = width / heads, scale = 1 / Math.sqrt(size);
  const slope = new Numbers(reach);
  for (let head = 0; head < heads; head++) {
    for (let t = 0; t < run.length; t++) {
      const from = (run.at + t) * width + head * size, row = (head * run.length + t) * reach, end = before + t + 1;
      let mean = 0;
      for (let u = 0; u < end; u++) {
        const share = shares[row + u];
        let dot = 0;
        for (let i = 0, at = u * width + head * size; i < size; i++) {
          dot += dMixed[from + i] * values[at + i];
          dValues[at + i] += share * dMixed[from + i];
        }
        mean += share * (slope[u] = dot);
      }
      for (let u = 0; u < end; u++) {
        const push = shares[row + u] * (slope[u] - mean) * scale;
        for (let i = 0, at = u * width + head * size; i < size; i++) {
          d.q[from + i] += push * keys[at + i];
          dKeys[at + i] += push * seen.q[from + i];
        }
      }
    }
  }
  scattered(dKeys, d.k, run, width);
  scattered(dValues, d.v, run, width);
}

// ---- Adam ----

export class Adam {
  constructor(policy, rate, { decays = [0.9, 0.95], epsilon = 1e-8, largest = 1 } = {}) {
    Object.assign(this, { policy, rate, decays, epsilon, largest, updates: 0, memory: new Map() });
  }

  // One update, of gradients whose common norm is cut to `largest`; returns the norm before that.
  step(gradients) {
    let squares = 0;
    for (const gradient of gradients.values()) for (let i = 0; i < gradient.length; i++) squares += gradient[i] * gradient[i];
    const norm = Math.sqrt(squares), cut = Math.min(1, this.largest / (norm + 1e-6));
    const [b1, b2] = this.decays;
    this.updates += 1;
    const [c1, c2] = [1 - b1 ** this.updates, 1 - b2 ** this.updates];
    for (const [name, gradient] of gradients) {
      if (!this.memory.has(name)) this.memory.set(name, [like(gradient), like(gradient)]);
      const [m, v] = this.memory.get(name), weights = this.policy.part(name);
      for (let i = 0; i < weights.length; i++) {
        const g = cut * gradient[i];
        m[i] = b1 * m[i] + (1 - b1) * g;
        v[i] = b2 * v[i] + (1 - b2) * g * g;
        weights[i] -= (this.rate * m[i]) / c1 / (Math.sqrt(v[i] / c2) + this.epsilon);
      }
    }
    return norm;
  }
}

// ---- parts ----

const like = (x) => new Numbers(x.length);

function sum(a, b) {
  for (let i = 0; i < a.length; i++) a[i] += b[i];
  return a;
}

// [n, in] · [out, in]ᵀ
function linear(weights, x, n, out) {
  const y = new Numbers(n * out);
  times(weights, x, y, n);
  return y;
}

// Σ over n rows of dyᵀx: the gradient of a matrix [out, in].
function outer(dy, x, n) {
  const out = dy.length / n, gradient = new Numbers(out * (x.length / n));
  times(transposed(x, n), transposed(dy, n), gradient, out);
  return gradient;
}

function transposed(x, rows) {
  const columns = x.length / rows, y = new Numbers(x.length);
  for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) y[c * rows + r] = x[r * columns + c];
  return y;
}

// Adds to dx what a norm's output passes back; returns the gradient of its scale.
function normedBack(dy, x, scale, epsilon, dx) {
  const width = scale.length, dScale = like(scale);
  for (let at = 0; at < x.length; at += width) {
    let squares = 0, along = 0;
    for (let i = 0; i < width; i++) squares += x[at + i] * x[at + i];
    const factor = 1 / Math.sqrt(squares / width + epsilon);
    for (let i = 0; i < width; i++) {
      along += scale[i] * dy[at + i] * x[at + i];
      dScale[i] += dy[at + i] * x[at + i] * factor;
    }
    along *= factor ** 3 / width;
    for (let i = 0; i < width; i++) dx[at + i] += factor * scale[i] * dy[at + i] - along * x[at + i];
  }
  return dScale;
}

// Rotary angles of each position that occurs.
function rotations(positions, size, theta) {
  const of = Array.from({ length: Math.max(...positions) + 1 }, (_, at) => Numbers.from({ length: size / 2 }, (_, i) => at / theta ** (i / (size / 2))));
  return positions.map((at) => of[at]);
}

function rotate(x, angles, width, sign) {
  angles.forEach((angle, row) => turn(x.subarray(row * width, (row + 1) * width), angle, sign));
}

// Rows of a run's prompt and then its own.
function gathered(x, { at, length, prefix }, width) {
  const before = prefix ? prefix.length * width : 0, rows = new Numbers(before + length * width);
  if (prefix) rows.set(x.subarray(prefix.at * width, prefix.at * width + before));
  rows.set(x.subarray(at * width, (at + length) * width), before);
  return rows;
}

function scattered(rows, x, { at, length, prefix }, width) {
  const before = prefix ? prefix.length * width : 0;
  for (let i = 0; i < before; i++) x[prefix.at * width + i] += rows[i];
  for (let i = 0; i < length * width; i++) x[at * width + i] += rows[before + i];
}
