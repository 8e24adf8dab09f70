// View 2: one pair of a head as arrows in a plane, and all pairs of the head as clocks.

import { dot, applyRotaryEmb, precomputeFreqsCis } from "./model.mjs";
import { $, element, line, number, plainNumber, surface, table, ticks, tickText } from "./draw.mjs";
import { args, attentionFactor, freqs, keyAt, queryAt, selectedKey, selectedQuery, state, t, tokenText } from "./state.mjs";

const CIRCLE = 2 * Math.PI;

const degrees = (angle) => Math.round(((((angle * 180) / Math.PI) % 360) + 360) % 360);

// The selected pair of a vector, as [x, y] before and after its rotation to position p.
export function rotatePair(vector, p) {
  const [a, b] = vector.subarray(2 * state.pair, 2 * state.pair + 2);
  const angle = p * freqs[state.pair];
  const cos = attentionFactor * Math.cos(angle);
  const sin = attentionFactor * Math.sin(angle);
  return { plain: [a, b], rotated: [a * cos - b * sin, a * sin + b * cos] };
}

export function drawRotation() {
  const { layer, head, shift } = state;
  const q = selectedQuery();
  const k = selectedKey(q);
  const keyArrows = Array.from({ length: q + 1 }, (_, p) => rotatePair(keyAt(layer, head, p), p + shift));
  const queryArrow = rotatePair(queryAt(layer, head, q), q + shift);
  drawPlane(queryArrow, keyArrows, q, k);
  drawClocks(q);
  if (document.activeElement !== $("shift")) $("shift").value = shift;
  drawShiftScores(q, k);
  drawPlaneData(queryArrow, keyArrows, q, k);
}

// The scores of query q before and after the shift, to show that they do not change.
function drawShiftScores(q, k) {
  const { shift } = state;
  const plain = scoresAt(q, 0);
  const shifted = scoresAt(q, shift);
  const difference = plain.reduce((max, score, p) => Math.max(max, Math.abs(score - shifted[p])), 0);
  $("shiftScores").textContent = t("shiftScores", {
    plain: number(plain[k], 4),
    shifted: number(shifted[k], 4),
    shift: number(shift, state.advancing ? 1 : 0),
    count: q + 1,
    difference: plainNumber(difference),
  });
}

// The position to which the token at index p is rotated, as text.
const shiftedPosition = (p) => number(p + state.shift, state.advancing ? 1 : 0);

function drawPlaneData(queryArrow, keyArrows, q, k) {
  const point = ([a, b]) => `${number(a)}, ${number(b)}`;
  const row = (name, p, { plain, rotated }) => [
    name,
    shiftedPosition(p),
    { text: tokenText(state.tokens[p]) },
    point(plain),
    degrees((p + state.shift) * freqs[state.pair]) + "°",
    point(rotated),
  ];
  const columns = [t("arrowColumn"), t("shiftedColumn"), t("tokenColumn"), "x", "pθ mod 360°", "x · e^(jpθ)"];
  const rows = [row("q", q, queryArrow), ...keyArrows.map((arrow, p) => row("k", p, arrow))];
  table($("planeData"), columns, rows, (i) => (i === k + 1 ? "here" : ""));
}

// The scores of query q with all keys if positions start at `shift`, computed by the functions of the network.
function scoresAt(q, shift) {
  const D = args.headDim;
  const table = precomputeFreqsCis(D, q + 1, args.ropeTheta, args.ropeScaling, (p) => p + shift);
  const keys = new Float32Array((q + 1) * D);
  const queries = new Float32Array((q + 1) * D);
  for (let p = 0; p <= q; p++) keys.set(keyAt(state.layer, state.head, p), p * D);
  queries.set(queryAt(state.layer, state.head, q), q * D);
  const [xq, xk] = applyRotaryEmb(queries, keys, table, D);
  return Array.from({ length: q + 1 }, (_, p) => dot(xq, q * D, xk, p * D, D) / Math.sqrt(D));
}

const MARGIN = 26; // pixels around the plane

function drawPlane(queryArrow, keyArrows, q, k) {
  const c = state.colors;
  const plane = planeOf(queryArrow, keyArrows, k);
  drawPlaneAxes(plane);
  keyArrows.forEach(({ rotated }, p) => {
    const alpha = 0.2 + 0.5 * ((p + 1) / (q + 1)) ** 2; // older keys are fainter
    if (p !== k) drawArrow(plane, rotated, { color: c.key, width: 1, alpha });
  });
  drawArrow(plane, keyArrows[k].plain, { color: c.key, width: 1.5, dash: [1, 4] });
  drawArrow(plane, queryArrow.plain, { color: c.query, width: 1.5, dash: [1, 4] });
  drawArrow(plane, keyArrows[k].rotated, { color: c.key, width: 3, dash: [8, 4] });
  drawArrow(plane, queryArrow.rotated, { color: c.query, width: 4 });
  drawPlaneLabels(plane, queryArrow, keyArrows, q, k);
  const direction = ([a, b]) => degrees(Math.atan2(b, a));
  const values = {
    layer: state.layer,
    head: state.head,
    pair: state.pair,
    q: shiftedPosition(q),
    k: shiftedPosition(k),
    qa: direction(queryArrow.rotated),
    ka: direction(keyArrows[k].rotated),
  };
  $("plane").setAttribute("aria-label", t("planeLabel", values));
}

// The visible part of the plane: its centre and half its width, and functions from values to pixels.
function planeOf(queryArrow, keyArrows, k) {
  const [context, size] = surface($("plane"));
  const longest = Math.max(...[queryArrow, ...keyArrows].map(({ rotated: [a, b] }) => Math.hypot(a, b)));
  const half = (longest * 1.15 || 1) / state.zoom;
  const [cx, cy] = keyArrows[k].rotated.map((value) => value * (1 - 1 / state.zoom)); // zooming moves it towards k
  const x = (value) => size / 2 + ((value - cx) / half) * (size / 2 - MARGIN);
  const y = (value) => size / 2 - ((value - cy) / half) * (size / 2 - MARGIN);
  const clamp = (pixel) => Math.min(Math.max(pixel, MARGIN), size - MARGIN);
  return { context, size, cx, cy, half, x, y, clamp };
}

function drawPlaneAxes({ context, size, cx, cy, half, x, y, clamp }) {
  const axisX = clamp(x(0)); // at the edge if the origin is not visible
  const axisY = clamp(y(0));
  Object.assign(context, { strokeStyle: state.colors.line, fillStyle: state.colors.quiet, lineWidth: 1 });
  line(context, MARGIN, axisY, size - MARGIN, axisY);
  line(context, axisX, MARGIN, axisX, size - MARGIN);
  for (const tick of ticks(cx - half, cx + half, 6)) {
    line(context, x(tick), axisY - 3, x(tick), axisY + 3);
    if (!tick) continue;
    Object.assign(context, { textBaseline: "top", textAlign: "center" });
    context.fillText(tickText(tick), x(tick), axisY + 5);
  }
  for (const tick of ticks(cy - half, cy + half, 6)) {
    line(context, axisX - 3, y(tick), axisX + 3, y(tick));
    if (!tick) continue;
    const isLeft = axisX < 2 * MARGIN;
    Object.assign(context, { textBaseline: "middle", textAlign: isLeft ? "left" : "right" });
    context.fillText(tickText(tick), axisX + (isLeft ? 6 : -6), y(tick));
  }
}

function drawArrow({ context, x, y }, [a, b], { color, width, dash = [], alpha = 1 }) {
  Object.assign(context, { strokeStyle: color, fillStyle: color, lineWidth: width, globalAlpha: alpha });
  context.setLineDash(dash);
  line(context, x(0), y(0), x(a), y(b));
  context.setLineDash([]);
  arrowHead(context, x(a), y(b), Math.atan2(y(b) - y(0), x(a) - x(0)), 4 + 2 * width);
  context.globalAlpha = 1;
}

// Large labels for the selected query and key; small ones for the other keys if they fit without overlap.
function drawPlaneLabels({ context, x, y, clamp }, queryArrow, keyArrows, q, k) {
  const c = state.colors;
  const labels = []; // [x, y] in pixels
  const drawLarge = (text, [a, b], color) => {
    const angle = Math.atan2(b, a);
    const px = x(a) + 17 * Math.cos(angle);
    let py = y(b) - 17 * Math.sin(angle);
    for (const [lx, ly] of labels) if (Math.abs(lx - px) < 30 && Math.abs(ly - py) < 16) py = ly + 18;
    labels.push([px, py]);
    Object.assign(context, {
      fillStyle: color,
      font: "bold 14px system-ui, sans-serif",
      textAlign: "center",
      textBaseline: "middle",
    });
    context.fillText(text, px, py);
  };
  drawLarge(`k${k}`, keyArrows[k].rotated, c.key);
  drawLarge(`q${q}`, queryArrow.rotated, c.query);
  const taken = [...labels, ...[keyArrows[k], queryArrow].map(({ rotated: [a, b] }) => [x(a), y(b)])];
  Object.assign(context, { fillStyle: c.key, font: "11px system-ui, sans-serif" });
  for (let p = q; p >= 0; p--) {
    const [a, b] = keyArrows[p].rotated;
    const px = x(a) + 11 * Math.sign(a);
    const py = y(b) - 9 * Math.sign(b);
    const isFree = taken.every(([tx, ty]) => Math.abs(tx - px) > 26 || Math.abs(ty - py) > 14);
    const isInside = clamp(px) === px && clamp(py) === py;
    if (p === k || !isFree || !isInside) continue;
    context.fillText(`k${p}`, px, py);
    taken.push([px, py]);
  }
}

function arrowHead(context, x, y, angle, size) {
  context.beginPath();
  context.moveTo(x, y);
  for (const side of [2.7, -2.7]) context.lineTo(x + size * Math.cos(angle + side), y + size * Math.sin(angle + side));
  context.fill();
}

const SVG = "http://www.w3.org/2000/svg";

function drawClocks(q) {
  const clocks = $("clocks");
  if (!clocks.childElementCount) freqs.forEach((_, pair) => clocks.append(clock(pair)));
  freqs.forEach((speed, pair) => {
    const button = clocks.children[pair];
    const angle = (q + state.shift) * speed;
    button.querySelector(".hand").setAttribute("transform", `rotate(${-degrees(angle)} 20 20)`);
    const period = CIRCLE / speed;
    button.setAttribute("aria-pressed", pair === state.pair);
    const label = t("clockLabel", { pair, speed: number(speed, 4), period: rounded(period), angle: degrees(angle) });
    button.setAttribute("aria-label", label);
    button.title = label;
  });
}

function clock(pair) {
  const shape = (name, attributes) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const contextAngle = Math.min(args.maxSeqLen * freqs[pair], CIRCLE * 0.9999); // an arc of a full circle would be empty
  const x = 20 + 17 * Math.cos(contextAngle);
  const y = 20 - 17 * Math.sin(contextAngle);
  const svg = shape("svg", { viewBox: "0 0 40 40", "aria-hidden": "true" });
  svg.append(
    shape("circle", { class: "face", cx: 20, cy: 20, r: 17 }),
    shape("path", { class: "arc", d: `M 37 20 A 17 17 0 ${contextAngle > Math.PI ? 1 : 0} 0 ${x} ${y}` }),
    shape("line", { class: "hand", x1: 20, y1: 20, x2: 34, y2: 20 }),
  );
  const period = CIRCLE / freqs[pair];
  return element("button", { type: "button", "data-pair": pair }, svg, `${pair}: ${rounded(period)}`);
}

const rounded = (period) => (period < 1000 ? period.toPrecision(3) : String(Math.round(period)));
