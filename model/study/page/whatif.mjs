// View 6: the same text under another table of rotations.

import { softmax } from "./model.mjs";
import { $, axes, element, number, percent, surface, table, vertical } from "./draw.mjs";
import { args, ask, shown, state, t } from "./state.mjs";
import { likeliest } from "./tokens.mjs";

export const longLength = Math.min(2 * args.maxSeqLen, 512);

// The text, or the text again and again until it is longer than the trained length.
function text() {
  if (!state.long) return state.tokens;
  const [bos, ...rest] = state.tokens;
  return [bos, ...Array.from({ length: longLength - 1 }, (_, i) => rest[i % rest.length])];
}

function settings() {
  const { change, factor, offset, stretch } = state;
  const plain = { theta: args.ropeTheta, scaling: args.ropeScaling };
  const scaling = { type: change, factor, attentionFactor: 1 };
  if (change === "yarn") {
    Object.assign(scaling, {
      originalMaxSeqLen: args.maxSeqLen,
      low: 1,
      high: 32,
      attentionFactor: 0.1 * Math.log(factor) + 1,
    });
  }
  const changed = ["linear", "ntk", "yarn"].includes(change)
    ? { ...plain, scaling }
    : change === "theta"
      ? { ...plain, theta: state.theta }
      : plain;
  return { ...changed, offset, stretch, off: change === "off" };
}

// Asks for both runs, the unchanged one and the changed one, at the same positions of the same text.
export async function compare() {
  if (state.tokens.length < 2) return null;
  const { tokens: whole } = state;
  const tokens = text();
  const same = { theta: args.ropeTheta, scaling: args.ropeScaling, offset: 0, stretch: 1, off: false };
  const before = await ask("whatIf", { tokens, ...same });
  return { text: whole, tokens, before, after: await ask("whatIf", { tokens, ...settings() }) };
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

export function drawWhatIf() {
  for (const [id, shownWhen] of [
    ["theta", ["theta"]],
    ["factor", ["linear", "ntk", "yarn"]],
    // Without rotation no position has an effect.
    ["offset", ["none", "theta", "linear", "ntk", "yarn"]],
    ["stretch", ["none", "theta", "linear", "ntk", "yarn"]],
    ["long", longLength > args.maxSeqLen ? [state.change] : []],
  ]) {
    $(id).closest("label").hidden = !shownWhen.includes(state.change);
  }
  $("stretchHelp").hidden = state.change === "off";
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
  const { tokens, before, after } = whatIf;
  const [a, b] = [mean(before.losses), mean(after.losses)];
  $("whatIfText").textContent = t("whatIfText", {
    before: number(a),
    after: number(b),
    difference: (b < a ? "" : "+") + number(b - a),
    context: args.maxSeqLen,
    distance: state.change === "off" ? 0 : number((tokens.length - 1) * state.stretch, 0),
  });
  drawNext(before, after);
  drawLoss(before.losses, after.losses);
}

function drawNext(before, after) {
  const [p, q] = [before, after].map(({ logits }) => softmax(new Float64Array(logits)));
  // Always as many rows, so that nothing below moves: the tokens that are likeliest in either.
  const ids = likeliest(p.map((prob, id) => Math.max(prob, q[id])), 10).sort((a, b) => p[b] - p[a]);
  const target = $("whatIfNext");
  const most = Math.max(...ids.flatMap((id) => [p[id], q[id]]));
  table(
    target,
    [t("tokenColumn"), t("beforeColumn"), t("afterColumn"), t("chartColumn")],
    ids.map((id) => [{ text: shown(id) }, percent(p[id]), percent(q[id]), ""]),
  );
  ids.forEach((id, i) => {
    const cell = target.tBodies[0].rows[i].cells[3];
    cell.className = "bar";
    cell.replaceChildren();
    for (const prob of [p[id], q[id]]) {
      const bar = element("div");
      bar.style.width = `${(100 * prob) / most}%`;
      cell.append(bar);
    }
  });
}

function drawLoss(before, after) {
  const n = before.length;
  const group = Math.max(1, Math.round(n / 64));
  const c = state.colors; // long texts: means of groups
  const grouped = (losses) =>
    Array.from({ length: Math.ceil(n / group) }, (_, i) => mean(losses.slice(i * group, (i + 1) * group)));
  const [a, b] = [grouped(before), grouped(after)];
  const span = [0, Math.max(...a, ...b) * 1.05];
  const [context, x, y] = axes($("loss"), {
    xs: [1, Math.max(n, 2)],
    ys: span,
    xName: t("positionAxis"),
    yName: t("lossAxis"),
    whole: true,
  });
  if (n > args.maxSeqLen) vertical(context, x, y, args.maxSeqLen, span, t("trained", { length: args.maxSeqLen }));
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
  const rows = before.map((loss, i) => [i + 1, { text: shown(tokens[i + 1]) }, number(loss), number(after[i])]);
  table($("lossData"), [t("positionAxis"), t("tokenColumn"), t("beforeColumn"), t("afterColumn")], rows);
}
