// The numbers of the lab: the package's trust regions once more, equal over a grid (tests/viz).

const logit = (p) => Math.log(p) - Math.log1p(-p);
const sigmoid = (z) => 1 / (1 + Math.exp(-z));

// D(mu || pi) of "this token or any other", as binary_divergence has it.
function divergence(kind, mu, pi) {
  if (kind === "tv") return Math.abs(mu - pi);
  const eps = 1e-8;
  const others = (1 - mu) * Math.log((1 - mu + eps) / (1 - pi + eps));
  return mu * (Math.log(mu) - Math.log(pi)) + others;
}

// {keep, weight} of one token; the loss's gradient is -weight * advantage * grad log pi.
function applyRegion(region, { mu, pi, ratio, advantage }) {
  const up = advantage > 0, down = advantage < 0;
  if (region.type === "NoTrustRegion") return { keep: true, weight: ratio };
  if (region.type === "WeightClip")
    return { keep: true, weight: Math.min(Math.max(ratio, region.min), region.max) };
  if (region.type === "RatioClip") {
    const dual = region.dual !== null && down && ratio > region.dual;
    const keep = !((up && ratio > 1 + region.high) || (down && ratio < 1 - region.low) || dual);
    return { keep, weight: keep ? ratio : 0 };
  }
  if (region.type === "DivergenceMask") {
    const far = divergence(region.kind, mu, pi);
    const keep = !((up && ratio > 1 && far > region.high) || (down && ratio < 1 && far > region.low));
    const weight = region.ratio_cap === null ? ratio : Math.min(ratio, region.ratio_cap);
    return { keep, weight: keep ? weight : 0 };
  }
  throw new Error("no trust region " + region.type);
}

const ratioOf = (mu, pi) => Math.exp(Math.log(pi) - Math.log(mu));

// GSPO's ratio of a whole answer: the geometric mean of its tokens' ratios.
function sequenceRatio(tokens) {
  const sum = tokens.reduce((s, t) => s + Math.log(t.pi) - Math.log(t.mu), 0);
  return Math.exp(sum / tokens.length);
}

// Answers after some of `updates` updates: every token on a straight line in its logit.
function answersAt(answers, updates, update) {
  const part = update / updates;
  return answers.map((answer) => {
    const tokens = answer.tokens.map((token) => {
      const { mu, pi: end } = token;
      let pi = end;
      if (part <= 0) pi = mu;
      else if (part < 1) pi = sigmoid(logit(mu) + part * (logit(end) - logit(mu)));
      return { ...token, pi, advantage: answer.advantage, answer: answer.name };
    });
    const sequence = sequenceRatio(tokens);
    for (const token of tokens) Object.assign(token, { sequence, ratio: ratioOf(token.mu, token.pi) });
    return { ...answer, tokens, sequence };
  });
}

// What a mask does to a token of `answersAt`.
function applyMask(mask, token) {
  const ratio = mask.ratio === "sequence" ? token.sequence : token.ratio;
  return { ...applyRegion(mask.region, { ...token, ratio }), ratio };
}

// What the mask looks at and the interval in which this sign of the advantage keeps its gradient.
function verdictOf(mask, token) {
  const { region } = mask, up = token.advantage > 0;
  const { keep, weight, ratio } = applyMask(mask, token);
  const name = mask.ratio === "sequence" ? "s" : "ρ";
  const found = { keep, weight, name, value: ratio, limit: "" };
  if (region.type === "WeightClip") found.limit = `w ≤ ${short(region.max)}`;
  if (region.type === "RatioClip") {
    found.limit = up ? `≤ ${short(1 + region.high)}` : `≥ ${short(1 - region.low)}`;
    if (!up && region.dual !== null) found.limit += `, ≤ ${short(region.dual)}`;
  }
  if (region.type === "DivergenceMask") {
    found.name = region.kind === "tv" ? "D TV" : "D KL";
    found.value = divergence(region.kind, token.mu, token.pi);
    const outward = up ? "ρ ≤ 1" : "ρ ≥ 1";
    found.limit = `≤ ${short(up ? region.high : region.low)} or ${outward}`;
  }
  return found;
}

// The probabilities now, [from, to], between which a mask silences tokens sampled with `mu`.
function maskedRuns(region, mu, sign, low, high, steps = 56) {
  const keepAt = (z) => {
    const pi = sigmoid(z);
    return applyRegion(region, { mu, pi, ratio: ratioOf(mu, pi), advantage: sign }).keep;
  };
  const middle = logit(mu), places = [];
  for (let i = 0; i <= steps; i++) places.push(low + ((high - low) * i) / steps);
  for (const z of [middle - 1e-9, middle + 1e-9]) if (z > low && z < high) places.push(z);
  places.sort((a, b) => a - b);
  const runs = [];
  let open = keepAt(low) ? null : low, kept = open === null;
  for (let i = 1; i < places.length; i++) {
    const now = keepAt(places[i]);
    if (now === kept) continue;
    let [a, b] = [places[i - 1], places[i]];
    for (let n = 0; n < 30; n++) {
      const c = (a + b) / 2;
      if (keepAt(c) === kept) a = c;
      else b = c;
    }
    if (kept) open = b;
    else { runs.push([open, a]); open = null; }
    kept = now;
  }
  if (!kept) runs.push([open, high]);
  return runs;
}

// Ratio of a token sampled with `mu` at which its mask first stops it, moving with its advantage.
function wallAt(region, mu, sign, reach = 30) {
  const keepAt = (x) => {
    const pi = mu * Math.exp(x);
    return applyRegion(region, { mu, pi, ratio: Math.exp(x), advantage: sign }).keep;
  };
  const end = sign > 0 ? Math.min(reach, -Math.log(mu) - 1e-12) : -reach;
  if (keepAt(end)) return null;
  let [a, b] = [0, end];
  for (let n = 0; n < 60; n++) {
    const c = (a + b) / 2;
    if (keepAt(c)) a = c;
    else b = c;
  }
  return Math.exp(b);
}

function short(x) {
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (Math.abs(size - 1) < 0.009 && size !== 1) return String(Number(x.toFixed(4)));
  const text = size >= 100 ? x.toFixed(0) : size >= 10 ? x.toFixed(1) : size >= 0.1 ? x.toFixed(2) : x.toPrecision(2);
  return text.includes("e") ? text : text.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}
