/** Elements of SVG as text, and the numbers in them. */

export type Point = readonly [x: number, y: number];

/** A number with `digits` decimals, halves rounded up. */
export const fixed = (value: number, digits: number): string => value.toFixed(digits);

/** A coordinate, to a tenth. */
export const number = (value: number): string => String(Math.floor(value * 10 + 0.5) / 10 || 0);

/** Text as content of an element. */
const escape = (text: string): string =>
  text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;').replace(/"/g, '&quot;');

const shape = (tag: string, attributes: string, title: string): string =>
  title ? `<${tag} ${attributes}><title>${escape(title)}</title></${tag}>` : `<${tag} ${attributes}/>`;

export const rect = (style: string, x: number, y: number, width: number, height: number, title = ''): string =>
  shape('rect', `class="${style}" x="${number(x)}" y="${number(y)}" width="${number(Math.max(width, 0))}" height="${number(height)}"`, title);

/** A line through points. Null interrupts it. */
export function path(style: string, points: readonly (Point | null)[], title = ''): string {
  let [d, pen] = ['', 'M'];
  for (const point of points) {
    if (point) d += `${pen}${number(point[0])} ${number(point[1])}`;
    pen = point ? 'L' : 'M';
  }
  return d && shape('path', `class="${style}" d="${d}"`, title);
}

export const line = (style: string, x1: number, y1: number, x2: number, y2: number, title = ''): string => path(style, [[x1, y1], [x2, y2]], title);
