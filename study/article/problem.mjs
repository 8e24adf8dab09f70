// Figure 1: a query and a key move along a text, and three ideas of a position encoding give their score.

import { colors, element, number } from "../page/draw.mjs";
import { CIRCLE, degrees, drawArc, drawArrow, drawPlane, rotatePair, writeAt } from "../page/rotation.mjs";
import { controls, legend, slider, t } from "./widgets.mjs";

const THETA = 1; // radians per position: pair 0, as in the example of the text
const EXAMPLE_Q = [0.5, 0.8]; // of "bites"
const EXAMPLE_K = [0.9, 0.2]; // of "dog"
const PLACES = 22; // positions of the text
const START = 3; // of the key, so that a difference is seen at once
const NAMES_APART = CIRCLE / 12; // the names of two arrows overlap if they are closer

const product = ([a, b], [c, d]) => a * c + b * d;
const sum = ([a, b], [c, d]) => [a + c, b + d];

const circle = (p) => rotatePair([1, 0], p * THETA); // cosine and sine

const IDEAS = {
  ideaNumber: (m, n) => product(sum(EXAMPLE_Q, [m, m]), sum(EXAMPLE_K, [n, n])),
  ideaSinusoids: (m, n) => product(sum(EXAMPLE_Q, circle(m)), sum(EXAMPLE_K, circle(n))),
  ideaRotation: (m, n) => product(rotatePair(EXAMPLE_Q, m * THETA), rotatePair(EXAMPLE_K, n * THETA)),
};

export function problem(root) {
  const sentence = t("sentence").split("|"); // from the word of the key to that of the query
  const apart = sentence.length - 1;
  const words = Array.from({ length: PLACES }, () => element("span", {}));
  const last = PLACES - 1;
  const plane = element("canvas", { className: "square", role: "img" });
  const rows = Object.keys(IDEAS).map((idea) => element("tr", {}, element("th", {}, t(idea)), element("td"), element("td")));
  const titles = element("tr", {}, ...["score", "atStart", "here"].map((name) => element("th", {}, t(name))));
  const table = element("table", { className: "ideas" }, titles, ...rows);
  const both = slider(t("moveBoth"), { min: 0, max: last, value: START }, () => moveBoth());
  const query = slider(t("moveQuery"), { min: 0, max: last, value: START + apart }, () => {
    move(Math.max(query.get(), key.get()), key.get()); // a query sees itself and earlier keys
  });
  const key = slider(t("moveKey"), { min: 0, max: last, value: START }, () => {
    move(query.get(), Math.min(query.get(), key.get()));
  });
  const text = element("p", { className: "words", "aria-hidden": "true" }, ...words);
  let held = null; // the handle that is dragged
  const wordAt = ({ x, y }) => words.indexOf(document.elementFromPoint(x, y));
  text.addEventListener("pointerdown", (event) => {
    held = null;
    follow(wordAt(event));
  });
  text.addEventListener("pointermove", (event) => event.buttons && follow(wordAt(event)));
  root.append(
    text,
    controls(both, query, key),
    element("div", { className: "columns" }, plane, element("div", {}, table, legend("problemNote"))),
  );

  function move(q, k) {
    both.set(k);
    query.set(q);
    key.set(k);
    draw();
  }

  // The nearer one of the two marked words follows the pointer, until the pointer is released.
  function follow(p) {
    const [q, k] = [query.get(), key.get()];
    if (p < 0 || (p === q && p === k)) return;
    held ??= Math.abs(p - q) < Math.abs(p - k) || p > q ? query : key;
    if (held === query) move(Math.max(p, k), k);
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
      if (p === q) word.textContent = sentence.at(-1);
      else if (p < k || p > q) word.textContent = "·";
      else word.textContent = p - k < apart ? sentence[p - k] : "…";
      word.classList.toggle("query", p === q);
      word.classList.toggle("key", p === k);
      word.dataset.mark = (p === q ? "q" : "") + (p === k ? "k" : "");
    });
    const [tipQ, tipK] = [rotatePair(EXAMPLE_Q, q * THETA), rotatePair(EXAMPLE_K, k * THETA)];
    const [start, end] = [Math.atan2(tipK[1], tipK[0]), Math.atan2(tipQ[1], tipQ[0])];
    const turn = Math.atan2(Math.sin(end - start), Math.cos(end - start)); // the short way from k to q
    const space = drawPlane(plane, [[1, 0]], false);
    drawArc(space, start, turn, 34, colors.arc);
    drawArrow(space, tipK, { color: colors.key, width: 3, dash: [8, 4] });
    drawArrow(space, tipQ, { color: colors.query, width: 4 });
    const aside = (Math.sign(turn) * Math.max(0, NAMES_APART - Math.abs(turn))) / 2;
    writeAt(space, Math.hypot(...tipK), start - aside, "k", colors.key);
    writeAt(space, Math.hypot(...tipQ), end + aside, "q", colors.query);
    const angle = degrees(Math.abs(turn));
    const middle = start + turn / 2 + (Math.abs(turn) < CIRCLE / 8 ? CIRCLE / 2 : 0); // behind, if there is no room
    writeAt(space, 0.35, middle, `${angle}°`, colors.arc);
    plane.setAttribute("aria-label", t("planeText", { q, k, angle, distance: q - k }));
    Object.values(IDEAS).forEach((score, i) => {
      const [, before, now] = rows[i].children;
      before.textContent = number(score(q - k, 0), 4);
      now.textContent = number(score(q, k), 4);
      if (k === 0) now.className = "";
      else now.className = now.textContent === before.textContent ? "same" : "other";
    });
  }
  return draw;
}
