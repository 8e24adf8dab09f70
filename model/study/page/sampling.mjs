// From logits to a token: model/decoding's sampling, for one row of logits (V). A token that is ruled out has -Infinity.

import { softmax } from "./model.mjs";

export function applyTemperature(logits, temperature) {
  const largest = largestOf(logits); // made 0 first, so that a tiny temperature cannot overflow
  return logits.map((logit) => (logit - largest) / temperature);
}

export function keepTopK(logits, k) {
  const kth = new Float32Array(logits).sort()[Math.max(0, logits.length - k)];
  return logits.map((logit) => (logit < kth ? -Infinity : logit));
}

export function keepTopP(logits, p) {
  const probs = softmax(new Float64Array(logits));
  const falling = new Float64Array(probs).sort().reverse();
  let before = 0;
  let last = 1;
  for (const prob of falling) {
    if (before >= p) break;
    last = prob;
    before += prob;
  }
  return logits.map((logit, i) => (probs[i] < last ? -Infinity : logit));
}

// What each control leaves, in the order of application: logits after temperature, after top_k, after top_p.
export function stages(logits, { temperature, topK, topP }) {
  const scaled = applyTemperature(logits, temperature || 1);
  const topped = topK ? keepTopK(scaled, topK) : scaled;
  return [scaled, topped, topP < 1 ? keepTopP(topped, topP) : topped];
}

// The next token: the likeliest at temperature 0, else where `uniform` in [0, 1) falls among the summed probabilities.
export function choose(logits, sampling, uniform) {
  if (!sampling.temperature) return logits.indexOf(largestOf(logits));
  const probs = softmax(new Float64Array(stages(logits, sampling)[2]));
  let sum = 0;
  for (let token = 0; token < probs.length; token++) {
    sum += probs[token];
    if (uniform < sum) return token;
  }
  return probs.findLastIndex((prob) => prob > 0); // the sum fell short of 1 by rounding
}

// The random number of draw `step`: a function of (seed, step), so that going back and on again gives the same text.
export function uniformOf(seed, step) {
  let state = (Math.imul(seed, 0x9e3779b1) ^ Math.imul(step + 1, 0x85ebca6b)) >>> 0;
  for (let round = 0; round < 3; round++) {
    state = Math.imul(state ^ (state >>> 16), 0x45d9f3b) >>> 0;
    state = (state ^ (state >>> 15)) >>> 0;
  }
  return state / 2 ** 32;
}

// The loss of each token after the first, in nats: -log of its probability after the ones before it. logits (T, V) -> (T-1)
export function losses(logits, tokens) {
  const V = logits.length / tokens.length;
  return tokens.slice(1).map((token, t) => {
    const row = logits.subarray(t * V, (t + 1) * V);
    const largest = largestOf(row);
    return Math.log(row.reduce((sum, logit) => sum + Math.exp(logit - largest), 0)) + largest - row[token];
  });
}

function largestOf(values) {
  return values.reduce((a, b) => Math.max(a, b), -Infinity);
}
