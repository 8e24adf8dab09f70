// One pair of channels as an arrow in a plane and as the hand of a clock. Used by the page and by the article.

import { colors, line, surface, ticks, tickText } from "./draw.mjs";

export const CIRCLE = 2 * Math.PI;

export const degrees = (angle) => Math.round(((((angle * 180) / Math.PI) % 360) + 360) % 360);

// Two numbers rotated by an angle. `factor` is YaRN's attention factor.
export function rotatePair([a, b], angle, factor = 1) {
  const [cos, sin] = [factor * Math.cos(angle), factor * Math.sin(angle)];
  return [a * cos - b * sin, a * sin + b * cos];
}

const MARGIN = 26; // pixels around the plane

// A plane that shows all `tips` around the origin, with axes: its context, and functions from values to pixels.
export function drawPlane(canvas, tips, hasTicks = true) {
  const [context, size] = surface(canvas);
  const half = 1.15 * Math.max(...tips.map(([a, b]) => Math.hypot(a, b))) || 1;
  const x = (value) => size / 2 + (value / half) * (size / 2 - MARGIN);
  const y = (value) => size / 2 - (value / half) * (size / 2 - MARGIN);
  Object.assign(context, { strokeStyle: colors.line, fillStyle: colors.quiet, lineWidth: 1 });
  line(context, MARGIN, y(0), size - MARGIN, y(0));
  line(context, x(0), MARGIN, x(0), size - MARGIN);
  for (const tick of hasTicks ? ticks(-half, half, 6) : []) {
    line(context, x(tick), y(0) - 3, x(tick), y(0) + 3);
    line(context, x(0) - 3, y(tick), x(0) + 3, y(tick));
    if (!tick) continue;
    Object.assign(context, { textBaseline: "top", textAlign: "center" });
    context.fillText(tickText(tick), x(tick), y(0) + 5);
    Object.assign(context, { textBaseline: "middle", textAlign: "right" });
    context.fillText(tickText(tick), x(0) - 6, y(tick));
  }
  return { context, size, x, y };
}

// An arrow from the origin. `name` is written beyond its tip.
export function drawArrow({ context, x, y }, [a, b], { color, width, dash = [], alpha = 1, name = "" }) {
  const angle = Math.atan2(y(b) - y(0), x(a) - x(0));
  Object.assign(context, { strokeStyle: color, fillStyle: color, lineWidth: width, globalAlpha: alpha });
  context.setLineDash(dash);
  line(context, x(0), y(0), x(a), y(b));
  context.setLineDash([]);
  context.beginPath();
  context.moveTo(x(a), y(b));
  const size = 4 + 2 * width;
  for (const side of [2.7, -2.7]) {
    context.lineTo(x(a) + size * Math.cos(angle + side), y(b) + size * Math.sin(angle + side));
  }
  context.fill();
  context.globalAlpha = 1;
  writeAt({ context, x, y }, Math.hypot(a, b), -angle, name, color);
}

// A name beyond the tip of an arrow of this length and direction.
export function writeAt({ context, x, y }, length, angle, name, color) {
  Object.assign(context, { fillStyle: color, textAlign: "center", textBaseline: "middle" });
  context.font = "bold 14px system-ui, sans-serif";
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  context.fillText(name, x(length * cos) + 16 * cos, y(length * sin) - 16 * sin);
}

// An arc around the origin from angle `start` on, counter-clockwise if `turn` is positive; `radius` is in pixels.
export function drawArc({ context, x, y }, start, turn, radius, color) {
  Object.assign(context, { strokeStyle: color, lineWidth: 2 });
  context.beginPath();
  context.arc(x(0), y(0), radius, -start, -(start + turn), turn > 0);
  context.stroke();
}

const SVG = "http://www.w3.org/2000/svg";

export function shape(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// A clock of a pair. Its hand starts at three o'clock and turns counter-clockwise. An arc shows the angles of the first
// `context` positions, if it is given.
export function clock(freq, angle, context = 0) {
  const end = Math.min(context * freq, CIRCLE * 0.9999); // an arc of a full circle would be empty
  const tip = `${20 + 17 * Math.cos(end)} ${20 - 17 * Math.sin(end)}`;
  return shape(
    "svg",
    { viewBox: "0 0 40 40", "aria-hidden": "true", class: "clock" },
    shape("circle", { cx: 20, cy: 20, r: 17 }),
    shape("path", { d: `M 37 20 A 17 17 0 ${end > Math.PI ? 1 : 0} 0 ${tip}` }),
    shape("line", { x1: 20, y1: 20, x2: 20 + 14 * Math.cos(angle), y2: 20 - 14 * Math.sin(angle) }),
  );
}

// Tokens per turn, short.
export const period = (freq) => {
  const tokens = CIRCLE / freq;
  return tokens < 1000 ? tokens.toPrecision(3) : String(Math.round(tokens));
};
