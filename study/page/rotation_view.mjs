// View 2: one pair of a head as arrows in a plane, and all pairs of the head as clocks.

import { applyRotaryEmb, dot, precomputeFreqsCis } from "./model.mjs";
import { $, colors, element, number } from "./draw.mjs";
import { CIRCLE, clock, degrees, drawArrow, drawPlane, period, rotatePair } from "./rotation.mjs";
import { args, attentionFactor, freqs, keyAt, queryAt, selectedKey, selectedQuery, state, t } from "./state.mjs";

// The selected pair of a vector, and the same rotated to position p.
function arrowsOf(vector, p) {
  const plain = vector.subarray(2 * state.pair, 2 * state.pair + 2);
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
  const angles = { qa: direction(query.rotated), ka: direction(keys[k].rotated) };
  const label = t("planeLabel", { layer, head, pair, q: q + shift, k: k + shift, ...angles });
  $("plane").setAttribute("aria-label", label);
  drawClocks(q + shift);
  const [plain, shifted] = [scoreAt(q, k, 0), scoreAt(q, k, shift)].map((score) => number(score, 4));
  const turn = Math.round((shift * freqs[pair] * 360) / CIRCLE).toLocaleString("en");
  $("shiftScores").textContent = t(shift ? "shiftScores" : "shiftNone", { plain, shifted, shift, turn });
}

// The score of query q and key k if positions start at `shift`, computed by the functions of the network.
function scoreAt(q, k, shift) {
  const { layer, head } = state;
  const D = args.headDim;
  const table = precomputeFreqsCis(D, 2, args.ropeTheta, args.ropeScaling, (row) => shift + [q, k][row]);
  const rotated = applyRotaryEmb([...queryAt(layer, head, q), ...keyAt(layer, head, k)], table, D);
  return dot(rotated, 0, rotated, D, D) / Math.sqrt(D);
}

function drawClocks(position) {
  freqs.forEach((freq, pair) => {
    const clocks = $("clocks");
    const button = clocks.children[pair] ?? clocks.appendChild(element("button", { type: "button" }));
    const angle = position * freq;
    const label = t("clockLabel", { pair, period: period(freq), angle: degrees(angle) });
    button.dataset.pair = pair;
    button.replaceChildren(clock(freq, angle, args.maxSeqLen), `${pair}: ${period(freq)}`);
    button.setAttribute("aria-pressed", pair === state.pair);
    button.setAttribute("aria-label", label);
    button.title = label;
  });
}
