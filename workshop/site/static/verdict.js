// What a sum comes to, and whether an answer to it is right: the verifier of the package.

export const VERDICTS = {
  ok: "right",
  wrong: "wrong",
  truncated: "ran out of tokens",
  no_answer: "no answer",
  unclosed_answer: "a tag without its partner",
  two_answers: "two answers",
  trailing_text: "text after the answer",
  not_an_integer: "not a number",
};

// The value of a problem such as 40-(8-3) or 3+4^2, as text; throws for what is no sum.
export function valueOf(problem) {
  const signs = problem.replace(/=\?$/, "").match(/\d+|[-+*^()]/g) ?? [];
  if (signs.join("") !== problem.replace(/=\?$/, "")) throw new Error("that is no sum");
  const take = (...wanted) => (wanted.includes(signs[0]) ? signs.shift() : undefined);
  const atom = () => {
    if (take("-")) return -atom();
    if (take("(")) {
      const inside = sum();
      if (!take(")")) throw new Error("a bracket stays open");
      return inside;
    }
    if (!/^\d+$/.test(signs[0] ?? "")) throw new Error("that is no sum");
    return Number(signs.shift());
  };
  const chain = (part, apply, ...operators) => () => {
    let value = part();
    for (let operator; (operator = take(...operators)); ) value = apply(operator, value, part());
    return value;
  };
  const power = chain(atom, (_, a, b) => a ** b, "^");
  const product = chain(power, (_, a, b) => a * b, "*");
  const sum = chain(product, (sign, a, b) => (sign === "+" ? a + b : a - b), "+", "-");
  const value = sum();
  if (signs.length) throw new Error("that is no sum");
  return String(value);
}

// The verdict on an answer, by the name that the package gives it.
export function verdict(text, right, finished) {
  if (!finished) return "truncated";
  const count = (tag) => text.split(tag).length - 1;
  const [opened, closed] = [count("<answer>"), count("</answer>")];
  if (!opened && !closed) return "no_answer";
  if (opened > 1 || closed > 1) return "two_answers";
  const found = text.match(/<answer>(.*)<\/answer>(.*)$/s);
  if (!found) return "unclosed_answer";
  if (found[2].trim()) return "trailing_text";
  const answer = found[1].trim();
  if (!/^(-?[1-9][0-9]{0,18}|0)$/.test(answer)) return "not_an_integer";
  return answer === right ? "ok" : "wrong";
}
