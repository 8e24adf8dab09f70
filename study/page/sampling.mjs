// Temperature, top_k and top_p as in model/decoding/sampling.py, for one row of logits (V). A token that is cut has the
// logit -Infinity.

import { softmax } from "./model.mjs";

function applyTemperature(logits, temperature) {
  const largest = logits.reduce((a, b) => Math.max(a, b)); // shifted to 0, so that a tiny temperature cannot overflow
  return logits.map((logit) => (logit - largest) / temperature);
}

function keepTopK(logits, k) {
  const kth = new Float32Array(logits).sort()[Math.max(0, logits.length - k)];
  return logits.map((logit) => (logit < kth ? -Infinity : logit));
}

function keepTopP(logits, p) {
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

// The logits after temperature, and those of them that top_k and top_p keep. Temperature 0 does not scale, and keeps the
// largest.
export function filterLogits(logits, { temperature, topK, topP }) {
  const scaled = applyTemperature(logits, temperature || 1);
  const k = temperature ? topK : 1;
  const afterTopK = k ? keepTopK(scaled, k) : scaled;
  return { scaled, kept: topP < 1 ? keepTopP(afterTopK, topP) : afterTopK };
}

// The next token, which `uniform` in [0, 1) draws.
export function choose(logits, sampling, uniform) {
  const probs = softmax(new Float64Array(filterLogits(logits, sampling).kept));
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
