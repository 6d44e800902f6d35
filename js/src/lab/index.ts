import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { DisposableSet } from '@lumino/disposable';
import { PRESENT_EVENT, type Outcome } from '../events';
import { addCommands, CommandIDs } from './commands';
import { DEFAULTS, followPreferences, questionOf } from './preferences';
import { renderAdvisors } from './renderer';
import { answerRequests } from './requests';
import { AdvisorPanel } from './starter_form';

const connected = new DisposableSet();

/** Features that a widget cannot have: inserting cells, and entries in palette, launcher, toolbar and sidebar. */
const plugin: JupyterFrontEndPlugin<void> = {
  id: 'smp-advisor:plugin',
  description: 'Starts the SMP Advisor and inserts its cells.',
  autoStart: true,
  requires: [INotebookTracker],
  // Notebook 7 has neither a launcher nor a layout to restore.
  optional: [ITranslator, ICommandPalette, ILauncher, ILayoutRestorer, ISettingRegistry],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    translator: ITranslator | null,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    restorer: ILayoutRestorer | null,
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

    const panel = new AdvisorPanel(trans, async (source, mode) => {
      const command = tracker.currentWidget === null ? CommandIDs.openNotebook : CommandIDs.insertAdvisor;
      return ((await app.commands.execute(command, { source, mode })) as Outcome | undefined) ?? null;
    });
    connected.add(
      followPreferences(registry, plugin.id, changed => {
        preferences = changed;
        panel.fill(questionOf(changed));
      })
    );
    app.shell.add(panel, 'right', { rank: 900 });
    restorer?.add(panel, panel.id);
    connected.add(panel);
  },
  deactivate: () => {
    connected.dispose();
  }
};

export default plugin;
