// A small Llama in plain JavaScript: what one token after another makes of its weights.
//
//   const policy = await Policy.load("_static/models/tiny-sums");
//   let run = policy.start("37+8-5+9=?", 8);             // eight answers side by side
//   run.step(ids);                                       // one more token each
//   run.logp(3);                                         // log π of what may come next in one
//   run = run.rows([0, 1, 2]);                           // go on with some
//
// The answers of a run share each weight as it is read, so that eight cost less than four times one.

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

  // A run of `copies` answers that all begin with `text`.
  start(text, copies = 1) {
    const run = new Run(this, 1);
    for (const id of this.encode(text)) run.step([id]);
    return run.rows(Array(copies).fill(0));
  }
}

// Keys and values of answers under way, and the logits of each one's next token.
class Run {
  constructor(policy, copies) {
    this.policy = policy;
    this.copies = copies;
    this.length = 0;
    this.keys = policy.blocks.map(() => []); // per layer and position: [copies × width]
    this.values = policy.blocks.map(() => []);
    this.logits = new Float32Array(copies * policy.tokens.length);
  }

  // The answers of these rows, in this order; a row may be named often, or not at all.
  rows(chosen) {
    const run = new Run(this.policy, chosen.length);
    const pick = (rows) => {
      const size = rows.length / this.copies;
      const picked = new Float32Array(chosen.length * size);
      chosen.forEach((row, at) => picked.set(rows.subarray(row * size, (row + 1) * size), at * size));
      return picked;
    };
    run.length = this.length;
    run.keys = this.keys.map((positions) => positions.map(pick));
    run.values = this.values.map((positions) => positions.map(pick));
    run.logits = pick(this.logits);
    return run;
  }

  // Take in one more token per answer.
  step(ids) {
    const { width, inner, heads, theta, epsilon, embedding, blocks, last, head, tokens } = this.policy;
    const n = this.copies;
    let x = new Float32Array(n * width);
    ids.forEach((id, row) => x.set(embedding.subarray(id * width, (id + 1) * width), row * width));
    blocks.forEach((block, layer) => {
      let h = normed(x, block.before, n, epsilon);
      const q = times(block.q, h, n, width);
      const k = times(block.k, h, n, width);
      this.keys[layer].push(k);
      this.values[layer].push(times(block.v, h, n, width));
      for (const rows of [q, k]) turn(rows, n, width, heads, this.length, theta);
      const seen = attend(q, this.keys[layer], this.values[layer], n, width, heads);
      x = plus(x, times(block.out, seen, n, width));
      h = normed(x, block.between, n, epsilon);
      const gate = times(block.gate, h, n, inner);
      const up = times(block.up, h, n, inner);
      for (let i = 0; i < gate.length; i++) gate[i] *= up[i] / (1 + Math.exp(-gate[i]));
      x = plus(x, times(block.down, gate, n, width));
    });
    this.logits = times(head, normed(x, last, n, epsilon), n, tokens.length);
    this.length += 1;
  }

  // log π of every token that could come next in one answer.
  logp(row, temperature = 1) {
    const size = this.policy.tokens.length;
    return logSoftmax(this.logits.subarray(row * size, (row + 1) * size), temperature);
  }
}

export function logSoftmax(logits, temperature = 1) {
  const top = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const scaled = Float64Array.from(logits, (logit) => (logit - top) / temperature);
  const log = Math.log(scaled.reduce((sum, x) => sum + Math.exp(x), 0));
  return scaled.map((x) => x - log);
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

// W·x for `n` columns that lie one after the other. Two rows of W meet four columns at a time, so
// that a number once read is used often; a column that is left over meets four rows.
function times(weights, x, n, out) {
  const size = weights.length / out;
  const y = new Float32Array(n * out);
  let c = 0;
  for (; c + 4 <= n; c += 4) {
    const a = c * size, b = a + size, d = b + size, e = d + size;
    for (let i = 0; i + 2 <= out; i += 2) {
      let a0 = 0, b0 = 0, d0 = 0, e0 = 0;
      let a1 = 0, b1 = 0, d1 = 0, e1 = 0;
      const w = i * size, v = w + size;
      for (let j = 0; j < size; j++) {
        const g = weights[w + j], h = weights[v + j];
        const xa = x[a + j], xb = x[b + j], xd = x[d + j], xe = x[e + j];
        a0 += g * xa;
        b0 += g * xb;
        d0 += g * xd;
        e0 += g * xe;
        a1 += h * xa;
        b1 += h * xb;
        d1 += h * xd;
        e1 += h * xe;
      }
      const at = c * out + i;
      y[at] = a0;
      y[at + out] = b0;
      y[at + 2 * out] = d0;
      y[at + 3 * out] = e0;
      y[at + 1] = a1;
      y[at + out + 1] = b1;
      y[at + 2 * out + 1] = d1;
      y[at + 3 * out + 1] = e1;
    }
    if (out % 2) for (let k = c; k < c + 4; k++) y[k * out + out - 1] = dot(weights, (out - 1) * size, x, k * size, size);
  }
  for (; c < n; c++) {
    const a = c * size;
    let i = 0;
    for (; i + 4 <= out; i += 4) {
      let p = 0, q = 0, r = 0, s = 0;
      for (let j = 0, w = i * size; j < size; j++, w++) {
        const value = x[a + j];
        p += weights[w] * value;
        q += weights[w + size] * value;
        r += weights[w + 2 * size] * value;
        s += weights[w + 3 * size] * value;
      }
      y.set([p, q, r, s], c * out + i);
    }
    for (; i < out; i++) y[c * out + i] = dot(weights, i * size, x, a, size);
  }
  return y;
}

function dot(a, from, b, start, size) {
  let sum = 0;
  for (let j = 0; j < size; j++) sum += a[from + j] * b[start + j];
  return sum;
}

function normed(x, scale, n, epsilon) {
  const width = scale.length;
  const y = new Float32Array(x.length);
  for (let at = 0; at < n * width; at += width) {
    let squares = 0;
    for (let i = 0; i < width; i++) squares += x[at + i] ** 2;
    const factor = 1 / Math.sqrt(squares / width + epsilon);
    for (let i = 0; i < width; i++) y[at + i] = x[at + i] * factor * scale[i];
  }
  return y;
}

function plus(a, b) {
  for (let i = 0; i < a.length; i++) a[i] += b[i];
  return a;
}

// Rotary positions: pairs half a head apart turn by an angle that grows with the position.
function turn(rows, n, width, heads, position, theta) {
  const half = width / heads / 2;
  for (let i = 0; i < half; i++) {
    const angle = position / theta ** (i / half);
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    for (let at = i; at < n * width; at += 2 * half) {
      const a = rows[at], b = rows[at + half];
      rows[at] = a * cos - b * sin;
      rows[at + half] = b * cos + a * sin;
    }
  }
}

function attend(q, keys, values, n, width, heads) {
  const size = width / heads;
  const y = new Float32Array(n * width);
  const weight = new Float32Array(keys.length);
  for (let at = 0; at < n * width; at += size) {
    let top = -Infinity;
    for (let t = 0; t < keys.length; t++) {
      const key = keys[t];
      let dot = 0;
      for (let i = at; i < at + size; i++) dot += q[i] * key[i];
      weight[t] = dot / Math.sqrt(size);
      top = Math.max(top, weight[t]);
    }
    let total = 0;
    for (let t = 0; t < keys.length; t++) total += weight[t] = Math.exp(weight[t] - top);
    for (let t = 0; t < keys.length; t++) {
      const share = weight[t] / total;
      const value = values[t];
      for (let i = at; i < at + size; i++) y[i] += share * value[i];
    }
  }
  return y;
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
    const part = new Float32Array(size);
    for (let i = 0; i < size; i++) part[i] = next() * scales[row + Math.floor((i * count) / size)];
    parts.set(name, part);
    row += count;
  }
  return parts;
}
