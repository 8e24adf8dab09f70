// Helpers for charts, tables and numbers of the page and of the article. Text is always set as text, never as markup.

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
  if (value === -Infinity) return "−∞";
  const size = Math.abs(value);
  const text = value && (size < 10 ** -digits || size >= 1e6) ? value.toExponential(1) : value.toFixed(digits);
  return text.replace("-", "−");
}

// A small number with two significant digits and no exponent: 0.0000012.
export function plainNumber(value) {
  if (!value) return "0";
  if (Math.abs(value) >= 0.1) return number(value, 1);
  return value.toFixed(Math.min(20, 1 - Math.floor(Math.log10(Math.abs(value))))).replace("-", "−");
}

// A share in per cent, without an exponent: 25.2%, 0.00091%.
export function percent(fraction) {
  const value = 100 * fraction;
  if (value >= 0.1 || value === 0) return `${value.toFixed(1)}%`;
  if (value < 1e-6) return "<0.000001%";
  return `${value.toFixed(1 - Math.floor(Math.log10(value)))}%`;
}

// The colours of the current theme, which base.css defines. `query` and `key` are also the first and the second colour
// of charts without queries or keys.
export const colors = {};

export function readColors() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "card", "ink", "quiet", "line", "control", "query", "key", "third", "fourth", "wash"];
  for (const name of names) colors[name] = style.getPropertyValue(`--${name}`).trim();
}

// Clears a canvas and gives it the resolution of the screen. Returns [context, width, height] in CSS pixels.
export function surface(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
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

// Fills a table, unless it is inside closed details. A cell is a value, or an object { text } for a token; columns of
// tokens get the class "text". `classOf` gives the class of row i. Cells are reused and only changes are written,
// because a table of all keys is drawn again for every token.
export function table(target, columns, rows, classOf = () => "") {
  const details = target.closest("details");
  if (details && !details.open) return;
  if (!target.tHead) target.append(element("thead", {}, element("tr")), element("tbody"));
  const isText = columns.map((_, i) => rows[0]?.[i]?.text !== undefined);
  fillRow(target.tHead.rows[0], columns, isText, () => element("th", { scope: "col" }));
  const body = target.tBodies[0];
  while (body.rows.length > rows.length) body.lastChild.remove();
  rows.forEach((row, i) => {
    const line = body.rows[i] ?? body.appendChild(element("tr"));
    if (line.className !== classOf(i)) line.className = classOf(i);
    fillRow(line, row, isText, () => element("td"));
  });
}

function fillRow(row, values, isText, makeCell) {
  values.forEach((value, i) => {
    const cell = row.cells[i] ?? row.appendChild(makeCell());
    const text = String(value?.text ?? value);
    if (isText[i]) cell.className = "text";
    if (cell.textContent !== text) cell.textContent = text;
  });
}
