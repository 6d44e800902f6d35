import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { DisposableSet } from '@lumino/disposable';
import { PRESENT_EVENT } from '../events';
import { addCommands, CommandIDs } from './commands';
import { DEFAULTS, followPreferences } from './preferences';
import { renderAdvisors } from './renderer';
import { answerRequests } from './requests';

const connected = new DisposableSet();

/** Features that a widget cannot have: inserting cells, and entries in palette, launcher and toolbar. */
const plugin: JupyterFrontEndPlugin<void> = {
  id: 'smp-advisor:plugin',
  description: 'Starts the SMP Advisor and inserts its cells.',
  autoStart: true,
  requires: [INotebookTracker],
  // Notebook 7 has no launcher.
  optional: [ITranslator, ICommandPalette, ILauncher, ISettingRegistry],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    translator: ITranslator | null,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    registry: ISettingRegistry | null
  ) => {
    const trans = (translator ?? nullTranslator).load('smp-advisor');
    // Views offer what only this extension can do.
    document.body.dataset['smpAdvisor'] = 'present';
    document.dispatchEvent(new Event(PRESENT_EVENT));
    connected.add(answerRequests(app, tracker, trans));
    connected.add(renderAdvisors(tracker, app.started));
    let preferences = DEFAULTS;
    connected.add(addCommands(app, tracker, trans, () => preferences));
    const category = trans.__('SMP Advisor');
    for (const command of [CommandIDs.insertAdvisor, CommandIDs.openNotebook]) {
      if (palette) connected.add(palette.addItem({ command, category }));
    }
    if (launcher) connected.add(launcher.add({ command: CommandIDs.openNotebook, category: 'Notebook', rank: 90 }));

    connected.add(followPreferences(registry, plugin.id, changed => void (preferences = changed)));
  },
  deactivate: () => {
    connected.dispose();
  }
};

export default plugin;
