// The page at work: words into places, controls to state, state to pictures.

import { $, colors, element } from "./draw.mjs";
import { DEFAULTS, args, ask, facts, forget, keep, keyOf, limit, query, shown, state, t, tokenizer, writeHash } from "./state.mjs";
import { drawTokens, sampling } from "./tokens.mjs";
import { drawRotation } from "./rotation.mjs";
import { drawScore } from "./score.mjs";
import { cellAt, drawMaps, repaint } from "./maps.mjs";
import { drawCache } from "./cache.mjs";
import { compare, drawWhatIf, longLength } from "./whatif.mjs";

const VIEWS = { tokens: drawTokens, rotation: drawRotation, score: drawScore, maps: drawMaps, cache: drawCache, whatIf: drawWhatIf };
const visible = new Set(), stale = new Set();
let scheduled = false;

// ---- drawing: at most once a frame, and only what is on the screen

function changed(...views) {
  for (const view of views.length ? views : Object.keys(VIEWS)) stale.add(view);
  if (!scheduled) requestAnimationFrame(draw);
  scheduled = true;
}

function draw() {
  scheduled = false;
  if (!state.tokens.length) return;
  drawPlayer();
  for (const view of [...stale]) {
    if (view && !visible.has(view)) continue;
    stale.delete(view);
    VIEWS[view]?.();
  }
}

function drawPlayer() {
  const q = query(), k = keyOf(q), place = (p) => `${p} ${shown(state.tokens[p])}`;
  for (const [id, value, most] of [["position", q, state.tokens.length - 1], ["key", k, q]]) {
    $(id).max = most;
    $(id).value = value;
    $(id).setAttribute("aria-valuetext", place(value));
    $(`${id}Text`).textContent = place(value);
  }
  $("layer").value = state.layer;
  $("head").value = state.head;
  $("back").disabled = state.tokens.length <= 1;
  $("step").disabled = isFull() || state.ended;
  $("play").disabled = !state.playing && (isFull() || state.ended);
  $("play").textContent = t(state.playing ? "pause" : "play");
  $("play").setAttribute("aria-pressed", state.playing);
  $("advance").textContent = t(state.advancing ? "stop" : "advance");
  $("advance").setAttribute("aria-pressed", state.advancing);
  for (const [id, digits] of [["temperature", 2], ["topP", 2], ["factor", 1], ["stretch", 1]]) {
    $(`${id}Text`).textContent = state[id].toFixed(digits);
  }
  $("shiftText").textContent = state.shift.toFixed(state.advancing ? 1 : 0);
}

// ---- the text: every change goes through the worker, one after another

let queue = Promise.resolve();

function enqueue(job) {
  queue = queue.then(job).catch((error) => {
    $("error").hidden = false;
    $("error").textContent = error.message;
    state.playing = false;
  });
  return queue;
}

const isFull = () => state.tokens.length >= limit && !state.endless;

// Reads `tokens` behind `earlier`, samples `count` more, and keeps what the passes gave.
async function extend(earlier, tokens, count) {
  const { useCache } = state;
  const answer = await ask("run", { earlier, tokens, count, dropped: state.dropped, sampling: sampling(), useCache, eosIds: facts.tokenizer.eosIds });
  for (const pass of answer.passes) {
    keep(pass);
    state.passes.push({ ...pass, trace: null, length: pass.startPos + pass.T });
    if (useCache) state.cached = pass.startPos + pass.T;
  }
  repaint(useCache ? earlier.length : 0);
  state.tokens = [...earlier, ...answer.tokens];
  state.logits = answer.logits;
  const sampled = answer.tokens.length - tokens.length;
  if (sampled) state.run = { count: sampled, ms: answer.ms };
  state.ended = sampled > 0 && facts.tokenizer.eosIds.includes(state.tokens.at(-1));
  changed();
}

function readPrompt() {
  state.playing = false;
  return enqueue(async () => {
    const tokens = tokenizer.encode(state.prompt);
    state.tooLong = tokens.length > limit ? tokens.length : 0;
    Object.assign(state, { passes: [], run: null, dropped: 0, cached: 0, position: null, key: null });
    await extend([], tokens.slice(0, limit), 0);
    state.promptLength = state.tokens.length;
    refreshWhatIf();
  });
}

// What is cached of the text; without the cache all of it is read again.
async function step(tokens, count) {
  if (state.tokens.length >= limit && state.endless) await makeRoom();
  if (isFull()) return;
  await extend(state.tokens, tokens, Math.min(count, limit - state.tokens.length));
}

async function makeRoom() {
  const count = Math.floor(limit / 4), length = state.tokens.length;
  if (state.cached === length) await ask("drop", { count, length });
  forget(count);
  state.tokens = state.tokens.slice(count);
  state.promptLength = Math.max(0, state.promptLength - count);
  state.dropped += count;
  state.cached = Math.max(0, state.cached - count);
  repaint(0);
}

function goBack() {
  return enqueue(async () => {
    if (state.tokens.length <= 1) return;
    const kept = state.tokens.slice(0, -1);
    state.promptLength = Math.min(state.promptLength, kept.length);
    await extend(kept.slice(0, -1), kept.slice(-1), 0);
    state.ended = false;
    refreshWhatIf();
  });
}

async function play() {
  state.playing = true;
  drawPlayer(); // at once, so that a second click finds the button as it is
  while (state.playing && !isFull() && !state.ended) {
    const rate = Number(state.speed), start = performance.now();
    await enqueue(() => step([], rate ? 1 : 16));
    const left = rate ? 1000 / rate - (performance.now() - start) : 0;
    await new Promise((resolve) => (left > 4 ? setTimeout(resolve, left) : requestAnimationFrame(resolve)));
  }
  state.playing = false;
  changed();
  refreshWhatIf();
}

// ---- what if: asked when the view is seen and nothing plays

let wanted = 0;

function refreshWhatIf() {
  const mine = ++wanted;
  setTimeout(() => enqueue(async () => {
    if (mine !== wanted || state.playing || !visible.has("whatIf")) return;
    state.whatIf = await compare();
    changed("whatIf");
  }), 80);
}

// ---- controls

function on(id, event, handler) {
  $(id).addEventListener(event, handler);
}

function choose(changes, ...views) {
  Object.assign(state, changes);
  writeHash();
  changed(...views);
}

// A control whose value is a choice of the state's of the same name. What is no number leaves the choice as it was.
function bind(id, views, read = (input) => input.value, after = () => {}) {
  const input = $(id), fits = (value) => value >= Number(input.min || 0) && value <= Number(input.max || Infinity);
  if (typeof state[id] === "number" && !fits(state[id])) state[id] = DEFAULTS[id]; // the address may hold anything
  if (input.type === "checkbox") input.checked = state[id];
  else input.value = state[id];
  input.addEventListener("input", () => {
    const value = read(input);
    if (typeof value === "number" && !(Number.isFinite(value) && fits(value))) return;
    choose({ [id]: value }, ...views);
    after();
  });
}

const asNumber = (input) => (input.value === "" ? NaN : Number(input.value));
const asWhole = (input) => (input.value === "" ? 0 : Math.floor(Number(input.value)));
const asChecked = (input) => input.checked;

function wire() {
  let typing;
  bind("prompt", [], undefined, () => {
    clearTimeout(typing);
    typing = setTimeout(readPrompt, 250);
  });
  for (const id of ["temperature", "topP"]) bind(id, ["tokens"], asNumber);
  for (const id of ["topK", "seed"]) bind(id, ["tokens"], asWhole);
  bind("speed", []);
  bind("useCache", ["cache"], asChecked, () => enqueue(catchUp));
  bind("endless", [], asChecked);
  bind("theme", [], undefined, setTheme);
  for (const id of ["theta", "factor", "offset", "stretch"]) bind(id, ["whatIf"], asNumber, refreshWhatIf);
  bind("change", ["whatIf"], undefined, refreshWhatIf);
  bind("long", ["whatIf"], asChecked, refreshWhatIf);
  bind("shift", ["rotation"], asNumber);
  bind("layer", [], asNumber, () => choose({ key: null }));
  bind("head", [], asNumber, () => choose({ key: null }));
  on("position", "input", () => select(Number($("position").value)));
  on("key", "input", () => choose({ key: Number($("key").value) }));
  on("back", "click", goBack);
  on("step", "click", () => enqueue(() => step([], 1)).then(refreshWhatIf));
  on("play", "click", () => {
    if (!state.playing) return void play();
    state.playing = false;
    drawPlayer();
  });
  on("advance", "click", () => {
    if (!state.advancing) return advance();
    state.advancing = false;
    drawPlayer();
  });
  on("both", "click", () => enqueue(bothWays));
  on("language", "click", () => setLanguage(state.language === "en" ? "zh" : "en"));
  on("bars", "click", ({ target }) => {
    const button = target.closest("button");
    if (button && !state.playing) enqueue(() => step([Number(button.dataset.token)], 0)).then(refreshWhatIf);
  });
  on("clocks", "click", ({ target }) => target.closest("button") && choose({ pair: Number(target.closest("button").dataset.pair) }));
  on("thumbs", "click", ({ target }) => {
    const button = target.closest("button");
    if (button) choose({ layer: Number(button.dataset.layer), head: Number(button.dataset.head), key: null });
  });
  on("chips", "click", ({ target }) => target.closest("button") && select([...$("chips").children].indexOf(target.closest("button"))));
  on("chips", "keydown", moveChip);
  on("map", "keydown", moveCell);
  on("map", "pointermove", (event) => {
    state.hover = cellAt(event);
    changed("maps");
  });
  on("map", "pointerleave", () => {
    state.hover = null;
    changed("maps");
  });
  on("map", "click", (event) => {
    const cell = cellAt(event);
    if (cell) choose({ position: cell.q, key: cell.k });
  });
  for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", () => changed());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", setTheme);
  new ResizeObserver(() => changed()).observe(document.body);
}

// The newest position follows the text; any other stays.
function select(position) {
  choose({ position: position >= state.tokens.length - 1 ? null : Math.max(0, position), key: null });
}

const STEPS_OF_KEYS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

function moveChip(event) {
  const step = STEPS_OF_KEYS[event.key];
  if (!step) return;
  event.preventDefault();
  const position = Math.min(Math.max(query() + step[0] + step[1], 0), state.tokens.length - 1);
  select(position);
  $("chips").children[position].focus();
}

function moveCell(event) {
  const step = STEPS_OF_KEYS[event.key];
  if (!step) return;
  event.preventDefault();
  const q = Math.min(Math.max(query() + step[0], 0), state.tokens.length - 1);
  choose({ position: q, key: Math.min(Math.max(keyOf(query()) + step[1], 0), q) });
}

// The cache missed what was read without it; it reads that now, in one chunk.
async function catchUp() {
  if (!state.useCache || state.cached === state.tokens.length) return;
  await extend(state.tokens.slice(0, state.cached), state.tokens.slice(state.cached), 0);
}

async function bothWays() {
  const chosen = state.useCache;
  for (const useCache of [true, false]) {
    state.useCache = useCache;
    if (useCache) await catchUp();
    await extend(state.tokens.slice(0, -1), state.tokens.slice(-1), 0);
  }
  state.useCache = chosen;
}

// Positions advance two a second; where motion is to be reduced, by one whole step a second.
function advance() {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  let last = performance.now();
  state.advancing = true;
  drawPlayer();
  const frame = (now) => {
    const moved = ((now - last) / 1000) * 2;
    if (!still || moved >= 2) {
      state.shift = (state.shift + (still ? 1 : moved)) % Number($("shift").max);
      last = now;
      changed("rotation");
    }
    if (state.advancing) requestAnimationFrame(frame);
    else {
      state.shift = Math.round(state.shift);
      writeHash();
      changed("rotation");
    }
  };
  requestAnimationFrame(frame);
}

// ---- words and colours

function setLanguage(language) {
  state.language = language;
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  for (const place of document.querySelectorAll("[data-t]")) place.textContent = t(place.dataset.t);
  for (const place of document.querySelectorAll("[data-label]")) place.setAttribute("aria-label", t(place.dataset.label));
  $("language").textContent = t("otherLanguage");
  $("language").lang = language === "zh" ? "en" : "zh-Hans";
  for (const place of document.querySelectorAll(".doc")) link(place);
  const parameters = facts.shapes.reduce((sum, [, rows, columns]) => sum + rows * columns, 0).toLocaleString("en");
  $("sizes").textContent = t("sizes", {
    parameters, dtype: facts.dtype, layers: args.nLayers, heads: args.nHeads, kvHeads: args.nKvHeads, dim: args.headDim,
    context: args.maxSeqLen, theta: args.ropeTheta, tied: t(args.tieEmbeddings ? "tied" : "untied"),
    scaling: args.ropeScaling ? args.ropeScaling.type : t("scalingNone"),
  });
  $("longText").textContent = t("long", { length: longLength, times: longLength / args.maxSeqLen });
  $("encoding").textContent = t("encodingExact", { kind: facts.tokenizer.kind });
  writeHash();
  changed();
}

// The docs of the page's language; without them beside the page, only their name.
function link(place) {
  const step = Number(place.dataset.step), found = facts.steps[state.language].find(([heading]) => heading.startsWith(`${step}.`));
  place.textContent = found ? t("document", { step, title: found[0].replace(/^\d+\. /, "") }) : t("documentOnly", { step });
  if (found) place.href = found[1];
}

function setTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = state.theme || (dark ? "dark" : "light");
  state.colors = colors();
  changed();
}

async function start() {
  $("name").textContent = facts.name;
  for (const [id, count] of [["layer", args.nLayers], ["head", args.nHeads]]) {
    $(id).append(...Array.from({ length: count }, (_, i) => element("option", { value: i }, String(i))));
  }
  $("shift").max = 4 * args.maxSeqLen;
  for (const value of ["ntk", "yarn"]) {
    $("change").querySelector(`[value=${value}]`).disabled = args.headDim === 2 || args.ropeTheta === 1; // one frequency
  }
  setTheme();
  setLanguage(state.language);
  $("counts").textContent = t("loading");
  wire();
  const weights = $("weights");
  await enqueue(() => ask("load", { facts, weights: weights.textContent, limit }));
  weights.remove(); // the worker has them now
  await readPrompt();
  document.documentElement.dataset.ready = "yes";
}

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) visible[isIntersecting ? "add" : "delete"](target.id);
  if (visible.has("whatIf") && !state.whatIf) refreshWhatIf();
  changed("");
}, { rootMargin: "200px" });
for (const view of Object.keys(VIEWS)) watcher.observe($(view));
start();
