// Changes of the text. Each one runs the network.

import { choose, uniformOf } from "./sampling.mjs";
import { work } from "./model.mjs";
import { args, cache, facts, isFull, limit, model, state, storeTrace, tokenizer } from "./state.mjs";

// Makes `tokens` the text. With the cache, only those from the first that it does not hold are forwarded, and at least
// the last one, to get its logits.
function setTokens(tokens) {
  const { useCache } = state;
  const cached = useCache ? state.cached : [];
  const firstNew = tokens.findIndex((token, p) => token !== cached[p]);
  const startPos = firstNew === -1 ? tokens.length - 1 : firstNew;
  const T = tokens.length - startPos;
  const before = work.multiplications;
  const trace = [];
  const h = model.hidden(tokens.slice(startPos), startPos, useCache ? cache : null, trace); // (T, dim)
  state.logits = model.logits(h.subarray(h.length - args.dim)); // (V), of the last token
  state.passes.push({ startPos, T, useCache, multiplications: work.multiplications - before });
  state.tokens = tokens;
  state.cached = useCache ? tokens : [];
  storeTrace(trace, startPos, T);
}

// Starts a new text with the prompt. Like generate.py, the run's start_text replaces an empty one.
export function usePrompt(prompt) {
  const tokens = tokenizer.encode(prompt || facts.startText).slice(0, limit);
  Object.assign(state, { promptLength: tokens.length, position: null, key: null });
  setTokens(tokens);
}

export function append(token) {
  if (!isFull()) setTokens([...state.tokens, token]);
}

// Samples tokens, but never the end of the text: there would be nothing left to look at.
export function sample(count) {
  for (let n = 0; n < count && !isFull(); n++) {
    const logits = Float32Array.from(state.logits);
    for (const id of facts.tokenizer.eosIds) logits[id] = -Infinity;
    append(choose(logits, state, uniformOf(state.seed, state.tokens.length)));
  }
}

// Removes the last token, if it is not one of the prompt.
export function goBack() {
  if (state.tokens.length > state.promptLength) setTokens(state.tokens.slice(0, -1));
}
