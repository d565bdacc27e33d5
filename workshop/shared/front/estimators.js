// From the rewards of one group to advantages, and from lengths to the weight of a token.

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const EPS = 1e-6; // of `group_normalize`

const ADVANTAGES = {
  no_baseline: (rewards) => rewards,
  group_center: (rewards) => minus(rewards, mean(rewards)),
  leave_one_out: (rewards) => minus(rewards, mean(rewards)).map((a) => (a * rewards.length) / (rewards.length - 1)),
  group_normalize(rewards) {
    const centred = minus(rewards, mean(rewards));
    const deviation = Math.sqrt(centred.reduce((sum, a) => sum + a * a, 0) / Math.max(rewards.length - 1, 1));
    return centred.map((a) => a / (deviation + EPS));
  },
  length_weighted_baseline(rewards, lengths) {
    const total = lengths.reduce((sum, length) => sum + length, 0);
    return minus(rewards, rewards.reduce((sum, reward, i) => sum + reward * lengths[i], 0) / total);
  },
  max_rl: (rewards) => minus(rewards, mean(rewards)).map((a) => a / mean(rewards)),
};
const minus = (rewards, baseline) => rewards.map((reward) => reward - baseline);

// A of each answer; a group whose rewards are all equal has none, but where there is no baseline.
function advantagesOf(estimator, rewards, lengths = rewards.map(() => 1)) {
  const spread = rewards.some((reward) => reward !== rewards[0]);
  return spread || estimator === "no_baseline" ? ADVANTAGES[estimator](rewards, lengths) : rewards.map(() => 0);
}

// The weight of a token of each answer in the loss of this group alone.
function tokenWeights(aggregation, lengths, constant) {
  const total = lengths.reduce((sum, length) => sum + length, 0), n = lengths.length;
  const share = {
    sequence_mean: (length) => 1 / (n * length), token_mean: () => 1 / total, prompt_mean: () => 1 / total,
    constant: () => 1 / (n * constant), sequence_sum: () => 1 / n,
  };
  return lengths.map(share[aggregation]);
}
