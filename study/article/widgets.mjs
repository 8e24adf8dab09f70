// What every figure is built from: labelled controls and charts, and the text of the article's language.

import { element, translate } from "../page/draw.mjs";
import { STRINGS } from "./strings.mjs";

export const facts = JSON.parse(document.getElementById("facts").textContent);

export const t = (name, values) => translate(STRINGS[name], facts.language, values);

// A slider with its value beside it. `show` gives the text of a value.
export function slider(name, { min, max, step = 1, value }, change, show = String) {
  const input = element("input", { type: "range", min, max, step });
  const output = element("output");
  const set = (now) => {
    input.value = now;
    output.textContent = show(now);
    input.setAttribute("aria-valuetext", show(now));
  };
  input.addEventListener("input", () => {
    set(Number(input.value));
    change();
  });
  set(value);
  const label = element("label", { className: "wide" }, `${name} `, input, output);
  return { label, set, get: () => Number(input.value) };
}

// Buttons of which one is pressed. `options` are [value, name].
export function choice(name, options, change) {
  const buttons = options.map(([value, text], i) => {
    const button = element("button", { type: "button", "aria-pressed": i === 0 }, text);
    button.addEventListener("click", () => {
      for (const each of buttons) each.setAttribute("aria-pressed", each === button);
      change(value);
    });
    return button;
  });
  return element("div", { className: "controls", role: "group", "aria-label": name }, ...buttons);
}

export const controls = (...sliders) => element("div", { className: "controls" }, ...sliders.map(({ label }) => label));

export const chart = (name) => element("canvas", { className: "chart", role: "img", "aria-label": name });

export const answerBox = () => element("p", { className: "note", role: "status" });

export const legend = (name, values) => element("p", { className: "quiet" }, t(name, values));
