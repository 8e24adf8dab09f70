// Temperature, top_k and top_p as in model/decoding/sampling.py, for one row of logits (V). A token that is cut has the
// logit -Infinity.

import { softmax } from "./model.mjs";

export function applyTemperature(logits, temperature) {
  const largest = largestOf(logits); // shifted to 0, so that a tiny temperature cannot overflow
  return logits.map((logit) => (logit - largest) / temperature);
}

export function keepTopK(logits, k) {
  const kth = new Float32Array(logits).sort()[Math.max(0, logits.length - k)];
  return logits.map((logit) => (logit < kth ? -Infinity : logit));
}

export function keepTopP(logits, p) {
  const probs = softmax(new Float64Array(logits));
  const descending = new Float64Array(probs).sort().reverse();
  let sum = 0;
  let smallest = 1; // of the probabilities that are kept
  for (const prob of descending) {
    if (sum >= p) break;
    smallest = prob;
    sum += prob;
  }
  return logits.map((logit, i) => (probs[i] < smallest ? -Infinity : logit));
}

// The logits after temperature, then top_k, then top_p. Temperature 0 does not scale them.
export function filterLogits(logits, { temperature, topK, topP }) {
  const scaled = applyTemperature(logits, temperature || 1);
  const afterTopK = topK ? keepTopK(scaled, topK) : scaled;
  const afterTopP = topP < 1 ? keepTopP(afterTopK, topP) : afterTopK;
  return { scaled, afterTopK, afterTopP };
}

// The next token: the most likely one at temperature 0, else the one that `uniform` in [0, 1) draws.
export function choose(logits, sampling, uniform) {
  if (!sampling.temperature) return logits.indexOf(largestOf(logits));
  const probs = softmax(new Float64Array(filterLogits(logits, sampling).afterTopP));
  let sum = 0;
  for (let token = 0; token < probs.length; token++) {
    sum += probs[token];
    if (uniform < sum) return token;
  }
  return probs.findLastIndex((prob) => prob > 0); // the probabilities sum to slightly less than 1
}

// The random number of a step: a function of (seed, step), so that stepping back and forward gives the same text.
export function uniformOf(seed, step) {
  let state = (Math.imul(seed, 0x9e3779b1) ^ Math.imul(step + 1, 0x85ebca6b)) >>> 0;
  for (let round = 0; round < 3; round++) {
    state = Math.imul(state ^ (state >>> 16), 0x45d9f3b) >>> 0;
    state = (state ^ (state >>> 15)) >>> 0;
  }
  return state / 2 ** 32;
}

// The loss of each token after the first, in nats: -log of its probability. logits (T, V) -> (T-1)
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
