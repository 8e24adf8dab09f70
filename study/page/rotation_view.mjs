// View 2: one pair of a head as arrows in a plane, and all pairs of the head as clocks.

import { dot, applyRotaryEmb, precomputeFreqsCis } from "./model.mjs";
import { $, colors, element, number, plainNumber } from "./draw.mjs";
import { clock, degrees, drawArrow, drawPlane, period, rotatePair, setClock } from "./rotation.mjs";
import { args, attentionFactor, freqs, keyAt, queryAt, selectedKey, selectedQuery, state, t } from "./state.mjs";

// The selected pair of a vector, and the same rotated to position p.
function arrowsOf(vector, p) {
  const plain = [...vector.subarray(2 * state.pair, 2 * state.pair + 2)];
  return { plain, rotated: rotatePair(plain, p * freqs[state.pair], attentionFactor) };
}

export function drawRotation() {
  const { layer, head, pair, shift } = state;
  const q = selectedQuery();
  const k = selectedKey(q);
  const keys = Array.from({ length: q + 1 }, (_, p) => arrowsOf(keyAt(layer, head, p), p + shift));
  const query = arrowsOf(queryAt(layer, head, q), q + shift);
  const plane = drawPlane($("plane"), [query.rotated, ...keys.map(({ rotated }) => rotated)]);
  keys.forEach(({ rotated }, p) => {
    const alpha = 0.2 + 0.5 * ((p + 1) / (q + 1)) ** 2; // older keys are fainter
    if (p !== k) drawArrow(plane, rotated, { color: colors.key, width: 1, alpha });
  });
  drawArrow(plane, keys[k].plain, { color: colors.key, width: 1.5, dash: [1, 4] });
  drawArrow(plane, query.plain, { color: colors.query, width: 1.5, dash: [1, 4] });
  drawArrow(plane, keys[k].rotated, { color: colors.key, width: 3, dash: [8, 4], name: `k${k}` });
  drawArrow(plane, query.rotated, { color: colors.query, width: 4, name: `q${q}` });
  const direction = ([a, b]) => degrees(Math.atan2(b, a));
  const values = { layer, head, pair, q: q + shift, k: k + shift, qa: direction(query.rotated), ka: direction(keys[k].rotated) };
  $("plane").setAttribute("aria-label", t("planeLabel", values));
  drawClocks(q);
  drawShiftScores(q, k);
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
    shift,
    count: q + 1,
    difference: plainNumber(difference),
  });
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

function drawClocks(q) {
  const clocks = $("clocks");
  if (!clocks.childElementCount) {
    freqs.forEach((freq, pair) => {
      const face = clock(freq, args.maxSeqLen);
      clocks.append(element("button", { type: "button", "data-pair": pair }, face, `${pair}: ${period(freq)}`));
    });
  }
  freqs.forEach((freq, pair) => {
    const button = clocks.children[pair];
    const angle = (q + state.shift) * freq;
    setClock(button.firstChild, angle);
    button.setAttribute("aria-pressed", pair === state.pair);
    const label = t("clockLabel", { pair, speed: number(freq, 4), period: period(freq), angle: degrees(angle) });
    button.setAttribute("aria-label", label);
    button.title = label;
  });
}
