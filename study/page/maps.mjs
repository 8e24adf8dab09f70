// View 4: the attention weights of every head as a picture, with the selected head in large.

import { $, colors, element, number, surface } from "./draw.mjs";
import { args, limit, selectedKey, selectedQuery, state, t, tokenText, weightsOf } from "./state.mjs";

// A picture for each head, with a pixel for each weight. Only new rows are painted, unless the theme has changed or
// `repaintFrom` was called.
const pictures = Array.from({ length: args.nLayers * args.nHeads }, () =>
  element("canvas", { width: limit, height: limit }).getContext("2d"),
);
let painted = 0; // rows
let color = "";

function paint() {
  if (color !== colors.query) {
    color = colors.query;
    painted = 0;
  }
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16)); // #rrggbb
  const n = state.tokens.length;
  if (painted >= n) return;
  for (let l = 0; l < args.nLayers; l++) {
    for (let h = 0; h < args.nHeads; h++) {
      const context = pictures[l * args.nHeads + h];
      const image = context.createImageData(limit, n - painted);
      for (let q = painted; q < n; q++) {
        weightsOf(l, h, q).forEach((weight, k) => {
          image.data.set([r, g, b, 255 * Math.sqrt(weight)], 4 * ((q - painted) * limit + k));
        });
      }
      context.putImageData(image, 0, painted);
    }
  }
  painted = n;
}

// Marks the rows from `row` on as out of date.
export function repaintFrom(row) {
  painted = Math.min(painted, row);
}

export function drawMaps() {
  paint();
  drawThumbs();
  drawMap();
}

function drawThumbs() {
  const thumbs = $("thumbs");
  const n = state.tokens.length;
  if (!thumbs.childElementCount) {
    thumbs.style.gridTemplateColumns = `max-content repeat(${args.nHeads}, minmax(2rem, 7rem))`;
    pictures.forEach((_, i) => {
      if (i % args.nHeads === 0) thumbs.append(element("span"));
      const where = { "data-layer": Math.floor(i / args.nHeads), "data-head": i % args.nHeads };
      thumbs.append(element("button", { type: "button", ...where }, element("canvas", { "aria-hidden": "true" })));
    });
  }
  thumbs.querySelectorAll("span").forEach((label, layer) => (label.textContent = `${t("layer")} ${layer}`));
  const buttons = thumbs.querySelectorAll("button");
  pictures.forEach((picture, i) => {
    const button = buttons[i];
    const layer = Math.floor(i / args.nHeads);
    const head = i % args.nHeads;
    button.setAttribute("aria-label", t("thumbLabel", { layer, head }));
    button.setAttribute("aria-pressed", layer === state.layer && head === state.head);
    const [context, width, height] = surface(button.firstChild);
    context.imageSmoothingEnabled = n > width * devicePixelRatio; // average only if weights outnumber pixels
    context.drawImage(picture.canvas, 0, 0, n, n, 0, 0, width, height);
  });
}

// Pixels beside the map. On the left and at the top is room for a position and a token.
const LEFT = 112;
const TOP = 112;
const RIGHT = 12;
const MAX_LABEL = 10; // characters of a token

// The cell that the map marks: the one under the pointer, or the selected query and key.
function markedCell() {
  const { hover } = state;
  if (hover && hover.q < state.tokens.length) return hover;
  return { q: selectedQuery(), k: selectedKey(selectedQuery()) };
}

function drawMap() {
  const { layer, head } = state;
  const n = state.tokens.length;
  const c = colors;
  const { q, k } = markedCell();
  const canvas = $("map");
  const [context, width] = surface(canvas);
  const cell = (width - LEFT - RIGHT) / n;
  context.imageSmoothingEnabled = false;
  context.drawImage(pictures[layer * args.nHeads + head].canvas, 0, 0, n, n, LEFT, TOP, cell * n, cell * n);
  context.strokeStyle = c.control;
  context.strokeRect(LEFT, TOP, cell * n, cell * n);
  drawMapLabels(context, cell, q, k);
  context.fillStyle = c.quiet;
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  context.fillText(`→ ${t("keyAxis")}`, 2, 14);
  context.fillText(`↓ ${t("queryAxis")}`, 2, 32);
  context.lineWidth = cell < 6 ? 1 : 2;
  context.strokeStyle = c.ink;
  context.strokeRect(LEFT, TOP + q * cell, cell * n, cell);
  context.lineWidth = 2;
  context.strokeStyle = c.key;
  context.strokeRect(LEFT + k * cell - 1, TOP + q * cell - 1, Math.max(cell + 2, 5), Math.max(cell + 2, 5));
  canvas.setAttribute("aria-label", t("mapLabel", { layer, head }));
  const weights = weightsOf(layer, head, q);
  const token = (p) => `“${tokenText(state.tokens[p])}”`;
  if (!state.playing) {
    $("mapText").textContent = t("mapText", {
      q,
      qt: token(q),
      k,
      kt: token(k),
      weight: number(weights[k], 4),
      layer,
      head,
    });
  }
}

const LABEL_HEIGHT = 16; // pixels

// The positions that have a label: the marked one, and as many others as fit without overlap.
function labelledPositions(cell, marked) {
  const n = state.tokens.length;
  const every = [1, 2, 5, 10, 20, 50, 100].find((step) => step * cell >= LABEL_HEIGHT);
  const positions = Array.from({ length: n }, (_, p) => p);
  return positions.filter((p) => p === marked || (p % every === 0 && Math.abs(p - marked) * cell >= LABEL_HEIGHT));
}

function drawMapLabels(context, cell, q, k) {
  const c = colors;
  const label = (p) => {
    const characters = [...tokenText(state.tokens[p])];
    return characters.length > MAX_LABEL ? `${characters.slice(0, MAX_LABEL - 1).join("")}…` : characters.join("");
  };
  Object.assign(context, { textAlign: "right", textBaseline: "middle" });
  for (const p of labelledPositions(cell, q)) {
    context.fillStyle = p === q ? c.ink : c.quiet;
    context.fillText(`${label(p)} ${p}`, LEFT - 6, TOP + (p + 0.5) * cell);
  }
  context.textAlign = "left";
  for (const p of labelledPositions(cell, k)) {
    context.save();
    context.translate(LEFT + (p + 0.5) * cell, TOP - 6);
    context.rotate(-Math.PI / 2);
    context.fillStyle = p === k ? c.ink : c.quiet;
    context.fillText(`${p} ${label(p)}`, 0, 0);
    context.restore();
  }
}

// Query and key under the pointer, or null outside the triangle.
export function cellAt(event) {
  const canvas = $("map");
  const box = canvas.getBoundingClientRect();
  const n = state.tokens.length;
  const cell = (canvas.clientWidth - LEFT - RIGHT) / n;
  const k = Math.floor((event.clientX - box.left - LEFT) / cell);
  const q = Math.floor((event.clientY - box.top - TOP) / cell);
  return q >= 0 && q < n && k >= 0 && k <= q ? { q, k } : null;
}
