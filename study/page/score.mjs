// A score as a sum over pairs. Used by the page and by the article.

export const total = (values) => values.reduce((a, b) => a + b, 0);

// The contribution of each pair to q . k / sqrt(D) at a distance: Re(q conj(k) e^(j distance freq)) / sqrt(D), (D/2).
// q and k (D) are not rotated. `factor` is YaRN's attention factor, which both have.
export function contributions(freqs, q, k, distance, factor = 1) {
  return freqs.map((freq, i) => {
    const [a, b] = [q[2 * i], q[2 * i + 1]];
    const [c, d] = [k[2 * i], k[2 * i + 1]];
    const angle = distance * freq;
    const product = (a * c + b * d) * Math.cos(angle) - (b * c - a * d) * Math.sin(angle);
    return (factor ** 2 * product) / Math.sqrt(q.length);
  });
}

// q . k / sqrt(D) at each distance from 0 to `last`.
export function scoresByDistance(freqs, q, k, last, factor = 1) {
  return Array.from({ length: last + 1 }, (_, distance) => total(contributions(freqs, q, k, distance, factor)));
}
