// The model, in a thread of its own: a message in, an answer with the same id out.

import { KVCache, Transformer, precomputeFreqsCis, unpack, work } from "./model.mjs";
import { choose, losses, uniformOf } from "./sampling.mjs";

let model, cache, logits;

// Base64 by a table, which is some five times faster than atob.
export function decodeBase64(text) {
  const table = new Uint8Array(128);
  [..."ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"].forEach(
    (c, i) => (table[c.charCodeAt(0)] = i),
  );
  const padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
  const bytes = new Uint8Array((text.length / 4) * 3 - padding);
  for (let i = 0, at = 0; i < text.length; i += 4) {
    const six = (j) => table[text.charCodeAt(i + j)];
    const group = (six(0) << 18) | (six(1) << 12) | (six(2) << 6) | six(3);
    bytes[at++] = group >> 16; // what is written past the end of the array is dropped
    bytes[at++] = group >> 8;
    bytes[at++] = group;
  }
  return bytes.buffer;
}

// One forward pass, with what the page draws of it.
function forward(tokens, startPos, useCache) {
  const trace = [];
  const before = work.multiplications;
  const start = performance.now();
  const h = model.hidden(tokens, startPos, useCache ? cache : null, trace); // (T, dim)
  logits = model.logits(h.subarray(h.length - model.args.dim)); // (V), of the last token
  return {
    startPos,
    T: tokens.length,
    useCache,
    trace,
    ms: performance.now() - start,
    multiplications: work.multiplications - before,
  };
}

export const answers = {
  load({ facts, weights, limit }) {
    model = new Transformer(facts.args, unpack(decodeBase64(weights), facts.shapes, facts.dtype));
    cache = new KVCache(model.args, limit);
    model.forward(Array(Math.min(8, limit)).fill(0)); // so that the first time measured is not the compiler's
    return {};
  },

  // Forwards `tokens` after `earlier`, then samples and forwards `count` more, until one ends the text.
  run({ earlier, tokens, count, dropped = 0, sampling, useCache, eosIds }) {
    const all = [...earlier];
    const passes = [];
    const start = performance.now();
    const take = (more) => {
      all.push(...more);
      passes.push(useCache ? forward(more, all.length - more.length, true) : forward(all, 0, false));
    };
    if (tokens.length) take(tokens);
    for (let n = 0; n < count && all.length < cache.maxSeqLen; n++) {
      const token = choose(logits, sampling, uniformOf(sampling.seed, dropped + all.length));
      take([token]);
      if (eosIds.includes(token)) break;
    }
    return { tokens: all.slice(earlier.length), passes, logits, ms: performance.now() - start };
  },

  drop({ kept, count, length }) {
    const { headDim, ropeTheta, ropeScaling } = model.args;
    const plain = ropeScaling && { ...ropeScaling, attentionFactor: 1 };
    cache.drop(
      kept,
      count,
      length,
      precomputeFreqsCis(headDim, 1, ropeTheta, plain, () => -count),
    );
    return {};
  },

  // The same tokens under another table of rotations: the next token's logits, and the loss of each token.
  whatIf({ tokens, theta, scaling, offset, stretch, off }) {
    const place = off ? () => 0 : (p) => offset + stretch * p;
    const table = precomputeFreqsCis(model.args.headDim, tokens.length, theta, off ? null : scaling, place);
    const all = model.logits(model.hidden(tokens, 0, null, null, table)); // (T, V)
    return { logits: all.slice(all.length - model.args.vocabSize), losses: losses(all, tokens) };
  },
};

if (typeof self !== "undefined" && typeof postMessage === "function") {
  self.onmessage = ({ data }) => {
    try {
      postMessage({ id: data.id, ...answers[data.type](data) });
    } catch (error) {
      postMessage({ id: data.id, error: error.message });
    }
  };
}
