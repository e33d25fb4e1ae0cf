// What a reader would see to be wrong with this page, in a window of this width: a list of sentences.
(width) => {
  const faults = [];
  for (const details of document.querySelectorAll("details")) details.open = true;
  const say = (kind, element, more) =>
    faults.push(`${kind}: ${more} in <${element.tagName.toLowerCase()}> "${element.textContent.trim().slice(0, 60)}"`);
  const ancestors = function* (element) {
    for (; element; element = element.parentElement) yield element;
  };

  // a canvas understands every way to write a color
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (color) => {
    if (!known.has(color)) {
      pen.clearRect(0, 0, 1, 1);
      pen.fillStyle = color;
      pen.fillRect(0, 0, 1, 1);
      const [red, green, blue, alpha] = pen.getImageData(0, 0, 1, 1).data;
      known.set(color, [red, green, blue, alpha / 255]);
    }
    return known.get(color);
  };
  const over = (top, ground) => top.slice(0, 3).map((value, at) => value * top[3] + ground[at] * (1 - top[3]));
  const luminance = (color) => {
    const [red, green, blue] = color.map((value) => {
      value /= 255;
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  // what an element has of its ancestors, looked up once for each: a page has thousands of texts
  const remember = (look) => {
    const found = new Map();
    return (element) => {
      if (!found.has(element)) found.set(element, look(element));
      return found.get(element);
    };
  };
  // the canvas below a page is dark in a dark scheme
  const paper = rgba("Canvas");
  const ground = remember((element) =>
    element ? over(rgba(getComputedStyle(element).backgroundColor), ground(element.parentElement)) : paper,
  );
  const opacity = remember((element) =>
    element ? getComputedStyle(element).opacity * opacity(element.parentElement) : 1,
  );
  const frame = remember((element) => {
    const { position, overflowX, overflowY } = getComputedStyle(element);
    const isTiny = element.clientWidth === 1 && element.clientHeight === 1;
    return { position, overflowX, overflowY, isTiny, box: element.getBoundingClientRect() };
  });

  // which texts there are to see
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || ["SCRIPT", "STYLE", "NOSCRIPT", "TITLE", "TEMPLATE"].includes(element.tagName)) continue;
    if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = element.closest("svg") ? element.getBoundingClientRect() : range.getBoundingClientRect();
    if (box.width <= 1 || box.height <= 1) continue;
    // a drawer that is shut
    const frames = [...ancestors(element)].map(frame);
    const drawer = frames.find((each) => each.position === "fixed");
    if (drawer && (drawer.box.right <= 0 || drawer.box.left >= width)) continue;
    // what is for screen readers only
    if (frames.some((each) => each.isTiny)) continue;
    texts.push({ node, element, box });
  }

  if (document.documentElement.scrollWidth > width)
    faults.push(`overflow: the page is ${document.documentElement.scrollWidth} pixels wide, and the window ${width}`);

  const glyphs = new Map();
  for (const { node, element, box } of texts) {
    const style = getComputedStyle(element);
    for (const letter of node.data) {
      // no font lacks letters of ASCII
      if (!letter.trim() || letter < "\x7f") continue;
      const font = `${style.fontStyle} ${style.fontWeight} 32px ${style.fontFamily}`;
      if (!glyphs.has(font + letter)) glyphs.set(font + letter, { font, letter, element });
    }

    // an axis is free from the first ancestor that scrolls it on
    let across = true, down = true;
    for (const each of ancestors(element)) {
      if (each === document.documentElement || each === document.body) break;
      const clip = frame(each);
      if (["auto", "scroll"].includes(clip.overflowX)) across = false;
      if (["auto", "scroll"].includes(clip.overflowY)) down = false;
      const shut = (value) => ["hidden", "clip"].includes(value);
      if (across && shut(clip.overflowX) && (box.left < clip.box.left - 1 || box.right > clip.box.right + 1)) {
        say("cut off", element, `${Math.round(Math.max(clip.box.left - box.left, box.right - clip.box.right))} pixels of the width are outside of <${each.tagName.toLowerCase()}>`);
        break;
      }
      if (down && shut(clip.overflowY) && (box.top < clip.box.top - 1 || box.bottom > clip.box.bottom + 1)) {
        say("cut off", element, `${Math.round(Math.max(clip.box.top - box.top, box.bottom - clip.box.bottom))} pixels of the height are outside of <${each.tagName.toLowerCase()}>`);
        break;
      }
    }
    if (across && box.left + scrollX < -1) say("cut off", element, "it begins left of the page");

    const ink = rgba(element.closest("svg") ? style.fill : style.color);
    const below = ground(element);
    const pair = [luminance(over([...ink.slice(0, 3), ink[3] * opacity(element)], below)), luminance(below)].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < 4.5) say("contrast", element, `${contrast.toFixed(2)} to 1`);
  }

  // A character that no font has is drawn as a number that is no character.
  canvas.width = canvas.height = 64;
  const NOTHING = "\u0378";
  const draw = (letter) => {
    pen.clearRect(0, 0, 64, 64);
    pen.fillText(letter, 8, 44);
    return pen.getImageData(0, 0, 64, 64).data.join();
  };
  for (const { font, letter, element } of glyphs.values()) {
    pen.font = font;
    pen.fillStyle = "black";
    // few letters are as wide, and have to be drawn
    const isAsWide = pen.measureText(letter).width === pen.measureText(NOTHING).width;
    if (isAsWide && draw(letter) === draw(NOTHING))
      say("missing glyph", element, `U+${letter.codePointAt(0).toString(16).toUpperCase()}`);
  }

  return [...new Set(faults)];
}
