// Figure 5: the reader guesses whether a changed rotation raises the loss, then the model is run.

import { axes, colors, curve, element, number } from "../page/draw.mjs";
import { Transformer, precomputeFreqsCis } from "../page/model.mjs";
import { readTensors } from "../page/weights.mjs";
import { answerBox, chart, choice, facts, legend, t } from "./widgets.mjs";

const { headDim, ropeTheta, ropeScaling, maxSeqLen } = facts.args;
const SAME = 0.001; // nats, the last digit that is shown: a smaller change counts as none
const GROUP = 8; // tokens in each point of the curve

const CHANGES = {
  shifted: { place: (p) => p + 1000 },
  stretched: { place: (p) => 4 * p },
  largerBase: { theta: 100 * ropeTheta },
  off: { place: () => 0, scaling: null },
  halvesRead: { halves: true },
};

// The loss of each token after the first, in nats, with another rotation table or with wq and wk in the order of halves.
function lossesWith({ theta = ropeTheta, scaling = ropeScaling, place = (p) => p, halves = false }) {
  const tensors = readTensors(facts, document.getElementById("weights").textContent);
  const network = new Transformer(facts.args, halves ? inHalves(tensors) : tensors);
  network.freqsCis = precomputeFreqsCis(headDim, maxSeqLen, theta, scaling, place);
  const tokens = facts.tokens.slice(0, -1);
  const logits = network.forward(tokens); // (T, V)
  const V = logits.length / tokens.length;
  return tokens.map((_, t) => {
    const row = logits.subarray(t * V, (t + 1) * V);
    const largest = row.reduce((a, b) => Math.max(a, b));
    const sum = row.reduce((sum, logit) => sum + Math.exp(logit - largest), 0);
    return Math.log(sum) + largest - row[facts.tokens[t + 1]];
  });
}

// The tensors with the rows of queries and keys in the order of halves: 2i and 2i + 1 of a head at i and i + D/2.
function inHalves(tensors) {
  const mixed = { ...tensors };
  for (const [name, { data, rows, columns }] of Object.entries(tensors)) {
    if (!/\.(wq|wk|q_norm|k_norm)\.\w+$/.test(name)) continue;
    const [count, width] = rows === 1 ? [columns, 1] : [rows, columns]; // a bias or norm is one row
    const moved = new Float32Array(data.length);
    for (let row = 0; row < count; row++) {
      const place = row % headDim;
      const to = row - place + (place >> 1) + (place % 2) * (headDim / 2);
      moved.set(data.subarray(row * width, (row + 1) * width), to * width);
    }
    mixed[name] = { data: moved, rows, columns };
  }
  return mixed;
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const grouped = (losses) =>
  Array.from({ length: Math.floor(losses.length / GROUP) }, (_, i) => mean(losses.slice(i * GROUP, (i + 1) * GROUP)));

export function guess(root) {
  let change = "shifted";
  let curves = [];
  const answer = answerBox();
  const plot = chart(t("lossAxis"));
  const pick = choice(t("change"), Object.keys(CHANGES).map((each) => [each, t(each)]), choose);
  const directions = ["rises", "stays", "falls"].map((direction) => {
    const button = element("button", { type: "button" }, t(direction));
    button.addEventListener("click", () => {
      answer.textContent = t("running");
      setTimeout(() => compare(direction), 50); // so that the text is seen before the model keeps the page busy
    });
    return button;
  });
  const label = { className: "controls", role: "group", "aria-label": t("yourGuess") };
  const guesses = element("div", label, t("yourGuess"), ...directions);
  root.append(pick, guesses, answer, plot, legend("guessNote", { context: maxSeqLen }));

  function choose(chosen) {
    change = chosen;
    curves = [];
    answer.textContent = t("guessFirst");
    draw();
  }

  function compare(direction) {
    curves = [lossesWith({}), lossesWith(CHANGES[change])];
    const [before, after] = curves.map(mean);
    const happened = Math.abs(after - before) < SAME ? "stays" : after > before ? "rises" : "falls";
    const verdict = t(happened === direction ? "right" : "wrong");
    const why = t(`${change}Why`);
    answer.textContent = t("guessResult", { verdict, before: number(before), after: number(after), why });
    draw();
  }

  function draw() {
    const points = curves.map(grouped);
    plot.hidden = !points.length; // before the guess there is nothing to show
    if (plot.hidden) return;
    const ys = [0, 1.05 * Math.max(1, ...points.flat())];
    const [context, x, y] = axes(plot, { xs: [0, maxSeqLen], ys, xName: t("position"), yName: t("lossAxis") });
    const middle = (i) => x((i + 0.5) * GROUP);
    curve(context, middle, y, points[0], colors.query);
    curve(context, middle, y, points[1], colors.key, [6, 4]);
  }

  answer.textContent = t("guessFirst");
  return draw;
}
