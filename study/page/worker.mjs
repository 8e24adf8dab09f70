// The model in a worker thread. Each message gets one answer with the same id.

import { KVCache, Transformer, precomputeFreqsCis, work } from "./model.mjs";
import { choose, losses, uniformOf } from "./sampling.mjs";

let model, tensors, cache, logits;

const BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Base64 with a lookup table, because atob gives a string, which would have to be copied into an array.
export function decodeBase64(text) {
  const table = new Uint8Array(128);
  for (let i = 0; i < 64; i++) table[BASE64.charCodeAt(i)] = i;
  const end = text.indexOf("=", text.length - 2);
  const padding = end < 0 ? 0 : text.length - end;
  const bytes = new Uint8Array((text.length / 4) * 3 - padding);
  for (let i = 0, at = 0; i < text.length; i += 4) {
    const six = (j) => table[text.charCodeAt(i + j)];
    const group = (six(0) << 18) | (six(1) << 12) | (six(2) << 6) | six(3);
    bytes[at++] = group >> 16; // writes past the end of a typed array are ignored
    bytes[at++] = group >> 8;
    bytes[at++] = group;
  }
  return bytes.buffer;
}

// The bytes of all weights -> { name: { data, rows, columns } }. Names and shapes are those of the state dict.
export function unpack(bytes, shapes, dtype) {
  const all = dtype === "float16" ? float32OfHalves(new Uint16Array(bytes)) : new Float32Array(bytes);
  const tensors = {};
  let at = 0;
  for (const [name, rows, columns] of shapes) {
    tensors[name] = { data: all.subarray(at, at + rows * columns), rows, columns };
    at += rows * columns;
  }
  return tensors;
}

// A table of all 65,536 float16 numbers, because computing each weight's number takes longer than looking it up.
function float32OfHalves(halves) {
  const table = Float32Array.from({ length: 65536 }, (_, bits) => {
    const sign = bits >> 15 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
  });
  const numbers = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) numbers[i] = table[halves[i]]; // Float32Array.from is slower
  return numbers;
}

// The tensors with the rows of queries and keys in the order of halves: 2i and 2i + 1 of a head at i and i + D/2.
export function inHalves(tensors, headDim) {
  const mixed = { ...tensors };
  for (const [name, { data, rows, columns }] of Object.entries(tensors)) {
    if (!/\.(wq|wk|q_norm|k_norm)\.\w+$/.test(name)) continue;
    const [count, width] = rows === 1 ? [columns, 1] : [rows, columns]; // a bias or norm is one row
    const moved = new Float32Array(data.length);
    for (let row = 0; row < count; row++) {
      const place = row % headDim;
      const to = row - place + (place >> 1) + (place % 2) * (headDim / 2);
      moved.set(data.subarray(row * width, (row + 1) * width), to * width);
    }
    mixed[name] = { data: moved, rows, columns };
  }
  return mixed;
}

// One forward pass: its trace for the page to draw, and its cost. Keeps the logits of the last token for sampling.
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
    tensors = unpack(decodeBase64(weights), facts.shapes, facts.dtype);
    model = new Transformer(facts.args, tensors);
    cache = new KVCache(model.args, limit);
    model.forward(Array(Math.min(8, limit)).fill(0)); // warm up, so that no measured time includes compilation
    return {};
  },

  // Forwards `tokens` after `earlier`, then samples and forwards up to `count` more. Stops at an end-of-text token.
  run({ earlier, tokens, count, sampling, useCache, eosIds }) {
    const all = [...earlier];
    const passes = [];
    const start = performance.now();
    const append = (more) => {
      all.push(...more);
      passes.push(useCache ? forward(more, all.length - more.length, true) : forward(all, 0, false));
    };
    if (tokens.length) append(tokens);
    for (let n = 0; n < count && all.length < cache.maxSeqLen; n++) {
      const token = choose(logits, sampling, uniformOf(sampling.seed, all.length));
      append([token]);
      if (eosIds.includes(token)) break;
    }
    return { tokens: all.slice(earlier.length), passes, logits, ms: performance.now() - start };
  },

  // The loss of each token with a different rotation table; with `halves`, also with wq and wk in the order of halves.
  whatIf({ tokens, theta, scaling, offset, stretch, off, halves }) {
    const network = halves ? new Transformer(model.args, inHalves(tensors, model.args.headDim)) : model;
    const place = off ? () => 0 : (p) => offset + stretch * p;
    const table = precomputeFreqsCis(model.args.headDim, tokens.length, theta, off ? null : scaling, place);
    const all = network.logits(network.hidden(tokens, 0, null, null, table)); // (T, V)
    return { losses: losses(all, tokens) };
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
