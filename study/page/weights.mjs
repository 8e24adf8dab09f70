// The weights of the page: base64 of float32 or float16 numbers, one tensor after the other.

// { name: { data, rows, columns } }, with the names and shapes of the state dict.
export function readTensors({ shapes, dtype }, base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i); // Uint8Array.from is slower
  const all = dtype === "float16" ? float32OfHalves(new Uint16Array(bytes.buffer)) : new Float32Array(bytes.buffer);
  const tensors = {};
  let at = 0;
  for (const [name, rows, columns] of shapes) {
    tensors[name] = { data: all.subarray(at, at + rows * columns), rows, columns };
    at += rows * columns;
  }
  return tensors;
}

// A table of all 65,536 float16 numbers, because computing each weight's number takes longer than looking it up.
function float32OfHalves(halves) {
  const table = Float32Array.from({ length: 65536 }, (_, bits) => {
    const sign = bits >> 15 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
  });
  const numbers = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) numbers[i] = table[halves[i]]; // Float32Array.from is slower
  return numbers;
}
