// Helpers for elements, texts, numbers and charts of the page and of the article. Text is always set as text, never as
// markup.

export const $ = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

export function number(value, digits = 3) {
  const size = Math.abs(value);
  const text = value && (size < 10 ** -digits || size >= 1e6) ? value.toExponential(1) : value.toFixed(digits);
  return text.replace("-", "−");
}

export const percent = (fraction) => `${Number((100 * fraction).toPrecision(3))}%`;

// The English or the Chinese one of `texts`, with each {name} filled in.
export function translate([english, chinese], language, values = {}) {
  return (language === "zh" ? chinese : english).replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

// The colours of the current theme, which base.css defines. `query` and `key` are also the first and the second colour
// of charts without queries or keys.
export const colors = {};

export function readColors() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "quiet", "line", "control", "query", "key", "arc"]) {
    colors[name] = style.getPropertyValue(`--${name}`).trim();
  }
}

// Clears a canvas and gives it the resolution of the screen. Returns [context, width, height] in CSS pixels.
export function surface(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const ratio = devicePixelRatio;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = "12px system-ui, sans-serif";
  return [context, width, height];
}

// Round numbers that divide [low, high] into about `count` parts.
export function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((multiple) => multiple * power >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

// Draws the ticks and axis names of a chart. Returns its context, and two functions x, y from values to pixels.
// `integerTicks`: only integers on the x axis.
export function axes(canvas, { xs: [x0, x1], ys: [y0, y1], xName, yName, integerTicks = false }) {
  const [context, width, height] = surface(canvas);
  const c = colors;
  const left = 52;
  const right = 12;
  const top = 22;
  const bottom = 38;
  const x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - y0) / (y1 - y0 || 1)) * (height - top - bottom);
  const allTicks = ticks(x0, x1, Math.min(8, Math.floor(width / 60)));
  const xTicks = integerTicks ? allTicks.filter(Number.isInteger) : allTicks;
  context.lineWidth = 1;
  context.strokeStyle = c.line;
  context.fillStyle = c.quiet;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const tick of ticks(y0, y1, 5)) {
    line(context, left, y(tick), width - right, y(tick));
    context.fillText(tickText(tick), left - 6, y(tick));
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const tick of xTicks) {
    line(context, x(tick), height - bottom, x(tick), height - bottom + 4);
    context.fillText(tickText(tick), x(tick), height - bottom + 6);
  }
  context.textAlign = "right";
  context.fillText(xName, width - right, height - 15);
  context.textAlign = "left";
  context.fillText(yName, 4, 3);
  context.strokeStyle = c.control;
  if (y0 < 0 && y1 > 0) line(context, left, y(0), width - right, y(0));
  return [context, x, y];
}

export const tickText = (tick) => String(Number(tick.toPrecision(6))).replace("-", "−");

export function line(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

// A dashed vertical line, with a name at its top.
export function vertical(context, x, y, at, [low, high], name) {
  Object.assign(context, {
    strokeStyle: colors.ink,
    fillStyle: colors.ink,
    lineWidth: 1,
    textAlign: "center",
  });
  context.fillText(name, x(at), y(high) - 16);
  context.setLineDash([4, 4]);
  line(context, x(at), y(low), x(at), y(high));
  context.setLineDash([]);
}

// A curve in the coordinates of `axes`.
export function curve(context, x, y, values, color, dash = []) {
  Object.assign(context, { strokeStyle: color, lineWidth: 2 });
  context.setLineDash(dash);
  context.beginPath();
  values.forEach((value, i) => context.lineTo(x(i), y(value)));
  context.stroke();
  context.setLineDash([]);
}

export function dotAt(context, x, y, radius, color) {
  context.fillStyle = color;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
}
