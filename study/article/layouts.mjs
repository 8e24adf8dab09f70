// Figure 3: eight channels in three layouts, the code of each, and the score of one q and one k at two places.

import { element, number } from "../page/draw.mjs";
import { ropeFreqs } from "../page/model.mjs";
import { rotatePair, shape } from "../page/rotation.mjs";
import { answerBox, choice, controls, facts, legend, slider, t } from "./widgets.mjs";

const CHANNELS = 8;
const INDEX = "₀₁₂₃";
const APART = 5;
const FREQS = ropeFreqs(CHANNELS);
const INDICES = Array.from({ length: CHANNELS / 2 }, (_, i) => i);

// `pairs` are the two channels of pair i, `freq` is the frequency of a channel.
const LAYOUTS = {
  neighbours: {
    pairs: INDICES.map((i) => [2 * i, 2 * i + 1]),
    freq: (channel) => FREQS[channel >> 1],
    code: `pairs = torch.view_as_complex(x.view(4, 2))
rotated = pairs * freqs_cis  # θ₀ θ₁ θ₂ θ₃
x = torch.view_as_real(rotated).flatten()`,
  },
  halves: {
    pairs: INDICES.map((i) => [i, i + CHANNELS / 2]),
    freq: (channel) => FREQS[channel % (CHANNELS / 2)],
    code: `turned = torch.cat((-x[4:], x[:4]))  # rotate_half
angle = angle.repeat(2)  # θ₀ θ₁ θ₂ θ₃ θ₀ …
x = x * angle.cos() + turned * angle.sin()`,
  },
  mixed: {
    pairs: INDICES.map((i) => [i, i + CHANNELS / 2]),
    freq: (channel) => FREQS[channel >> 1],
    code: `turned = torch.cat((-x[4:], x[:4]))  # halves
angle = angle.repeat_interleave(2)  # θ₀ θ₀ θ₁ θ₁ …: neighbours
x = x * angle.cos() + turned * angle.sin()`,
  },
};

// x (CHANNELS) at position p. A channel is turned by its own frequency, which in a correct layout is that of its partner.
function turn(x, p, { pairs, freq }) {
  const out = [...x];
  for (const [a, b] of pairs) {
    out[a] = rotatePair([x[a], x[b]], p * freq(a))[0];
    out[b] = rotatePair([x[a], x[b]], p * freq(b))[1];
  }
  return out;
}

function scoreAt(n, layout) {
  const q = turn(facts.layouts.q, n + APART, layout);
  const k = turn(facts.layouts.k, n, layout);
  return q.reduce((sum, value, i) => sum + value * k[i], 0);
}

export function layouts(root) {
  let name = "neighbours";
  const picture = element("div", { className: "channels" });
  const code = element("code");
  const place = slider(t("place"), { min: 0, max: 1000, step: 5, value: 0 }, () => draw());
  const answer = answerBox();
  const pick = choice(t("layout"), Object.keys(LAYOUTS).map((each) => [each, t(each)]), (chosen) => {
    name = chosen;
    draw();
  });
  root.append(pick, picture, element("pre", {}, code), controls(place), answer, legend("layoutsNote"));

  function draw() {
    const layout = LAYOUTS[name];
    const n = place.get();
    code.textContent = layout.code;
    picture.replaceChildren(drawChannels(layout));
    answer.textContent = t(n === 0 ? "layoutStart" : "layoutScore", {
      m: n + APART,
      n,
      here: number(scoreAt(n, layout), 4),
      first: number(scoreAt(0, layout), 4),
      verdict: t(name === "mixed" ? "notRelative" : "relative"),
    });
  }
  return draw;
}

// Boxes in the colour of the pair whose frequency turns the channel, and arcs that join the two channels of a pair.
function drawChannels({ pairs, freq }) {
  const label = pairs.map((pair) => pair.join("–")).join(", ");
  const svg = shape("svg", { viewBox: "0 0 400 110", role: "img", "aria-label": label });
  for (const [a, b] of pairs) {
    const [from, to] = [25 + 50 * a, 25 + 50 * b];
    const height = 15 + 11 * (b - a);
    svg.append(shape("path", { d: `M ${from} 66 C ${from} ${66 - height} ${to} ${66 - height} ${to} 66` }));
  }
  for (let channel = 0; channel < CHANNELS; channel++) {
    const pair = FREQS.indexOf(freq(channel));
    svg.append(
      shape("rect", { class: `pair${pair}`, x: 50 * channel + 3, y: 66, width: 44, height: 34, rx: 4 }),
      shape("text", { x: 50 * channel + 25, y: 82 }, String(channel)),
      shape("text", { x: 50 * channel + 25, y: 96, class: "small" }, `θ${INDEX[pair]}`),
    );
  }
  return svg;
}
