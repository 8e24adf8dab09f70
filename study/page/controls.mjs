// The controls: each changes the state and redraws the views that depend on it.

import { $ } from "./draw.mjs";
import { DEFAULTS, selectedKey, selectedQuery, state, t, writeHash } from "./state.mjs";
import { changed, drawPlayer, toggleSettings } from "./frame.mjs";
import { compareCache, goBack, play, promptTyped, step } from "./generation.mjs";
import { cellAt } from "./maps.mjs";
import { setLanguage, setTheme } from "./appearance.mjs";

function on(id, event, handler) {
  $(id).addEventListener(event, handler);
}

function update(changes, ...views) {
  Object.assign(state, changes);
  writeHash();
  changed(...views);
}

const asText = (input) => input.value;
const asNumber = (input) => (input.value === "" ? NaN : Number(input.value));
const asNumberOrZero = (input) => Number(input.value); // an empty box is 0
const asChecked = (input) => input.checked;

// Binds a control to the setting of the same name. `views` are redrawn when it changes, or all views if it is empty. An
// invalid number is refused: it does not change the setting.
function bind(id, views, read = asText, after = () => {}) {
  const input = $(id);
  const isValid = (value) => typeof value !== "number" || isAllowed(value, input);
  if (!isValid(state[id])) state[id] = DEFAULTS[id]; // the address may hold any number
  if (input.type === "checkbox") input.checked = state[id];
  else input.value = state[id];
  input.addEventListener("input", () => {
    const value = read(input);
    input.setAttribute("aria-invalid", !isValid(value));
    if (!isValid(value)) return;
    update({ [id]: value }, ...views);
    after();
  });
}

const takesIntegers = (input) => input.step === "1";

function isAllowed(value, input) {
  const isInRange = value >= Number(input.min || 0) && value <= Number(input.max || Infinity);
  return Number.isFinite(value) && isInRange && (Number.isInteger(value) || !takesIntegers(input));
}

// Connects all controls to their handlers.
export function connectControls() {
  connectSettings();
  connectPlayer();
  connectViews();
  connectPage();
}

function connectSettings() {
  bind("prompt", [], asText, promptTyped);
  for (const id of ["temperature", "topP"]) bind(id, ["tokens"], asNumber);
  for (const id of ["topK", "seed"]) bind(id, ["tokens"], asNumberOrZero);
  bind("speed", []);
  bind("useCache", ["cache"], asChecked);
  bind("theme", [], asText, setTheme);
  bind("shift", ["rotation"], asNumber);
  bind("layer", [], asNumber, () => update({ key: null }));
  bind("head", [], asNumber, () => update({ key: null }));
}

function connectPlayer() {
  on("position", "input", () => selectQuery(Number($("position").value)));
  on("key", "input", () => update({ key: Number($("key").value) }));
  on("back", "click", goBack);
  on("step", "click", () => {
    state.run = { count: 0, ms: 0 };
    step([], 1);
  });
  on("play", "click", () => {
    if (state.playing) {
      state.playing = false;
      drawPlayer();
    } else play();
  });
  on("fold", "click", toggleSettings);
}

// When a button inside this element is clicked, calls the handler with the button.
function onButton(id, handler) {
  on(id, "click", ({ target }) => {
    const button = target.closest("button");
    if (button) handler(button);
  });
}

function connectViews() {
  onButton("chips", (chip) => selectQuery([...$("chips").children].indexOf(chip)));
  on("chips", "keydown", moveChip);
  onButton("bars", ({ dataset }) => {
    if (!state.playing) step([Number(dataset.token)], 0);
  });
  onButton("clocks", ({ dataset }) => update({ pair: Number(dataset.pair) }));
  onButton("thumbs", ({ dataset }) => {
    update({ layer: Number(dataset.layer), head: Number(dataset.head), key: null });
  });
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
  on("compareCache", "click", compareCache);
}

function connectPage() {
  on("language", "click", () => setLanguage(state.language === "en" ? "zh" : "en"));
  on("strip", "click", openView);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme());
  new ResizeObserver(() => changed()).observe(document.body);
}

// Scrolls to a view. The link itself would replace the settings in the address.
function openView(event) {
  const link = event.target.closest("a");
  if (!link) return;
  event.preventDefault();
  const view = link.hash.slice(1);
  $(view).scrollIntoView();
  $(`${view}Title`).focus({ preventScroll: true });
}

// Selects the query at a position. The newest one is null, so that the selection follows the text as it grows.
function selectQuery(position) {
  update({ position: position >= state.tokens.length - 1 ? null : Math.max(0, position), key: null });
}

const ARROW_KEYS = {
  ArrowLeft: { rows: 0, columns: -1 },
  ArrowRight: { rows: 0, columns: 1 },
  ArrowUp: { rows: -1, columns: 0 },
  ArrowDown: { rows: 1, columns: 0 },
};

const clampTo = (value, max) => Math.min(Math.max(value, 0), max);

function moveChip(event) {
  const move = ARROW_KEYS[event.key];
  if (!move) return;
  event.preventDefault();
  const position = clampTo(selectedQuery() + move.rows + move.columns, state.tokens.length - 1);
  selectQuery(position);
  $("chips").children[position].focus();
}

function moveCell(event) {
  const move = ARROW_KEYS[event.key];
  if (!move) return;
  event.preventDefault();
  const q = clampTo(selectedQuery() + move.rows, state.tokens.length - 1);
  update({ position: q, key: clampTo(selectedKey(selectedQuery()) + move.columns, q) });
}
