// Search, folds that open when a link leads into them, formulas that scroll.

const root = document.documentElement.dataset.content_root;

// ---- search ----

const field = document.querySelector(".sidebar-search");
const found = document.querySelector(".found");
let index, listed;

async function look() {
  index ??= import(new URL(`${root}pagefind/pagefind.js`, location.href)).then(async (pagefind) => {
    await pagefind.options({ baseUrl: new URL(root, location.href).pathname });
    return pagefind;
  });
  listed ??= Promise.all([import(new URL(`${root}_static/keywords.js`, location.href)), fetch(`${root}_static/keywords.json`).then((answer) => answer.json())]);
  const asked = field.value.trim();
  const search = asked && (await (await index).debouncedSearch(asked, {}, 150));
  if (search === null) return; // more was typed meanwhile
  const hits = asked ? await Promise.all(search.results.slice(0, 8).map((hit) => hit.data())) : [];
  if (field.value.trim() !== asked) return;
  const [{ meant }, entries] = await listed;
  const first = meant(asked, entries).slice(0, 3);
  found.hidden = !asked;
  found.replaceChildren(...first.map(({ title, url }) => link(`${root}${url}`, title)), ...hits.map(entry));
  if (asked && !hits.length && !first.length) found.textContent = "Nothing found";
}

function entry(hit) {
  // the section that matches best, not the top of a long page
  const part = hit.sub_results.reduce((a, b) => (b.locations.length > a.locations.length ? b : a), hit.sub_results[0]);
  const title = part && part.title !== hit.meta.title ? `${hit.meta.title.split(": ")[0]}: ${part.title}` : hit.meta.title;
  const text = document.createElement("span");
  text.innerHTML = (part ?? hit).excerpt; // Pagefind's own, escaped but for <mark>
  return link((part ?? hit).url, title, text);
}

function link(href, title, ...more) {
  const made = Object.assign(document.createElement("a"), { href });
  made.append(Object.assign(document.createElement("b"), { textContent: title }), ...more);
  return made;
}

field?.addEventListener("input", look);
field?.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    field.value = "";
    found.hidden = true;
  }
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  field?.focus();
});

// ---- what scrolls can be scrolled by keys ----

const reachable = () => {
  for (const box of document.querySelectorAll(".highlight, .highlight pre, .cell_output, .cell_output pre, .output"))
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
};
addEventListener("resize", reachable);
addEventListener("load", reachable);

// ---- folds ----

function unfold() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  target.querySelector(":scope > details.fold")?.setAttribute("open", "");
  for (let at = target; at; at = at.parentElement) if (at.matches("details")) at.open = true;
  target.scrollIntoView();
}

addEventListener("hashchange", unfold);
unfold();
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((fold) => (fold.open = true)));
