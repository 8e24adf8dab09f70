// The state of the page: the model, the text, the results of its forward passes, and the settings. Views only read it.

import { $, translate } from "./draw.mjs";
import { FixedText, SentencePiece } from "./tokenizer.mjs";
import { KVCache, Transformer, ropeFreqs } from "./model.mjs";
import { readTensors } from "./weights.mjs";
import { STRINGS } from "./strings.mjs";

addEventListener("error", ({ message }) => ($("error").textContent = message));

export const facts = JSON.parse($("facts").textContent);
export const { args } = facts;
export const tokenizer = new { FixedText, SentencePiece }[facts.tokenizer.type](facts.tokenizer);
export const freqs = ropeFreqs(args.headDim, args.ropeTheta, args.ropeScaling); // (D/2), radians per token
export const attentionFactor = args.ropeScaling?.attentionFactor ?? 1; // of YaRN, for q and k

const MAX_TOKENS = 256; // the page draws every attention weight, and a table with a row for each token
export const limit = Math.min(args.maxSeqLen, MAX_TOKENS);
export const model = new Transformer(args, readTensors(facts, $("weights").textContent));
export const cache = new KVCache(args, limit);

const language = new URLSearchParams(location.hash.slice(1)).get("language") ?? navigator.language;

// controls.mjs adds the settings: layer, head, temperature, topK, topP, seed, shift and useCache.
export const state = {
  language: language.startsWith("zh") ? "zh" : "en",
  pair: 0,
  tokens: [],
  promptLength: 0, // tokens of the prompt
  cached: [], // tokens in the cache
  logits: null, // of the newest token
  passes: [], // the size and cost of each forward pass
  position: null, // of the selected query; null is the newest token
  key: null, // position of the selected key; null is the earlier key with the largest attention weight
};

export const t = (name, values) => translate(STRINGS[name], state.language, values);

// The text of a token with visible whitespace.
export function tokenText(id) {
  return tokenizer.name(id).replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍");
}

// A position and its token.
export const positionText = (p) => `${p} ${tokenText(state.tokens[p])}`;

export const isFull = () => state.tokens.length >= limit;

// The position of the selected query.
export const selectedQuery = () => Math.min(state.position ?? Infinity, state.tokens.length - 1);

// The position of the selected key of query q.
export function selectedKey(q) {
  if (state.key !== null) return Math.min(state.key, q);
  const earlier = weightsOf(state.layer, state.head, q).subarray(0, Math.max(q, 1)); // a distance of 0 shows nothing
  return earlier.indexOf(Math.max(...earlier));
}

// ---- traces of the passes: for each layer and position, queries and keys before rotation, values, weights, outputs

const queryWidth = args.nHeads * args.headDim;
const keyWidth = args.nKvHeads * args.headDim;
const traces = Array.from({ length: args.nLayers }, () => ({
  xq: new Float32Array(limit * queryWidth),
  xk: new Float32Array(limit * keyWidth),
  xv: new Float32Array(limit * keyWidth),
  weights: new Float32Array(args.nHeads * limit * limit),
  out: new Float32Array(limit * queryWidth),
}));

// Stores the trace of T tokens that were forwarded at startPos.
export function storeTrace(trace, startPos, T) {
  const S = startPos + T;
  const H = args.nHeads;
  trace.forEach((layer, l) => {
    for (const name of ["xq", "out"]) traces[l][name].set(layer[name], startPos * queryWidth);
    for (const name of ["xk", "xv"]) traces[l][name].set(layer[name], startPos * keyWidth);
    for (let t = 0; t < T; t++) {
      for (let h = 0; h < H; h++) {
        const row = layer.weights.subarray((t * H + h) * S, (t * H + h + 1) * S);
        traces[l].weights.set(row, (h * limit + startPos + t) * limit);
      }
    }
  });
}

// The attention weights of query q: one for each key that it sees, (q + 1).
export function weightsOf(layer, head, q) {
  const at = (head * limit + q) * limit;
  return traces[layer].weights.subarray(at, at + q + 1);
}

// The vectors of one head at position p, (D). Several query heads may share a key/value head.
export const kvHeadOf = (head) => Math.floor((head * args.nKvHeads) / args.nHeads);
export const queryAt = (layer, head, p) => headVector(traces[layer].xq, p * queryWidth, head);
export const keyAt = (layer, head, p) => headVector(traces[layer].xk, p * keyWidth, kvHeadOf(head));
export const valueAt = (layer, head, p) => headVector(traces[layer].xv, p * keyWidth, kvHeadOf(head));
export const outAt = (layer, head, p) => headVector(traces[layer].out, p * queryWidth, head);

function headVector(array, start, head) {
  return array.subarray(start + head * args.headDim, start + (head + 1) * args.headDim);
}
