/** A chart as data: its drawing, its table and its notes. The kernel's side is `smp_advisor/charts/chart.py`. */

import { bars, type Bars } from './bars';
import { frontier, type Frontier } from './frontier';
import { gantt, type Gantt } from './gantt';
import { ladder, type LadderBars } from './ladder';
import { ranks, type Ranks } from './ranks';
import { scatter, type Scatter } from './scatter';
import { sweep, type Sweep } from './sweep';

interface Drawings {
  bars: Bars;
  frontier: Frontier;
  gantt: Gantt;
  ladder: LadderBars;
  ranks: Ranks;
  scatter: Scatter;
  sweep: Sweep;
}

export type Kind = keyof Drawings;

const DRAWINGS: { [K in Kind]: (data: Drawings[K], width: number) => string } = { bars, frontier, gantt, ladder, ranks, scatter, sweep };

export interface Chart<K extends Kind = Kind> {
  kind: K;
  title: string;
  data: Drawings[K];
  /** The same figures as a table. */
  columns: string[];
  rows: string[][];
  /** Sentences below the drawing. */
  notes: string[];
  /** Names of the colors, in their order; empty names have none in the drawing. */
  key: string[];
}

/** The drawing as SVG text, `width` pixels wide. */
export function drawing<K extends Kind>(chart: Chart<K>, width: number): string {
  return DRAWINGS[chart.kind](chart.data, width);
}
