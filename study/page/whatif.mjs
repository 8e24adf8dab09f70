// View 6: the same text with a different rotation table.

import { softmax } from "./model.mjs";
import { $, axes, element, number, percent, surface, table, vertical } from "./draw.mjs";
import { args, ask, tokenText, state, t } from "./state.mjs";
import { mostLikely } from "./tokens.mjs";

export const longLength = Math.min(2 * args.maxSeqLen, 512);

const SCALED = ["linear", "ntk", "yarn"]; // the changes that have a factor
const ROTATED = ["unchanged", "theta", ...SCALED];

const ORIGINAL = { theta: args.ropeTheta, scaling: args.ropeScaling, offset: 0, stretch: 1, off: false };

function changedRotation() {
  const { change, factor, offset, stretch } = state;
  const rotation = { ...ORIGINAL, offset, stretch, off: change === "off" };
  if (change === "theta") rotation.theta = state.theta;
  if (SCALED.includes(change)) rotation.scaling = { type: change, factor, attentionFactor: 1 };
  if (change === "yarn") {
    Object.assign(rotation.scaling, {
      // This YaRN replaces the network's own scaling, so it starts from the context before that scaling, if known.
      originalMaxSeqLen: args.ropeScaling?.originalMaxSeqLen ?? args.maxSeqLen,
      low: 1,
      high: 32,
      attentionFactor: 0.1 * Math.log(factor) + 1,
    });
  }
  return rotation;
}

// The text; if `long` is chosen and `longLength` exceeds the context, the text repeated up to `longLength` tokens.
export function comparedTokens() {
  if (!state.long || longLength <= args.maxSeqLen) return state.tokens;
  const [first, ...rest] = state.tokens; // BOS, if the tokenizer adds it
  return [first, ...Array.from({ length: longLength - 1 }, (_, i) => rest[i % rest.length])];
}

// Runs the same tokens with the original and with the changed rotation. `text` is the array state.tokens of this
// moment: `isOutdated` compares the two by identity. All settings are read before the runs, because the user may change
// them meanwhile.
export async function compareRotations() {
  if (state.tokens.length < 2) return null;
  const text = state.tokens;
  const tokens = comparedTokens();
  const rotation = changedRotation();
  const distance = rotation.off ? 0 : (tokens.length - 1) * rotation.stretch; // the largest one
  const before = await ask("whatIf", { tokens, ...ORIGINAL });
  const after = await ask("whatIf", { tokens, ...rotation });
  return { text, tokens, distance, before, after };
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

function drawControls() {
  const visible = {
    theta: state.change === "theta",
    factor: SCALED.includes(state.change),
    offset: ROTATED.includes(state.change), // without rotation, positions have no effect
    stretch: ROTATED.includes(state.change),
    long: longLength > args.maxSeqLen,
  };
  for (const [id, isVisible] of Object.entries(visible)) $(id).closest("label").hidden = !isVisible;
  $("stretchHelp").hidden = state.change === "off";
}

export function drawWhatIf() {
  drawControls();
  if (state.computing) {
    $("whatIfText").textContent = t("computing");
    return;
  }
  const { whatIf } = state;
  if (!whatIf) {
    $("whatIfText").textContent = t(state.tokens.length < 2 ? "whatIfShort" : "computing");
    $("whatIfNext").replaceChildren();
    surface($("loss"));
    return;
  }
  const { distance, before, after } = whatIf;
  const lossChange = mean(after.losses) - mean(before.losses);
  $("whatIfText").textContent = t("whatIfText", {
    before: number(mean(before.losses)),
    after: number(mean(after.losses)),
    difference: (lossChange < 0 ? "" : "+") + number(lossChange),
    context: args.maxSeqLen,
    distance: number(distance, 0),
  });
  drawNext(before, after);
  drawLoss(before.losses, after.losses);
}

function drawNext(before, after) {
  const old = softmax(new Float64Array(before.logits)); // (V)
  const now = softmax(new Float64Array(after.logits)); // (V)
  // The tokens that are most likely in either; always ten rows, so that nothing below moves.
  const larger = old.map((prob, id) => Math.max(prob, now[id]));
  const ids = mostLikely(larger, 10).sort((a, b) => old[b] - old[a]);
  const target = $("whatIfNext");
  const largest = Math.max(...ids.map((id) => larger[id]));
  table(
    target,
    [t("tokenColumn"), t("beforeColumn"), t("afterColumn"), t("chartColumn")],
    ids.map((id) => [{ text: tokenText(id) }, percent(old[id]), percent(now[id]), ""]),
  );
  ids.forEach((id, i) => {
    const cell = target.tBodies[0].rows[i].cells[3];
    cell.className = "bar";
    cell.replaceChildren();
    for (const prob of [old[id], now[id]]) {
      const bar = element("div");
      bar.style.width = `${(100 * prob) / largest}%`;
      cell.append(bar);
    }
  });
}

function drawLoss(before, after) {
  const n = before.length;
  const group = Math.max(1, Math.round(n / 64)); // tokens per point of the curve
  const c = state.colors;
  const grouped = (losses) =>
    Array.from({ length: Math.ceil(n / group) }, (_, i) => mean(losses.slice(i * group, (i + 1) * group)));
  const a = grouped(before);
  const b = grouped(after);
  const span = [0, Math.max(...a, ...b) * 1.05];
  const [context, x, y] = axes($("loss"), {
    xs: [1, Math.max(n, 2)],
    ys: span,
    xName: t("positionColumn"),
    yName: t("lossAxis"),
    integerTicks: true,
  });
  if (n > args.maxSeqLen) vertical(context, x, y, args.maxSeqLen, span, t("context", { length: args.maxSeqLen }));
  const curve = (values, color, dash) => {
    Object.assign(context, { strokeStyle: color, fillStyle: color, lineWidth: 2 });
    context.setLineDash(dash);
    context.beginPath();
    const at = (i) => x(Math.min(n, 1 + (i + 0.5) * group - 0.5));
    values.forEach((loss, i) => context.lineTo(at(i), y(loss)));
    context.stroke();
    context.setLineDash([]);
    if (dash.length) values.forEach((loss, i) => context.fillRect(at(i) - 2.5, y(loss) - 2.5, 5, 5));
  };
  curve(a, c.query, []);
  curve(b, c.key, [5, 4]);
  $("loss").setAttribute("aria-label", `${t("lossCaption")} ${number(mean(before))} → ${number(mean(after))}`);
  const { tokens } = state.whatIf;
  const rows = before.map((loss, i) => [i + 1, { text: tokenText(tokens[i + 1]) }, number(loss), number(after[i])]);
  table($("lossData"), [t("positionColumn"), t("tokenColumn"), t("beforeColumn"), t("afterColumn")], rows);
}
