// View 5: the slots of the KV cache, and the cost of each forward pass with and without it.

import { $, axes, colors, number, plainNumber, surface } from "./draw.mjs";
import { args, limit, state, t } from "./state.mjs";

export function drawCache() {
  const pass = state.passes.at(-1);
  if (!pass) return;
  const end = pass.startPos + pass.T;
  drawSlice(pass);
  drawAgreement();
  // A pass without the cache writes no slot, so its slice is empty.
  drawSlots(state.cached, pass.useCache ? pass.startPos : end, end);
  drawWork();
  const { count, ms } = state.run;
  $("rate").textContent = count
    ? t("rate", { count, ms: number(ms, 1), rate: Math.round((1000 * count) / ms) })
    : t("rateNone");
}

const millions = (pass) => pass.multiplications / 1e6;

// The slots that the last pass wrote and read, and the memory in use.
function drawSlice(pass) {
  const L = args.nLayers;
  const tokenBytes = 2 * args.nKvHeads * args.headDim * 4; // of one token in one layer: keys and values, float32
  const bytes = (tokens, layers) => (tokens * layers * tokenBytes).toLocaleString("en");
  $("slice").textContent = t(pass.useCache ? "slice" : "sliceOff", {
    start: pass.startPos,
    T: pass.T,
    end: pass.startPos + pass.T,
    perLayer: bytes(state.cached, 1),
    L,
    K: args.nKvHeads,
    D: args.headDim,
    bytes: bytes(state.cached, L),
    total: bytes(limit, L),
  });
}

// The result of comparing the logits with and without the cache, until the text changes.
function drawAgreement() {
  const { agreement } = state;
  if (agreement?.tokens !== state.tokens) {
    $("agreement").textContent = "";
    return;
  }
  const { difference, largest } = agreement;
  const digits = difference ? Math.max(0, Math.floor(-Math.log10(2 * difference))) : 9;
  $("agreement").textContent = t("agreement", {
    digits,
    difference: plainNumber(difference),
    largest: number(largest, 2),
    count: args.vocabSize,
  });
}

function drawSlots(filled, start, end) {
  const canvas = $("slots");
  const c = colors;
  const row = args.nLayers > 12 ? 8 : 16;
  const left = 76;
  const right = 8;
  canvas.style.height = `${args.nLayers * (row + 3) + 50}px`;
  const [context, width] = surface(canvas);
  const slot = (width - left - right) / limit;
  const top = 18;
  const gap = slot > 3 ? 1 : 0;
  for (let layer = 0; layer < args.nLayers; layer++) {
    const y = top + layer * (row + 3);
    Object.assign(context, { fillStyle: c.quiet, textAlign: "right", textBaseline: "middle" });
    context.fillText(`${t("layer")} ${layer}`, left - 8, y + row / 2);
    context.strokeStyle = c.line;
    context.lineWidth = 1;
    context.strokeRect(left, y + 0.5, slot * limit, row - 1);
    context.fillStyle = c.query;
    for (let p = 0; p < Math.min(filled, start); p++) context.fillRect(left + p * slot, y, slot - gap, row);
    for (let p = start; p < end; p++) stripes(context, left + p * slot, y, slot - gap, row, c.key);
  }
  const bottom = top + args.nLayers * (row + 3);
  context.fillStyle = c.quiet;
  context.textBaseline = "top";
  context.textAlign = "center";
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const inset = part === 1 ? 6 : 0; // so that the last number is not cut off
    context.fillText(Math.round(part * limit), left + part * limit * slot - inset, bottom + 3);
  }
  context.textAlign = "right";
  context.fillText(t("slotAxis"), width - right, bottom + 17);
  if (end > start) {
    Object.assign(context, {
      fillStyle: c.key,
      textAlign: start > limit / 2 ? "right" : "left",
      textBaseline: "bottom",
    });
    context.fillText(`${start} : ${end}`, left + (start > limit / 2 ? end : start) * slot, top - 3);
  }
  canvas.setAttribute("aria-label", t("slotsLabel", { filled, limit, L: args.nLayers }));
}

function stripes(context, x, y, width, height, color) {
  context.strokeStyle = context.fillStyle = color;
  context.lineWidth = 1;
  context.strokeRect(x + 0.5, y + 0.5, Math.max(width - 1, 1), height - 1);
  for (let at = y + 1; at < y + height; at += 4) context.fillRect(x, at, Math.max(width, 2), 2);
}

// The multiplications of each pass: dots with the cache, squares without it.
function drawWork() {
  const passes = state.passes.slice(-1024);
  const [context, x, y] = axes($("work"), {
    xs: [0, Math.max(8, ...passes.map((each) => each.length))],
    ys: [0, 1.08 * Math.max(...passes.map(millions))],
    xName: t("lengthAxis"),
    yName: t("workAxis"),
    integerTicks: true,
  });
  for (const each of passes) {
    const [px, py] = [x(each.length), y(millions(each))];
    if (each.useCache) {
      context.fillStyle = colors.query;
      context.beginPath();
      context.arc(px, py, 2.5, 0, 2 * Math.PI);
      context.fill();
    } else {
      Object.assign(context, { strokeStyle: colors.key, lineWidth: 1.5 });
      context.strokeRect(px - 3, py - 3, 6, 6);
    }
  }
  $("work").setAttribute("aria-label", `${t("workCaption")} ${number(millions(passes.at(-1)), 2)}`);
}
