// Figure 4: a head made by hand that looks some tokens back, and a trained head laid over it.

import { axes, colors, curve, element, number, percent, vertical } from "../page/draw.mjs";
import { Transformer, applyRotaryEmb, dot, precomputeFreqsCis, ropeFreqs, softmax } from "../page/model.mjs";
import { readTensors } from "../page/weights.mjs";
import { answerBox, chart, choice, controls, facts, legend, slider, t } from "./widgets.mjs";

const HEAD_DIM = 128; // as in the text
const LAST_KEY = 63; // the largest distance: 64 keys share the weight
const LENGTHS = [1, 2, 4, 6, 8, 10, Math.sqrt(HEAD_DIM), 13, 15, 20, 25, 30, 40]; // 11.31: as if every channel were 1
const FLAT = 1; // a head is flat if its scores differ by less: the largest weight is then less than e times the smallest
const FLOOR = -12; // scores further than this below the largest are drawn there
const distances = Array.from({ length: LAST_KEY + 1 }, (_, distance) => distance);

// The scores q . k / sqrt(D) of each distance: all pairs that are used are equally long, and alpha_i = -back theta_i.
function designed(back, length, pairs) {
  const freqs = ropeFreqs(HEAD_DIM).slice(0, pairs);
  const share = length ** 2 / pairs / Math.sqrt(HEAD_DIM);
  return distances.map((distance) => freqs.reduce((sum, freq) => sum + share * Math.cos((distance - back) * freq), 0));
}

// A head of the model at each distance: the score of its mean query with its mean key, and the mean weight that it gives
// in the text of figure 5. `trace` has the layer's queries (T, H, D) and keys (T, K, D), not rotated, and weights (T, H, T).
function trained({ xq, xk, weights }, head) {
  const { nHeads: H, nKvHeads: K, headDim: D, ropeTheta, ropeScaling } = facts.args;
  const T = xq.length / (H * D);
  const positions = Array.from({ length: T }, (_, p) => p);
  const mean = (x, heads, h) =>
    Float32Array.from({ length: D }, (_, d) => positions.reduce((sum, p) => sum + x[(p * heads + h) * D + d] / T, 0));
  const q = mean(xq, H, head), k = mean(xk, K, Math.floor((head * K) / H));
  const table = precomputeFreqsCis(D, LAST_KEY + 1, ropeTheta, ropeScaling);
  const at = (x, p) => applyRotaryEmb(x, table.subarray(p * D, (p + 1) * D), D);
  const seeing = positions.slice(LAST_KEY); // queries that see a key at every distance
  return {
    scores: distances.map((distance) => dot(at(q, distance), 0, at(k, 0), 0, D) / Math.sqrt(D)),
    weights: distances.map((distance) =>
      seeing.reduce((sum, p) => sum + weights[(p * H + head) * T + p - distance] / seeing.length, 0),
    ),
  };
}

let traces = null; // of each layer, computed when the first trained head is chosen

function traceOf(layer) {
  if (!traces) {
    traces = [];
    const tensors = readTensors(facts, document.getElementById("weights").textContent);
    new Transformer(facts.args, tensors).hidden(facts.tokens.slice(0, facts.args.maxSeqLen), 0, null, traces);
  }
  return traces[layer];
}

export function head(root) {
  const back = slider(t("back"), { min: 0, max: 40, value: 5 }, () => draw());
  const lengths = { min: 0, max: LENGTHS.length - 1, value: LENGTHS.indexOf(Math.sqrt(HEAD_DIM)) };
  const length = slider(t("length"), lengths, () => draw(), (i) => number(LENGTHS[i], 2));
  const pairs = slider(t("pairs"), { min: 1, max: HEAD_DIM / 2, value: HEAD_DIM / 2 }, () => draw());
  const answer = answerBox();
  const [scoreChart, weightChart] = [chart(t("scoreAxis")), chart(t("weightAxis"))];
  const charts = element("div", { className: "columns" }, scoreChart, weightChart);
  const { nLayers, nHeads } = facts.args;
  const heads = Array.from({ length: nLayers * nHeads }, (_, i) => [Math.floor(i / nHeads), i % nHeads]);
  const options = heads.map(([layer, h]) => [[layer, h], `${layer}.${h}`]);
  let overlay = null; // the curves of the trained head
  const pick = choice(t("trained"), [[null, t("none")], ...options], (chosen) => {
    overlay = chosen && trained(traceOf(chosen[0]), chosen[1]);
    draw();
  });
  const flatness = answerBox();
  root.append(controls(back, length, pairs), answer, charts, element("p", {}, t("trained")), pick, flatness, legend("headNote"));

  function draw() {
    const scores = designed(back.get(), LENGTHS[length.get()], pairs.get());
    const weights = softmax([...scores]);
    const at = back.get();
    answer.textContent = t("headResult", { back: at, score: number(scores[at], 2), weight: percent(weights[at]) });
    const isFlat = overlay && Math.max(...overlay.scores) - Math.min(...overlay.scores) < FLAT;
    flatness.textContent = isFlat ? t("flat") : "";
    const shown = [{ scores, weights }, ...(overlay ? [overlay] : [])];
    const below = ({ scores }) => scores.map((score) => Math.max(FLOOR, score - Math.max(...scores)));
    plot(scoreChart, [FLOOR, 0], t("scoreAxis"), shown.map(below));
    const highest = Math.max(...shown.flatMap(({ weights }) => [...weights]));
    plot(weightChart, [0, 1.05 * highest], t("weightAxis"), shown.map(({ weights }) => weights));
  }

  function plot(canvas, ys, yName, [designed, trained]) {
    const [context, x, y] = axes(canvas, { xs: [0, LAST_KEY], ys, xName: t("distanceAxis"), yName });
    vertical(context, x, y, back.get(), ys, "");
    curve(context, x, y, designed, colors.query);
    if (trained) curve(context, x, y, trained, colors.key, [6, 4]);
  }
  return draw;
}
