// View 5: the slots of the KV cache, and the cost of each forward pass with and without it.

import { $, axes, colors, dotAt, element, number } from "./draw.mjs";
import { args, limit, state, t } from "./state.mjs";

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

// The multiplications of each pass: dots with the cache, squares without it.
function drawWork() {
  const { passes } = state;
  const [context, x, y] = axes($("work"), {
    xs: [0, Math.max(8, ...passes.map(lengthOf))],
    ys: [0, 1.08 * Math.max(...passes.map(millions))],
    xName: t("lengthAxis"),
    yName: t("workAxis"),
    integerTicks: true,
  });
  for (const pass of passes) {
    const [px, py] = [x(lengthOf(pass)), y(millions(pass))];
    if (pass.useCache) {
      dotAt(context, px, py, 2.5, colors.query);
    } else {
      Object.assign(context, { strokeStyle: colors.key, lineWidth: 1.5 });
      context.strokeRect(px - 3, py - 3, 6, 6);
    }
  }
  $("work").setAttribute("aria-label", `${t("workCaption")} ${number(millions(passes.at(-1)), 2)}`);
}
