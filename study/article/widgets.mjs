// What every figure is built from: labelled controls, small charts, and the text of the article's language.

import { colors, element, line, surface } from "../page/draw.mjs";
import { STRINGS } from "./strings.mjs";

export const facts = JSON.parse(document.getElementById("facts").textContent);

export function t(key, values = {}) {
  const text = STRINGS[key][facts.language === "zh" ? 1 : 0];
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

// A slider with its value beside it. `show` gives the text of a value.
export function slider(name, { min, max, step = 1, value }, change, show = String) {
  const output = element("output", {}, show(value));
  const input = element("input", { type: "range", min, max, step });
  input.value = value; // after min and max, which would cut it
  input.addEventListener("input", () => change(Number(input.value)));
  const set = (now) => {
    input.value = now;
    output.textContent = show(now);
    input.setAttribute("aria-valuetext", show(now));
  };
  set(value);
  return { label: element("label", { className: "slider" }, `${name} `, input, output), input, set };
}

// Buttons of which one is pressed. `options` are [value, name].
export function choice(name, options, value, change) {
  const buttons = options.map(([each, text]) => {
    const button = element("button", { type: "button", "aria-pressed": each === value }, text);
    button.addEventListener("click", () => {
      buttons.forEach((other) => other.setAttribute("aria-pressed", other === button));
      change(each);
    });
    return button;
  });
  return element("div", { className: "choice", role: "group", "aria-label": name }, ...buttons);
}

export const chart = (name) => element("canvas", { className: "chart", role: "img", "aria-label": name });

// A curve in the coordinates of `axes`.
export function curve(context, x, y, values, color, dash = []) {
  Object.assign(context, { strokeStyle: color, lineWidth: 2 });
  context.setLineDash(dash);
  context.beginPath();
  values.forEach((value, i) => context.lineTo(x(i), y(value)));
  context.stroke();
  context.setLineDash([]);
}

export function mark(context, x, y, color) {
  context.fillStyle = color;
  context.beginPath();
  context.arc(x, y, 5, 0, 2 * Math.PI);
  context.fill();
}

// A curve without axes, and a dot at value `at`.
export function spark(canvas, values, at, color) {
  const [context, width, height] = surface(canvas);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const isFlat = high - low < 1e-9 * Math.max(1, Math.abs(high));
  const x = (i) => 8 + (i / (values.length - 1 || 1)) * (width - 16);
  const y = (value) => (isFlat ? height / 2 : height - 8 - ((value - low) / (high - low)) * (height - 16));
  context.strokeStyle = colors.line;
  line(context, 8, height - 2, width - 8, height - 2);
  curve(context, x, y, values, color);
  mark(context, x(at), y(values[at]), color);
}
