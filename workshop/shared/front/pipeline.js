// Generators and trainers side by side, event by event: `rlbook.scaling.simulate` for schedules that
// send weights after every update, and answers that are no groups.

// The distribution of the normal law.
function normalBelow(x) {
  if (x > 0) return 1 - normalBelow(-x);
  if (x > -4) {
    let [term, sum] = [x, x];
    for (let n = 1; Math.abs(term) > 1e-18; n++) (term *= (x * x) / (2 * n + 1)), (sum += term);
    return 0.5 + (sum * Math.exp((-x * x) / 2)) / Math.sqrt(2 * Math.PI);
  }
  let fraction = 0;
  for (let n = 60; n > 0; n--) fraction = n / (-x + fraction);
  return Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI) / (-x + fraction);
}

// Lengths of `count` completions from standard normal noise, which is repeated as needed; `Lengths`.
function lengthsFrom(noise, { mean, sigma, max_tokens }, count) {
  return Array.from({ length: count }, (_, i) =>
    Math.min(Math.max(1, Math.round(mean * Math.exp(sigma * noise[i % noise.length] - sigma ** 2 / 2))), max_tokens));
}

// Their mean, rounding aside.
function expectedLength({ mean, sigma, max_tokens }) {
  if (sigma === 0) return Math.min(mean, max_tokens);
  const above = (side) => normalBelow(Math.log(mean / max_tokens) / sigma - (side * sigma) / 2);
  return mean * (1 - above(-1)) + max_tokens * above(1);
}

const decodeTime = (cluster, load) => cluster.decode_fixed + cluster.decode_per_sequence * load;
const updateTime = (cluster, tokens) => cluster.update_fixed + (cluster.update_per_token * tokens) / cluster.trainers;

// Accelerators divided so that the slower side is as fast as possible; `split`.
function divided(cluster, lengths, batch, accelerators) {
  const tokens = batch * expectedLength(lengths);
  let best = null;
  for (let trainers = 1; trainers < accelerators; trainers++) {
    const shape = { ...cluster, generators: accelerators - trainers, trainers };
    const peak = (shape.generators * shape.slots) / decodeTime(shape, shape.slots);
    const speed = Math.min(peak, tokens / (updateTime(shape, tokens) + shape.sync));
    if (!best || speed > best.speed) best = { speed, shape };
  }
  return best.shape;
}

// `ahead` batches may be started before their turn; without `overlap` nobody works side by side.
function simulate({ ahead, overlap }, cluster, tokens, batch, updates, warmup) {
  const generators = cluster.generators, all = (value, n) => new Float64Array(n).fill(value);
  const place = [], firstStep = [], first = [], last = [], done = [], trained = tokens.map(() => -1);
  const load = all(0, generators), steps = all(0, generators), since = all(0, generators), plan = all(Infinity, generators);
  const running = Array.from({ length: generators }, () => []), marks = [], history = [];
  let [now, paused, busy, filled, training] = [0, 0, 0, 0, 0];
  let [version, trainedAt, begun, oldest, active, inFlight, ready, needed] = [0, Infinity, 0, 0, 0, 0, 0, batch];
  const clock = () => now - paused;
  const lowest = (values) => {
    let best = 0;
    for (let g = 1; g < generators; g++) if (values[g] < values[best]) best = g;
    return best;
  };

  function replan(g) {
    plan[g] = running[g].length ? clock() + (running[g][0].due - steps[g]) * decodeTime(cluster, load[g]) : Infinity;
  }
  function advance(g) {
    if (load[g]) steps[g] += (clock() - since[g]) / decodeTime(cluster, load[g]);
    since[g] = clock();
  }
  function admit() {
    const allowed = (version + 1 + ahead) * batch, changed = new Set();
    for (let g = lowest(load); begun < allowed && load[g] < cluster.slots; g = lowest(load)) {
      advance(g);
      const i = begun++;
      [place[i], firstStep[i], first[i]] = [g, steps[g], version];
      const due = steps[g] + tokens[i], queue = running[g]; // soonest first
      let at = queue.length;
      while (at && queue[at - 1].due > due) at--;
      queue.splice(at, 0, { due, i });
      active += load[g] === 0;
      load[g] += 1;
      inFlight += 1;
      changed.add(g);
    }
    changed.forEach(replan);
  }
  function finish(g) {
    const queue = running[g], { due } = queue[0];
    [steps[g], since[g]] = [due, clock()];
    while (queue.length && queue[0].due <= due) {
      const { i } = queue.shift();
      [last[i], done[i]] = [version, true];
      load[g] -= 1;
      inFlight -= 1;
      ready += 1;
    }
    active -= load[g] === 0;
    replan(g);
    admit();
  }
  function installWeights() {
    for (let g = 0; g < generators; g++) if (load[g]) advance(g);
    marks.push(steps.slice());
    admit();
  }
  // The oldest finished completions, unless what is left out would get too old by waiting.
  function nextBatch() {
    if (ready < needed || (inFlight && !overlap)) return [];
    while (trained[oldest] >= 0) oldest++;
    const taken = [];
    let [place, late] = [0, 0];
    for (let i = oldest; i < begun; i++) {
      if (trained[i] >= 0) continue;
      if (done[i] && taken.length < batch) taken.push(i);
      else late = Math.max(late, ++place - (first[i] + ahead - version) * batch);
    }
    if (late <= 0) return taken;
    needed = ready + late;
    return [];
  }
  function moveTo(time) {
    const seconds = Math.max(0, time - now);
    busy += active * seconds;
    filled += inFlight * seconds;
    if (trainedAt < Infinity) training += seconds;
    now += seconds;
  }

  installWeights();
  for (;;) {
    if (history.length === version) history.push([now, busy, filled, training, paused]);
    if (version === updates) break;
    const g = lowest(plan), nextFinish = plan[g] + paused;
    if (trainedAt === Infinity && nextFinish > now) {
      const chosen = nextBatch();
      for (const i of chosen) trained[i] = version;
      if (chosen.length) trainedAt = now + updateTime(cluster, chosen.reduce((sum, i) => sum + tokens[i], 0));
    }
    if (trainedAt < nextFinish) {
      moveTo(trainedAt);
      [version, trainedAt, needed] = [version + 1, Infinity, batch * (version + 2)];
      now += cluster.sync;
      paused += cluster.sync;
      installWeights();
    } else {
      moveTo(nextFinish);
      finish(g);
    }
  }

  const [seconds, , slots, trainers, syncing] = history[updates].map((value, i) => value - history[warmup][i]);
  const ages = Array(ahead + 1).fill(0);
  let written = 0;
  trained.forEach((update, i) => {
    if (update < warmup) return;
    written += tokens[i];
    for (let at = first[i]; at <= last[i]; at++) { // each set of weights wrote from its mark to the next
      const low = Math.max(marks[at][place[i]], firstStep[i]);
      const high = Math.min(marks[at + 1]?.[place[i]] ?? Infinity, firstStep[i] + tokens[i]);
      ages[update - at] += Math.max(high - low, 0);
    }
  });
  const total = ages.reduce((sum, n) => sum + n, 0);
  return {
    tokensPerSecond: written / seconds, occupancy: slots / (generators * cluster.slots * seconds), trainingShare: trainers / seconds,
    syncShare: syncing / seconds, trainerIdle: Math.max(0, 1 - (trainers + syncing) / seconds), ages: ages.map((n) => n / total),
  };
}

// What the figure shows for its values: the pipeline, its shape, and how much faster it is than turns.
function pipelineRun({ cluster, lengths, batch, noise }, { staleness, sigma, accelerators }) {
  const law = { ...lengths, sigma }, shape = divided(cluster, law, batch, accelerators);
  const run = simulate({ ahead: staleness, overlap: true }, shape, lengthsFrom(noise, law, batch * (21 + staleness)), batch, 20, 6);
  const both = { ...cluster, generators: accelerators, trainers: accelerators };
  const turns = simulate({ ahead: 0, overlap: false }, both, lengthsFrom(noise, law, batch * 13), batch, 12, 4);
  return { run, shape, speedup: run.tokensPerSecond / turns.tokensPerSecond };
}

FIGURES.pipeline = {
  title: "Staleness and pacing of an asynchronous run",
  drawings: 2,
  controls: () => [
    { name: "staleness", label: "allowed staleness, updates", min: 0, max: 16, step: 1 },
    { name: "sigma", label: "σ of log length", min: 0, max: 1.4, step: 0.1 },
    { name: "accelerators", label: "accelerators", min: 2, max: 64, step: 2 },
  ],
  draw(view) {
    const { run, shape, speedup } = pipelineRun(view.data, view.values), { staleness } = view.values;
    view.say(`${shape.generators} generators, ${shape.trainers} trainers: ${speedup.toFixed(1)} times as fast as taking turns`);
    const rows = [["slots", run.occupancy, 1 - run.occupancy - run.syncShare], ["trainers", run.trainingShare, run.trainerIdle]];
    const parts = [["working", view.colour(GOOD)], ["waiting", "var(--faint)"], ["weight transfer", view.colour(BAD)]];
    const [left, right] = view.svgs, time = chart(left, view, {
      title: "Where the time goes", height: 230,
      x: { from: 0, to: 1, ticks: [0, 0.25, 0.5, 0.75, 1].map((share) => [share, percent(share)]) },
      y: { from: 3.2, to: 0, ticks: rows.map(([name], i) => [i + 0.6, name]) },
    });
    rows.forEach(([, working, waiting], i) => {
      let from = 0;
      [working, waiting, run.syncShare].forEach((share, part) => {
        time.bar(from, from + share, i + 0.2, i + 1, { fill: parts[part][1] });
        from += share;
      });
    });
    let at = 0;
    for (const [name, fill] of parts) {
      time.bar(at, at + 0.04, 2.5, 2.8, { fill });
      at += 0.05 + (sizeOf(left, time.text(at + 0.05, 2.77, name).textContent).width + 14) / (time.box.right - time.box.left);
    }
    const age = chart(right, view, {
      title: "How old the trained tokens are", height: 230,
      x: { from: -0.6, to: staleness + 0.6, ticks: run.ages.map((_, d) => d).filter((d) => staleness < 9 || d % 2 === 0), label: "staleness of a token, in updates" },
      y: { from: 0, to: 1, ticks: [0, 0.5, 1].map((share) => [share, percent(share)]) },
    });
    run.ages.forEach((share, d) => age.bar(d - 0.4, d + 0.4, 0, share, { fill: view.colour("#0072B2") }));
  },
};
