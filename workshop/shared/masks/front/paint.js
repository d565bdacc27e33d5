// Elements, colours, numbers as text: for the mask lab and for every figure that moves in the page.

const SVG = "http://www.w3.org/2000/svg";

// A new element inside `parent`; attributes that begin with "on" are listeners.
function put(parent, tag, attributes = {}, ...children) {
  const svg = tag === "svg" || parent?.namespaceURI === SVG;
  const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null) node.setAttribute(name, value);
  node.append(...children);
  parent?.append(node);
  return node;
}

// Pixels that an SVG has across; one unit of its drawing each.
const widthOf = (svg, least) => Math.max(Math.floor(svg.getBoundingClientRect().width), least);

function blank(svg, width, height) {
  svg.replaceChildren();
  frameOf(svg, width, height);
}

function frameOf(svg, width, height) {
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
}

// The box of a text as this SVG would write it.
function sizeOf(svg, text, attributes = {}) {
  const node = put(svg, "text", attributes, text), box = node.getBBox();
  node.remove();
  return box;
}

// Whatever the font: texts that would leave their drawing are moved inward, and one that is wider
// than all of it is squeezed.
function keepInside(svg, texts = svg.querySelectorAll("text:not([transform])")) {
  const { width, height } = svg.viewBox.baseVal;
  const shift = (from, size, room) => Math.max(0, -from) - Math.max(0, from + size - room);
  [...texts].map((text) => [text, text.getBBox()]).forEach(([text, box]) => {
    const rim = text.matches(".name, .area-name") ? 2 : 0;
    if (box.width > width - 2 * rim) {
      text.setAttribute("textLength", width - 2 * rim);
      text.setAttribute("lengthAdjust", "spacingAndGlyphs");
      box = text.getBBox();
    }
    const across = shift(box.x - rim, box.width + 2 * rim, width), down = shift(box.y - rim, box.height + 2 * rim, height);
    if (across) text.setAttribute("x", Number(text.getAttribute("x")) + across);
    if (down) text.setAttribute("y", Number(text.getAttribute("y")) + down);
  });
}

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

// Relative luminance of an sRGB colour (WCAG 2.1).
function luminance(rgb) {
  const linear = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

// The colour, moved away from the paper until it has this contrast ratio to it (WCAG 2.1).
function contrasting(hex, paper, wanted) {
  const back = luminance(paper), away = back > 0.3 ? 0 : 255;
  const contrast = (rgb) => {
    const [dark, light] = [luminance(rgb), back].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  let rgb = channels(hex);
  for (let n = 0; n < 60 && contrast(rgb) < wanted; n++) rgb = rgb.map((c) => c + (away - c) * 0.06);
  return `rgb(${rgb.map(Math.round).join(" ")})`;
}

// The first opaque background behind a node.
function paperUnder(node) {
  for (let at = node; at; at = at.parentElement ?? at.getRootNode().host) {
    const found = getComputedStyle(at).backgroundColor.match(/[\d.]+/g)?.map(Number) ?? [];
    if (found.length > 2 && (found[3] ?? 1) > 0.5) return found.slice(0, 3);
  }
  return matchMedia("(prefers-color-scheme: dark)").matches && usesDark() ? [18, 18, 18] : [255, 255, 255];
}
const usesDark = () => getComputedStyle(document.documentElement).colorScheme.includes("dark");

// Draw now, and again when the width of `box` or the paper under `host` changes: `view.paper` is its
// colour, and `box` is told whether it is dark. Returns a function that ends this.
function followPage(host, box, view, draw) {
  let width = null;
  const look = () => {
    const before = String(view.paper), size = box.clientWidth;
    view.paper = paperUnder(host);
    if (String(view.paper) === before && size === width) return;
    width = size;
    box.dataset.theme = luminance(view.paper) < 0.3 ? "dark" : "light";
    box.style.setProperty("--paper", `rgb(${view.paper.join(" ")})`);
    draw();
  };
  const themes = new MutationObserver(look);
  for (const node of [document.documentElement, document.body]) themes.observe(node, { attributes: true });
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", look);
  const sizes = new ResizeObserver(look);
  sizes.observe(box);
  look();
  return () => {
    themes.disconnect();
    sizes.disconnect();
    scheme.removeEventListener("change", look);
  };
}

// The part of a slider's track left of its thumb.
function showPart(input) {
  const part = (input.value - input.min) / (input.max - input.min);
  input.style.setProperty("--part", `${(100 * part).toFixed(1)}%`);
}

// A number in at most three figures; near 1, where windows are narrow, in five.
function short(x) {
  const size = Math.abs(x);
  if (size === 0) return "0";
  const near = Math.abs(size - 1) < 0.01 && size !== 1;
  const text = near ? x.toFixed(4) : size >= 100 ? x.toFixed(0) : size < 0.1 ? x.toPrecision(2) : x.toPrecision(3);
  return String(Number(text)).replace("-", "−");
}
const signed = (x) => (x > 0 ? "+" : "") + short(x);
