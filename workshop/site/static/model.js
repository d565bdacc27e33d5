// A small Llama in plain JavaScript: what one token after another makes of its weights.
//
//   const policy = await Policy.load("_static/models/tiny-sums");
//   let run = policy.start("37+8-5+9=?", 8);             // eight answers side by side
//   run.step(ids);                                       // one more token each
//   run.logp(3);                                         // log π of what may come next in one
//   run = run.rows([0, 1, 2]);                           // go on with some
//
// The answers of a run share each weight as it is read, so that eight cost less than four times one.

const Numbers = Float64Array; // what JavaScript computes with: nothing is converted on the way

export class Policy {
  // `base`: the policy to which the weights are a difference, where the shape names one.
  constructor(shape, buffer, base) {
    Object.assign(this, shape);
    const parts = unpacked(shape, buffer);
    if (shape.base) for (const [name, part] of parts) plus(part, base.part(name));
    this.part = (name) => parts.get(name);
    this.id = new Map(this.tokens.map((token, id) => [token, id]));
    this.embedding = this.part("model.embed_tokens.weight");
    this.last = this.part("model.norm.weight");
    this.head = this.part("lm_head.weight");
    this.lessons = 0; // steps of REINFORCE that it has had in the page
    this.blocks = Array.from({ length: this.layers }, (_, layer) => {
      const of = (name) => this.part(`model.layers.${layer}.${name}.weight`);
      return {
        before: of("input_layernorm"),
        q: of("self_attn.q_proj"),
        k: of("self_attn.k_proj"),
        v: of("self_attn.v_proj"),
        out: of("self_attn.o_proj"),
        between: of("post_attention_layernorm"),
        gate: of("mlp.gate_proj"),
        up: of("mlp.up_proj"),
        down: of("mlp.down_proj"),
      };
    });
  }

  // `other` finds the policy of another name, for one that is written as a difference to it.
  static async load(path, other = (name) => Policy.load(path.replace(/[^/]*$/, name))) {
    const answers = await Promise.all([fetch(`${path}.json`), fetch(`${path}.bin`)]);
    for (const answer of answers) if (!answer.ok) throw new Error(`${answer.url}: ${answer.status}`);
    const [shape, buffer] = [await answers[0].json(), await answers[1].arrayBuffer()];
    return new Policy(shape, buffer, shape.base && (await other(shape.base)));
  }

  // Ids of a text, the start token first; throws for a sign that the model does not know.
  encode(text) {
    const words = text.match(/<\/?[a-z]+>|[a-z]+ ?|./gs) ?? [];
    const unknown = words.find((word) => !this.id.has(word));
    if (unknown !== undefined) throw new Error(`the model does not know “${unknown}”`);
    return [this.bos, ...words.map((word) => this.id.get(word))];
  }

  decode(ids) {
    return ids.map((id) => this.tokens[id]).join("");
  }

  // One step of REINFORCE on the last layer, W += rate · 1/N Σ_answers A Σ_tokens ∇_W log π(token),
  // where ∇_W log π(token) = (e_token − π) hᵀ / temperature: towards the token that was drawn, away
  // from what was to be expected. `answers` have `advantage` and `steps` of {hidden, logp, id}.
  learn(answers, rate, temperature = 1) {
    if (!this.untaught) [this.untaught, this.head] = [this.head, this.head.slice()];
    this.lessons += 1;
    for (const { advantage, steps } of answers) {
      for (const { hidden, logp, id } of steps) {
        for (let row = 0; row < logp.length; row++) {
          const push = ((rate / answers.length) * advantage * ((row === id) - Math.exp(logp[row]))) / temperature;
          for (let i = 0; i < hidden.length; i++) this.head[row * hidden.length + i] += push * hidden[i];
        }
      }
    }
  }

  // As it was before all learning.
  forget() {
    if (this.untaught) this.head.set(this.untaught);
    this.lessons = 0;
  }

  // A run of `copies` answers that all begin with `text`.
  start(text, copies = 1) {
    const run = new Run(this, [emptyCache(this)], 0);
    for (const id of this.encode(text)) run.step([id]);
    return run.rows(Array(copies).fill(0));
  }
}

// Keys and values of one answer: per layer [positions × width], with room for more.
const emptyCache = ({ blocks, width }) => blocks.map(() => [0, 1].map(() => new Numbers(64 * width)));
const longer = (full) => {
  const roomy = new Numbers(2 * full.length);
  roomy.set(full);
  return roomy;
};

// Answers under way, the logits of each one's next token, and what the last layer makes them from.
class Run {
  constructor(policy, caches, length) {
    const { width, inner, tokens } = policy;
    Object.assign(this, { policy, caches, length, copies: caches.length });
    const room = (size) => new Numbers(caches.length * size);
    this.work = { x: room(width), h: room(width), q: room(width), k: room(width), v: room(width), gate: room(inner), up: room(inner) };
    this.hidden = room(width);
    this.logits = room(tokens.length);
  }

  // The answers of these rows, in this order; a row may be named often, or not at all.
  rows(chosen) {
    const taken = new Set();
    const caches = chosen.map((row) => {
      if (!taken.has(row)) return taken.add(row), this.caches[row];
      return this.caches[row].map((pair) => pair.map((part) => part.slice()));
    });
    const run = new Run(this.policy, caches, this.length);
    for (const name of ["hidden", "logits"]) {
      const size = this[name].length / this.copies;
      chosen.forEach((row, at) => run[name].set(this[name].subarray(row * size, (row + 1) * size), at * size));
    }
    return run;
  }

  // Take in one more token per answer.
  step(ids) {
    const { width, heads, theta, epsilon, embedding, blocks, last, head } = this.policy;
    const { x, h, q, k, v, gate, up } = this.work;
    const n = this.copies, at = this.length * width;
    const angles = Float64Array.from({ length: width / heads / 2 }, (_, i) => this.length / theta ** (i / (width / heads / 2)));
    ids.forEach((id, row) => x.set(embedding.subarray(id * width, (id + 1) * width), row * width));
    blocks.forEach((block, layer) => {
      normed(x, block.before, epsilon, h);
      times(block.q, h, q, n);
      times(block.k, h, k, n);
      times(block.v, h, v, n);
      for (const rows of [q, k]) turn(rows, angles);
      for (let row = 0; row < n; row++) {
        const pair = this.caches[row][layer];
        if (at === pair[0].length) for (const i of [0, 1]) pair[i] = longer(pair[i]);
        [k, v].forEach((rows, i) => pair[i].set(rows.subarray(row * width, (row + 1) * width), at));
        attend(q, row * width, ...pair, this.length + 1, width, heads, h);
      }
      times(block.out, h, q, n);
      plus(x, q);
      normed(x, block.between, epsilon, h);
      times(block.gate, h, gate, n);
      times(block.up, h, up, n);
      for (let i = 0; i < gate.length; i++) gate[i] *= up[i] / (1 + Math.exp(-gate[i]));
      times(block.down, gate, q, n);
      plus(x, q);
    });
    normed(x, last, epsilon, this.hidden);
    times(head, this.hidden, this.logits, n);
    this.length += 1;
  }

  // What the last layer reads of one answer.
  state(row) {
    const { width } = this.policy;
    return this.hidden.slice(row * width, (row + 1) * width);
  }

  // log π of every token that could come next in one answer.
  logp(row, temperature = 1) {
    const size = this.policy.tokens.length;
    return logSoftmax(this.logits.subarray(row * size, (row + 1) * size), temperature);
  }
}

export function logSoftmax(logits, temperature = 1) {
  const scaled = new Float64Array(logits.length);
  let top = -Infinity, total = 0;
  for (let i = 0; i < logits.length; i++) top = Math.max(top, logits[i]);
  for (let i = 0; i < logits.length; i++) total += Math.exp(scaled[i] = (logits[i] - top) / temperature);
  const log = Math.log(total);
  for (let i = 0; i < logits.length; i++) scaled[i] -= log;
  return scaled;
}

// An id drawn from log-probabilities by a number from [0, 1).
export function draw(logp, uniform) {
  let rest = uniform;
  for (let id = 0; id < logp.length; id++) {
    rest -= Math.exp(logp[id]);
    if (rest < 0) return id;
  }
  return logp.indexOf(Math.max(...logp)); // what rounding has left over
}

// y = W·x for `n` columns that lie one after the other. Four rows of W meet two columns at a time, so
// that a number once read is used often; a column that is left over meets them alone.
export function times(weights, x, y, n) {
  const size = x.length / n, out = y.length / n;
  const whole = out - (out % 4);
  let c = 0;
  for (; c + 2 <= n; c += 2) {
    const a = c * size, b = a + size;
    for (let i = 0; i < whole; i += 4) {
      let a0 = 0, a1 = 0, a2 = 0, a3 = 0;
      let b0 = 0, b1 = 0, b2 = 0, b3 = 0;
      const w0 = i * size, w1 = w0 + size, w2 = w1 + size, w3 = w2 + size;
      for (let j = 0; j < size; j++) {
        const xa = x[a + j], xb = x[b + j];
        const g0 = weights[w0 + j], g1 = weights[w1 + j], g2 = weights[w2 + j], g3 = weights[w3 + j];
        a0 += g0 * xa;
        b0 += g0 * xb;
        a1 += g1 * xa;
        b1 += g1 * xb;
        a2 += g2 * xa;
        b2 += g2 * xb;
        a3 += g3 * xa;
        b3 += g3 * xb;
      }
      let at = c * out + i;
      y[at] = a0;
      y[at + 1] = a1;
      y[at + 2] = a2;
      y[at + 3] = a3;
      at += out;
      y[at] = b0;
      y[at + 1] = b1;
      y[at + 2] = b2;
      y[at + 3] = b3;
    }
  }
  for (; c < n; c++) {
    const a = c * size;
    for (let i = 0; i < whole; i += 4) {
      let a0 = 0, a1 = 0, a2 = 0, a3 = 0;
      for (let j = 0, w = i * size; j < size; j++, w++) {
        const xa = x[a + j];
        a0 += weights[w] * xa;
        a1 += weights[w + size] * xa;
        a2 += weights[w + 2 * size] * xa;
        a3 += weights[w + 3 * size] * xa;
      }
      const at = c * out + i;
      y[at] = a0;
      y[at + 1] = a1;
      y[at + 2] = a2;
      y[at + 3] = a3;
    }
  }
  for (let i = whole; i < out; i++) for (c = 0; c < n; c++) y[c * out + i] = dot(weights, i * size, x, c * size, size);
}

function dot(a, from, b, start, size) {
  let sum = 0;
  for (let j = 0; j < size; j++) sum += a[from + j] * b[start + j];
  return sum;
}

export function normed(x, scale, epsilon, y) {
  const width = scale.length;
  for (let at = 0; at < x.length; at += width) {
    let squares = 0;
    for (let i = 0; i < width; i++) squares += x[at + i] * x[at + i];
    const factor = 1 / Math.sqrt(squares / width + epsilon);
    for (let i = 0; i < width; i++) y[at + i] = x[at + i] * factor * scale[i];
  }
}

function plus(a, b) {
  for (let i = 0; i < a.length; i++) a[i] += b[i];
}

// Rotary positions: in every head, pairs half a head apart turn by an angle of their own.
export function turn(rows, angles, sign = 1) {
  const half = angles.length;
  for (let i = 0; i < half; i++) {
    const cos = Math.cos(angles[i]), sin = sign * Math.sin(angles[i]);
    for (let at = i; at < rows.length; at += 2 * half) {
      const a = rows[at], b = rows[at + half];
      rows[at] = a * cos - b * sin;
      rows[at + half] = b * cos + a * sin;
    }
  }
}

// What one answer's newest token reads from `length` positions; `from` is where its row begins.
function attend(q, from, keys, values, length, width, heads, y) {
  const size = width / heads;
  const weight = new Float64Array(length);
  y.fill(0, from, from + width);
  for (let head = 0; head < width; head += size) {
    let top = -Infinity, total = 0;
    for (let t = 0, at = head; t < length; t++, at += width) {
      let dot = 0;
      for (let i = 0; i < size; i++) dot += q[from + head + i] * keys[at + i];
      weight[t] = dot / Math.sqrt(size);
      top = Math.max(top, weight[t]);
    }
    for (let t = 0; t < length; t++) total += weight[t] = Math.exp(weight[t] - top);
    for (let t = 0, at = head; t < length; t++, at += width) {
      const share = weight[t] / total;
      for (let i = 0; i < size; i++) y[from + head + i] += share * values[at + i];
    }
  }
}

// Weights by name: the scales of all rows, then all weights as integers in units of them, of so many
// bits each, lowest bit first.
function unpacked({ tensors, bits }, buffer) {
  const rows = tensors.reduce((sum, [, , rows]) => sum + rows, 0);
  const scales = new Float32Array(buffer, 0, rows);
  const bytes = new Uint8Array(buffer, 4 * rows);
  const parts = new Map();
  let [row, at, held, bitsHeld] = [0, 0, 0, 0];
  const next = () => {
    for (; bitsHeld < bits; bitsHeld += 8) held |= bytes[at++] << bitsHeld;
    const integer = (held << (32 - bits)) >> (32 - bits); // with its sign
    held >>>= bits;
    bitsHeld -= bits;
    return integer;
  };
  for (const [name, size, count] of tensors) {
    const part = new Numbers(size);
    for (let i = 0; i < size; i++) part[i] = next() * scales[row + Math.floor((i * count) / size)];
    parts.set(name, part);
    row += count;
  }
  return parts;
}
