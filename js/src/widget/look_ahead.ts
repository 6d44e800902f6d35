import type { Ahead, Entry, Setting, Settings } from './wire';

/** Whether two positions of all controls are the same. */
export function same(a: Settings, b: Settings): boolean {
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every(name => a[name] === b[name]);
}

/**
 * The entry for moving `name` to `value`, if the table knows it: the settings on screen must be the table's base, or one
 * move of this same control away from it.
 */
export function lookUp(ahead: Ahead, screen: Settings, name: string, value: Setting): Entry | undefined {
  const entries = ahead.by[name] ?? [];
  if (!same(screen, ahead.base) && !entries.some(entry => same(entry.settings, screen))) return undefined;
  return entries.find(entry => entry.settings[name] === value);
}
