// Figure 1: a query and a key move along a text, and three ideas of a position encoding give their score.

import { colors, element, number } from "../page/draw.mjs";
import { drawArrow, drawPlane, rotatePair } from "../page/rotation.mjs";
import { controls, legend, slider, t } from "./widgets.mjs";

const THETA = 0.3; // radians per position, as in the example of the text
const EXAMPLE_Q = [0.3, -0.8];
const EXAMPLE_K = [0.2, 0.9];

const product = ([a, b], [c, d]) => a * c + b * d;
const sum = ([a, b], [c, d]) => [a + c, b + d];

const circle = (p) => rotatePair([1, 0], p * THETA); // cosine and sine

const IDEAS = {
  ideaNumber: (m, n) => product(sum(EXAMPLE_Q, [m, m]), sum(EXAMPLE_K, [n, n])),
  ideaSinusoids: (m, n) => product(sum(EXAMPLE_Q, circle(m)), sum(EXAMPLE_K, circle(n))),
  ideaRotation: (m, n) => product(rotatePair(EXAMPLE_Q, m * THETA), rotatePair(EXAMPLE_K, n * THETA)),
};

export function problem(root) {
  const words = t("sentence").split("|").map((word) => element("span", {}, word));
  const last = words.length - 1;
  const plane = element("canvas", { className: "square", role: "img" });
  const scores = Object.keys(IDEAS).map(() => element("output"));
  const rows = Object.keys(IDEAS).map((idea, i) => element("p", {}, t(idea), scores[i]));
  const both = slider(t("moveBoth"), { min: 0, max: last, value: 0 }, () => moveBoth());
  const query = slider(t("moveQuery"), { min: 0, max: last, value: 5 }, () => {
    move(Math.max(query.get(), key.get()), key.get()); // a query sees itself and earlier keys
  });
  const key = slider(t("moveKey"), { min: 0, max: last, value: 0 }, () => {
    move(query.get(), Math.min(query.get(), key.get()));
  });
  const text = element("p", { className: "words", "aria-hidden": "true" }, ...words);
  for (const type of ["pointerdown", "pointermove"]) {
    text.addEventListener(type, (event) => event.buttons && follow(words.indexOf(document.elementFromPoint(event.x, event.y))));
  }
  root.append(
    text,
    controls(both, query, key),
    element("div", { className: "columns" }, plane, element("div", { className: "ideas" }, ...rows)),
    legend("problemNote"),
  );

  function move(q, k) {
    both.set(k);
    query.set(q);
    key.set(k);
    draw();
  }

  // Of the two marked words, the nearer one moves to the word under the pointer.
  function follow(p) {
    const [q, k] = [query.get(), key.get()];
    if (p < 0) return;
    if (Math.abs(p - q) < Math.abs(p - k) || p > q) move(Math.max(p, k), k);
    else move(q, Math.min(p, q));
  }

  function moveBoth() {
    const distance = query.get() - key.get();
    const k = Math.min(both.get(), last - distance);
    move(k + distance, k);
  }

  function draw() {
    const [q, k] = [query.get(), key.get()];
    words.forEach((word, p) => {
      word.classList.toggle("query", p === q);
      word.classList.toggle("key", p === k);
      word.dataset.mark = (p === q ? "q" : "") + (p === k ? "k" : "");
    });
    const space = drawPlane(plane, [[1, 0]]);
    drawArrow(space, rotatePair(EXAMPLE_K, k * THETA), { color: colors.key, width: 3, dash: [8, 4], name: "k" });
    drawArrow(space, rotatePair(EXAMPLE_Q, q * THETA), { color: colors.query, width: 4, name: "q" });
    plane.setAttribute("aria-label", t("planeText", { q, k, distance: q - k }));
    Object.values(IDEAS).forEach((score, i) => (scores[i].textContent = number(score(q, k), 4)));
  }
  return draw;
}
