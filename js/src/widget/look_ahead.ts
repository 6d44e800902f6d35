import type { Ahead, Entry, Setting, Settings } from './wire';

/** Whether two sets of settings are equal. */
export function same(a: Settings, b: Settings): boolean {
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every(name => a[name] === b[name]);
}

/**
 * Entry for moving `name` to `value`. The table has one if the settings on screen are its base, or one move of this
 * control away from it.
 */
export function lookUp(ahead: Ahead, screen: Settings, name: string, value: Setting): Entry | undefined {
  const entries = ahead.by[name] ?? [];
  if (!same(screen, ahead.base) && !entries.some(entry => same(entry.settings, screen))) return undefined;
  return entries.find(entry => entry.settings[name] === value);
}
