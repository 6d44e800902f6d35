import type { Ahead, AheadMessage, Entry, Positions, Setting, Settings } from './wire';

/** Whether two sets of settings are equal. */
export function same(a: Settings, b: Settings): boolean {
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every(name => a[name] === b[name]);
}

/** All moves from the plan on the screen, as the kernel sent them last. */
export class LookAhead {
  ahead: Ahead = { base: {}, by: {} };

  take({ base, by }: AheadMessage, controls: Positions[]): void {
    const made = Object.entries(by).map(([name, entries]): [string, Entry[]] => {
      const values = controls.find(control => control.name === name)?.values ?? [];
      return [name, entries.slice(0, values.length).map(([follows, plan], index) => {
        const settings = { ...base, ...follows, [name]: values[index]! };
        return typeof plan === 'string' ? { settings, problem: plan } : { settings, costs: plan };
      })];
    });
    this.ahead = { base, by: Object.fromEntries(made) };
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
