import type { Ahead, AheadMessage, Cell, Costs, Entry, Packed, Positions, Setting, Settings } from './wire';

/** Whether two sets of settings are equal. */
export function same(a: Settings, b: Settings): boolean {
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every(name => a[name] === b[name]);
}

/** All moves from the plan on the screen. The kernel sends those that differ from the moves before. */
export class LookAhead {
  ahead: Ahead = { base: {}, by: {} };
  private number = 0;
  private texts: string[] = [];
  private readonly held = new Map<string, [follows: Settings, entry: Costs | string][]>();

  /** Take a message; false if one before it was lost, and all moves have to be requested. */
  take({ number, after, base, names, own, by, texts }: AheadMessage, controls: Positions[]): boolean {
    if (after !== 0 && after !== this.number) return false;
    this.number = number;
    this.texts = after === 0 ? texts : [...this.texts, ...texts];
    for (const name of this.held.keys()) if (!names.includes(name)) this.held.delete(name);
    for (const [name, entries] of Object.entries(by)) {
      this.held.set(name, entries.map(entry => unpacked(entry, own, this.texts)));
    }
    const made = [...this.held].map(([name, entries]): [string, Entry[]] => {
      const values = controls.find(control => control.name === name)?.values ?? [];
      return [name, entries.slice(0, values.length).map(([follows, entry], index) => {
        const settings = { ...base, ...follows, [name]: values[index]! };
        return typeof entry === 'string' ? { settings, problem: entry } : { settings, costs: entry };
      })];
    });
    this.ahead = { base, by: Object.fromEntries(made) };
    return true;
  }

  /** Moves of a control, if they start from the settings on the screen, or from one move of this control away. */
  entries(screen: Settings, name: string): Entry[] {
    const entries = this.ahead.by[name] ?? [];
    return same(screen, this.ahead.base) || entries.some(entry => same(entry.settings, screen)) ? entries : [];
  }

  /** The move of a control to a value; undefined if only the kernel knows it. */
  entry(screen: Settings, name: string, value: Setting): Entry | undefined {
    return this.entries(screen, name).find(entry => entry.settings[name] === value);
  }
}

function unpacked([bits, ...rest]: Packed, own: Cell[], texts: string[]): [follows: Settings, entry: Costs | string] {
  const follows = typeof rest.at(-1) === 'object' && rest.at(-1) !== null ? (rest.pop() as Settings) : {};
  if (bits < 0) return [follows, texts[rest[0] as number]!];
  const cells = rest as Cell[];
  const at = (place: number): Cell => (Math.floor(bits / 2 ** place) % 2 ? cells.shift()! : own[place]!);
  const [fit, gib, edge, odds, state, activations, rate, speed, time, money, memory, count] = Array.from({ length: 12 }, (_, place) => at(place)) as [Costs['fit'], number, number, string, number, number, number, string, string, string, string, number];
  const rungs = Array.from({ length: count }, (_, rung): Costs['rungs'][number] => [texts[at(12 + 2 * rung) as number]!, at(13 + 2 * rung) as number | null]);
  return [follows, { fit, gib, edge, odds: odds || '> 99.9 %', state, activations, rate, speed, time, money, memory, rungs }];
}
