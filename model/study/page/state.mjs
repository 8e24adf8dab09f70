// The page's state: facts about the model, the text, the results of every pass, the reader's choices. Views only read it.

import { Llama2c, SentencePiece } from "./tokenizer.mjs";
import { JsonTokenizer } from "./tokenizer_json.mjs";
import { ropeFreqs } from "./model.mjs";
import { translate } from "./strings.mjs";

export const facts = JSON.parse(document.getElementById("facts").textContent);
export const args = facts.args;
export const tokenizer = new { SentencePiece, Llama2c, JsonTokenizer }[facts.tokenizer.type](facts.tokenizer);
export const freqs = ropeFreqs(args.headDim, args.ropeTheta, args.ropeScaling); // (D/2), radians per token
const LARGEST = 2 ** 24; // attention weights that are kept, of all heads
export const sinks = facts.sinks; // first tokens that are never dropped
export const limit = Math.min(args.maxSeqLen, 512, Math.floor(Math.sqrt(LARGEST / (args.nLayers * args.nHeads))));

export const DEFAULTS = {
  language: navigator.language.startsWith("zh") ? "zh" : "en",
  theme: "",
  prompt: facts.prompt,
  speed: "8",
  layer: Math.min(1, args.nLayers - 1),
  head: 0,
  pair: 0,
  temperature: 0.8,
  topK: 0,
  topP: 0.95,
  seed: 1,
  useCache: true,
  endless: false,
  shift: 0,
  zoom: 1,
  change: "off",
  theta: args.ropeTheta * 100,
  factor: 2,
  offset: 0,
  stretch: 1,
  long: false,
  guide: 1, // the sentence that is shown; 0 is none
};

export const state = { ...DEFAULTS, ...readHash() };
Object.assign(state, {
  tokens: [],
  promptLength: 0,
  logits: null,
  passes: [],
  run: { count: 0, ms: 0 },
  ended: false,
  dropped: 0,
  position: null,
  key: null,
  hover: null, // null: the newest token; the key with the largest weight
  playing: false,
  advancing: false,
  whatIf: null,
  agreement: null,
  computing: false,
});

// Choices live in the address only, so a link keeps them and nothing else does.
function readHash() {
  const read = location.hash.length > 1 ? { guide: 0 } : {}; // a link with choices needs no guide
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    if (!Object.hasOwn(DEFAULTS, name)) continue;
    const kind = typeof DEFAULTS[name];
    if (kind === "string") read[name] = text;
    else if (kind === "boolean") read[name] = text === "true";
    else if (text !== "" && Number.isFinite(Number(text))) read[name] = Number(text);
  }
  for (const [name, size] of [
    ["layer", args.nLayers],
    ["head", args.nHeads],
    ["pair", args.headDim / 2],
    ["guide", 7],
  ]) {
    if (name in read && !(Number.isInteger(read[name]) && read[name] >= 0 && read[name] < size)) delete read[name];
  }
  if (!["en", "zh"].includes(read.language ?? "en")) delete read.language;
  return read;
}

export function writeHash() {
  const kept = Object.keys(DEFAULTS).filter((name) => String(state[name]) !== String(DEFAULTS[name]));
  const hash = new URLSearchParams(kept.map((name) => [name, state[name]])).toString();
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname);
}

export function t(key, blanks) {
  return translate(state.language, key, blanks);
}

// A token as the page writes it: a space as a dot, a new line as its sign.
export function shown(id) {
  return tokenizer.name(id).replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍");
}

export const isFull = () => state.tokens.length >= limit && !state.endless;

export const query = () => Math.min(state.position ?? Infinity, state.tokens.length - 1);

// The selected key: the reader's choice, or the one with the largest attention weight.
export function keyOf(q) {
  if (state.key !== null) return Math.min(state.key, q);
  const row = weightsOf(state.layer, state.head, q);
  return row.indexOf(row.reduce((a, b) => Math.max(a, b), -1));
}

// ---- results of the passes: for each layer, per position, queries and keys before rotation, values, and weights

const width = args.nKvHeads * args.headDim;
const wide = args.nHeads * args.headDim;
export const record = Array.from({ length: args.nLayers }, () => ({
  xq: new Float32Array(limit * wide),
  xk: new Float32Array(limit * width),
  xv: new Float32Array(limit * width),
  weights: new Float32Array(args.nHeads * limit * limit),
  out: new Float32Array(limit * wide),
}));

export function keep({ startPos, T, trace }) {
  const S = startPos + T;
  const H = args.nHeads;
  trace.forEach((layer, l) => {
    for (const name of ["xq", "out"]) record[l][name].set(layer[name], startPos * wide);
    for (const name of ["xk", "xv"]) record[l][name].set(layer[name], startPos * width);
    for (let t = 0; t < T; t++) {
      for (let h = 0; h < H; h++) {
        const row = layer.weights.subarray((t * H + h) * S, (t * H + h + 1) * S);
        record[l].weights.set(row, (h * limit + startPos + t) * limit);
      }
    }
  });
}

// The oldest `count` tokens after the first `kept` go, here as in the cache.
export function forget(kept, count) {
  for (const layer of record) {
    for (const name of ["xq", "out"]) layer[name].copyWithin(kept * wide, (kept + count) * wide);
    for (const name of ["xk", "xv"]) layer[name].copyWithin(kept * width, (kept + count) * width);
    for (let h = 0; h < args.nHeads; h++) {
      for (let q = kept + count; q < limit; q++) {
        const from = (h * limit + q) * limit, to = from - count * limit;
        layer.weights.copyWithin(to, from, from + kept);
        layer.weights.copyWithin(to + kept, from + kept + count, from + limit);
      }
    }
  }
}

export function weightsOf(layer, head, q) {
  const at = (head * limit + q) * limit;
  return record[layer].weights.subarray(at, at + q + 1);
}

const kvHead = (head) => Math.floor((head * args.nKvHeads) / args.nHeads);
export const queryOf = (layer, head, p) => slice(record[layer].xq, p * wide + head * args.headDim);
export const keyAt = (layer, head, p) => slice(record[layer].xk, p * width + kvHead(head) * args.headDim);
export const valueAt = (layer, head, p) => slice(record[layer].xv, p * width + kvHead(head) * args.headDim);
export const outOf = (layer, head, p) => slice(record[layer].out, p * wide + head * args.headDim);
const slice = (array, at) => array.subarray(at, at + args.headDim);

// ---- the worker: ask it, await its answer

const source = document.getElementById("workerSource").textContent;
const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
const pending = new Map();
let asked = 0;

worker.onmessage = ({ data }) => {
  const [resolve, reject] = pending.get(data.id);
  pending.delete(data.id);
  if (data.error) reject(new Error(data.error));
  else resolve(data);
};

export function ask(type, data = {}) {
  const id = asked++;
  worker.postMessage({ id, type, ...data });
  return new Promise((resolve, reject) => pending.set(id, [resolve, reject]));
}
