// View 5: the slots of the KV cache, and the cost of each forward pass with and without it.

import { $, axes, number, plainNumber, surface, table } from "./draw.mjs";
import { args, limit, state, t } from "./state.mjs";

export function drawCache() {
  const pass = state.passes.at(-1);
  if (!pass) return;
  const end = pass.startPos + pass.T;
  drawSlice(pass);
  drawAgreement();
  // A pass without the cache writes no slot, so its slice is empty.
  drawSlots(state.cached, pass.useCache ? pass.startPos : end, end);
  drawCost("work", "workAxis", millions);
  drawCost("time", "timeAxis", (each) => each.ms);
  drawPasses();
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
  const slice = t(pass.useCache ? "slice" : "sliceOff", {
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
  $("slice").textContent = state.evicted ? `${slice} ${t("evicted", { count: state.evicted })}` : slice;
}

// The latest passes first.
function drawPasses() {
  const columns = [t("lengthAxis"), "T", t("passColumn"), t("workAxis"), t("timeAxis")];
  const rows = state.passes.slice(-200).reverse().map((pass) => [
    pass.length,
    pass.T,
    t(pass.useCache ? "withCache" : "without"),
    number(millions(pass), 2),
    number(pass.ms, 2),
  ]);
  table($("passesData"), columns, rows);
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
  const c = state.colors;
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
  // A pass without the cache writes and reads no slot.
  const slices = end > start ? [`${start} : ${end}`, `0 : ${end}`] : ["", ""];
  const rows = Array.from({ length: args.nLayers }, (_, layer) => [layer, filled, ...slices]);
  table($("slotsData"), [t("layer"), "S", "start_pos : start_pos + T", "0 : S"], rows);
}

function stripes(context, x, y, width, height, color) {
  context.strokeStyle = context.fillStyle = color;
  context.lineWidth = 1;
  context.strokeRect(x + 0.5, y + 0.5, Math.max(width - 1, 1), height - 1);
  for (let at = y + 1; at < y + height; at += 4) context.fillRect(x, at, Math.max(width, 2), 2);
}

function drawCost(id, axis, value) {
  const c = state.colors;
  const passes = state.passes.slice(-1024);
  const longest = Math.max(8, ...passes.map((each) => each.length));
  const rate = medianRate(passes, value);
  const cappedCosts = passes.map((each) => Math.min(value(each), OUTLIER_FACTOR * rate * each.multiplications));
  const top = 1.08 * (Math.max(...cappedCosts) || 1);
  let isCut = false;
  const [context, x, y] = axes($(id), {
    xs: [0, longest],
    ys: [0, top],
    xName: t("lengthAxis"),
    yName: t(axis),
    integerTicks: true,
  });
  for (const each of passes) {
    const isAbove = value(each) > top;
    const px = x(each.length);
    const py = isAbove ? y(top) + 4 : y(value(each));
    isCut ||= isAbove;
    if (isAbove) {
      context.fillStyle = c.ink;
      context.beginPath();
      for (const [dx, dy] of [[-4, 4], [4, 4], [0, -4]]) context.lineTo(px + dx, py + dy);
      context.fill();
    } else if (each.useCache) {
      context.fillStyle = c.query;
      context.beginPath();
      context.arc(px, py, 2.5, 0, 2 * Math.PI);
      context.fill();
    } else {
      context.strokeStyle = c.key;
      context.lineWidth = 1.5;
      context.strokeRect(px - 3, py - 3, 6, 6);
    }
  }
  $(id).setAttribute("aria-label", `${t(`${id}Caption`)} ${number(value(passes.at(-1)), 2)}`);
  if (id === "time") $("timeNote").textContent = isCut ? t("timeNote") : "";
}

// A pass should cost its multiplications times the median cost per multiplication. If it costs more than OUTLIER_FACTOR
// times as much, the browser was probably busy, and the axis need not reach that far.
const OUTLIER_FACTOR = 3;

// The median of the cost per multiplication over these passes.
function medianRate(passes, value) {
  const rates = passes.map((each) => value(each) / each.multiplications).sort((a, b) => a - b);
  return rates[Math.floor(rates.length / 2)];
}
