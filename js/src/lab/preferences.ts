import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import { EXAMPLE, IQuestion } from './starter';

/** The user's settings of the extension, as in `schema/plugin.json`. */
export interface IPreferences {
  instance: string;
  instanceCount: number;
  library: string;
  region: string;
}

export const DEFAULTS: IPreferences = { instance: EXAMPLE.instance, instanceCount: Number(EXAMPLE.count), library: 'auto', region: '' };

/** A new request with the user's instance and library. */
export function questionOf({ instance, instanceCount, library }: IPreferences): IQuestion {
  return { ...EXAMPLE, instance, count: String(instanceCount), library };
}

/**
 * Pass the settings on, now and after each change, until disposed.
 *
 * Views cannot read settings: the page's body has the region for them.
 */
export function followPreferences(
  registry: ISettingRegistry | null,
  plugin: string,
  changed: (preferences: IPreferences) => void
): IDisposable {
  let stop = (): void => undefined;
  const pass = (settings: ISettingRegistry.ISettings | null): void => {
    const preferences = { ...DEFAULTS, ...(settings?.composite as Partial<IPreferences> | undefined) };
    document.body.dataset['smpAdvisorRegion'] = preferences.region;
    changed(preferences);
  };
  registry?.load(plugin).then(
    settings => {
      pass(settings);
      settings.changed.connect(pass);
      stop = () => settings.changed.disconnect(pass);
    },
    () => pass(null)
  );
  return new DisposableDelegate(() => stop());
}
