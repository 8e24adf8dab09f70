// View 3: a score as a sum over pairs, as a function of distance, and in the lines of attention.py.

import { softmax } from "./model.mjs";
import { $, axes, colors, element, number, percent, table, vertical } from "./draw.mjs";
import { rotatePair } from "./rotation.mjs";
import { contributions, scoresByDistance, total } from "./score.mjs";
import {
  args,
  attentionFactor,
  facts,
  freqs,
  keyAt,
  kvHeadOf,
  outAt,
  positionText,
  queryAt,
  selectedKey,
  selectedQuery,
  state,
  t,
  tokenText,
  valueAt,
  weightsOf,
} from "./state.mjs";

const D = args.headDim;

export function drawScore() {
  const { layer, head } = state;
  const q = selectedQuery();
  const k = selectedKey(q);
  const distance = q - k;
  const xq = queryAt(layer, head, q);
  const xk = keyAt(layer, head, k);
  const terms = contributions(freqs, xq, xk, distance, attentionFactor);
  const largestPair = terms.reduce((best, value, i) => (Math.abs(value) > Math.abs(terms[best]) ? i : best), 0);
  $("scoreText").textContent = t("scoreText", {
    q: positionText(q),
    k: positionText(k),
    distance,
    score: number(total(terms), 4),
    pair: largestPair,
    contribution: number(terms[largestPair]),
    weight: percent(weightsOf(layer, head, q)[k]),
  });
  drawPairs(terms);
  drawDistance(xq, xk, distance);
  // With all keys, before the mask
  const scores = state.tokens.map((_, p) => total(contributions(freqs, xq, keyAt(layer, head, p), q - p, attentionFactor)));
  drawLines(q, scores);
  drawTable(q, k, scores);
}

function drawPairs(terms) {
  const low = Math.min(0, ...terms);
  const high = Math.max(0, ...terms);
  const c = colors;
  const [context, x, y] = axes($("pairs"), {
    xs: [-0.6, terms.length - 0.4],
    ys: [1.06 * low, 1.06 * high || 1],
    xName: t("pairAxis"),
    yName: t("scoreAxis"),
    integerTicks: true,
  });
  terms.forEach((value, i) => {
    const half = Math.max(1, (x(1) - x(0)) * 0.38); // of the bar's width
    const bar = [x(i) - half, Math.min(y(0), y(value)), 2 * half, Math.abs(y(value) - y(0))];
    context.fillStyle = value < 0 ? c.key : c.query;
    context.fillRect(...bar);
    if (i === state.pair) {
      context.strokeStyle = c.ink;
      context.lineWidth = 2;
      context.strokeRect(...bar);
    }
  });
  $("pairs").setAttribute("aria-label", `${t("pairsCaption")} ${number(total(terms))}`);
}

function drawDistance(xq, xk, distance) {
  const far = Math.max(2 * args.maxSeqLen, distance);
  const curve = scoresByDistance(freqs, xq, xk, far, attentionFactor);
  const span = [Math.min(...curve), Math.max(...curve)];
  const c = colors;
  const [context, x, y] = axes($("distance"), {
    xs: [0, far],
    ys: span,
    xName: t("distanceAxis"),
    yName: t("scoreAxis"),
  });
  vertical(context, x, y, args.maxSeqLen, span, t("context", { length: args.maxSeqLen }));
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
}

// Each text, and the line of attention.py that it annotates. A test checks that each pattern matches one line.
const ANNOTATIONS = [
  ["lineProject", /= self\.wv\(x\)/],
  ["lineRotate", /= apply_rotary_emb\(xq, xk/],
  ["lineCache", /cache\.update\(/],
  ["lineAttend", /self\.attend\(/],
  ["lineOut", /self\.wo\(/],
  ["lineScores", /^ *scores = /],
  ["lineSoftmax", /\.softmax\(-1/],
  ["lineWeighted", /weights @ v/],
];

function drawLines(q, scores) {
  const { layer, head, pair } = state;
  const plain = queryAt(layer, head, q).subarray(2 * pair, 2 * pair + 2);
  const rotated = rotatePair(plain, q * freqs[pair], attentionFactor);
  const firstThree = (values) => [...values.slice(0, 3)].map((value) => number(value)).join(", ");
  const values = {
    q,
    H: args.nHeads,
    K: args.nKvHeads,
    D,
    dim: args.dim,
    head,
    pair,
    kv: kvHeadOf(head),
    speed: number(freqs[pair], 4),
    a: number(plain[0]),
    b: number(plain[1]),
    c: number(rotated[0]),
    d: number(rotated[1]),
    out: firstThree(outAt(layer, head, q)),
    scores: firstThree(scores.slice(0, q + 1)),
    weights: firstThree(weightsOf(layer, head, q)),
  };
  const list = $("lines");
  if (!list.childElementCount) {
    for (const [at, text] of facts.lines) {
      const code = element("code", {}, element("span", { className: "number" }, String(at)), text);
      list.append(element("li", {}, code));
    }
  }
  for (const [key, pattern] of ANNOTATIONS) {
    const item = list.children[facts.lines.findIndex(([, text]) => pattern.test(text))];
    if (!item) continue;
    const note = item.querySelector(".annotation") ?? item.appendChild(element("div", { className: "annotation" }));
    note.textContent = t(key, values);
  }
}

// For each key: the product, the scaled score, the mask, the weight, and the length of the weighted value.
function drawTable(q, k, scores) {
  const { layer, head } = state;
  const last = state.tokens.length - 1;
  const weights = softmax(scores.map((score, p) => (p > q ? -Infinity : score)));
  const rows = scores.map((score, p) => [
    p,
    { text: tokenText(state.tokens[p]) },
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
  table($("scores"), columns, rows, (p) => {
    if (p > q) return "masked";
    return p === k ? "here" : "";
  });
}
