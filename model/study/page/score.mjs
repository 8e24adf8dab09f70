// View 3: a score as a sum over pairs, over distance, and on its way through the lines of attention.py.

import { softmax } from "./model.mjs";
import { $, axes, element, number, percent, table, vertical } from "./draw.mjs";
import {
  args,
  facts,
  freqs,
  keyAt,
  keyOf,
  outOf,
  query,
  queryOf,
  shown,
  state,
  t,
  valueAt,
  weightsOf,
} from "./state.mjs";

const D = args.headDim;
const square = args.ropeScaling ? args.ropeScaling.attentionFactor ** 2 : 1;

// What each pair terms to q . k / sqrt(D) when the two stand `distance` apart: Re(q conj(k) e^(j distance theta)).
function parts(xq, xk, distance) {
  return freqs.map((speed, i) => {
    const [a, b] = [xq[2 * i], xq[2 * i + 1]];
    const [c, d] = [xk[2 * i], xk[2 * i + 1]];
    const angle = distance * speed;
    return (square * ((a * c + b * d) * Math.cos(angle) - (b * c - a * d) * Math.sin(angle))) / Math.sqrt(D);
  });
}

const total = (values) => values.reduce((a, b) => a + b, 0);

export function drawScore() {
  const { layer, head } = state;
  const q = query();
  const k = keyOf(q);
  const distance = q - k;
  const xq = queryOf(layer, head, q);
  const xk = keyAt(layer, head, k);
  const terms = parts(xq, xk, distance);
  const pair = terms.reduce((best, value, i) => (Math.abs(value) > Math.abs(terms[best]) ? i : best), 0);
  const place = (p) => `${p} ${shown(state.tokens[p])}`;
  $("scoreText").textContent = t("scoreText", {
    q: place(q),
    k: place(k),
    distance,
    score: number(total(terms), 4),
    pair,
    most: number(terms[pair]),
    weight: percent(weightsOf(layer, head, q)[k]),
  });
  drawPairs(terms);
  drawDistance(xq, xk, distance);
  drawLines(q);
  drawTable(q, k);
}

function drawPairs(terms) {
  const low = Math.min(0, ...terms);
  const high = Math.max(0, ...terms);
  const c = state.colors;
  const [context, x, y] = axes($("pairs"), {
    xs: [-0.6, terms.length - 0.4],
    ys: [1.06 * low, 1.06 * high || 1],
    xName: t("pairAxis"),
    yName: t("scoreAxis"),
    whole: true,
  });
  terms.forEach((value, i) => {
    const edge = Math.max(1, (x(1) - x(0)) * 0.38);
    context.fillStyle = value < 0 ? c.key : c.query; // the sign is also the side of the axis
    context.fillRect(x(i) - edge, Math.min(y(0), y(value)), 2 * edge, Math.abs(y(value) - y(0)));
    if (i === state.pair) {
      context.strokeStyle = c.ink;
      context.lineWidth = 2;
      context.strokeRect(x(i) - edge, Math.min(y(0), y(value)), 2 * edge, Math.abs(y(value) - y(0)));
    }
  });
  $("pairs").setAttribute("aria-label", `${t("pairsCaption")} ${number(total(terms))}`);
  table(
    $("pairsData"),
    [t("pairAxis"), t("speedColumn"), t("addsColumn")],
    terms.map((value, i) => [i, number(freqs[i], 5), number(value, 4)]),
  );
}

function drawDistance(xq, xk, distance) {
  const far = Math.max(2 * args.maxSeqLen, distance);
  const curve = Array.from({ length: far + 1 }, (_, n) => total(parts(xq, xk, n)));
  const span = [Math.min(...curve), Math.max(...curve)];
  const c = state.colors;
  const [context, x, y] = axes($("distance"), {
    xs: [0, far],
    ys: span,
    xName: t("distanceAxis"),
    yName: t("scoreAxis"),
  });
  vertical(context, x, y, args.maxSeqLen, span, t("trained", { length: args.maxSeqLen }));
  context.strokeStyle = c.query;
  context.lineWidth = 1.5;
  context.beginPath();
  curve.forEach((score, n) => context.lineTo(x(n), y(score)));
  context.stroke();
  context.strokeStyle = c.ink;
  context.lineWidth = 2;
  context.beginPath();
  context.arc(x(distance), y(curve[distance]), 6, 0, 2 * Math.PI);
  context.stroke();
  $("distance").setAttribute("aria-label", `${t("distanceCaption")} ${distance}: ${number(curve[distance])}`);
  const rows = curve.map((score, n) => [n, number(score, 4)]).filter(([n]) => n < 32 || n % 16 === 0 || n === distance);
  table($("distanceData"), [t("distanceAxis"), t("scoreAxis")], rows, (i) => (rows[i][0] === distance ? "here" : ""));
}

// The line of attention.py beside which each text stands; a test checks that all of them are found.
export const STEPS = [
  ["lineProject", /= self\.wv\(x\)/],
  ["lineRotate", /= apply_rotary_emb\(xq, xk/],
  ["lineCache", /cache\.update\(/],
  ["lineAttend", /self\.attend\(/],
  ["lineOut", /self\.wo\(/],
  ["lineScores", /^ *scores = /],
  ["lineSoftmax", /\.softmax\(-1/],
  ["lineWeighted", /weights @ v/],
];

function drawLines(q) {
  const { layer, head, pair } = state;
  const xq = queryOf(layer, head, q);
  const angle = q * freqs[pair];
  const scale = Math.sqrt(square);
  const [a, b] = [xq[2 * pair], xq[2 * pair + 1]];
  const [cos, sin] = [scale * Math.cos(angle), scale * Math.sin(angle)];
  const scores = Array.from({ length: q + 1 }, (_, p) => total(parts(xq, keyAt(layer, head, p), q - p)));
  const first = (values) => [...values.slice(0, 3)].map((value) => number(value)).join(", ");
  const blanks = {
    q,
    S: q + 1,
    H: args.nHeads,
    K: args.nKvHeads,
    D,
    dim: args.dim,
    head,
    pair,
    kv: Math.floor((head * args.nKvHeads) / args.nHeads),
    speed: number(freqs[pair], 4),
    a: number(a),
    b: number(b),
    c: number(a * cos - b * sin),
    d: number(a * sin + b * cos),
    out: first(outOf(layer, head, q)),
    scores: first(scores),
    weights: first(softmax(scores)),
  };
  const list = $("lines");
  if (!list.childElementCount) {
    for (const [at, text] of facts.lines) {
      const code = element("code", {}, element("span", { className: "number" }, String(at)), text.replace(/^ {4}/, ""));
      list.append(element("li", {}, code));
    }
  }
  for (const [key, pattern] of STEPS) {
    const item = list.children[facts.lines.findIndex(([, text]) => pattern.test(text))];
    if (!item) continue;
    const says = item.querySelector(".says") ?? item.appendChild(element("div", { className: "says" }));
    says.textContent = t(key, blanks);
  }
}

// For each key the product, the scaled score, the mask and the weight; later tokens are masked.
function drawTable(q, k) {
  const { layer, head } = state;
  const xq = queryOf(layer, head, q);
  const last = state.tokens.length - 1;
  const products = Array.from({ length: last + 1 }, (_, p) => total(parts(xq, keyAt(layer, head, p), q - p)));
  const weights = softmax(products.map((score, p) => (p > q ? -Infinity : score)));
  const rows = products.map((score, p) => [
    p,
    { text: shown(state.tokens[p]) },
    number(score * Math.sqrt(D)),
    number(score),
    t(p > q ? "maskHidden" : "maskSeen"),
    number(weights[p], 4),
    number(weights[p] * Math.hypot(...valueAt(layer, head, p)), 4),
  ]);
  $("maskText").textContent = t(last > q ? "maskSome" : "maskNone", { q, seen: q + 1, hidden: last - q });
  const columns = [
    t("positionColumn"),
    t("tokenColumn"),
    "q · k",
    "÷ √D",
    t("maskColumn"),
    t("weightColumn"),
    t("valueColumn"),
  ];
  table($("scores"), columns, rows, (p) => (p > q ? "masked" : p === k ? "here" : ""));
}
