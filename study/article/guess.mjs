// Figure 5: the reader guesses whether a changed rotation raises the loss, then the model is run.

import { axes, colors, element, number } from "../page/draw.mjs";
import { ask } from "../page/ask.mjs";
import { chart, choice, curve, facts, t } from "./widgets.mjs";

const { ropeTheta, ropeScaling, maxSeqLen } = facts.args;
const TRAINED = { theta: ropeTheta, scaling: ropeScaling, offset: 0, stretch: 1, off: false, halves: false };
const SAME = 0.02; // nats: a smaller change counts as none

const CHANGES = {
  shifted: { offset: 1000 },
  stretched: { stretch: 4 },
  largerBase: { theta: 100 * ropeTheta },
  off: { off: true },
  halvesRead: { halves: true },
};
const GROUP = 8; // tokens in each point of the curve

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const grouped = (losses) =>
  Array.from({ length: Math.floor(losses.length / GROUP) }, (_, i) => mean(losses.slice(i * GROUP, (i + 1) * GROUP)));

export function guess(root) {
  let change = "shifted";
  const results = {}; // losses by change
  const right = new Map(); // whether the guess about a change was right
  const answer = element("p", { className: "note", role: "status" }, t("guessFirst"));
  const plot = chart(t("lossAxis"));
  const pick = choice(t("change"), Object.keys(CHANGES).map((each) => [each, t(each)]), change, (each) => {
    change = each;
    draw();
  });
  const guesses = element("div", { className: "choice", role: "group", "aria-label": t("yourGuess") }, element("span", {}, t("yourGuess")));
  for (const direction of ["rises", "stays", "falls"]) {
    const button = element("button", { type: "button" }, t(direction));
    button.addEventListener("click", () => tryGuess(direction));
    guesses.append(button);
  }
  root.append(pick, guesses, answer, plot, element("p", { className: "quiet" }, t("guessNote", { context: maxSeqLen })));

  async function tryGuess(direction) {
    const tried = change;
    answer.textContent = t("running");
    for (const each of ["trained", tried]) {
      if (!results[each]) results[each] = (await ask("whatIf", { tokens: facts.tokens, ...TRAINED, ...CHANGES[each] })).losses;
    }
    const difference = mean(results[tried]) - mean(results.trained);
    const happened = Math.abs(difference) < SAME ? "stays" : difference > 0 ? "rises" : "falls";
    if (!right.has(tried)) right.set(tried, happened === direction);
    draw();
  }

  function draw() {
    if (!right.has(change)) {
      answer.textContent = t("guessFirst");
    } else {
      const [before, after] = [mean(results.trained), mean(results[change])];
      answer.textContent = t("guessResult", {
        verdict: t(right.get(change) ? "right" : "wrong"),
        before: number(before),
        after: number(after),
        why: t(`${change}Why`),
        score: [...right.values()].filter(Boolean).length,
        tried: right.size,
      });
    }
    const curves = ["trained", right.has(change) ? change : ""].filter((each) => results[each]).map((each) => grouped(results[each]));
    const high = curves.length ? 1.05 * Math.max(...curves.flat()) : 8;
    const points = Math.floor((facts.tokens.length - 1) / GROUP);
    const [context, x, y] = axes(plot, { xs: [0, points * GROUP], ys: [0, high], xName: t("position"), yName: t("lossAxis") });
    curves.forEach((values, i) => curve(context, (j) => x((j + 0.5) * GROUP), y, values, [colors.query, colors.key][i], i ? [6, 4] : []));
  }
  return draw;
}
