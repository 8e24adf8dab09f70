// Figure 5: the reader orders changes of the rotation by their damage, then the model is run with each.

import { element, number } from "../page/draw.mjs";
import { Transformer, precomputeFreqsCis } from "../page/model.mjs";
import { readTensors } from "../page/weights.mjs";
import { answerBox, facts, legend, t } from "./widgets.mjs";

const { headDim, ropeTheta, ropeScaling, maxSeqLen } = facts.args;

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

export function guess(root) {
  let order = []; // the changes that are chosen, the worst first
  const answer = answerBox();
  const results = element("ol", { className: "damage" });
  const buttons = Object.keys(CHANGES).map((change) => {
    const button = element("button", { type: "button" });
    button.addEventListener("click", () => choose(change));
    return button;
  });
  const again = element("button", { type: "button" }, t("again"));
  again.addEventListener("click", () => {
    order = [];
    results.replaceChildren();
    draw();
  });
  const label = { className: "controls", role: "group", "aria-label": t("change") };
  root.append(element("div", label, ...buttons, again), answer, results, legend("guessNote", { context: maxSeqLen }));

  function choose(change) {
    order.push(change);
    draw();
    if (order.length < buttons.length) return;
    answer.textContent = t("running");
    setTimeout(show, 50); // so that the text is seen before the model keeps the page busy
  }

  function show() {
    const before = mean(lossesWith({}));
    const losses = order.map((change, i) => ({ change, place: i + 1, after: mean(lossesWith(CHANGES[change])) }));
    losses.sort((a, b) => b.after - a.after);
    const most = losses[0].after - before;
    const rows = losses.map(({ change, place, after }) => {
      const difference = Math.round((after - before) * 1000) / 1000;
      const values = { name: t(change), after: number(after), place, why: t(`${change}Why`) };
      const row = t("guessRow", { ...values, change: `${difference < 0 ? "" : "+"}${number(difference)}` });
      const bar = element("span", { className: "bar" });
      bar.style.width = `${Math.max(0, (100 * difference) / most)}%`;
      return element("li", {}, row, bar);
    });
    results.replaceChildren(...rows);
    const right = losses.filter(({ place }, i) => place === i + 1).length;
    answer.textContent = t("guessResult", { right, all: rows.length, before: number(before) });
  }

  function draw() {
    Object.keys(CHANGES).forEach((change, i) => {
      const place = order.indexOf(change) + 1;
      buttons[i].textContent = place ? `${place}. ${t(change)}` : t(change);
      buttons[i].disabled = place > 0;
    });
    again.disabled = !order.length;
    if (!results.children.length) answer.textContent = t("guessFirst", { count: order.length, all: buttons.length });
  }

  return draw;
}
