// Figure 1: a query and a key move along a text, and three ideas of a position encoding give their score.

import { colors, element, number } from "../page/draw.mjs";
import { drawArrow, drawPlane, rotatePair } from "../page/rotation.mjs";
import { chart, slider, spark, t } from "./widgets.mjs";

const THETA = 0.3; // radians per position, as in the example of the text
const EXAMPLE_Q = [0.3, -0.8];
const EXAMPLE_K = [0.2, 0.9];

const product = ([a, b], [c, d]) => a * c + b * d;
const sum = ([a, b], [c, d]) => [a + c, b + d];

const IDEAS = {
  ideaNumber: (m, n) => product(sum(EXAMPLE_Q, [m, m]), sum(EXAMPLE_K, [n, n])),
  ideaSinusoids: (m, n) => product(sum(EXAMPLE_Q, rotatePair([1, 0], m * THETA)), sum(EXAMPLE_K, rotatePair([1, 0], n * THETA))),
  ideaRotation: (m, n) => product(rotatePair(EXAMPLE_Q, m * THETA), rotatePair(EXAMPLE_K, n * THETA)),
};

export function problem(root) {
  let [q, k] = [5, 0];
  const words = t("sentence").split("|");
  const last = words.length - 1;
  const boxes = words.map((word) => element("span", { className: "word" }, word));
  const text = element("div", { className: "words", "aria-hidden": "true" }, ...boxes);
  const clamp = (p) => Math.min(Math.max(p, 0), last);

  function move(newQ, newK) {
    [q, k] = [clamp(newQ), clamp(newK)];
    if (k > q) [q, k] = [k, k]; // a query sees itself and earlier keys
    draw();
  }

  function moveBoth(first) {
    const distance = q - k;
    move(Math.min(first, last - distance) + distance, Math.min(first, last - distance));
  }

  const both = slider(t("moveBoth"), { min: 0, max: last, value: k }, moveBoth);
  const query = slider(t("moveQuery"), { min: 0, max: last, value: q }, (p) => move(Math.max(p, k), k));
  const key = slider(t("moveKey"), { min: 0, max: last, value: k }, (p) => move(q, Math.min(p, q)));

  let dragged = null;
  const wordAt = (event) => boxes.indexOf(document.elementFromPoint(event.clientX, event.clientY));
  text.addEventListener("pointerdown", (event) => {
    const p = wordAt(event);
    if (p < 0) return;
    dragged = Math.abs(p - q) <= Math.abs(p - k) ? "q" : "k"; // the nearer of the two
    text.setPointerCapture(event.pointerId);
    drag(p);
  });
  text.addEventListener("pointermove", (event) => dragged && drag(wordAt(event)));
  for (const end of ["pointerup", "pointercancel"]) text.addEventListener(end, () => (dragged = null));
  function drag(p) {
    if (p < 0) return;
    if (dragged === "q") move(Math.max(p, k), k);
    else move(q, Math.min(p, q));
  }

  const plane = element("canvas", { className: "plane", role: "img" });
  const rows = Object.keys(IDEAS).map((idea) => {
    const value = element("output", { className: "score" });
    const canvas = chart(t(idea));
    return { idea, value, canvas, row: element("div", { className: "idea" }, element("span", {}, t(idea)), value, canvas) };
  });
  root.append(
    text,
    element("div", { className: "controls" }, both.label, query.label, key.label),
    element("div", { className: "beside" }, plane, element("div", { className: "ideas" }, ...rows.map(({ row }) => row))),
    element("p", { className: "quiet" }, t("problemNote")),
  );

  function draw() {
    boxes.forEach((box, p) => {
      box.classList.toggle("query", p === q);
      box.classList.toggle("key", p === k);
      box.dataset.mark = [p === q ? "q" : "", p === k ? "k" : ""].join("");
    });
    both.set(k);
    query.set(q);
    key.set(k);
    const [tipQ, tipK] = [rotatePair(EXAMPLE_Q, q * THETA), rotatePair(EXAMPLE_K, k * THETA)];
    const space = drawPlane(plane, [[1, 0]]);
    drawArrow(space, tipK, { color: colors.key, width: 3, dash: [8, 4], name: "k" });
    drawArrow(space, tipQ, { color: colors.query, width: 4, name: "q" });
    plane.setAttribute("aria-label", t("planeText", { q, k, distance: q - k }));
    const distance = q - k;
    rows.forEach(({ idea, value, canvas }, i) => {
      const scores = Array.from({ length: last - distance + 1 }, (_, n) => IDEAS[idea](n + distance, n));
      value.textContent = number(scores[k], 4);
      spark(canvas, scores, k, [colors.third, colors.key, colors.query][i]);
    });
  }
  return draw;
}
