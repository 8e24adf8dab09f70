// The text: every change of it goes through the worker, one after another.

import { $ } from "./draw.mjs";
import { ask, facts, forget, isFull, keep, limit, sinks, state, tokenizer, writeHash } from "./state.mjs";
import { changed, drawPlayer, visible } from "./frame.mjs";
import { repaint } from "./maps.mjs";
import { sampling } from "./tokens.mjs";
import { compare } from "./whatif.mjs";

let queue = Promise.resolve();

export function enqueue(job) {
  queue = queue.then(job).catch((error) => {
    $("error").hidden = false;
    $("error").textContent = error.message;
    state.playing = false;
  });
  return queue;
}

// Forwards `tokens` after `earlier`, samples `count` more, and keeps the results. Those of `earlier` that the cache
// lacks, because they were forwarded without it, are forwarded again with `tokens`.
async function extend(earlier, tokens, count) {
  const { useCache } = state;
  const all = [...earlier, ...tokens];
  const known = useCache ? Math.min(state.cached, earlier.length) : earlier.length;
  const answer = await ask("run", {
    earlier: all.slice(0, known),
    tokens: all.slice(known),
    count,
    dropped: state.dropped,
    sampling: sampling(),
    useCache,
    eosIds: facts.tokenizer.eosIds,
  });
  for (const pass of answer.passes) {
    keep(pass);
    state.passes.push({ ...pass, trace: null, length: pass.startPos + pass.T });
  }
  state.tokens = [...all.slice(0, known), ...answer.tokens];
  state.cached = useCache ? state.tokens.length : Math.min(state.cached, earlier.length);
  repaint(useCache ? known : 0);
  state.logits = answer.logits;
  const sampled = state.tokens.length - all.length;
  if (sampled) state.run = { count: state.run.count + sampled, ms: state.run.ms + answer.ms };
  state.ended = sampled > 0 && facts.tokenizer.eosIds.includes(state.tokens.at(-1));
  changed();
}

let typed = 0;
let waiting = null;

// What is typed is forwarded when the typing rests, or before anything else is done with the text.
export function promptTyped() {
  clearTimeout(waiting);
  waiting = setTimeout(settle, 250);
}

function settle() {
  if (waiting === null) return;
  clearTimeout(waiting);
  waiting = null;
  forwardPrompt();
}

export function forwardPrompt() {
  const mine = ++typed;
  state.playing = false;
  return enqueue(async () => {
    if (mine !== typed) return; // more was typed while an earlier text was forwarded
    const tokens = tokenizer.encode(state.prompt);
    state.tooLong = tokens.length > limit ? tokens.length : 0;
    Object.assign(state, { passes: [], run: { count: 0, ms: 0 }, dropped: 0, cached: 0, position: null, key: null });
    await extend([], tokens.slice(0, limit), 0);
    state.promptLength = state.tokens.length;
    refreshWhatIf();
  });
}

// One step of generation: chosen `tokens`, or `count` sampled ones.
export function step(tokens, count) {
  settle();
  return enqueue(() => extendBy(tokens, count));
}

async function extendBy(tokens, count) {
  if (state.tokens.length >= limit && state.endless) await makeRoom();
  if (isFull()) return;
  await extend(state.tokens, tokens, Math.min(count, limit - state.tokens.length));
}

// The same as EndlessCache drops.
async function makeRoom() {
  const count = Math.max(1, Math.floor(limit / 4));
  const kept = Math.min(sinks, limit - count - 1);
  const length = state.tokens.length;
  if (state.cached === length) await ask("drop", { kept, count, length });
  state.cached = state.cached === length ? length - count : 0; // a cache that missed tokens starts anew
  forget(kept, count);
  state.tokens = [...state.tokens.slice(0, kept), ...state.tokens.slice(kept + count)];
  if (state.promptLength > kept) state.promptLength = Math.max(kept, state.promptLength - count);
  state.dropped += count;
  repaint(0);
}

export function goBack() {
  settle();
  return enqueue(async () => {
    if (state.tokens.length <= 1) return;
    const kept = state.tokens.slice(0, -1);
    if (state.promptLength > kept.length) shortenPrompt(kept);
    await extend(kept.slice(0, -1), kept.slice(-1), 0);
    state.ended = false;
    refreshWhatIf();
  });
}

// The prompt lost its last token: its box says what is left, without a character that is only begun.
function shortenPrompt(tokens) {
  state.promptLength = tokens.length;
  state.prompt = tokenizer.decode(tokens).replace(/\ufffd+$/, "");
  $("prompt").value = state.prompt;
  writeHash();
}

export async function play() {
  settle();
  state.playing = true;
  state.run = { count: 0, ms: 0 };
  drawPlayer(); // at once, so that a second click finds the button as it is
  while (state.playing && !isFull() && !state.ended) {
    const rate = Number(state.speed);
    const start = performance.now();
    await step([], rate ? 1 : 16);
    const left = rate ? 1000 / rate - (performance.now() - start) : 0;
    await new Promise((resolve) => (left > 4 ? setTimeout(resolve, left) : requestAnimationFrame(resolve)));
  }
  state.playing = false;
  changed();
  refreshWhatIf();
}

// Forwards the last token without the cache, then with it, and compares the logits.
export function bothWays() {
  settle();
  return enqueue(async () => {
    const chosen = state.useCache;
    const found = [];
    for (const useCache of [false, true]) {
      state.useCache = useCache;
      await extend(state.tokens.slice(0, -1), state.tokens.slice(-1), 0);
      found.push(state.logits);
    }
    state.useCache = chosen;
    const [without, cached] = found;
    const difference = without.reduce((most, logit, i) => Math.max(most, Math.abs(logit - cached[i])), 0);
    const largest = cached.reduce((most, logit) => Math.max(most, Math.abs(logit)), 0);
    state.agreement = { text: state.tokens, difference, largest };
    changed("cache");
  });
}

// What if: asked when nothing plays, and off the screen only where it takes no time worth waiting for.

const CHEAP = 300; // milliseconds
let wanted = 0;

export const isOutdated = () => state.whatIf?.text !== state.tokens;

function isCheap() {
  const { ms, T } = state.passes.at(-1);
  return (2 * state.tokens.length * ms) / T < CHEAP;
}

// At the start, before the page is shown as ready.
export function firstWhatIf() {
  return enqueue(async () => {
    if (isCheap()) state.whatIf = await compare();
  });
}

export function refreshWhatIf() {
  const mine = ++wanted;
  setTimeout(
    () =>
      enqueue(async () => {
        if (mine !== wanted || state.playing || !(visible.has("whatIf") || isCheap())) return;
        const slow = setTimeout(() => {
          state.computing = true;
          changed("whatIf");
        }, 300);
        state.whatIf = await compare().finally(() => {
          clearTimeout(slow);
          state.computing = false;
        });
        changed("whatIf");
      }),
    80,
  );
}
