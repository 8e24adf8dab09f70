// View 3: a score as a sum over pairs, as a function of distance, and in the lines of attention.py.

import { softmax } from "./model.mjs";
import { $, axes, colors, curve, element, number, percent, vertical } from "./draw.mjs";
import { rotatePair } from "./rotation.mjs";
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

const total = (values) => values.reduce((a, b) => a + b, 0);

// The contribution of each pair to q . k / sqrt(D) at a distance: Re(q conj(k) e^(j distance freq)) / sqrt(D), (D/2).
// q and k (D) are not rotated.
function contributions(q, k, distance) {
  return freqs.map((freq, i) => {
    const [a, b] = [q[2 * i], q[2 * i + 1]];
    const [c, d] = [k[2 * i], k[2 * i + 1]];
    const angle = distance * freq;
    const product = (a * c + b * d) * Math.cos(angle) - (b * c - a * d) * Math.sin(angle);
    return (attentionFactor ** 2 * product) / Math.sqrt(D);
  });
}

export function drawScore() {
  const { layer, head } = state;
  const q = selectedQuery();
  const k = selectedKey(q);
  const distance = q - k;
  const xq = queryAt(layer, head, q);
  const xk = keyAt(layer, head, k);
  const terms = contributions(xq, xk, distance);
  $("scoreText").textContent = t("scoreText", {
    q: positionText(q),
    k: positionText(k),
    distance,
    score: number(total(terms), 4),
    weight: percent(weightsOf(layer, head, q)[k]),
  });
  drawPairs(terms);
  drawDistance(xq, xk, distance);
  const scores = state.tokens.map((_, p) => total(contributions(xq, keyAt(layer, head, p), q - p))); // before the mask
  drawLines(q, scores);
  drawTable(q, k, scores);
}

function drawPairs(terms) {
  const [context, x, y] = axes($("pairs"), {
    xs: [-0.6, terms.length - 0.4],
    ys: [1.06 * Math.min(0, ...terms), 1.06 * Math.max(0, ...terms) || 1],
    xName: t("pairAxis"),
    yName: "q · k / √D",
    integerTicks: true,
  });
  terms.forEach((value, i) => {
    const half = Math.max(1, (x(1) - x(0)) * 0.38); // of the bar's width
    const bar = [x(i) - half, y(0), 2 * half, y(value) - y(0)];
    context.fillStyle = value < 0 ? colors.key : colors.query;
    context.fillRect(...bar);
    Object.assign(context, { strokeStyle: colors.ink, lineWidth: 2 });
    if (i === state.pair) context.strokeRect(...bar);
  });
  $("pairs").setAttribute("aria-label", `${t("pairsCaption")} ${number(total(terms))}`);
}

function drawDistance(xq, xk, distance) {
  const scores = Array.from({ length: 2 * args.maxSeqLen + 1 }, (_, n) => total(contributions(xq, xk, n)));
  const ys = [Math.min(...scores), Math.max(...scores)];
  const [context, x, y] = axes($("distance"), {
    xs: [0, 2 * args.maxSeqLen],
    ys,
    xName: t("distanceAxis"),
    yName: "q · k / √D",
  });
  vertical(context, x, y, args.maxSeqLen, ys, t("context", { length: args.maxSeqLen }));
  curve(context, x, y, scores, colors.query);
  context.strokeStyle = colors.ink;
  context.beginPath();
  context.arc(x(distance), y(scores[distance]), 6, 0, 2 * Math.PI);
  context.stroke();
  $("distance").setAttribute("aria-label", `${t("distanceCaption")} ${distance}: ${number(scores[distance])}`);
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
  const items = facts.lines.map(([at, text]) => {
    const code = element("code", {}, element("span", { className: "number" }, String(at)), text);
    const notes = ANNOTATIONS.filter(([, pattern]) => pattern.test(text));
    return element("li", {}, code, ...notes.map(([name]) => element("p", { className: "note" }, t(name, values))));
  });
  $("lines").replaceChildren(...items);
}

// For each key: the product, the scaled score, the weight after the mask, and the length of the weighted value.
function drawTable(q, k, scores) {
  const weights = softmax(scores.map((score, p) => (p > q ? -Infinity : score)));
  const rows = scores.map((score, p) => {
    const length = Math.hypot(...valueAt(state.layer, state.head, p));
    const texts = [
      String(p),
      tokenText(state.tokens[p]),
      number(score * Math.sqrt(D)),
      number(score),
      number(weights[p], 4),
      number(weights[p] * length, 4),
    ];
    const cells = texts.map((text) => element("td", {}, text));
    cells[1].className = "text";
    return element("tr", { className: p > q ? "masked" : "", "aria-current": p === k }, ...cells);
  });
  $("scores").replaceChildren(...rows);
}
