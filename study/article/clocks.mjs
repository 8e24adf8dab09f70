// Figure 2: the pairs of a head as clocks, one hand or all, at a position that the reader drags.

import { axes, colors, element } from "../page/draw.mjs";
import { ropeFreqs } from "../page/model.mjs";
import { CIRCLE, clock, degrees, period, setClock } from "../page/rotation.mjs";
import { chart, choice, curve, mark, slider, t } from "./widgets.mjs";

const CLOCKS = 8; // pairs of a head of 16, as in the text
const FARTHEST = 1000; // the largest position
const CLOSE = CIRCLE / 18; // 20 degrees: hands nearer than this look the same

export function clocks(root) {
  let [position, base, hands] = [0, 10000, 1];
  const faces = Array.from({ length: CLOCKS }, () => element("div", { className: "face" }));
  const row = element("div", { className: "clocks" }, ...faces);
  const slide = slider(t("position"), { min: 0, max: FARTHEST, value: 0 }, (p) => change({ position: p }));
  const base10 = slider(t("base"), { min: 1, max: 6, step: 0.25, value: 4 }, (power) => change({ base: 10 ** power }), () =>
    Math.round(base).toLocaleString("en"),
  );
  const which = choice(t("hands"), [[1, t("oneHand")], [CLOCKS, t("allHands")]], 1, (count) => change({ hands: count }));
  const answer = element("p", { className: "note", role: "status" });
  const alike = chart(t("alikeAxis"));
  root.append(row, element("div", { className: "controls" }, slide.label, which, base10.label), answer, alike,
    element("p", { className: "quiet" }, t("clocksNote")));

  function change(settings) {
    ({ position, base, hands } = { position, base, hands, ...settings });
    if (settings.base) faces.forEach((face) => face.replaceChildren());
    draw();
  }

  // Dragging the first hand moves the position by the angle between the pointer and the hand.
  row.addEventListener("pointerdown", (event) => {
    if (faces[0].contains(event.target)) row.setPointerCapture(event.pointerId);
  });
  row.addEventListener("pointermove", (event) => {
    if (!row.hasPointerCapture(event.pointerId)) return;
    const box = faces[0].getBoundingClientRect();
    const angle = Math.atan2(box.top + box.width / 2 - event.clientY, event.clientX - box.left - box.width / 2);
    const turn = angle - position; // pair 0 turns by one radian per position
    const step = Math.round(turn - CIRCLE * Math.round(turn / CIRCLE));
    if (step) change({ position: Math.min(Math.max(position + step, 0), FARTHEST) });
  });

  function draw() {
    const freqs = ropeFreqs(2 * CLOCKS, base);
    const shown = freqs.slice(0, hands);
    faces.forEach((face, i) => {
      if (!face.childElementCount) face.append(clock(freqs[i]), element("span", {}, period(freqs[i])));
      face.classList.toggle("faint", i >= hands);
      setClock(face.firstChild, position * freqs[i]);
    });
    slide.set(position);
    base10.set(Math.log10(base));
    row.setAttribute("aria-label", shown.map((freq) => `${degrees(position * freq)}°`).join(", "));
    row.setAttribute("role", "img");
    const isAlike = (p) => shown.every((freq) => Math.cos((p - position) * freq) > Math.cos(CLOSE));
    const same = Array.from({ length: FARTHEST + 1 }, (_, p) => p).filter((p) => p !== position && isAlike(p));
    const first = same.slice(0, 6).join(", ") + (same.length > 6 ? ", …" : "");
    answer.textContent = t(same.length ? "alike" : "alone", { position, count: same.length, first, last: FARTHEST });
    const span = 200; // positions on each side in the chart
    const from = Math.min(Math.max(position - span / 2, 0), FARTHEST - span);
    const values = Array.from({ length: span + 1 }, (_, i) =>
      shown.reduce((sum, freq) => sum + Math.cos((from + i - position) * freq), 0) / hands,
    );
    const [context, x, y] = axes(alike, { xs: [from, from + span], ys: [-1, 1], xName: t("position"), yName: t("alikeAxis") });
    curve(context, (i) => x(from + i), y, values, colors.query);
    mark(context, x(position), y(1), colors.key);
  }
  return draw;
}
