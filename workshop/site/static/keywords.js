// The sections that readers' own words lead to: which entries of keywords.json a query asks for.

const IDLE = new Set("a all an and are at be by can do does down for from get getting go goes going good happens have how i if in is it its keep keeps many may me much my need no of on one or per should so that the their this to too up use using versus vs was we what when where which who why will with you your".split(" "));
const ENOUGH = 0.5; // of a query's words, each by how rare it is
const STRANGE = 0.4; // what a word that no entry has counts, of a rare one

// Words of a text as they are compared: small, without the endings of English.
export function stems(text) {
  const words = text.toLowerCase().replace(/['’]s\b/g, "").match(/[a-z0-9@]+(?:\.[a-z0-9]+)*/g) ?? [];
  return words.filter((word) => !IDLE.has(word)).map((word) => word.replace(/(?<=.{3})(?:isation|ization|ising|izing|ised|ized|ise|ize)$/, "iz").replace(/(?<=.{3})(?:ings?|ed|es|e|s)$/, "").replace(/(.)\1$/, "$1"));
}

// Entries [{ words, title, url }] for a query, the best first.
export function meant(query, entries) {
  const asked = [...new Set(stems(query))], lists = entries.map(({ words }) => stems(words));
  // a word is had by who has it, or, once it is long, one that begins with it
  const has = (list, word) => list.some((each) => each === word || (word.length > 3 && each.startsWith(word)));
  const rarity = (word) => {
    const count = lists.filter((list) => has(list, word)).length;
    return Math.log((1 + entries.length) / (0.5 + count)) * (count ? 1 : STRANGE);
  };
  const total = asked.reduce((sum, word) => sum + rarity(word), 0);
  const scored = entries.map((entry, n) => {
    const held = asked.filter((word) => has(lists[n], word)), share = held.reduce((sum, word) => sum + rarity(word), 0) / total;
    // words that follow each other in both, and words that stand early, say more
    const pairs = asked.slice(1).filter((word, i) => lists[n].some((each, at) => each === word && lists[n][at - 1] === asked[i])).length;
    const early = held.reduce((sum, word) => sum + 1 / (3 + lists[n].findIndex((each) => each.startsWith(word))), 0);
    return { entry, share, score: share + 0.15 * pairs + 0.1 * early };
  });
  return scored.filter(({ share }) => share >= ENOUGH - 1e-9).sort((a, b) => b.score - a.score).map(({ entry }) => entry);
}
