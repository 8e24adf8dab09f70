// View 4: the attention of every head as a picture, one of them large.

import { $, element, number, surface, table } from "./draw.mjs";
import { args, keyOf, limit, query, record, shown, state, t, weightsOf } from "./state.mjs";

// A picture for each head, a pixel for each weight. Rows are painted as they come, and all when the colours change.
const pictures = Array.from({ length: args.nLayers * args.nHeads }, () => null);
let painted = 0;
let color = "";

function paint() {
  if (color !== state.colors.query) [painted, color] = [0, state.colors.query];
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
  const n = state.tokens.length;
  if (painted >= n) return;
  for (let l = 0; l < args.nLayers; l++) {
    for (let h = 0; h < args.nHeads; h++) {
      const context = (pictures[l * args.nHeads + h] ??= element("canvas", { width: limit, height: limit }).getContext(
        "2d",
      ));
      const image = context.createImageData(limit, n - painted);
      for (let q = painted; q < n; q++) {
        const row = record[l].weights.subarray((h * limit + q) * limit, (h * limit + q) * limit + q + 1);
        row.forEach((weight, k) => image.data.set([r, g, b, 255 * Math.sqrt(weight)], 4 * ((q - painted) * limit + k)));
      }
      context.putImageData(image, 0, painted);
    }
  }
  painted = n;
}

// The text is another, or went back: rows from `length` on are to be painted again.
export function repaint(length = 0) {
  painted = Math.min(painted, length);
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
    context.imageSmoothingEnabled = n > width * devicePixelRatio; // squares stay squares; many weights are averaged
    context.drawImage(picture.canvas, 0, 0, n, n, 0, 0, width, height);
  });
}

const LEFT = 112; // room for a position and a word, both ways
const TOP = 112;
const RIGHT = 12;
const LONGEST = 10; // characters of a word

function drawMap() {
  const { layer, head } = state;
  const n = state.tokens.length;
  const c = state.colors;
  const { q, k } = state.hover && state.hover.q < n ? state.hover : { q: query(), k: keyOf(query()) };
  const canvas = $("map");
  const [context, width] = surface(canvas);
  const cell = (width - LEFT - RIGHT) / n;
  context.imageSmoothingEnabled = false;
  context.drawImage(pictures[layer * args.nHeads + head].canvas, 0, 0, n, n, LEFT, TOP, cell * n, cell * n);
  context.strokeStyle = c.control;
  context.strokeRect(LEFT, TOP, cell * n, cell * n);
  context.fillStyle = c.quiet;
  const every = Math.max(
    1,
    [1, 2, 5, 10, 20, 50, 100].find((step) => step * cell >= 16),
  );
  const word = (p) => {
    const characters = [...shown(state.tokens[p])];
    return characters.length > LONGEST ? `${characters.slice(0, LONGEST - 1).join("")}…` : characters.join("");
  };
  // The selected query and key always have their words; others where they do not run into these.
  const near = (p, chosen) => p !== chosen && Math.abs(p - chosen) * cell < 16;
  Object.assign(context, { textAlign: "right", textBaseline: "middle" });
  for (let p = 0; p < n; p++) {
    if ((p % every === 0 && !near(p, q)) || p === q) {
      context.fillStyle = p === q ? c.ink : c.quiet;
      context.fillText(`${word(p)} ${p}`, LEFT - 6, TOP + (p + 0.5) * cell);
    }
  }
  context.textAlign = "left";
  for (let p = 0; p < n; p++) {
    if ((p % every === 0 && !near(p, k)) || p === k) {
      context.save();
      context.translate(LEFT + (p + 0.5) * cell, TOP - 6);
      context.rotate(-Math.PI / 2);
      context.fillStyle = p === k ? c.ink : c.quiet;
      context.fillText(`${p} ${word(p)}`, 0, 0);
      context.restore();
    }
  }
  context.fillStyle = c.quiet;
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
  const token = (p) => `“${shown(state.tokens[p])}”`;
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
  const rows = [...weights].map((weight, p) => [p, { text: shown(state.tokens[p]) }, number(weight, 4)]);
  table($("mapData"), [t("keyAxis"), t("tokenColumn"), t("weightColumn")], rows, (p) => (p === k ? "here" : ""));
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
