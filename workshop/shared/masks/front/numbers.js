// The numbers: the package's trust regions once more, tested equal to them over a grid.

const logit = (p) => Math.log(p) - Math.log1p(-p);
const sigmoid = (z) => 1 / (1 + Math.exp(-z));
const ratioOf = (mu, pi) => Math.exp(Math.log(pi) - Math.log(mu));

// D(mu || pi) of "this token or any other", in nats for kl: `binary_divergence`.
function divergence(kind, mu, pi) {
  if (kind === "tv") return Math.abs(mu - pi);
  const eps = 1e-8;
  const others = (1 - mu) * Math.log((1 - mu + eps) / (1 - pi + eps));
  return mu * (Math.log(mu) - Math.log(pi)) + others;
}

// What a trust region does to one token: whether it keeps its gradient, and the weight in
// d loss / d log pi = -weight * advantage.
function applyRegion(region, { mu, pi, ratio, advantage }) {
  const up = advantage > 0, down = advantage < 0;
  const kept = (keep, weight) => ({ keep, weight: keep ? weight : 0 });
  if (region.type === "NoTrustRegion") return kept(true, ratio);
  if (region.type === "WeightClip")
    return kept(true, Math.min(Math.max(ratio, region.min), region.max));
  if (region.type === "RatioClip") {
    const above = up && ratio > 1 + region.high, below = down && ratio < 1 - region.low;
    const far = region.dual !== null && down && ratio > region.dual;
    return kept(!(above || below || far), ratio);
  }
  if (region.type === "DivergenceMask") {
    const moved = divergence(region.kind, mu, pi);
    const above = up && ratio > 1 && moved > region.high;
    const below = down && ratio < 1 && moved > region.low;
    return kept(!(above || below), Math.min(ratio, region.ratio_cap ?? Infinity));
  }
  throw new Error(`no trust region ${region.type}`);
}

// The same where a token sampled with probability mu now has probability pi; sign of the advantage.
const regionAt = (region, mu, pi, sign) =>
  applyRegion(region, { mu, pi, ratio: ratioOf(mu, pi), advantage: sign });

// GSPO's ratio of a whole answer: the geometric mean of the ratios of its tokens.
function sequenceRatio(tokens) {
  const sum = tokens.reduce((total, { mu, pi }) => total + Math.log(pi) - Math.log(mu), 0);
  return Math.exp(sum / tokens.length);
}

// The answers after some of `updates` updates, every token on a straight line in its logit.
function answersAt(answers, updates, update) {
  const part = update / updates;
  const between = ({ mu, pi }) =>
    part <= 0 ? mu : part >= 1 ? pi : sigmoid(logit(mu) + part * (logit(pi) - logit(mu)));
  return answers.map((answer) => {
    const moved = answer.tokens.map((token) => ({ ...token, pi: between(token) }));
    const sequence = sequenceRatio(moved);
    const tokens = moved.map((token, position) => ({
      ...token, name: answer.name + (position + 1), advantage: answer.advantage,
      ratio: ratioOf(token.mu, token.pi), sequence, length: moved.length,
    }));
    return { ...answer, tokens, sequence };
  });
}

// What a mask does to a token of `answersAt`.
function applyMask(mask, token) {
  const ratio = mask.ratio === "sequence" ? token.sequence : token.ratio;
  return applyRegion(mask.region, { ...token, ratio });
}

// The same token with another ratio, the rest of its answer left as it is.
function withRatio(token, ratio) {
  const sequence = token.sequence * (ratio / token.ratio) ** (1 / token.length);
  return { ...token, ratio, pi: token.mu * ratio, sequence };
}

// What the mask looks at in a token, and what it lets tokens with this sign of advantage have.
function verdict(mask, token) {
  const { region } = mask, up = token.advantage > 0, sequence = mask.ratio === "sequence";
  const seen = { ...applyMask(mask, token), name: sequence ? "s" : "ρ" };
  seen.value = sequence ? token.sequence : token.ratio;
  if (region.type === "NoTrustRegion") return { ...seen, limit: "all" };
  if (region.type === "WeightClip") return { ...seen, limit: `all, w ≤ ${short(region.max)}` };
  if (region.type === "RatioClip") {
    const dual = region.dual === null ? "" : ` … ${short(region.dual)}`;
    const edge = up ? `≤ ${short(1 + region.high)}` : `≥ ${short(1 - region.low)}`;
    return { ...seen, limit: !up && dual ? `${short(1 - region.low)}${dual}` : edge };
  }
  const limit = `≤ ${short(up ? region.high : region.low)}, or ρ ${up ? "≤" : "≥"} 1`;
  const value = divergence(region.kind, token.mu, token.pi);
  return { ...seen, name: region.kind === "tv" ? "TV" : "KL", value, limit };
}

// Where a condition changes between a and b.
function edgeBetween(condition, a, b, halvings = 40) {
  const atA = condition(a);
  for (let n = 0; n < halvings; n++) {
    const middle = (a + b) / 2;
    if (condition(middle) === atA) a = middle;
    else b = middle;
  }
  return [a, b];
}

// The logits of pi now, as [from, to], at which tokens sampled with `mu` are silenced.
function maskedRuns(region, mu, sign, low, high, steps = 40) {
  const keeps = (z) => regionAt(region, mu, sigmoid(z), sign).keep;
  const places = Array.from({ length: steps + 1 }, (_, i) => low + ((high - low) * i) / steps);
  const still = logit(mu); // a mask without width begins beside it
  places.push(...[still - 1e-6, still + 1e-6].filter((z) => z > low && z < high));
  places.sort((a, b) => a - b);
  const runs = [];
  let from = keeps(low) ? null : low;
  for (let i = 1; i < places.length; i++) {
    if (keeps(places[i]) === (from === null)) continue;
    const [before, after] = edgeBetween(keeps, places[i - 1], places[i]);
    if (from === null) from = after;
    else runs.push([from, before]), (from = null);
  }
  return from === null ? runs : [...runs, [from, high]];
}

// The ratio at which a token sampled with `mu` is first stopped on its way; null: never.
function wallOf(region, mu, sign) {
  const keeps = (x) => regionAt(region, mu, mu * Math.exp(x), sign).keep;
  const end = sign > 0 ? -Math.log(mu) - 1e-9 : -12;
  return keeps(end) ? null : Math.exp(edgeBetween(keeps, 0, end)[1]);
}
