// The start of the page.

import { $, element } from "./draw.mjs";
import { args, facts } from "./state.mjs";
import { usePrompt } from "./generation.mjs";
import { changed, draw } from "./frame.mjs";
import { writeTexts } from "./language.mjs";
import { connectControls } from "./controls.mjs";

function addOptions(id, count) {
  $(id).append(...Array.from({ length: count }, (_, i) => element("option", {}, String(i))));
}

$("name").textContent = facts.name;
addOptions("layer", args.nLayers);
addOptions("head", args.nHeads);
$("layer").value = Math.min(1, args.nLayers - 1);
$("shift").max = 4 * args.maxSeqLen;
$("prompt").value = facts.prompt;
$("prompt").placeholder = facts.startText;
$("prompt").readOnly = facts.tokenizer.type === "FixedText";
$("selection").open = matchMedia("(min-width: 50rem)").matches; // folded on a phone
writeTexts();
connectControls();
usePrompt(facts.prompt);
draw(Infinity); // all views once, so that links to them lead to the right place
addEventListener("scroll", () => draw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
new ResizeObserver(changed).observe(document.body);
document.documentElement.dataset.ready = "yes";
