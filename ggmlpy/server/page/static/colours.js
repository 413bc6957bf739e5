// Colours of the theme and of sequences, and canvases in the pixels of the screen.

let known = null;

/** Of the theme that is shown. */
export function colours() {
  if (known) return known;
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  const light = of("--sequence-light");
  known = {
    accent: of("--accent"),
    muted: of("--muted"),
    empty: of("--empty"),
    text: of("--text"),
    // Hues by the golden angle: those of neighbours differ.
    sequence: (seq) => `hsl(${(seq * 137.508 + 215) % 360} 62% ${light})`,
  };
  return known;
}

const forget = () => { known = null; };
addEventListener("theme", forget);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", forget);

/** The context of a cleared canvas with its width and height, in CSS pixels. */
export function fitted(canvas, height) {
  const width = canvas.clientWidth || canvas.parentElement.clientWidth;
  const scale = devicePixelRatio || 1;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}
