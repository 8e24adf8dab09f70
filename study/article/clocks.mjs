// Figure 2: the pairs of a head as clocks, the fast hand, the slow one or all, at a position that the reader chooses. How
// many other positions look the same is told after a guess.

import { axes, colors, curve, dotAt, element } from "../page/draw.mjs";
import { ropeFreqs } from "../page/model.mjs";
import { CIRCLE, clock, degrees, period } from "../page/rotation.mjs";
import { answerBox, chart, choice, controls, legend, slider, t } from "./widgets.mjs";

const CLOCKS = 8; // pairs of a head of 16, as in the text
const FARTHEST = 1000; // the largest position
const CLOSE = CIRCLE / 18; // 20 degrees: hands nearer than this look the same
const SPAN = 200; // positions in the chart
const GUESSES = ["noneAlike", "hundredAlike", "hundredsAlike"];
const HUNDREDS = 200; // from this number on, not "about 100"
const ALL = Array.from({ length: CLOCKS }, (_, i) => i);

export function clocks(root) {
  let hands = [0];
  let guessed = null; // one of GUESSES
  const row = element("div", { className: "clocks", role: "img" });
  const place = slider(t("position"), { min: 0, max: FARTHEST, value: 0 }, () => draw());
  const power = slider(t("base"), { min: 1, max: 6, step: 0.25, value: 4 }, () => draw(), (value) =>
    Math.round(10 ** value).toLocaleString("en"),
  );
  const which = choice(t("hands"), [[[0], t("fastHand")], [[CLOCKS - 1], t("slowHand")], [ALL, t("allHands")]], (chosen) => {
    hands = chosen;
    guessed = null;
    draw();
  });
  const guesses = choice(t("yourCount"), GUESSES.map((guess) => [guess, t(guess)]), (guess) => {
    guessed = guess;
    draw();
  });
  const answer = answerBox();
  const alike = chart(t("alikeAxis"));
  root.append(row, which, controls(place, power), guesses, answer, alike, legend("clocksNote"));

  function draw() {
    const position = place.get();
    alike.hidden = !guessed;
    for (const [i, button] of [...guesses.children].entries()) {
      button.setAttribute("aria-pressed", GUESSES[i] === guessed);
    }
    const freqs = ropeFreqs(2 * CLOCKS, 10 ** power.get());
    const shown = hands.map((i) => freqs[i]);
    const faces = freqs.map((freq, i) =>
      element("div", { className: hands.includes(i) ? "" : "faint" }, clock(freq, position * freq), period(freq)),
    );
    row.replaceChildren(...faces);
    row.setAttribute("aria-label", shown.map((freq) => `${degrees(position * freq)}°`).join(", "));
    const isAlike = (p) => shown.every((freq) => Math.cos((p - position) * freq) > Math.cos(CLOSE));
    const same = Array.from({ length: FARTHEST + 1 }, (_, p) => p).filter((p) => p !== position && isAlike(p));
    const first = same.slice(0, 6).join(", ") + (same.length > 6 ? ", …" : "");
    if (!guessed) {
      answer.textContent = t("countFirst", { position, last: FARTHEST });
      return;
    }
    const right = GUESSES[(same.length > 0) + (same.length >= HUNDREDS)];
    const verdict = t(guessed === right ? "right" : "wrong");
    const values = { verdict, position, count: same.length, first, last: FARTHEST };
    answer.textContent = t(same.length ? "alike" : "alone", values);
    const from = Math.min(Math.max(position - SPAN / 2, 0), FARTHEST - SPAN);
    const likeness = Array.from({ length: SPAN + 1 }, (_, i) =>
      shown.reduce((sum, freq) => sum + Math.cos((from + i - position) * freq), 0) / shown.length,
    );
    const [xName, yName] = [t("position"), t("alikeAxis")];
    const [context, x, y] = axes(alike, { xs: [from, from + SPAN], ys: [-1, 1], xName, yName });
    curve(context, (i) => x(from + i), y, likeness, colors.query);
    dotAt(context, x(position), y(1), 5, colors.key);
  }
  return draw;
}
