// View 2: one pair of a head as arrows in its plane, and all its pairs as clocks.

import { dot, applyRotaryEmb, precomputeFreqsCis } from "./model.mjs";
import { $, element, line, number, plainNumber, surface, table, ticks, tidy } from "./draw.mjs";
import { args, freqs, keyAt, keyOf, query, queryOf, shown, state, t } from "./state.mjs";

const length = args.ropeScaling ? args.ropeScaling.attentionFactor : 1; // of what is rotated; YaRN's is above 1
const CIRCLE = 2 * Math.PI;

const degrees = (angle) => Math.round(((((angle * 180) / Math.PI) % 360) + 360) % 360);

// The pair's plane: [x, y] of a head's vector at position p, before and after its rotation.
function pairAt(vector, p) {
  const [a, b] = vector.subarray(2 * state.pair, 2 * state.pair + 2);
  const angle = p * freqs[state.pair];
  const cos = length * Math.cos(angle);
  const sin = length * Math.sin(angle);
  return { plain: [a, b], rotated: [a * cos - b * sin, a * sin + b * cos] };
}

export function drawRotation() {
  const { layer, head, shift } = state;
  const q = query();
  const k = keyOf(q);
  const arrows = Array.from({ length: q + 1 }, (_, p) => pairAt(keyAt(layer, head, p), p + shift));
  const asks = pairAt(queryOf(layer, head, q), q + shift);
  drawPlane(asks, arrows, q, k);
  drawClocks(q);
  const plain = scores(q, 0);
  const shifted = scores(q, shift);
  const difference = plain.reduce((most, score, p) => Math.max(most, Math.abs(score - shifted[p])), 0);
  if (document.activeElement !== $("shift")) $("shift").value = shift;
  const blanks = {
    plain: number(plain[k], 4),
    shifted: number(shifted[k], 4),
    shift: number(shift, state.advancing ? 1 : 0),
  };
  $("shiftScores").textContent = t("shiftScores", {
    ...blanks,
    count: q + 1,
    difference: plainNumber(difference),
  });
  const point = ([a, b]) => `${number(a)}, ${number(b)}`;
  const row = (name, p, { plain, rotated }) => [
    name,
    p,
    { text: shown(state.tokens[p]) },
    point(plain),
    degrees((p + shift) * freqs[state.pair]) + "°",
    point(rotated),
  ];
  table(
    $("planeData"),
    [t("arrowColumn"), t("positionColumn"), t("tokenColumn"), "x", "∠", "x · e^(jpθ)"],
    [row("q", q, asks), ...arrows.map((arrow, p) => row("k", p, arrow))],
    (i) => (i === k + 1 ? "here" : ""),
  );
}

// The real products, through the same functions as the network: what one query scores against all keys.
function scores(q, shift) {
  const D = args.headDim;
  const table = precomputeFreqsCis(D, q + 1, args.ropeTheta, args.ropeScaling, (p) => p + shift);
  const keys = new Float32Array((q + 1) * D);
  const queries = new Float32Array((q + 1) * D);
  for (let p = 0; p <= q; p++) keys.set(keyAt(state.layer, state.head, p), p * D);
  queries.set(queryOf(state.layer, state.head, q), q * D);
  const [xq, xk] = applyRotaryEmb(queries, keys, table, D);
  return Array.from({ length: q + 1 }, (_, p) => dot(xq, q * D, xk, p * D, D) / Math.sqrt(D));
}

function drawPlane(asks, arrows, q, k) {
  const canvas = $("plane");
  const c = state.colors;
  const [context, size] = surface(canvas);
  const longest = Math.max(...[asks, ...arrows].map(({ rotated: [a, b] }) => Math.hypot(a, b))) * 1.15 || 1;
  // The centre goes from the origin to the tip of k as the zoom grows.
  const [cx, cy] = arrows[k].rotated.map((value) => value * (1 - 1 / state.zoom));
  const half = longest / state.zoom;
  const margin = 26;
  const x = (value) => size / 2 + ((value - cx) / half) * (size / 2 - margin);
  const y = (value) => size / 2 - ((value - cy) / half) * (size / 2 - margin);
  const inside = (at) => Math.min(Math.max(at, margin), size - margin);
  const [axisX, axisY] = [inside(x(0)), inside(y(0))]; // at the edge when the origin is out of sight
  Object.assign(context, { strokeStyle: c.line, fillStyle: c.quiet, lineWidth: 1 });
  line(context, margin, axisY, size - margin, axisY);
  line(context, axisX, margin, axisX, size - margin);
  for (const tick of ticks(cx - half, cx + half, 6)) {
    line(context, x(tick), axisY - 3, x(tick), axisY + 3);
    if (!tick) continue;
    Object.assign(context, { textBaseline: "top", textAlign: "center" });
    context.fillText(tidy(tick), x(tick), axisY + 5);
  }
  for (const tick of ticks(cy - half, cy + half, 6)) {
    line(context, axisX - 3, y(tick), axisX + 3, y(tick));
    if (!tick) continue;
    const isLeft = axisX < 2 * margin;
    Object.assign(context, { textBaseline: "middle", textAlign: isLeft ? "left" : "right" });
    context.fillText(tidy(tick), axisX + (isLeft ? 6 : -6), y(tick));
  }
  const arrow = ([a, b], color, width, dash = [], alpha = 1) => {
    Object.assign(context, { strokeStyle: color, fillStyle: color, lineWidth: width, globalAlpha: alpha });
    context.setLineDash(dash);
    line(context, x(0), y(0), x(a), y(b));
    context.setLineDash([]);
    tip(context, x(a), y(b), Math.atan2(y(b) - y(0), x(a) - x(0)), 4 + 2 * width);
    context.globalAlpha = 1;
  };
  const places = []; // of the labels of q and k
  const label = (words, [a, b], color) => {
    const angle = Math.atan2(b, a);
    const px = x(a) + 17 * Math.cos(angle);
    let py = y(b) - 17 * Math.sin(angle);
    for (const [tx, ty] of places) if (Math.abs(tx - px) < 30 && Math.abs(ty - py) < 16) py = ty + 18;
    places.push([px, py]);
    Object.assign(context, {
      fillStyle: color,
      font: "bold 14px system-ui, sans-serif",
      textAlign: "center",
      textBaseline: "middle",
    });
    context.fillText(words, px, py);
  };
  arrows.forEach(({ rotated }, p) => p !== k && arrow(rotated, c.key, 1, [], 0.2 + 0.5 * ((p + 1) / (q + 1)) ** 2));
  arrow(arrows[k].plain, c.key, 1.5, [1, 4]);
  arrow(asks.plain, c.query, 1.5, [1, 4]);
  arrow(arrows[k].rotated, c.key, 3, [8, 4]);
  arrow(asks.rotated, c.query, 4);
  label(`k${k}`, arrows[k].rotated, c.key);
  label(`q${q}`, asks.rotated, c.query);
  const taken = [...places, ...[arrows[k], asks].map(({ rotated: [a, b] }) => [x(a), y(b)])];
  Object.assign(context, { fillStyle: c.key, font: "11px system-ui, sans-serif" });
  for (let p = q; p >= 0; p--) {
    const [a, b] = arrows[p].rotated;
    const [px, py] = [x(a) + 11 * Math.sign(a), y(b) - 9 * Math.sign(b)];
    const isFree = taken.every(([tx, ty]) => Math.abs(tx - px) > 26 || Math.abs(ty - py) > 14);
    if (p === k || !isFree || inside(px) !== px || inside(py) !== py) continue;
    context.fillText(`k${p}`, px, py);
    taken.push([px, py]);
  }
  const towards = ([a, b]) => degrees(Math.atan2(b, a));
  canvas.setAttribute(
    "aria-label",
    t("planeLabel", {
      layer: state.layer,
      head: state.head,
      pair: state.pair,
      q,
      k,
      qa: towards(asks.rotated),
      ka: towards(arrows[k].rotated),
    }),
  );
}

function tip(context, x, y, angle, size) {
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
    const chosen = pair === state.pair;
    button.setAttribute("aria-pressed", chosen);
    const says = t("clockLabel", { pair, speed: number(speed, 4), period: rounded(period), angle: degrees(angle) });
    button.setAttribute("aria-label", says);
    button.title = says;
  });
}

function clock(pair) {
  const shape = (name, attributes) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const seen = Math.min(args.maxSeqLen * freqs[pair], CIRCLE * 0.9999);
  const x = 20 + 17 * Math.cos(seen);
  const y = 20 - 17 * Math.sin(seen);
  const svg = shape("svg", { viewBox: "0 0 40 40", "aria-hidden": "true" });
  svg.append(
    shape("circle", { class: "face", cx: 20, cy: 20, r: 17 }),
    shape("path", { class: "arc", d: `M 37 20 A 17 17 0 ${seen > Math.PI ? 1 : 0} 0 ${x} ${y}` }),
    shape("line", { class: "hand", x1: 20, y1: 20, x2: 34, y2: 20 }),
  );
  const period = CIRCLE / freqs[pair];
  return element("button", { type: "button", "data-pair": pair }, svg, `${pair}: ${rounded(period)}`);
}

const rounded = (period) => (period < 1000 ? period.toPrecision(3) : String(Math.round(period)));
