// The state of the page: the model, the text, the results of every forward pass, and the settings. Views only read it.

import { FixedText, SentencePiece } from "./tokenizer.mjs";
import { ropeFreqs } from "./model.mjs";
import { translate } from "./strings.mjs";

export const facts = JSON.parse(document.getElementById("facts").textContent);
export const args = facts.args;
export const tokenizer = new { FixedText, SentencePiece }[facts.tokenizer.type](facts.tokenizer);
export const freqs = ropeFreqs(args.headDim, args.ropeTheta, args.ropeScaling); // (D/2), radians per token
export const attentionFactor = args.ropeScaling ? args.ropeScaling.attentionFactor : 1; // of YaRN, for q and k
const MAX_WEIGHTS = 2 ** 24; // attention weights of all heads, which are stored for drawing: 64 MiB
const MAX_DRAWN = 512; // tokens: each step draws a map of all of them for every head, and tables with a row for each
const maxStored = Math.floor(Math.sqrt(MAX_WEIGHTS / (args.nLayers * args.nHeads))); // tokens
export const limit = Math.min(args.maxSeqLen, MAX_DRAWN, maxStored);

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
  shift: 0, // view 2: start_pos, added to every position
};

export const state = { ...DEFAULTS, ...readHash() };
Object.assign(state, {
  tokens: [],
  promptLength: 0,
  hasStartText: false, // the prompt is empty, so the text begins with the run's start_text
  tooLong: 0, // tokens of a prompt that is longer than the limit
  logits: null, // of the newest token
  passes: [],
  cached: 0, // tokens in the cache
  run: { count: 0, ms: 0 }, // tokens sampled since Step or Play was pressed, and their time
  ended: false, // the newest token is a sampled end-of-text token
  position: null, // of the selected query; null is the newest token
  key: null, // null is the key with the largest attention weight
  hover: null, // { q, k } under the pointer in the attention map
  playing: false,
  agreement: null,
});

// Settings are stored in the address only, so that a link restores them. Invalid ones are ignored.
function readHash() {
  const settings = {};
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    if (!Object.hasOwn(DEFAULTS, name)) continue;
    const type = typeof DEFAULTS[name];
    if (type === "string") {
      const options = document.getElementById(name)?.options; // of a select; an unknown option is ignored
      if (!options || [...options].some((option) => option.value === text)) settings[name] = text;
    } else if (type === "boolean") settings[name] = text === "true";
    else if (text !== "" && Number.isFinite(Number(text))) settings[name] = Number(text);
  }
  // Each of these is a whole number below the one given here.
  const counts = { layer: args.nLayers, head: args.nHeads, pair: args.headDim / 2 };
  for (const [name, count] of Object.entries(counts)) {
    const value = settings[name] ?? 0;
    if (!Number.isInteger(value) || value < 0 || value >= count) delete settings[name];
  }
  if (!["en", "zh"].includes(settings.language)) delete settings.language;
  return settings;
}

export function writeHash() {
  const changes = Object.keys(DEFAULTS).filter((name) => String(state[name]) !== String(DEFAULTS[name]));
  const hash = new URLSearchParams(changes.map((name) => [name, state[name]])).toString();
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname);
}

export function t(key, blanks) {
  return translate(state.language, key, blanks);
}

// The text of a token with visible whitespace.
export function tokenText(id) {
  return tokenizer.name(id).replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍");
}

// A position and its token.
export const positionText = (p) => `${p} ${tokenText(state.tokens[p])}`;

export const isFull = () => state.tokens.length >= limit;

// The position of the selected query.
export const selectedQuery = () => Math.min(state.position ?? Infinity, state.tokens.length - 1);

// The position of the selected key of query q: the one that was chosen, or the one with the largest attention weight.
export function selectedKey(q) {
  if (state.key !== null) return Math.min(state.key, q);
  const row = weightsOf(state.layer, state.head, q);
  return row.indexOf(row.reduce((a, b) => Math.max(a, b), -1));
}

// ---- traces of the passes: for each layer and position, queries and keys before rotation, values, weights, outputs

const queryWidth = args.nHeads * args.headDim;
const keyWidth = args.nKvHeads * args.headDim;
export const traces = Array.from({ length: args.nLayers }, () => ({
  xq: new Float32Array(limit * queryWidth),
  xk: new Float32Array(limit * keyWidth),
  xv: new Float32Array(limit * keyWidth),
  weights: new Float32Array(args.nHeads * limit * limit),
  out: new Float32Array(limit * queryWidth),
}));

export function storeTrace({ startPos, T, trace }) {
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
