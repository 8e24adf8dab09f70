// Hugging Face's tokenizer.json with a BPE model, without the library: added tokens, normalizer, pre-tokenizer, merges,
// decoder, in the order of the library. vocabulary.py writes the steps of each component.

import { merge, nameBytes, readUtf8, toUtf8 } from "./tokenizer.mjs";

// The byte-level alphabet: a visible byte is its own character, the others are characters from 256 on.
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
};

// The patterns of GPT-2, Llama 3 and Qwen. Python's library writes \s for White_Space, which is not JavaScript's \s, and
// ignores the case of 's as Unicode does: \u017f is a long s.
const PATTERNS = {
  gpt2: /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu,
  llama3: /'(?:[sS\u017f]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\p{White_Space}\p{L}\p{N}]+[\r\n]*|\p{White_Space}*[\r\n]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu,
  qwen: /'(?:[sS\u017f]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\p{White_Space}\p{L}\p{N}]+[\r\n]*|\p{White_Space}*[\r\n]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu,
  digits: /\p{N}+/gu,
  digit: /\p{N}/gu,
};

// From a list of words to a list of words. `isStart`: the first word is at the start of the text.
const PRE_TOKENIZERS = {
  split: (words, { pattern }) => words.flatMap((word) => splitBy(word, PATTERNS[pattern])),
  bytes: (words) =>
    words.map((word) => Array.from(toUtf8(word), (byte) => byteCharacters[byte.charCodeAt(0)]).join("")),
  metaspace: (words, { replacement, scheme, split }, isStart) =>
    words.flatMap((word, i) => {
      const spaced = word.replaceAll(" ", replacement);
      const prepends = scheme === "always" || (scheme === "first" && isStart && i === 0);
      const marked = prepends && !spaced.startsWith(replacement) ? replacement + spaced : spaced;
      return split ? marked.split(new RegExp(`(?=${replacement})`, "u")) : [marked];
    }),
};

// The matches of the pattern in a word, and the gaps between them.
function splitBy(word, pattern) {
  const parts = [];
  let end = 0;
  for (const found of word.matchAll(pattern)) {
    parts.push(word.slice(end, found.index), found[0]);
    end = found.index + found[0].length;
  }
  parts.push(word.slice(end));
  return parts.filter(Boolean);
}

// From a list of texts to a list of texts. The first step gets one text per token.
const DECODERS = {
  replace: (texts, { pattern, content }) => texts.map((text) => text.replaceAll(pattern, content)),
  fuse: (texts) => [texts.join("")],
  strip: (texts, { content, start, stop }) => texts.map((text) => stripContent(text, content, start, stop)),
  byteFallback: (texts) => {
    const decoded = [];
    let bytes = ""; // of the run of byte tokens before this text
    for (const text of texts) {
      if (/^<0x[0-9A-Fa-f]{2}>$/.test(text)) {
        bytes += String.fromCharCode(parseInt(text.slice(3, 5), 16));
        continue;
      }
      if (bytes) decoded.push(decodeRun(bytes));
      bytes = "";
      decoded.push(text);
    }
    if (bytes) decoded.push(decodeRun(bytes));
    return decoded;
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

// Removes the character `content` at most `start` times from the beginning of the text, and at most `stop` times from
// its end.
function stripContent(text, content, start, stop) {
  const characters = [...text];
  let first = 0;
  while (first < start && characters[first] === content) first++;
  let last = characters.length;
  while (characters.length - last < stop && last > first && characters[last - 1] === content) last--;
  return characters.slice(first, last).join("");
}

// The text of a run of bytes. If the run is not valid UTF-8, each byte becomes a replacement character.
function decodeRun(binary) {
  try {
    return readUtf8(binary, true);
  } catch {
    return "\ufffd".repeat(binary.length);
  }
}

export class JsonTokenizer {
  // merges: the two ids of each merge, in the order of their ranks. added: tokens that are matched before the BPE.
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

  // BOS first if the tokenizer adds it. An empty text is BOS alone, because the model needs one token.
  encode(text) {
    const ids = this.startsWithBos || !text ? [this.bosId] : [];
    const [textFinder, normalizedFinder] = this.finders;
    const parts = textFinder.split(text).flatMap(({ id, part, at }) => {
      if (id !== null) return [{ id, part, at }];
      return normalizedFinder.split(this.normalize(part)).map((found) => ({ ...found, at: at + found.at }));
    });
    for (const { id, part, at } of parts) {
      const partIds = id === null ? this.splitWords(part, at === 0).flatMap((word) => this.encodeWord(word)) : [id];
      for (const partId of partIds) ids.push(partId); // a spread of a pasted text could overflow the stack
    }
    return ids;
  }

  normalize(text) {
    return this.rules.normalizer.reduce((normalized, step) => NORMALIZERS[step.type](normalized, step), text);
  }

  splitWords(text, isStart) {
    return this.rules.preTokenizer.reduce((words, step) => PRE_TOKENIZERS[step.type](words, step, isStart), [text]);
  }

  encodeWord(word) {
    if (!word) return [];
    if (this.rules.ignoreMerges && this.ids.has(word)) return [this.ids.get(word)];
    const size = this.pieces.length;
    return merge(this.characterIds(word), (a, b) => this.ranks.get(a * size + b) ?? null);
  }

  // The ids of the characters; byte tokens or the unknown token for characters that are not in the vocabulary.
  characterIds(word) {
    const { byteFallback, fuseUnk, unkId } = this.rules;
    const ids = [];
    // The unknown token waits for the next known character, so that a run of unknown characters can become one token.
    let isUnkPending = false;
    for (const character of word) {
      const id = this.ids.get(character);
      if (id !== undefined) {
        if (isUnkPending) ids.push(unkId);
        isUnkPending = false;
        ids.push(id);
        continue;
      }
      const bytes = byteFallback ? this.byteIds(character) : null;
      if (bytes) ids.push(...bytes);
      else if (unkId !== null) {
        if (isUnkPending && !fuseUnk) ids.push(unkId);
        isUnkPending = true;
      }
    }
    if (isUnkPending) ids.push(unkId);
    return ids;
  }

  // The byte tokens of a character, or null if the vocabulary has not all of them.
  byteIds(character) {
    const ids = Array.from(toUtf8(character), (byte) => {
      const digits = byte.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0");
      return this.ids.get(`<0x${digits}>`);
    });
    return ids.includes(undefined) ? null : ids;
  }

  decode(ids) {
    const visible = ids.filter((id) => !this.added.get(id)?.skipped);
    const pieces = visible.map((id) => this.piece(id)).filter((piece) => piece !== null);
    return this.rules.decoder.reduce((texts, step) => DECODERS[step.type](texts, step), pieces).join("");
  }

  piece(id) {
    return this.added.get(id)?.content ?? this.pieces[id] ?? null;
  }

  name(id) {
    const piece = this.piece(id);
    if (piece === null) return `[${id}]`; // the embedding has more rows than the tokenizer has tokens
    if (this.added.has(id)) return piece;
    if (!this.rules.isByteLevel) return piece.replaceAll("\u2581", " ");
    const bytes = Array.from(piece, (character) => byteOf.get(character));
    return bytes.includes(undefined) ? piece : nameBytes(String.fromCharCode(...bytes));
  }
}

// Finds added tokens in a text: the leftmost first, and the longest of those that start at the same character.
class AddedFinder {
  constructor(tokens) {
    this.ids = new Map(tokens.map((token) => [token.content, token.id]));
    const names = [...this.ids.keys()].sort((a, b) => b.length - a.length);
    const escaped = names.map((name) => name.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
    this.pattern = names.length ? new RegExp(escaped.join("|"), "gu") : null;
  }

  // The parts in order: the id of an added token, or null and the text between two tokens. Each part starts at `at`.
  split(text) {
    const parts = [];
    let end = 0; // of the last added token
    const addText = (stop) => {
      if (stop > end) parts.push({ id: null, part: text.slice(end, stop), at: end });
    };
    for (const found of this.pattern ? text.matchAll(this.pattern) : []) {
      addText(found.index);
      parts.push({ id: this.ids.get(found[0]), part: "", at: found.index });
      end = found.index + found[0].length;
    }
    addText(text.length);
    return parts;
  }
}
