// Hugging Face's tokenizer.json with a BPE model, without the library: added tokens, normalizer, pre-tokenizer, merges,
// decoder, in the library's order. vocabulary.py has written its steps in a few plain forms.

import { merge, nameBytes, readUtf8, toUtf8 } from "./tokenizer.mjs";

// Each byte has a character of its own: itself where it is visible, else one from 256 on.
const byteCharacters = (() => {
  const visible = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(visible(byte) ? byte : next++));
})();
const byteOf = new Map(byteCharacters.map((character, byte) => [character, byte]));

const NORMALIZERS = {
  prepend: (text, { content }) => (text ? content + text : text),
  replace: (text, { pattern, content }) => text.replaceAll(pattern, content),
  unicode: (text, { form }) => text.normalize(form),
  strip: (text, { left, right }) => stripEnd(left ? text.replace(/^\p{White_Space}+/u, "") : text, right),
};
const stripEnd = (text, wanted) => (wanted ? text.replace(/\p{White_Space}+$/u, "") : text);

// From a list of words to a list of words. `isStart`: the first word begins the text.
const PRE_TOKENIZERS = {
  split: (words, step) => words.flatMap((word) => splitBy(word, step)),
  prefixSpace: (words) => words.map((word) => (word.startsWith(" ") ? word : ` ${word}`)),
  bytes: (words) =>
    words.map((word) => Array.from(toUtf8(word), (byte) => byteCharacters[byte.charCodeAt(0)]).join("")),
  metaspace: (words, { replacement, scheme, split }, isStart) =>
    words.flatMap((word, i) => {
      const spaced = word.replaceAll(" ", replacement);
      const wanted = scheme === "always" || (scheme === "first" && isStart && i === 0);
      const whole = wanted && !spaced.startsWith(replacement) ? replacement + spaced : spaced;
      return split ? whole.split(new RegExp(`(?=${replacement})`, "u")) : [whole];
    }),
};

function splitBy(word, { pattern, matches, gaps }) {
  const parts = [];
  let end = 0;
  for (const found of word.matchAll(new RegExp(pattern, "gu"))) {
    if (gaps) parts.push(word.slice(end, found.index));
    if (matches) parts.push(found[0]);
    end = found.index + found[0].length;
  }
  if (gaps) parts.push(word.slice(end));
  return parts.filter(Boolean);
}

// From a list of texts, at first one for each token, to another.
const DECODERS = {
  replace: (texts, { pattern, content }) => texts.map((text) => text.replaceAll(pattern, content)),
  fuse: (texts) => [texts.join("")],
  spaces: (texts) => [texts.join(" ")],
  strip: (texts, { content, start, stop }) => texts.map((text) => stripped(text, content, start, stop)),
  byteFallback: (texts) => {
    const read = [];
    for (let at = 0; at < texts.length;) {
      let bytes = "";
      for (; at < texts.length && /^<0x[0-9A-Fa-f]{2}>$/.test(texts[at]); at++) {
        bytes += String.fromCharCode(parseInt(texts[at].slice(3, 5), 16));
      }
      if (bytes) read.push(wholeOrSigns(bytes));
      if (at < texts.length) read.push(texts[at++]);
    }
    return read;
  },
  bytes: (texts) => {
    const binary = texts.map((text) => {
      const bytes = Array.from(text, (character) => byteOf.get(character));
      return bytes.includes(undefined) ? toUtf8(text) : String.fromCharCode(...bytes);
    });
    return [readUtf8(binary.join(""))];
  },
  metaspace: (texts, { replacement, scheme }) =>
    texts.map((text, i) => text.replaceAll(replacement, i === 0 && scheme !== "never" ? "" : " ")),
};

function stripped(text, content, start, stop) {
  const characters = [...text];
  let first = 0;
  while (first < start && characters[first] === content) first++;
  let last = characters.length;
  while (characters.length - last < stop && last > first && characters[last - 1] === content) last--;
  return characters.slice(first, last).join("");
}

// Bytes that are not UTF-8 as a whole become one replacement character each.
function wholeOrSigns(binary) {
  try {
    return readUtf8(binary, true);
  } catch {
    return "\ufffd".repeat(binary.length);
  }
}

export class JsonTokenizer {
  // merges: the ids of each pair in the order of their ranks. added: tokens that are found in the text itself.
  constructor({ pieces, merges, added, bosId, eosIds, startsWithBos, ...rules }) {
    Object.assign(this, { pieces, bosId, eosIds, startsWithBos, rules });
    this.ids = new Map(pieces.map((piece, id) => [piece, id]));
    this.ids.delete(null);
    this.ranks = new Map();
    for (let i = 0; i < merges.length; i += 2) {
      const [a, b] = [merges[i], merges[i + 1]];
      this.ranks.set(a * pieces.length + b, [i / 2, this.ids.get(pieces[a] + pieces[b])]);
    }
    this.added = new Map(added.map((token) => [token.id, token]));
    this.finders = [false, true].map((normalized) => new AddedFinder(added.filter((t) => t.normalized === normalized)));
  }

  // BOS first where the model was trained so, and in the empty text.
  encode(text) {
    const ids = this.startsWithBos || !text ? [this.bosId] : [];
    const [inText, inNormalized] = this.finders;
    const parts = inText.split(text).flatMap(({ id, part, at }) => {
      if (id !== null) return [{ id, part, at }];
      return inNormalized.split(this.normalize(part)).map((found) => ({ ...found, at: at + found.at }));
    });
    for (const { id, part, at } of parts) {
      if (id !== null) ids.push(id);
      else for (const word of this.splitWords(part, at === 0)) for (const token of this.encodeWord(word)) ids.push(token);
    }
    return ids;
  }

  normalize(text) {
    return this.rules.normalizer.reduce((done, step) => NORMALIZERS[step.type](done, step), text);
  }

  splitWords(text, isStart) {
    return this.rules.preTokenizer.reduce((words, step) => PRE_TOKENIZERS[step.type](words, step, isStart), [text]);
  }

  encodeWord(word) {
    if (!word) return [];
    if (this.rules.ignoreMerges && this.ids.has(word)) return [this.ids.get(word)];
    const size = this.pieces.length;
    return merge(this.characters(word), (a, b) => this.ranks.get(a * size + b) ?? null);
  }

  // The characters' ids; bytes or the unknown token where the vocabulary lacks one.
  characters(word) {
    const { byteFallback, fuseUnk, unkId } = this.rules;
    const ids = [];
    let unknown = false; // an unknown token waits for the next known one, so that several can become one
    for (const character of word) {
      const id = this.ids.get(character);
      if (id !== undefined) {
        if (unknown) ids.push(unkId);
        unknown = false;
        ids.push(id);
        continue;
      }
      const bytes = byteFallback ? this.spell(character) : null;
      if (bytes) ids.push(...bytes);
      else if (unkId !== null) {
        if (unknown && !fuseUnk) ids.push(unkId);
        unknown = true;
      }
    }
    if (unknown) ids.push(unkId);
    return ids;
  }

  // The byte tokens of a character, null if one of them is missing.
  spell(character) {
    const ids = Array.from(toUtf8(character), (byte) => {
      const digits = byte.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0");
      return this.ids.get(`<0x${digits}>`);
    });
    return ids.includes(undefined) ? null : ids;
  }

  decode(ids) {
    const texts = ids.filter((id) => !this.added.get(id)?.skipped).map((id) => this.piece(id)).filter((p) => p !== null);
    return this.rules.decoder.reduce((done, step) => DECODERS[step.type](done, step), texts).join("");
  }

  piece(id) {
    return this.added.get(id)?.content ?? this.pieces[id] ?? null;
  }

  name(id) {
    const piece = this.piece(id);
    if (piece === null) return `[${id}]`; // the model has more rows than the tokenizer has tokens
    if (this.added.has(id)) return piece;
    if (!this.rules.isByteLevel) return piece.replaceAll("\u2581", " ");
    const bytes = Array.from(piece, (character) => byteOf.get(character));
    return bytes.includes(undefined) ? piece : nameBytes(String.fromCharCode(...bytes));
  }
}

// Finds added tokens in a text: the leftmost first, the longest of those that begin at one place.
class AddedFinder {
  constructor(tokens) {
    this.byName = new Map(tokens.map((token) => [token.content, token]));
    const names = [...this.byName.keys()].sort((a, b) => b.length - a.length);
    const escaped = names.map((name) => name.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
    this.pattern = names.length ? new RegExp(escaped.join("|"), "gu") : null;
  }

  // Parts in order: a token's id, or null and text; `at` is where a part begins.
  split(text) {
    const parts = [];
    let end = 0;
    const rest = (stop) => stop > end && parts.push({ id: null, part: text.slice(end, stop), at: end });
    for (const found of this.pattern ? text.matchAll(this.pattern) : []) {
      const token = this.byName.get(found[0]);
      let [start, stop] = [found.index, found.index + found[0].length];
      if (token.lstrip) start -= text.slice(0, start).match(/\p{White_Space}*$/u)[0].length;
      if (token.rstrip) stop += text.slice(stop).match(/^\p{White_Space}*/u)[0].length;
      rest(Math.max(start, end));
      parts.push({ id: token.id, part: "", at: start });
      end = stop;
    }
    rest(text.length);
    return parts;
  }
}
