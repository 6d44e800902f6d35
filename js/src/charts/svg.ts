/** Elements of SVG as text. `smp_advisor/charts/marks.py` writes the same text for the same values. */

export type Point = readonly [x: number, y: number];

/** A coordinate in pixels, to a tenth. */
export function number(value: number): string {
  const tenths = Math.floor(value * 10 + 0.5);
  return String(tenths / 10 || 0);
}

/** Text as content or attribute of an element. */
export const escape = (text: string): string =>
  text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;').replace(/"/g, '&quot;');

const shape = (tag: string, attributes: string, title: string): string =>
  title ? `<${tag} ${attributes}><title>${escape(title)}</title></${tag}>` : `<${tag} ${attributes}/>`;

/** A rectangle. One with a title is a mark: pointer and keyboard show its figures. */
export function rect(style: string, x: number, y: number, width: number, height: number, title = ''): string {
  const size = `width="${number(Math.max(width, 0))}" height="${number(Math.max(height, 0))}"`;
  return shape('rect', `class="${style}" x="${number(x)}" y="${number(y)}" ${size}`, title);
}

export function line(style: string, x1: number, y1: number, x2: number, y2: number, title = ''): string {
  return shape('line', `class="${style}" x1="${number(x1)}" y1="${number(y1)}" x2="${number(x2)}" y2="${number(y2)}"`, title);
}

export function dot(style: string, x: number, y: number, radius: number, title = ''): string {
  return shape('circle', `class="${style}" cx="${number(x)}" cy="${number(y)}" r="${number(radius)}"`, title);
}

/** A line through points. Null interrupts it. */
export function path(style: string, points: readonly (Point | null)[]): string {
  let [d, pen] = ['', 'M'];
  for (const point of points) {
    if (point) d += `${pen}${number(point[0])} ${number(point[1])}`;
    pen = point ? 'L' : 'M';
  }
  return d && `<path class="${style}" d="${d}"/>`;
}

/** A text with its baseline at `y`. */
export function label(style: string, x: number, y: number, text: string, anchor: 'start' | 'middle' | 'end' = 'start'): string {
  const side = anchor === 'start' ? '' : ` text-anchor="${anchor}"`;
  return `<text class="${style}" x="${number(x)}" y="${number(y)}"${side}>${escape(text)}</text>`;
}

/** The drawing. `description` states its contents for screen readers. */
export function frame(width: number, height: number, description: string, parts: readonly string[]): string {
  const size = `viewBox="0 0 ${number(width)} ${number(height)}" width="${number(width)}" height="${number(height)}"`;
  return `<svg class="smp-chart" ${size} role="img" aria-label="${escape(description)}">${parts.join('')}</svg>`;
}
