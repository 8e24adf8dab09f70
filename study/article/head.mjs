// Figure 4: a head made by hand that looks some tokens back, and a trained head beside it.

import { axes, colors, element, number, percent, vertical } from "../page/draw.mjs";
import { ropeFreqs, softmax } from "../page/model.mjs";
import { scoresByDistance } from "../page/score.mjs";
import { chart, choice, curve, facts, slider, t } from "./widgets.mjs";

const HEAD_DIM = 128; // of the head made by hand, as in the text
const LAST_KEY = 63; // the largest distance: 64 keys share the weight
const FLOOR = -12; // scores further than this below the largest are drawn there

// The designed head's scores q . k / sqrt(D): all pairs that are used are equally long, and alpha_i = -back theta_i.
function designed({ back, length, pairs }) {
  const freqs = ropeFreqs(HEAD_DIM).slice(0, pairs);
  const share = length ** 2 / pairs / Math.sqrt(HEAD_DIM);
  return Array.from({ length: LAST_KEY + 1 }, (_, distance) => freqs.reduce((sum, freq) => sum + share * Math.cos((distance - back) * freq), 0));
}

// A trained head: the scores of its mean query and mean key, and the mean weight that it really gives to each distance.
export function trainedHead(trace, layer, head) {
  const { nHeads: H, nKvHeads: K, headDim, ropeTheta, ropeScaling } = facts.args;
  const { xq, xk, weights } = trace[layer];
  const T = xq.length / (H * headDim);
  const mean = (x, heads, h) =>
    Array.from({ length: headDim }, (_, d) => {
      let sum = 0;
      for (let p = 0; p < T; p++) sum += x[(p * heads + h) * headDim + d];
      return sum / T;
    });
  const [q, k] = [mean(xq, H, head), mean(xk, K, Math.floor((head * K) / H))];
  const scores = scoresByDistance(ropeFreqs(headDim, ropeTheta, ropeScaling), q, k, LAST_KEY, ropeScaling?.attentionFactor);
  const share = Array.from({ length: LAST_KEY + 1 }, (_, distance) => {
    let sum = 0;
    for (let p = LAST_KEY; p < T; p++) sum += weights[(p * H + head) * T + p - distance]; // queries that see all LAST_KEY + 1 keys
    return sum / (T - LAST_KEY);
  });
  return { scores, share };
}

export function head(root, getTrace) {
  const settings = { back: 5, length: 11.5, pairs: 64 };
  let trained = null;
  const set = (name) => (value) => {
    settings[name] = value;
    draw();
  };
  const back = slider(t("back"), { min: 0, max: 40, value: settings.back }, set("back"));
  const length = slider(t("length"), { min: 1, max: 40, step: 0.5, value: settings.length }, set("length"));
  const pairs = slider(t("pairs"), { min: 1, max: HEAD_DIM / 2, value: settings.pairs }, set("pairs"));
  const result = element("p", { className: "note", role: "status" });
  const [scoreChart, weightChart] = [chart(t("scoreAxis")), chart(t("weightAxis"))];
  const { nLayers, nHeads } = facts.args;
  const all = Array.from({ length: nLayers * nHeads }, (_, i) => [i, `${Math.floor(i / nHeads)}.${i % nHeads}`]);
  const pick = choice(t("trained"), [[null, t("none")], ...all], null, async (i) => {
    trained = i === null ? null : trainedHead(await getTrace(), Math.floor(i / nHeads), i % nHeads);
    draw();
  });
  root.append(
    element("div", { className: "controls" }, back.label, length.label, pairs.label),
    result,
    element("div", { className: "beside" }, scoreChart, weightChart),
    element("p", {}, t("trained")), pick,
    element("p", { className: "quiet" }, t("headNote")),
  );

  function draw() {
    for (const [name, control] of Object.entries({ back, length, pairs })) control.set(settings[name]);
    const scores = designed(settings);
    const weights = softmax([...scores]);
    result.textContent = t("headResult", { back: settings.back, score: number(scores[settings.back], 2), weight: percent(weights[settings.back]) });
    const below = (values) => values.map((value) => Math.max(FLOOR, value - Math.max(...values)));
    const curves = [[below(scores), weights]];
    if (trained) curves.push([below(trained.scores), trained.share]);
    plot(scoreChart, [FLOOR, 0], t("scoreAxis"), curves.map(([score]) => score));
    plot(weightChart, [0, 1.05 * Math.max(...curves.flatMap(([, weight]) => [...weight]))], t("weightAxis"), curves.map(([, weight]) => weight));
  }

  function plot(canvas, ys, yName, curves) {
    const [context, x, y] = axes(canvas, { xs: [0, LAST_KEY], ys, xName: t("distanceAxis"), yName });
    vertical(context, x, y, settings.back, ys, "");
    curves.forEach((values, i) => curve(context, x, y, values, [colors.query, colors.key][i], i ? [6, 4] : []));
  }
  return draw;
}
