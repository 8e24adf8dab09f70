// The network at a glance, with the view that one reads marked, and a guide of six sentences.

import { $, element } from "./draw.mjs";
import { args, state, t, writeHash } from "./state.mjs";

// Each part of the network: its text, and the view that shows it. The two lists are branches off the residual stream.
const BEFORE = [["netTokens", "tokens"], ["netEmbedding"]];
const ATTENTION = [["netNorm"], ["netRotate", "rotation"], ["netCache", "cache"], ["netScore", "score"], ["netMaps", "maps"]];
const FEED_FORWARD = [["netNorm"], ["netFeedForward"]];
const AFTER = [["netNorm"], ["netLogits"], ["netNext", "tokens"]];

export function buildOverview() {
  const net = $("net");
  net.replaceChildren(
    ...BEFORE.map(part),
    element(
      "li",
      { className: "layers" },
      element("span", { className: "times" }, t("netLayers", { L: args.nLayers })),
      element("ol", {}, branch("netAttention", ATTENTION), branch("netFeed", FEED_FORWARD)),
    ),
    ...AFTER.map(part),
  );
  const change = viewLink("netWhatIf", "whatIf");
  $("netNote").replaceChildren(t("netNote"), " ", change);
  $("strip").replaceChildren(...PLACES.map((view) => viewLink(`${view}Title`, view)));
  markView();
}

function part([key, view]) {
  return element("li", { className: "part" }, view ? viewLink(key, view) : t(key));
}

function viewLink(key, view) {
  return element("a", { href: `#${view}`, "data-view": view }, t(key));
}

// What leaves the residual stream and is added back to it.
function branch(key, parts) {
  const steps = element("ol", { className: "steps" }, ...parts.map(part));
  const plus = element("span", { className: "plus", title: t("netPlus") }, "+");
  return element("li", { className: "branch" }, element("span", { className: "times" }, t(key)), steps, plus);
}

const GUIDE = ["guide1", "guide2", "guide3", "guide4", "guide5", "guide6"]; // a sentence for each view
const PLACES = ["tokens", "rotation", "score", "maps", "cache", "whatIf"];

// The last view whose top is in the upper half of the screen; at the end of the page, the last one.
export function markView() {
  const passed = PLACES.filter((view) => $(view).getBoundingClientRect().top < innerHeight / 2);
  const isEnd = scrollY > 0 && innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
  const current = isEnd ? PLACES.at(-1) : (passed[passed.length - 1] ?? PLACES[0]);
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === current) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

export function goTo(view) {
  const smooth = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  $(view).scrollIntoView({ behavior: smooth ? "smooth" : "instant" });
  $(`${view}Title`).focus({ preventScroll: true });
}

// ---- the guide: shown to who opens the page without choices in its address, until it is ended

export function drawGuide() {
  const { guide } = state;
  $("guide").hidden = guide === 0;
  $("guideText").textContent = guide ? t(GUIDE[guide - 1]) : "";
  $("guideCount").textContent = `${guide} / ${PLACES.length}`;
  $("guideNext").textContent = t(guide === PLACES.length ? "guideEnd" : "guideNext");
}

export function guideTo(step) {
  state.guide = step > PLACES.length ? 0 : step;
  writeHash();
  drawGuide();
  if (state.guide) goTo(PLACES[state.guide - 1]);
}
