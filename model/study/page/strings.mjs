export const STRINGS = {};
