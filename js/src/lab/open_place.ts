import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { CodeEditor } from '@jupyterlab/codeeditor';
import { PageConfig, PathExt } from '@jupyterlab/coreutils';
import type { Place } from '../events';
import type { IPlace } from './place';

/** Path of findings in the cell with the output. */
const CELL = '<cell>';

/** Show a place in a file, or in the cell itself; false if the file is not in the server's folder. */
export function openPlace(app: JupyterFrontEnd, { panel, index }: IPlace, { path, line, column }: Place): boolean {
  const position = { line: line - 1, column: Math.max(0, column - 1) };
  if (path === CELL) {
    const cell = panel.content.widgets[index]!;
    void panel.content.scrollToCell(cell, 'start').then(() => {
      panel.content.mode = 'edit';
      reveal(cell.editor, position);
    });
    return true;
  }
  const file = pathOnServer(path, PathExt.dirname(panel.context.path), PageConfig.getOption('serverRoot'));
  if (file === null) return false;
  void app.commands.execute('docmanager:open', { path: file, factory: 'Editor' }).then(async widget => {
    // Notebook 7 opens another page and returns nothing.
    await widget?.context?.ready;
    await widget?.content?.ready;
    reveal(widget?.content?.editor, position);
  });
  return true;
}

/** A path of the kernel as a path of the server's contents; null outside of the server's folder. */
export function pathOnServer(path: string, folder: string, root: string): string | null {
  if (!path.startsWith('/')) return PathExt.normalize(PathExt.join(folder, path));
  const prefix = root.endsWith('/') ? root : `${root}/`;
  // A root in the home directory is abbreviated, so it cannot be compared.
  return root !== '' && path.startsWith(prefix) ? path.slice(prefix.length) : null;
}

function reveal(editor: CodeEditor.IEditor | null | undefined, position: CodeEditor.IPosition): void {
  if (!editor) return;
  editor.setCursorPosition(position);
  editor.revealPosition(position);
  editor.focus();
}
