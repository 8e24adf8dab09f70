// The controls: each changes the state and redraws the views that depend on it.

import { $, element } from "./draw.mjs";
import { DEFAULTS, selectedKey, selectedQuery, state, t, writeHash } from "./state.mjs";
import { changed, drawAll, drawPlayer, toggleSettings } from "./frame.mjs";
import { compareCache, goBack, play, promptTyped, refreshWhatIf, step } from "./generation.mjs";
import { cellAt } from "./maps.mjs";
import { goTo, guideTo, markView } from "./overview.mjs";
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
    if (input.type === "number") showRefusal(input, !isValid(value));
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

// A note below a number that is refused: which numbers are valid, and the number still in use.
function showRefusal(input, isRefused) {
  const label = input.closest("label");
  input.setAttribute("aria-invalid", isRefused);
  label.querySelector(".wrong")?.remove();
  if (!isRefused) return;
  const text = t(takesIntegers(input) ? "refusedInteger" : "refused", { least: input.min, current: state[input.id] });
  label.append(element("span", { className: "wrong", role: "alert" }, text));
}

// Selects the text, for Ctrl-C, and copies it if the browser allows a page from disk to do so.
function copyText() {
  getSelection().selectAllChildren($("wholeText"));
  navigator.clipboard?.writeText($("wholeText").textContent).catch(() => {});
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
  bind("endless", [], asChecked);
  bind("theme", [], asText, () => setTheme());
  for (const id of ["theta", "factor", "offset", "stretch"]) bind(id, ["whatIf"], asNumber, refreshWhatIf);
  bind("change", ["whatIf"], asText, refreshWhatIf);
  bind("long", ["whatIf"], asChecked, refreshWhatIf);
  for (const id of ["shift", "zoom"]) bind(id, ["rotation"], asNumber);
  bind("layer", [], asNumber, () => update({ key: null }));
  bind("head", [], asNumber, () => update({ key: null }));
}

function connectPlayer() {
  on("position", "input", () => selectQuery(Number($("position").value)));
  on("key", "input", () => update({ key: Number($("key").value) }));
  on("back", "click", goBack);
  on("step", "click", () => {
    state.run = { count: 0, ms: 0 };
    step([], 1).then(refreshWhatIf);
  });
  on("play", "click", () => {
    if (state.playing) {
      state.playing = false;
      drawPlayer();
    } else play();
  });
  on("fold", "click", toggleSettings);
  on("guideStart", "click", () => guideTo(1));
  on("guideNext", "click", () => guideTo(state.guide + 1));
  on("guideSkip", "click", () => guideTo(0));
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
  on("copy", "click", copyText);
  onButton("bars", ({ dataset }) => {
    if (!state.playing) step([Number(dataset.token)], 0).then(refreshWhatIf);
  });
  on("advance", "click", () => {
    if (state.advancing) stopAdvancing();
    else advance();
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
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the link itself would replace the settings in the address
    $("views").focus();
  });
  on("language", "click", () => setLanguage(state.language === "en" ? "zh" : "en"));
  for (const id of ["net", "netNote", "strip"]) on(id, "click", openView);
  addEventListener("scroll", markView, { passive: true });
  for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", () => changed());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme());
  addEventListener("beforeprint", () => {
    setTheme("light");
    drawAll();
  });
  addEventListener("afterprint", () => setTheme());
  new ResizeObserver(() => changed()).observe(document.body);
}

// Scrolls to a view. The link itself would replace the settings in the address.
function openView(event) {
  const link = event.target.closest("a");
  if (!link) return;
  event.preventDefault();
  goTo(link.dataset.view);
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

let nextFrame = 0; // of the animation of start_pos

// Positions advance by two per second; with reduced motion, by one whole position per second.
function advance() {
  const isReduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
  let last = performance.now();
  state.advancing = true;
  drawPlayer();
  const frame = (now) => {
    const seconds = (now - last) / 1000;
    if (!isReduced || seconds >= 1) {
      state.shift = (state.shift + (isReduced ? 1 : 2 * seconds)) % Number($("shift").max);
      last = now;
      changed("rotation");
    }
    nextFrame = requestAnimationFrame(frame);
  };
  nextFrame = requestAnimationFrame(frame);
}

function stopAdvancing() {
  cancelAnimationFrame(nextFrame);
  state.advancing = false;
  update({ shift: Math.round(state.shift) }, "rotation");
}
