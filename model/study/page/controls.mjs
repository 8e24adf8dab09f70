// The controls: each changes the state, and what it changes is drawn again.

import { $, element } from "./draw.mjs";
import { DEFAULTS, keyOf, query, state, t, writeHash } from "./state.mjs";
import { changed, drawAll, drawPlayer, fold } from "./frame.mjs";
import { bothWays, goBack, play, promptTyped, refreshWhatIf, step } from "./text.mjs";
import { cellAt } from "./maps.mjs";
import { goTo, guideTo, markView } from "./overview.mjs";
import { setLanguage, setTheme } from "./words.mjs";

function on(id, event, handler) {
  $(id).addEventListener(event, handler);
}

function update(changes, ...views) {
  Object.assign(state, changes);
  writeHash();
  changed(...views);
}

// A control whose value is a choice of the state's of the same name. What is no number leaves the choice as it was.
function bind(id, views, read = (input) => input.value, after = () => {}) {
  const input = $(id);
  const fits = (value) => value >= Number(input.min || 0) && value <= Number(input.max || Infinity);
  if (typeof state[id] === "number" && !fits(state[id])) state[id] = DEFAULTS[id]; // the address may hold anything
  if (input.type === "checkbox") input.checked = state[id];
  else input.value = state[id];
  input.addEventListener("input", () => {
    const value = read(input);
    const isRefused = typeof value === "number" && !(Number.isFinite(value) && fits(value));
    if (input.type === "number") say(input, isRefused ? id : null);
    if (isRefused) return;
    update({ [id]: value }, ...views);
    after();
  });
}

// Below a number that is refused: what is allowed, and which one is in use.
function say(input, refused) {
  const label = input.closest("label");
  const note = label.querySelector(".wrong");
  input.setAttribute("aria-invalid", refused !== null);
  if (refused === null) note?.remove();
  else {
    const words = t("refused", { least: input.min, kept: state[refused] });
    (note ?? label.appendChild(element("span", { className: "wrong", role: "alert" }))).textContent = words;
  }
}

// Into the clipboard where the browser lets a file do so; selected in any case, for Ctrl-C.
function copyText() {
  getSelection().selectAllChildren($("wholeText"));
  navigator.clipboard?.writeText($("wholeText").textContent).catch(() => {});
}

const asNumber = (input) => (input.value === "" ? NaN : Number(input.value));
const asWhole = (input) => (input.value === "" ? 0 : Math.floor(Number(input.value)));
const asChecked = (input) => input.checked;

export function wire() {
  bind("prompt", [], undefined, promptTyped);
  for (const id of ["temperature", "topP"]) bind(id, ["tokens"], asNumber);
  for (const id of ["topK", "seed"]) bind(id, ["tokens"], asWhole);
  bind("speed", []);
  bind("useCache", ["cache"], asChecked);
  bind("endless", [], asChecked);
  bind("theme", [], undefined, () => setTheme());
  for (const id of ["theta", "factor", "offset", "stretch"]) bind(id, ["whatIf"], asNumber, refreshWhatIf);
  bind("change", ["whatIf"], undefined, refreshWhatIf);
  bind("long", ["whatIf"], asChecked, refreshWhatIf);
  for (const id of ["shift", "zoom"]) bind(id, ["rotation"], asNumber);
  bind("layer", [], asNumber, () => update({ key: null }));
  bind("head", [], asNumber, () => update({ key: null }));
  on("position", "input", () => select(Number($("position").value)));
  on("key", "input", () => update({ key: Number($("key").value) }));
  on("back", "click", goBack);
  on("step", "click", () => {
    state.run = { count: 0, ms: 0 };
    step([], 1).then(refreshWhatIf);
  });
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
  on("both", "click", bothWays);
  on("copy", "click", copyText);
  on("fold", "click", fold);
  on("language", "click", () => setLanguage(state.language === "en" ? "zh" : "en"));
  on("bars", "click", ({ target }) => {
    const button = target.closest("button");
    if (button && !state.playing) step([Number(button.dataset.token)], 0).then(refreshWhatIf);
  });
  on(
    "clocks",
    "click",
    ({ target }) => target.closest("button") && update({ pair: Number(target.closest("button").dataset.pair) }),
  );
  on("thumbs", "click", ({ target }) => {
    const button = target.closest("button");
    if (button) update({ layer: Number(button.dataset.layer), head: Number(button.dataset.head), key: null });
  });
  on(
    "chips",
    "click",
    ({ target }) => target.closest("button") && select([...$("chips").children].indexOf(target.closest("button"))),
  );
  on("chips", "keydown", moveChip);
  for (const id of ["net", "netNote", "strip"]) on(id, "click", openView);
  on("guideStart", "click", () => guideTo(1));
  on("guideNext", "click", () => guideTo(state.guide + 1));
  on("guideSkip", "click", () => guideTo(0));
  addEventListener("scroll", markView, { passive: true });
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
    if (cell) update({ position: cell.q, key: cell.k });
  });
  for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", () => changed());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme());
  addEventListener("beforeprint", () => {
    setTheme("light");
    drawAll();
  });
  addEventListener("afterprint", () => setTheme());
  new ResizeObserver(() => changed()).observe(document.body);
}

// The address holds choices, so a link to a view scrolls and leaves it as it is.
function openView(event) {
  const link = event.target.closest("a");
  if (!link) return;
  event.preventDefault();
  goTo(link.dataset.view);
}

// The newest position follows the text; any other stays.
function select(position) {
  update({ position: position >= state.tokens.length - 1 ? null : Math.max(0, position), key: null });
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
  update({ position: q, key: Math.min(Math.max(keyOf(query()) + step[1], 0), q) });
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
