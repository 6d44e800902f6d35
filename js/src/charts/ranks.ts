/** Contents of every GPU of every node. Twin: `drawing/ranks.py`. */

import { frame, label, rect } from './svg';

/** GPUs of the shown nodes, node by node. */
export interface Ranks {
  gpus_per_node: number;
  nodes: number[];
  columns: { name: string; letter: string; values: number[]; degree: number }[];
  /** Column of the colors. */
  by: number;
  description: string;
}

const [COLORS, GAP] = [8, 3];

export function ranks({ gpus_per_node: perNode, nodes, columns, by, description }: Ranks, width: number): string {
  const detailed = nodes.length <= 4;
  const lanes = detailed ? 1 : Math.max(Math.floor(width / 300), 1);
  const box = width / lanes;
  const left = 58;
  const across = Math.min(perNode, 8);
  const cell = (box - left - 12) / across;
  const high = detailed ? 32 : 18;
  const tall = Math.ceil(perNode / across) * (high + GAP) + 8;
  const parts: string[] = [];
  nodes.forEach((node, position) => {
    const [x, y] = [box * (position % lanes), 4 + tall * Math.floor(position / lanes)];
    parts.push(label('smp-text', x, y + 13, `Node ${node}`));
    for (let gpu = 0; gpu < perNode; gpu += 1) {
      const values = columns.map(column => column.values[position * perNode + gpu]!);
      const texts = columns.map((column, index) => `${column.name} ${values[index]}`).join(', ');
      const title = `Node ${node}, GPU ${gpu}, rank ${node * perNode + gpu}: ${texts || 'the entire model'}`;
      const color = (values[by] ?? 0) % COLORS;
      const [cx, cy] = [x + left + cell * (gpu % across), y + (high + GAP) * Math.floor(gpu / across)];
      const middle = cx + (cell - GAP) / 2;
      parts.push(rect(`smp-gpu smp-r${color}`, cx, cy, cell - GAP, high, title));
      if (detailed) {
        const codes = columns.map((column, index) => `${column.letter}${values[index]}`);
        parts.push(label(`smp-code smp-o${color}`, middle, cy + 13, codes.slice(0, 2).join(' '), 'middle'));
        parts.push(label(`smp-code smp-o${color}`, middle, cy + 26, codes.slice(2, 4).join(' '), 'middle'));
      } else if (values.length > 0 && cell > 24) {
        parts.push(label(`smp-code smp-o${color}`, middle, cy + 13, String(values[by]), 'middle'));
      }
    }
  });
  return frame(width, 4 + tall * Math.ceil(nodes.length / lanes), description, parts);
}
