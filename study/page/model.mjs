// The network of model/ in JavaScript, with the same names in the same order: rope_scaling, rope, cache, layers,
// attention, transformer. One text at a time, so there is no batch axis. Every array is flat; comments give its shape: T new
// tokens, S = startPos + T keys, H query heads, K key/value heads, D headDim, V vocabulary.

export const work = { multiplications: 0 }; // counted by `multiply` and `attend`

// ---- rope_scaling.py: functions from frequencies to frequencies, (D/2), in radians per token, fastest pair first

export const linear = (freqs, { factor }) => freqs.map((freq) => freq / factor);

export const ntk = (freqs, { factor }) => freqs.map((freq, i) => freq * factor ** -(i / (freqs.length - 1)));

export function llama3(freqs, { factor, originalMaxSeqLen, low, high }) {
  const turns = freqs.map((freq) => (originalMaxSeqLen * freq) / (2 * Math.PI));
  return blend(freqs, factor, turns.map((n) => (n - low) / (high - low)));
}

export function yarn(freqs, { factor, originalMaxSeqLen, low, high }) {
  const pairs = freqs.length, logRatio = Math.log(freqs[1] / freqs[0]); // the same for any two neighbouring pairs
  const begin = Math.max(Math.floor(Math.log((2 * Math.PI * high) / originalMaxSeqLen) / logRatio), 0);
  const end = Math.min(Math.ceil(Math.log((2 * Math.PI * low) / originalMaxSeqLen) / logRatio), 2 * pairs - 1);
  return blend(freqs, factor, freqs.map((_, i) => 1 - (i - begin) / (end - begin || 1)));
}

function blend(freqs, factor, keep) {
  return freqs.map((freq, i) => {
    const kept = Math.min(Math.max(keep[i], 0), 1);
    return freq * kept + (freq / factor) * (1 - kept);
  });
}

const SCALINGS = { linear, ntk, llama3, yarn };

// ---- rope.py

export function ropeFreqs(dim, theta = 10000, scaling = null) {
  const freqs = Array.from({ length: dim / 2 }, (_, i) => theta ** -((2 * i) / dim)); // (D/2)
  return scaling ? SCALINGS[scaling.type](freqs, scaling) : freqs;
}

// Without scaling, row p, column i is e^(j p theta^(-2i/dim)), as cosine and sine. `place` moves position p, for
// experiments.
export function precomputeFreqsCis(dim, end, theta = 10000, scaling = null, place = (p) => p) {
  const freqs = ropeFreqs(dim, theta, scaling);
  const attentionFactor = scaling ? scaling.attentionFactor : 1;
  const freqsCis = new Float32Array(end * dim); // (end, D/2, 2)
  for (let p = 0; p < end; p++) {
    for (let i = 0; i < dim / 2; i++) {
      const angle = place(p) * freqs[i]; // float64, as in Python
      freqsCis[p * dim + 2 * i] = attentionFactor * Math.cos(angle);
      freqsCis[p * dim + 2 * i + 1] = attentionFactor * Math.sin(angle);
    }
  }
  return freqsCis;
}

// Rotates x (T, heads, D) to the positions of the table (T, D/2, 2). Pairs are (2i, 2i + 1).
export function applyRotaryEmb(x, freqsCis, dim) {
  const T = freqsCis.length / dim, heads = x.length / (T * dim), out = new Float32Array(x.length);
  for (let t = 0; t < T; t++) {
    for (let h = 0; h < heads; h++) {
      const at = (t * heads + h) * dim;
      for (let i = 0; i < dim; i += 2) {
        const cos = freqsCis[t * dim + i], sin = freqsCis[t * dim + i + 1];
        out[at + i] = x[at + i] * cos - x[at + i + 1] * sin; // (a + jb)(cos + j sin)
        out[at + i + 1] = x[at + i] * sin + x[at + i + 1] * cos;
      }
    }
  }
  return out;
}

// ---- cache.py

class LayerCache {
  constructor(maxSeqLen, width) {
    this.width = width; // numbers of one position, K * D
    this.keys = new Float32Array(maxSeqLen * width); // (maxSeqLen, K, D)
    this.values = new Float32Array(maxSeqLen * width); // (maxSeqLen, K, D)
  }

  // Writes T new keys and values at startPos. Returns the keys and values of all S positions, (S, K, D).
  update(startPos, xk, xv) {
    const end = startPos * this.width + xk.length;
    this.keys.set(xk, startPos * this.width);
    this.values.set(xv, startPos * this.width);
    return [this.keys.subarray(0, end), this.values.subarray(0, end)];
  }
}

export class KVCache {
  constructor(args, maxSeqLen = args.maxSeqLen) {
    this.maxSeqLen = maxSeqLen;
    this.layers = Array.from({ length: args.nLayers }, () => new LayerCache(maxSeqLen, args.nKvHeads * args.headDim));
  }
}

// ---- attention.py and transformer.py

// `tensors` maps the state dict's names to { data, rows, columns }; a vector is one row. `name` is that of the layer.
class Linear {
  constructor(tensors, name) {
    this.weight = tensors[`${name}.weight`];
    this.bias = tensors[`${name}.bias`]?.data; // only with qkvBias
  }

  // x (T, columns) -> (T, rows)
  forward(x) {
    const out = multiply(this.weight, x), rows = this.weight.rows;
    if (this.bias) for (let i = 0; i < out.length; i++) out[i] += this.bias[i % rows];
    return out;
  }
}

// x (T, columns) times the transpose of w (rows, columns) -> (T, rows). Four rows share each load of x.
function multiply({ data, rows, columns }, x) {
  const T = x.length / columns, out = new Float32Array(T * rows);
  for (let t = 0; t < T; t++) {
    const row = x.subarray(t * columns, (t + 1) * columns);
    let r = 0;
    for (; r + 4 <= rows; r += 4) {
      let a = 0, b = 0, c = 0, d = 0, w = r * columns;
      for (let i = 0; i < columns; i++, w++) {
        const value = row[i];
        a += data[w] * value;
        b += data[w + columns] * value;
        c += data[w + 2 * columns] * value;
        d += data[w + 3 * columns] * value;
      }
      const at = t * rows + r;
      out[at] = a;
      out[at + 1] = b;
      out[at + 2] = c;
      out[at + 3] = d;
    }
    for (; r < rows; r++) out[t * rows + r] = dot(data, r * columns, row, 0, columns);
  }
  work.multiplications += T * rows * columns;
  return out;
}

class RMSNorm {
  constructor(tensors, name, eps) {
    this.weight = tensors[`${name}.weight`].data;
    this.eps = eps;
  }

  // x (..., dim) -> (..., dim)
  forward(x) {
    const dim = this.weight.length, out = new Float32Array(x.length);
    for (let at = 0; at < x.length; at += dim) {
      const scale = 1 / Math.sqrt(dot(x, at, x, at, dim) / dim + this.eps);
      for (let i = 0; i < dim; i++) out[at + i] = x[at + i] * scale * this.weight[i];
    }
    return out;
  }
}

// ---- attention.py

export class Attention {
  constructor(args, tensors, name) {
    this.args = args;
    [this.wq, this.wk, this.wv, this.wo] = ["wq", "wk", "wv", "wo"].map((each) => new Linear(tensors, `${name}.${each}`));
    if (args.qkNorm) {
      this.qNorm = new RMSNorm(tensors, `${name}.q_norm`, args.normEps);
      this.kNorm = new RMSNorm(tensors, `${name}.k_norm`, args.normEps);
    }
  }

  // x (T, dim) -> (T, dim). `trace` is an array that gets one entry per layer for the page to draw, or null.
  forward(x, startPos, freqsCis, cache, trace) {
    let xq = this.wq.forward(x); // (T, H, D)
    let xk = this.wk.forward(x); // (T, K, D)
    const xv = this.wv.forward(x); // (T, K, D)
    if (this.args.qkNorm) [xq, xk] = [this.qNorm.forward(xq), this.kNorm.forward(xk)];
    const rotatedQ = applyRotaryEmb(xq, freqsCis, this.args.headDim); // values are not rotated
    const rotatedK = applyRotaryEmb(xk, freqsCis, this.args.headDim);
    const [keys, values] = cache ? cache.update(startPos, rotatedK, xv) : [rotatedK, xv]; // (S, K, D)
    const [out, weights] = this.attend(rotatedQ, keys, values, startPos); // (T, H, D), (T, H, S)
    if (trace) trace.push({ xq, xk, xv, weights, out });
    return this.wo.forward(out); // (T, dim)
  }

  // softmax(q k^T / sqrt(D)) v. It needs no mask, because the loop for token t ends after its startPos + t + 1 keys.
  attend(xq, keys, values, startPos) {
    const { nHeads: H, nKvHeads: K, headDim: D } = this.args;
    const T = xq.length / (H * D), S = startPos + T, group = H / K, scale = 1 / Math.sqrt(D);
    const out = new Float32Array(T * H * D), weights = new Float32Array(T * H * S);
    for (let t = 0; t < T; t++) {
      for (let h = 0; h < H; h++) {
        const visible = startPos + t + 1;
        // Where this head begins in xq, and in the keys and values of one position
        const q = (t * H + h) * D, kv = Math.floor(h / group) * D;
        const row = weights.subarray((t * H + h) * S, (t * H + h) * S + visible); // the rest stays 0
        for (let s = 0; s < visible; s++) row[s] = scale * dot(xq, q, keys, s * K * D + kv, D);
        softmax(row);
        for (let s = 0; s < visible; s++) {
          for (let d = 0; d < D; d++) out[q + d] += row[s] * values[s * K * D + kv + d];
        }
        work.multiplications += 2 * visible * D;
      }
    }
    return [out, weights];
  }
}

// The product of the numbers of a from i on and those of b from j on.
export function dot(a, i, b, j, length) {
  let sum = 0;
  for (let d = 0; d < length; d++) sum += a[i + d] * b[j + d];
  return sum;
}

export function softmax(row) {
  let largest = -Infinity, sum = 0;
  for (const value of row) largest = Math.max(largest, value);
  for (let i = 0; i < row.length; i++) {
    const value = Math.exp(row[i] - largest);
    row[i] = value;
    sum += value;
  }
  for (let i = 0; i < row.length; i++) row[i] /= sum;
  return row;
}

// ---- transformer.py

class FeedForward {
  constructor(tensors, name) {
    [this.w1, this.w2, this.w3] = ["w1", "w2", "w3"].map((each) => new Linear(tensors, `${name}.${each}`));
  }

  forward(x) {
    const gate = this.w1.forward(x), up = this.w3.forward(x); // (T, hiddenDim)
    return this.w2.forward(up.map((value, i) => (value * gate[i]) / (1 + Math.exp(-gate[i])))); // silu(w1 x) * w3 x
  }
}

class TransformerBlock {
  constructor(args, tensors, name) {
    this.attention = new Attention(args, tensors, `${name}.attention`);
    this.feedForward = new FeedForward(tensors, `${name}.feed_forward`);
    this.attentionNorm = new RMSNorm(tensors, `${name}.attention_norm`, args.normEps);
    this.ffnNorm = new RMSNorm(tensors, `${name}.ffn_norm`, args.normEps);
  }

  forward(x, startPos, freqsCis, cache, trace) {
    x = add(x, this.attention.forward(this.attentionNorm.forward(x), startPos, freqsCis, cache, trace));
    return add(x, this.feedForward.forward(this.ffnNorm.forward(x)));
  }
}

function add(a, b) {
  return a.map((value, i) => value + b[i]);
}

export class Transformer {
  constructor(args, tensors) {
    this.args = args;
    this.tokEmbeddings = tensors["tok_embeddings.weight"];
    this.layers = Array.from({ length: args.nLayers },
      (_, id) => new TransformerBlock(args, tensors, `layers.${id}`));
    this.norm = new RMSNorm(tensors, "norm", args.normEps);
    this.output = tensors["output.weight"] ?? this.tokEmbeddings; // tied embeddings have no output matrix
    this.freqsCis = precomputeFreqsCis(args.headDim, args.maxSeqLen, args.ropeTheta, args.ropeScaling);
  }

  // tokens (T) at positions startPos .. startPos + T - 1 -> logits (T, V)
  forward(tokens, startPos = 0, cache = null, trace = null) {
    return this.logits(this.hidden(tokens, startPos, cache, trace));
  }

  // Everything except the output matrix: (T) -> (T, dim).
  hidden(tokens, startPos = 0, cache = null, trace = null) {
    const { headDim } = this.args, T = tokens.length;
    const limit = cache ? cache.maxSeqLen : this.freqsCis.length / headDim;
    if (startPos < 0 || T < 1 || startPos + T > limit) {
      throw new RangeError(`startPos ${startPos} with T = ${T} new tokens: they must lie in the ${limit} positions`);
    }
    const freqsCis = this.freqsCis.subarray(startPos * headDim, (startPos + T) * headDim); // (T, D/2, 2)
    let h = this.embed(tokens); // (T, dim)
    this.layers.forEach((layer, id) => {
      h = layer.forward(h, startPos, freqsCis, cache ? cache.layers[id] : null, trace);
    });
    return this.norm.forward(h);
  }

  embed(tokens) {
    const { dim } = this.args, h = new Float32Array(tokens.length * dim); // (T, dim)
    tokens.forEach((token, t) => h.set(this.tokEmbeddings.data.subarray(token * dim, (token + 1) * dim), t * dim));
    return h;
  }

  // (..., dim) -> (..., V)
  logits(h) {
    return multiply(this.output, h);
  }
}
