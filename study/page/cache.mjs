// View 5: the slots of the KV cache, and the cost of a forward pass with and without it.

import { $, axes, colors, curve, dotAt, element, number } from "./draw.mjs";
import { args, facts, limit, state, t } from "./state.mjs";

const lengthOf = ({ startPos, T }) => startPos + T;
const millions = ({ multiplications }) => multiplications / 1e6;

export function drawCache() {
  const { startPos, T, useCache } = state.passes.at(-1);
  const tokenBytes = args.nLayers * 2 * args.nKvHeads * args.headDim * 4; // keys and values in float32
  const bytes = (tokens) => (tokens * tokenBytes).toLocaleString("en");
  $("slice").textContent = t(useCache ? "slice" : "sliceOff", {
    start: startPos,
    T,
    end: startPos + T,
    L: args.nLayers,
    K: args.nKvHeads,
    D: args.headDim,
    bytes: bytes(state.cached.length),
    total: bytes(limit),
  });
  const slots = useCache ? { earlier: startPos, written: T, unused: limit - startPos - T } : { unused: limit };
  const parts = Object.entries(slots).map(([className, count]) => {
    const part = element("div", { className });
    part.style.flexGrow = count;
    return part;
  });
  $("slots").replaceChildren(...parts);
  drawWork();
}

// The numbers in the matrices of all layers: the multiplications of one token, without attention and logits.
const perToken = facts.shapes
  .filter(([name, rows]) => name.startsWith("layers.") && rows > 1)
  .reduce((sum, [, rows, columns]) => sum + rows * columns, 0);

// The multiplications of a forward pass of T tokens at startPos, as model.mjs counts them.
export function multiplicationsOf(startPos, T) {
  const visible = T * startPos + (T * (T + 1)) / 2; // scores, of which each takes D multiplications, as does each value
  return T * perToken + 2 * args.nLayers * args.nHeads * args.headDim * visible + args.vocabSize * args.dim;
}

// Curves: one more token at each length, with the cache and without it. Dots and squares: the passes that were run.
function drawWork() {
  const { passes } = state;
  const longest = Math.max(8, ...passes.map(lengthOf));
  const lengths = Array.from({ length: longest }, (_, i) => i + 1);
  const cached = lengths.map((length) => multiplicationsOf(length - 1, 1) / 1e6);
  const uncached = lengths.map((length) => multiplicationsOf(0, length) / 1e6);
  const [context, x, y] = axes($("work"), {
    xs: [0, longest],
    ys: [0, 1.08 * uncached.at(-1)],
    xName: t("lengthAxis"),
    yName: t("workAxis"),
    integerTicks: true,
  });
  curve(context, (i) => x(i + 1), y, cached, colors.query);
  curve(context, (i) => x(i + 1), y, uncached, colors.key, [6, 4]);
  for (const pass of passes) {
    const [px, py] = [x(lengthOf(pass)), y(millions(pass))];
    if (pass.useCache) {
      dotAt(context, px, py, 3, colors.query);
    } else {
      Object.assign(context, { strokeStyle: colors.key, lineWidth: 1.5 });
      context.strokeRect(px - 3, py - 3, 6, 6);
    }
  }
  $("work").setAttribute("aria-label", `${t("workCaption")} ${number(millions(passes.at(-1)), 2)}`);
}
