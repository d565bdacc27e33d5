// One column of "Train it here": a model and its run, out of the page's way.
//
// It is told { start: { model, method, problems, seed, rate, prompts, parts, shown, every } }, then
// { go: steps } as often as somebody wants more; it tells { ready }, { step }, { eight } and { measured }.

import { Learner } from "./learner.js";
import { Policy } from "./model.js";

let learner, shown, every;

onmessage = async ({ data }) => {
  try {
    if (data.start) await start(data.start);
    else advance(data.go);
  } catch (error) {
    postMessage({ failed: error.message });
  }
};

async function start({ model, method, problems, ...settings }) {
  ({ shown, every } = settings);
  learner = new Learner(await Policy.load(model), method, problems, settings);
  look();
  postMessage({ ready: true });
}

function advance(steps) {
  for (let n = 0; n < steps; n++) {
    const began = performance.now(), step = learner.step();
    postMessage({ step, seconds: (performance.now() - began) / 1000 });
    look();
  }
  postMessage({ done: true });
}

function look() {
  postMessage({ eight: learner.show(shown), at: learner.steps });
  if (learner.steps % every === 0) postMessage({ measured: learner.evaluate() });
}
