// The controls: each changes the state, and then everything is drawn.

import { $ } from "./draw.mjs";
import { state } from "./state.mjs";
import { changed } from "./frame.mjs";
import { append, goBack, sample, usePrompt } from "./generation.mjs";
import { cellAt } from "./maps.mjs";
import { writeTexts } from "./language.mjs";

function on(id, event, handler) {
  $(id).addEventListener(event, (details) => {
    handler(details);
    changed();
  });
}

// When a button inside this element is clicked, calls the handler with its data.
function onButton(id, handler) {
  on(id, "click", ({ target }) => {
    const button = target.closest("button");
    if (button) handler(button.dataset);
  });
}

// Copies a control to the setting of the same name, now and when it changes. Invalid numbers are ignored, and marked by
// page.css.
function bind(id) {
  const input = $(id);
  const read = () => {
    if (input.validity.valid) state[id] = input.type === "checkbox" ? input.checked : Number(input.value);
  };
  read();
  on(id, "input", read);
}

// Selects a query. The newest one is null, so that the selection follows the text as it grows.
function selectQuery(position) {
  Object.assign(state, { position: position < state.tokens.length - 1 ? position : null, key: null });
}

export function connectControls() {
  for (const id of ["layer", "head", "temperature", "topK", "topP", "seed", "shift", "useCache"]) bind(id);
  on("prompt", "input", () => usePrompt($("prompt").value));
  on("position", "input", () => selectQuery(Number($("position").value)));
  on("key", "input", () => (state.key = Number($("key").value)));
  on("back", "click", goBack);
  on("step", "click", () => sample(1));
  on("steps", "click", () => sample(16));
  on("language", "click", () => {
    state.language = state.language === "en" ? "zh" : "en";
    writeTexts();
  });
  on("chips", "click", ({ target }) => target.dataset.position && selectQuery(Number(target.dataset.position)));
  onButton("bars", ({ token }) => append(Number(token)));
  onButton("clocks", ({ pair }) => (state.pair = Number(pair)));
  onButton("thumbs", ({ layer, head }) => Object.assign(state, { layer: Number(layer), head: Number(head) }));
  on("map", "click", (event) => {
    const { q, k } = cellAt(event);
    if (k >= 0 && k <= q && q < state.tokens.length) Object.assign(state, { position: q, key: k });
  });
}
