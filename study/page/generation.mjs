// Changes of the text. Each one waits in a queue until the worker has finished the one before.

import { $ } from "./draw.mjs";
import { ask } from "./ask.mjs";
import { facts, isFull, limit, state, storeTrace, tokenizer, writeHash } from "./state.mjs";
import { changed, drawPlayer } from "./frame.mjs";
import { repaintFrom } from "./maps.mjs";
import { samplingSettings } from "./tokens.mjs";

let queue = Promise.resolve();

export function enqueue(job) {
  queue = queue.then(job).catch((error) => {
    state.playing = false;
    if (!$("error").hidden) return; // the first error is the cause of later ones
    $("error").hidden = false;
    $("error").textContent = error.message;
  });
  return queue;
}

// Forwards `tokens` after `earlier`, samples up to `count` more, and stores the results. If the cache is used, it may
// lack tokens of `earlier` that were forwarded while it was off. These are forwarded again, with `tokens`.
async function extend(earlier, tokens, count) {
  const { useCache } = state;
  const all = [...earlier, ...tokens];
  // The worker's `earlier` and `tokens` are this text cut at `start`. If its `tokens` are empty, it only samples, from the
  // logits that it kept. Otherwise it forwards `tokens` with the cache, and the whole text without it.
  const start = useCache ? Math.min(state.cached, earlier.length) : earlier.length;
  const answer = await ask("run", {
    earlier: all.slice(0, start),
    tokens: all.slice(start),
    count,
    sampling: samplingSettings(),
    useCache,
    eosIds: facts.tokenizer.eosIds,
  });
  for (const pass of answer.passes) {
    storeTrace(pass);
    state.passes.push({ ...pass, trace: null, length: pass.startPos + pass.T });
  }
  state.tokens = [...all.slice(0, start), ...answer.tokens];
  state.cached = useCache ? state.tokens.length : Math.min(state.cached, earlier.length);
  repaintFrom(useCache ? start : 0);
  state.logits = answer.logits;
  const sampled = state.tokens.length - all.length;
  if (sampled) state.run = { count: state.run.count + sampled, ms: state.run.ms + answer.ms };
  state.ended = sampled > 0 && facts.tokenizer.eosIds.includes(state.tokens.at(-1));
  changed();
}

let latestPrompt = 0; // the number of the latest prompt
let typingTimer = null;

// A typed prompt is forwarded after a pause in typing, or before anything else changes the text.
export function promptTyped() {
  clearTimeout(typingTimer);
  typingTimer = setTimeout(forwardTyped, 250);
}

function forwardTyped() {
  if (typingTimer === null) return;
  clearTimeout(typingTimer);
  typingTimer = null;
  forwardPrompt();
}

export function forwardPrompt() {
  latestPrompt += 1;
  const promptNumber = latestPrompt;
  state.playing = false;
  return enqueue(async () => {
    if (promptNumber !== latestPrompt) return; // a newer prompt is in the queue
    const tokens = tokenizer.encode(state.prompt || facts.startText);
    state.hasStartText = state.prompt === "" && facts.startText !== "";
    state.tooLong = tokens.length > limit ? tokens.length : 0;
    Object.assign(state, { passes: [], run: { count: 0, ms: 0 }, cached: 0, position: null, key: null });
    await extend([], tokens.slice(0, limit), 0);
    state.promptLength = state.tokens.length;
  });
}

// One step of generation: appends `tokens`, then samples up to `count` more. Nothing is sampled after an end-of-text
// token: a step may have waited in the queue while the one before it sampled that token.
export function step(tokens, count) {
  forwardTyped();
  return enqueue(() => extendBy(tokens, count));
}

async function extendBy(tokens, count) {
  if (state.ended && count > 0) return;
  if (isFull()) return;
  await extend(state.tokens, tokens, Math.min(count, limit - state.tokens.length));
}

// Removes the last token. The token before it is forwarded again, because its logits were not kept.
export function goBack() {
  forwardTyped();
  return enqueue(async () => {
    if (state.tokens.length <= 1) return;
    const shorter = state.tokens.slice(0, -1);
    if (state.promptLength > shorter.length) setPrompt(shorter);
    await extend(shorter.slice(0, -1), shorter.slice(-1), 0);
    state.ended = false;
  });
}

// Writes the text of the tokens into the prompt box, without an incomplete character at the end.
function setPrompt(tokens) {
  state.promptLength = tokens.length;
  state.hasStartText = false;
  state.prompt = tokenizer.decode(tokens).replace(/\ufffd+$/, "");
  $("prompt").value = state.prompt;
  writeHash();
}

let lastPlay = 0; // the number of the latest call of play

// Generates until it is paused, or the text ends or is full. If Pause and then Play are pressed while a call of `play`
// awaits its step, that call ends and the new one goes on.
export async function play() {
  forwardTyped();
  lastPlay += 1;
  const call = lastPlay;
  state.playing = true;
  state.run = { count: 0, ms: 0 };
  drawPlayer(); // at once, so that a second click pauses
  while (call === lastPlay && state.playing && !isFull() && !state.ended) {
    const rate = Number(state.speed); // tokens per second; 0 is as fast as possible
    const start = performance.now();
    await step([], rate ? 1 : 16);
    const pause = rate ? 1000 / rate - (performance.now() - start) : 0;
    await new Promise((resolve) => (pause > 4 ? setTimeout(resolve, pause) : requestAnimationFrame(resolve)));
  }
  if (call !== lastPlay) return;
  state.playing = false;
  changed();
}

// Computes the logits of the last token without the cache, then with it, and compares them.
export function compareCache() {
  forwardTyped();
  return enqueue(async () => {
    const { useCache: setting, ended } = state;
    const results = [];
    try {
      for (const useCache of [false, true]) {
        state.useCache = useCache;
        await extend(state.tokens.slice(0, -1), state.tokens.slice(-1), 0);
        results.push(state.logits);
      }
    } finally {
      Object.assign(state, { useCache: setting, ended });
    }
    const [uncached, cached] = results;
    const difference = uncached.reduce((max, logit, i) => Math.max(max, Math.abs(logit - cached[i])), 0);
    const largest = cached.reduce((max, logit) => Math.max(max, Math.abs(logit)), 0);
    state.agreement = { tokens: state.tokens, difference, largest };
    changed("cache");
  });
}
