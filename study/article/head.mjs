// Figure 4: a head made by hand that looks some tokens back.

import { axes, colors, curve, element, number, percent, vertical } from "../page/draw.mjs";
import { ropeFreqs, softmax } from "../page/model.mjs";
import { answerBox, chart, controls, legend, slider, t } from "./widgets.mjs";

const HEAD_DIM = 128; // as in the text
const LAST_KEY = 63; // the largest distance: 64 keys share the weight
const FLOOR = -12; // scores further than this below the largest are drawn there

// The scores q . k / sqrt(D) of each distance: all pairs that are used are equally long, and alpha_i = -back theta_i.
function designed(back, length, pairs) {
  const freqs = ropeFreqs(HEAD_DIM).slice(0, pairs);
  const share = length ** 2 / pairs / Math.sqrt(HEAD_DIM);
  return Array.from({ length: LAST_KEY + 1 }, (_, distance) =>
    freqs.reduce((sum, freq) => sum + share * Math.cos((distance - back) * freq), 0),
  );
}

export function head(root) {
  const back = slider(t("back"), { min: 0, max: 40, value: 5 }, () => draw());
  const length = slider(t("length"), { min: 1, max: 40, step: 0.5, value: 11.5 }, () => draw());
  const pairs = slider(t("pairs"), { min: 1, max: HEAD_DIM / 2, value: HEAD_DIM / 2 }, () => draw());
  const answer = answerBox();
  const [scoreChart, weightChart] = [chart(t("scoreAxis")), chart(t("weightAxis"))];
  const charts = element("div", { className: "columns" }, scoreChart, weightChart);
  root.append(controls(back, length, pairs), answer, charts, legend("headNote"));

  function draw() {
    const scores = designed(back.get(), length.get(), pairs.get());
    const weights = softmax([...scores]);
    const at = back.get();
    answer.textContent = t("headResult", { back: at, score: number(scores[at], 2), weight: percent(weights[at]) });
    const largest = Math.max(...scores);
    plot(scoreChart, [FLOOR, 0], t("scoreAxis"), scores.map((score) => Math.max(FLOOR, score - largest)));
    plot(weightChart, [0, 1.05 * Math.max(...weights)], t("weightAxis"), weights);
  }

  function plot(canvas, ys, yName, values) {
    const [context, x, y] = axes(canvas, { xs: [0, LAST_KEY], ys, xName: t("distanceAxis"), yName });
    vertical(context, x, y, back.get(), ys, "");
    curve(context, x, y, values, colors.query);
  }
  return draw;
}
