// View 4: the attention weights of every head as a picture, with the selected head in large.

import { $, colors, element, number, surface } from "./draw.mjs";
import { args, selectedKey, selectedQuery, state, t, tokenText, weightsOf } from "./state.mjs";

export function drawMaps() {
  drawThumbs();
  drawMap();
}

// A button for each head, with a pixel for each weight.
function drawThumbs() {
  const thumbs = $("thumbs");
  thumbs.style.gridTemplateColumns = `max-content repeat(${args.nHeads}, minmax(2rem, 7rem))`;
  if (!thumbs.childElementCount) {
    for (let layer = 0; layer < args.nLayers; layer++) thumbs.append(...makeRow(layer));
  }
  thumbs.querySelectorAll("span").forEach((label, layer) => (label.textContent = `${t("layer")} ${layer}`));
  for (const button of thumbs.querySelectorAll("button")) {
    const [layer, head] = [Number(button.dataset.layer), Number(button.dataset.head)];
    button.setAttribute("aria-label", t("where", { layer, head }));
    button.setAttribute("aria-pressed", layer === state.layer && head === state.head);
    paint(button.firstChild, layer, head);
  }
}

// The name of a layer, and a button for each of its heads.
function makeRow(layer) {
  const buttons = Array.from({ length: args.nHeads }, (_, head) =>
    element("button", { type: "button", "data-layer": layer, "data-head": head }, element("canvas")),
  );
  return [element("span"), ...buttons];
}

function paint(canvas, layer, head) {
  const n = state.tokens.length;
  canvas.width = canvas.height = n;
  // Average neighbours only if weights outnumber pixels.
  canvas.style.imageRendering = n > canvas.clientWidth ? "auto" : "pixelated";
  const context = canvas.getContext("2d");
  const image = context.createImageData(n, n); // red, green, blue and opacity of each pixel
  for (let q = 0; q < n; q++) {
    weightsOf(layer, head, q).forEach((weight, k) => (image.data[4 * (q * n + k) + 3] = 255 * Math.sqrt(weight)));
  }
  context.putImageData(image, 0, 0);
  context.globalCompositeOperation = "source-in"; // gives the pixels a colour and keeps their opacity
  context.fillStyle = colors.query;
  context.fillRect(0, 0, n, n);
}

// Pixels beside the map. On the left and at the top is room for a position and a token.
const LEFT = 112;
const TOP = 112;
const RIGHT = 12;
const MAX_LABEL = 10; // characters of a token
const LABEL_HEIGHT = 16;

const cellSize = (width) => (width - LEFT - RIGHT) / state.tokens.length;

function drawMap() {
  const { layer, head } = state;
  const q = selectedQuery();
  const k = selectedKey(q);
  const [context, width] = surface($("map"));
  const cell = cellSize(width);
  const size = cell * state.tokens.length;
  context.imageSmoothingEnabled = false;
  const thumb = $("thumbs").querySelector(`[data-layer="${layer}"][data-head="${head}"] canvas`);
  context.drawImage(thumb, LEFT, TOP, size, size);
  context.strokeStyle = colors.control;
  context.strokeRect(LEFT, TOP, size, size);
  context.fillStyle = colors.quiet;
  context.fillText(`→ ${t("keyAxis")}`, 2, 14);
  context.fillText(`↓ ${t("queryAxis")}`, 2, 32);
  drawLabels(context, cell, q, k);
  Object.assign(context, { strokeStyle: colors.ink, lineWidth: cell < 6 ? 1 : 2 });
  context.strokeRect(LEFT, TOP + q * cell, size, cell);
  Object.assign(context, { strokeStyle: colors.key, lineWidth: 2 });
  context.strokeRect(LEFT + k * cell - 1, TOP + q * cell - 1, Math.max(cell + 2, 5), Math.max(cell + 2, 5));
  const token = (p) => `“${tokenText(state.tokens[p])}”`;
  const weight = number(weightsOf(layer, head, q)[k], 4);
  $("mapText").textContent = t("mapText", { q, qt: token(q), k, kt: token(k), weight, layer, head });
  $("map").setAttribute("aria-label", t("where", { layer, head }));
}

// The positions and tokens of rows and columns: q and k, and as many others as fit without overlap.
function drawLabels(context, cell, q, k) {
  const every = [1, 2, 5, 10, 20, 50, 100].find((step) => step * cell >= LABEL_HEIGHT);
  const isFarFrom = (p, selected) => Math.abs(p - selected) * cell >= LABEL_HEIGHT;
  const hasLabel = (p, selected) => p === selected || (p % every === 0 && isFarFrom(p, selected));
  context.textBaseline = "middle";
  state.tokens.forEach((id, p) => {
    const text = tokenText(id);
    const label = text.length > MAX_LABEL ? `${text.slice(0, MAX_LABEL - 1)}…` : text;
    context.fillStyle = p === q ? colors.ink : colors.quiet;
    context.textAlign = "right";
    if (hasLabel(p, q)) context.fillText(`${label} ${p}`, LEFT - 6, TOP + (p + 0.5) * cell);
    context.save();
    context.translate(LEFT + (p + 0.5) * cell, TOP - 6);
    context.rotate(-Math.PI / 2);
    context.fillStyle = p === k ? colors.ink : colors.quiet;
    context.textAlign = "left";
    if (hasLabel(p, k)) context.fillText(`${p} ${label}`, 0, 0);
    context.restore();
  });
}

// The query and key at a point of the map; they may lie outside the text.
export function cellAt({ offsetX, offsetY }) {
  const cell = cellSize($("map").clientWidth);
  return { q: Math.floor((offsetY - TOP) / cell), k: Math.floor((offsetX - LEFT) / cell) };
}
